"""Tokenizers, and what else is known of a model without its weights: its kind, its context, and the
header of a GGUF file. Importing this file imports no torch."""

import importlib
import importlib.util
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache
from io import StringIO
from math import prod
from pathlib import Path
from typing import IO, Any

from msft.data.corpus import Corpus, load_corpus
from msft.data.sources import stay_offline_without_hub
from msft.engine.model.folders import (
    CONFIG,
    PLACE,
    SMOLLM2,
    TINY,
    base_of,
    has_tokenizer,
    is_adapter,
    located,
    refuse_broken_config,
    refuse_broken_tokenizer,
    refuse_broken_weights,
    refuse_missing,
)
from msft.errors import Explained, RecipeError, is_out_of_memory
from msft.recipe.recipe import Recipe
from msft.recipe.templates import fitted
from msft.scoring.metrics import READABLE, refuse_unreadable

TINY_CONTEXT = 512
ATTENTION_ERRORS = (KeyError, AttributeError, NotImplementedError)
"""Errors of a model that cannot be given our attention."""


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer alone; no weights are read."""
    if name == TINY:
        return tiny_tokenizer()
    header = gguf_header(name)
    kind = "PreTrainedTokenizerFast" if header else "AutoTokenizer"  # which reads GGUF twice
    tokenizer = pretrained(kind, name, trust_remote_code, {})
    if header:  # some versions of transformers read another end-of-text token from GGUF
        tokenizer.clean_up_tokenization_spaces = False  # is for WordPiece, and warned about
        end = header[0].get("tokenizer.ggml.eos_token_id")
        if end is not None:
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
        begin_texts(tokenizer, header[0])
        refuse_misread(tokenizer, header[0], name)
    if tokenizer.eos_token_id is None:
        raise RecipeError(f"model {name!r} has a tokenizer without an end-of-text token")
    return tokenizer


def begin_texts(tokenizer: Any, header: dict[str, Any]) -> None:
    """Let a text begin with the token that a GGUF file asks for, which transformers leaves out."""
    begin = header.get("tokenizer.ggml.bos_token_id")
    if begin is None or not header.get("tokenizer.ggml.add_bos_token"):
        return
    from tokenizers.processors import TemplateProcessing

    token = tokenizer.convert_ids_to_tokens(begin)
    tokenizer.bos_token = token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, begin)]
    )


def refuse_misread(tokenizer: Any, header: dict[str, Any], name: str) -> None:
    """RecipeError where transformers would cut text into single letters by a GGUF file of Gemma's.

    Older versions of transformers read the merges in such a file, which have no probabilities, as
    a unigram model.
    """
    core = tokenizer.backend_tokenizer.model
    if str(header.get("general.architecture")).startswith("gemma") and type(core).__name__ != "BPE":
        import transformers

        raise RecipeError(
            f"model_name_or_path {name!r}: transformers {transformers.__version__} reads the "
            "tokenizer of Gemma's GGUF files wrongly; take 5.22 or later, or a folder that it wrote"
        )


def tokenizer_for(recipe: Recipe, name: str) -> Any:
    """The tokenizer of a model, with the recipe's chat template where it has one."""
    tokenizer = load_tokenizer(name, recipe.trust_remote_code)
    template = recipe.template()
    if template is not None:
        tokenizer.chat_template = fitted(template, tokenizer)
    return tokenizer


def load_context(name: str, trust_remote_code: bool = False) -> int | None:
    """The number of positions that a model knows, without its weights; None: its config does not
    say."""
    if name == TINY:
        return TINY_CONTEXT
    header = gguf_header(name)
    places: int | None
    if header:
        places = header[0].get(f"{header[0].get('general.architecture')}.context_length")
        return places
    config = pretrained("AutoConfig", name, trust_remote_code, {})
    wrong = wrong_kind(config)
    if wrong is not None:
        raise RecipeError(f"{name!r}: {wrong}", PLACE)
    places = getattr(config, "max_position_embeddings", None)
    return places


def pretrained(kind: str, name: str, trust: bool, options: dict[str, Any]) -> Any:
    if is_adapter(name) and (kind != "AutoTokenizer" or not has_tokenizer(Path(name))):
        return pretrained(kind, base_of(name), trust, options)
    where, gguf = located(name)
    if not Path(where).is_dir():
        stay_offline_without_hub()
    elif not gguf:
        _refuse_broken(Path(where), kind)
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if gguf:
        options = {**options, "gguf_file": gguf}
        options.pop("use_safetensors", None)
        if importlib.util.find_spec("gguf") is None:
            raise RecipeError(f"{name!r} is a GGUF file; pip install gguf to read it")
    quiet = redirect_stderr(StringIO()) if gguf else nullcontext()  # GGUF has a bar of its own
    try:
        with quiet, read_once() if gguf else nullcontext():
            return getattr(transformers, kind).from_pretrained(
                where, trust_remote_code=trust, **options
            )
    except Exception as error:
        if "/" in name and Path(name).parent.is_dir():
            refuse_missing(name)
        if kind == "AutoModelForCausalLM" and isinstance(error, ATTENTION_ERRORS):
            raise
        raise unloadable(name, error) from error


def unloadable(name: str, error: Exception) -> Exception:
    """The error for a model that a library cannot load; want of memory stays the error it is."""
    if isinstance(error, Explained) or is_out_of_memory(error):
        return error
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    if not isinstance(error, OSError | ValueError):
        said = f"{type(error).__name__}: {said}"
    if "custom code" in said:
        said = "it comes with code of its own, which runs only with trust_remote_code: true"
    look = f"look at {Path(name) / CONFIG}; " if Path(name).is_dir() else ""
    return RecipeError(
        f"model_name_or_path {name!r} cannot be loaded: {said} ({look}expected a folder with "
        f"config.json and safetensors, a .gguf file, a hub name, {SMOLLM2!r} or {TINY!r})"
    )


def _refuse_broken(folder: Path, kind: str) -> None:
    """RecipeError where a file of a folder that this class of transformers reads is broken."""
    if kind != "AutoTokenizer" or (folder / CONFIG).exists():  # which can do without
        refuse_broken_config(folder)
    if kind == "AutoTokenizer":
        refuse_broken_tokenizer(folder)
    if kind == "AutoModelForCausalLM":
        refuse_broken_weights(folder)


def gguf_header(name: str) -> tuple[dict[str, Any], int] | None:
    """The scalars of a GGUF file's header, and the number of weights; None: the model is no GGUF
    file."""
    folder, file = located(name)
    if file is None:
        return None
    try:
        return read_header(Path(folder) / file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise RecipeError(
            f"model_name_or_path {name!r} is no readable GGUF file: {error}"
        ) from error


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_tokenizer() -> Any:
    """One token per byte, so that any text works and nothing has to be downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<eos>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(specials + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    ends = {"eos_token": specials[0], "pad_token": specials[1]}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, model_max_length=TINY_CONTEXT, **ends
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# Kinds of models by their config: what is no decoder-only text model is refused by its name.
OTHER_SENSES = ("vision", "audio", "image", "video", "speech", "vq")
"""Words in the names of configs inside a config, for what is not text."""
ONLY_TEXT = "msft trains text-only decoder models, such as Llama, Qwen or Mamba"


def wrong_kind(config: Any) -> str | None:
    """Why msft does not train models of a config, in words; None: it may be a decoder-only text
    model."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} is an encoder-decoder; {ONLY_TEXT}"
    if _is_multimodal(config):
        return f"{kind} is a multimodal model; {ONLY_TEXT}{_counterpart(config)}"
    if getattr(config, "auto_map", None) or kind in _names("MODEL_FOR_CAUSAL_LM"):
        return None
    if hasattr(config, "vocab_size"):
        return None  # AutoModelForCausalLM says what it does not know
    return f"{kind} is no decoder-only text model; {ONLY_TEXT}"


def wrong_class(model: Any) -> str | None:
    """Why msft does not train a model that is there already, in words."""
    kind = type(model).__name__
    found = wrong_kind(model.config)
    if found is not None:
        return f"the model is a {kind}: {found}"
    if kind in _names("MODEL_FOR_CAUSAL_LM").values() or getattr(model.config, "auto_map", None):
        return None
    if kind not in _other_classes() and model.get_output_embeddings() is not None:
        return None
    return (
        f"the model is a {kind}, which is no causal language model; load it with "
        "AutoModelForCausalLM, and let rows have a prompt and a completion (of a classifier: the "
        "name of the class)"
    )


def _is_multimodal(config: Any) -> bool:
    if any(config.model_type in _names(f"MODEL_FOR_{task}") for task in _MULTIMODAL):
        return True
    inner = [key for key, value in vars(config).items() if hasattr(value, "model_type")]
    return any(word in key for key in inner for word in OTHER_SENSES)


_MULTIMODAL = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "VISION_2_SEQ")
"""Tasks by which transformers knows multimodal models; not every version has all of them."""


def _counterpart(config: Any) -> str:
    """The model of its text alone, where transformers has one."""
    kind = str(getattr(getattr(config, "text_config", None), "model_type", ""))
    classes = _names("MODEL_FOR_CAUSAL_LM").get(kind)
    if classes is None or kind == config.model_type:
        return ""
    found = classes if isinstance(classes, str) else classes[0]
    return f"; its text part is a {kind} model: give a folder or hub name of a {found}"


def _names(task: str) -> dict[str, Any]:
    """Model types and their classes for a task."""
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, f"{task}_MAPPING_NAMES", {}))


def _other_classes() -> set[str]:
    """Classes that transformers has for other tasks."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for name in vars(modeling_auto):
        task = name.removesuffix("_MAPPING_NAMES")
        if task not in (name, "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_PRETRAINING"):
            for classes in _names(task).values():
                found |= {classes} if isinstance(classes, str) else set(classes)
    return found


# GGUF files. transformers reads the whole vocabulary for every question, which takes seconds, and
# makes the table of tensor names anew for every module of a model, which takes as long.
_MAGIC = b"GGUF"
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Types of GGUF by their codes, as `struct` calls them."""
_STRING, _LIST = 8, 9
_LONGEST = 2**24
_MOST_DIMENSIONS = 8
"""A damaged file has lengths beyond all measure, which must not be read."""


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, the package `gguf` reads each file once and makes each table of names once."""
    package = importlib.import_module("gguf")
    names = ("GGUFReader", "get_tensor_name_map")
    before = {name: getattr(package, name) for name in names if hasattr(package, name)}
    try:
        for name, made in before.items():
            setattr(package, name, cache(made))
        yield
    finally:
        for name, made in before.items():
            setattr(package, name, made)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Scalars by their keys (lists are left out), and the number of weights."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        _, tensors, count = _unpacked(file, "IQQ")
        scalars: dict[str, Any] = {}
        for _ in range(count):
            key, value = _string(file), _value(file, *_unpacked(file, "I"))
            if value is not None:
                scalars[key] = value
        return scalars, sum(_weights(file) for _ in range(tensors))


def _weights(file: IO[bytes]) -> int:
    """The number of weights of the next tensor in the header, where its name, dimensions, type and
    offset stand."""
    _string(file)
    (dimensions,) = _unpacked(file, "I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor with {dimensions:,} dimensions")
    shape = _unpacked(file, "Q" * dimensions)
    _unpacked(file, "IQ")
    return prod(shape)


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _LIST:
        return _unpacked(file, _NUMBERS[kind])[0]
    inner, count = _unpacked(file, "IQ")
    if inner in _NUMBERS:
        file.seek(count * struct.calcsize("<" + _NUMBERS[inner]), 1)
    else:
        for _ in range(count):
            _value(file, inner)
    return None


def _string(file: IO[bytes]) -> str:
    (length,) = _unpacked(file, "Q")
    if length > _LONGEST:
        raise ValueError(f"a text of {length:,} bytes")
    return file.read(length).decode("utf-8", "replace")


def _unpacked(file: IO[bytes], layout: str) -> tuple[Any, ...]:
    layout = "<" + layout
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


# What a recipe trains and scores, in the tokens of its model: `msft validate`, `plan`, `eval`,
# `compare` and `train` all begin with `load_rows`.


@dataclass(frozen=True, slots=True)
class Rows:
    """notes: what a person should know of the rows before training."""

    tokenizer: Any
    corpus: Corpus
    notes: tuple[str, ...] = ()


def load_rows(recipe: Recipe, model: str | None = None) -> Rows:
    """The rows of a recipe in the tokens of its model, or of another one."""
    name = model or recipe.model()
    tokenizer = tokenizer_for(recipe, name)
    corpus = load_corpus(recipe, tokenizer, load_context(name, recipe.trust_remote_code))
    if any(dataset.spec.metric.startswith(tuple(READABLE)) for dataset in corpus.datasets.values()):
        refuse_unreadable(corpus)
    return Rows(tokenizer, corpus, corpus.notes)
