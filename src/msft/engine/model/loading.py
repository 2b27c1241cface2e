"""Model sources: hub name, local folder, adapter folder, `.gguf` file, `smollm2-135m` and `tiny`.

Weights come from safetensors (or GGUF) only, never from a pickle, and always as fp32: at a
learning rate of 1e-5 most updates of a bf16 weight round to nothing. Code from a model's
repository runs only if the recipe says `trust_remote_code: true`.
"""

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from msft import threads
from msft.engine.adapters import fp8
from msft.engine.adapters.four_bit import packed, unpacked
from msft.engine.model.folders import (
    CONFIG,
    INDEX,
    TINY,
    WEIGHTS,
    adapter_facts,
    base_of,
    import_peft,
    is_adapter,
    refuse_broken_adapter,
    refuse_broken_config,
    refuse_broken_weights,
    refuse_damaged,
    refuse_other_base,
    weight_files,
)
from msft.engine.model.tokenizers import (
    ATTENTION_ERRORS,
    TINY_CONTEXT,
    gguf_header,
    load_tokenizer,
    pretrained,
    unloadable,
)
from msft.engine.packing import NAME as ATTENTION
from msft.errors import Unsuited, WrongWeights

TINY_SEED = 0
AS_FP32 = {"dtype": torch.float32, "use_safetensors": True}
CHECKED = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Options for `from_pretrained` to report tensors that do not fit, so that they can be refused."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What a result can be written in."""
ENDS = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>"),
    *("<|return|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
    *("<EOT>", "</s>", "<eos>", "[EOS]"),
)
"""Names of tokens that end a text or a turn, whatever model they are in."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in fp32 with its tokenizer.

    export_dtype: of the files that are written of it: what it was published in.
    padded: the simple engine may pad rows: each has the loss that it has alone (`isolation.py`).
    """

    model: Any
    tokenizer: Any
    name: str
    export_dtype: torch.dtype = torch.float32
    padded: bool = True

    def exported_in(self, dtype: str) -> "LoadedModel":
        """dtype: a name of `DTYPES`; auto: what it was published in."""
        return replace(self, export_dtype=DTYPES.get(dtype, self.export_dtype))


def load_model(
    name: str,
    device: torch.device,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    own_attention: bool = False,
) -> LoadedModel:
    """Find and load a model; every failure is a RecipeError that says what to do.

    tokenizer: the model's own, where it is loaded already.
    own_attention: the model computes attention as transformers has it, not as `packing.py` does;
        a model that cannot do without is `Unsuited`.
    """
    tokenizer = tokenizer or load_tokenizer(name, trust_remote_code)
    if name != TINY:  # which is computed from no file
        refuse_damaged(name)
    if is_adapter(name):
        host = torch.device("cpu")
        base = load_model(base_of(name), host, trust_remote_code, tokenizer, own_attention)
        refuse_other_base(Path(name))  # now the base is here, wherever it came from
        merged = with_adapter(base.model, Path(name)).to(device)
        return LoadedModel(merged, tokenizer, name, base.export_dtype)
    attention = {} if own_attention else {"attn_implementation": ATTENTION}
    try:
        if name == TINY:
            model = tiny_model(len(tokenizer), **attention)
        else:
            model = _checked_model(name, trust_remote_code, attention)
    except ATTENTION_ERRORS as error:
        if own_attention:
            raise unloadable(name, error) from error
        raise Unsuited(f"it has an attention of its own ({error})") from error
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # GGUF: the weights are plain fp32 now
        model._weight_conversions = None  # it is written as models of its family are
    published = published_dtype(name, trust_remote_code, has_files=True)
    threads.fit(model.num_parameters(), device.type)
    model = model.to(device=device, dtype=torch.float32)
    return LoadedModel(model, tokenizer, name, published)


def published_dtype(name: str, trust_remote_code: bool, has_files: bool = False) -> torch.dtype:
    """The dtype that `from_pretrained` takes a model to have: what its config says, else that of
    its first tensor. fp32 where neither says one of `DTYPES`, and for GGUF, whose numbers
    transformers reads as fp32.

    has_files: the weights are here too; else nobody fetches them to look.
    """
    if name == TINY or gguf_header(name):
        return torch.float32
    if is_adapter(name):
        return published_dtype(base_of(name), trust_remote_code, has_files)
    said = pretrained("AutoConfig", name, trust_remote_code, {}).dtype
    if said is None and has_files:
        said = first_dtype(name)
    return DTYPES.get(str(said).rpartition(".")[2], torch.float32)


def _checked_model(name: str, trust: bool, options: dict[str, Any]) -> Any:
    """A model whose weights are all from its file; WrongWeights says which are not."""
    refuse_other_numbers(name, trust)
    model, found = pretrained(
        "AutoModelForCausalLM", name, trust, {**AS_FP32, **CHECKED, **options}
    )
    refuse_other_type(name, model.config)
    refuse_other_weights(name, model, found)
    return model


def fingerprint_of(weights: Mapping[str, Tensor]) -> str:
    """Name, shape and up to 4,096 numbers of every tensor of a model."""
    digest = sha256()
    for name, weight in weights.items():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].float().cpu().contiguous()
        digest.update(repr((name, tuple(weight.shape))).encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def end_tokens(loaded: LoadedModel) -> list[int]:
    """The tokens that end a text: those that tokenizer and model name, and those that models end
    texts and turns with. A chat model may end with the token of its base, and a base with that of a
    template; its answer is over there, and what it says behind is no part of it."""
    ends = {loaded.tokenizer.eos_token_id}
    added = getattr(loaded.tokenizer, "get_added_vocab", dict)  # not every tokenizer has it
    ends |= {token for name, token in added().items() if name in ENDS}
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends |= set(configured if isinstance(configured, list) else [configured])
    return sorted(end for end in ends if end is not None)


def recompute_activations(model: Any) -> None:
    """Let the model compute its activations again in the backward pass instead of keeping them."""
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.23 and newer
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable()


def tiny_model(vocabulary: int, attn_implementation: str | None = None) -> Any:
    """A random Llama of 410,000 weights, the same on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=TINY_CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    if attn_implementation:
        config._attn_implementation = attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return LlamaForCausalLM(config)


# Whether weights are those of the model that a config.json describes.
#
# transformers fills what a file does not have with random numbers and passes over what the model
# does not know. Here both are refused, with the names. What legitimately differs is known to
# transformers (tied weights, buffers of old files), but for the attention masks in old files of a
# few families.

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Floating-point numbers, as safetensors and torch call them."""
_MASKED = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "codegen"}
_MASKS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$")
_NAMED = 3


def refuse_other_weights(name: str, model: Any, found: Mapping[str, Any]) -> None:
    """WrongWeights where a file's tensors are not exactly the model's.

    found: what `from_pretrained` says with `output_loading_info`.
    """
    masked = model.config.model_type in _MASKED
    extra = [key for key in found["unexpected_keys"] if not (masked and _MASKS.search(key))]
    shapes = [
        f"{key} is {_shape(here)}, not {_shape(expected)}"
        for key, here, expected in found["mismatched_keys"]
    ]
    faults = [
        *_counted(found["missing_keys"], "missing"),
        *_counted(extra, "not the model's"),
        *_counted(shapes, "of another shape"),
        *_counted(found.get("error_msgs") or (), "unreadable"),
    ]
    if faults:
        raise WrongWeights(
            f"model {name!r}: its weights are not those of a {type(model).__name__}, which its "
            f"config.json describes: {'; '.join(faults)}. Get the config.json and the safetensors "
            "of one and the same model"
        )


def refuse_other_type(name: str, config: Any) -> None:
    """WrongWeights where a config.json names the model type of one family and the class of another:
    such families can have tensors of the same names and compute something else with them."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.model_type
    known: dict[str, set[str]] = {}
    for each, classes in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for one in [classes] if isinstance(classes, str) else classes:
            known.setdefault(one, set()).add(each)
    named = [each for each in getattr(config, "architectures", None) or [] if each in known]
    if getattr(config, "auto_map", None) or not named or kind not in set().union(*known.values()):
        return
    if not any(kind in known[each] for each in named):
        raise WrongWeights(
            f"model {name!r}: config.json says model_type {kind}, but architectures "
            f"{', '.join(named)}, which is {' or '.join(sorted(known[named[0]]))}; get the "
            "config.json of this very model"
        )


def refuse_other_numbers(name: str, trust_remote_code: bool = False) -> None:
    """WrongWeights where a local folder's tensors are no floating-point numbers, and the model has
    no tensor of whole numbers by that name. What is quantized says so in its config.json."""
    folder = Path(name)
    if not (folder / CONFIG).is_file():
        return
    refuse_broken_config(folder)
    if "quantization_config" in json.loads((folder / CONFIG).read_bytes()):
        return
    refuse_broken_weights(folder)  # a pipe would be waited for
    from safetensors import SafetensorError, safe_open

    odd = []
    try:
        for path in weight_files(folder):
            with safe_open(path, "pt") as file:
                kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
            odd += [f"{key} is {kind}" for key, kind in kinds.items() if kind not in FLOATS]
    except SafetensorError:
        return  # who loads it says what is wrong
    odd = [each for each in odd if not _MASKS.search(each.split(" ")[0])]
    whole = _whole_numbers(name, trust_remote_code) if odd else set()
    if odd := [each for each in odd if each.split(" ")[0].rpartition(".")[2] not in whole]:
        raise WrongWeights(
            f"model {name!r}: {'; '.join(_counted(odd, 'no weights'))}, expected floating-point "
            "numbers (F32, BF16, F16); get the safetensors of this model as they were published"
        )


def _whole_numbers(name: str, trust_remote_code: bool) -> set[str]:
    """The last parts of the names of tensors of whole numbers, such as tables of experts. Files may
    have other names before the last part."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        model = weightless_model(config, trust_remote_code)
    except Exception:  # who loads it says what is wrong
        return set()
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {key.rpartition(".")[2] for key, each in tensors if not each.is_floating_point()}


def weightless_model(config: Any, trust_remote_code: bool) -> Any:
    """The model of a config on the meta device: shapes, and no numbers."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=trust_remote_code
        )


def first_dtype(name: str) -> str | None:
    """Torch's name of the dtype of a model's first floating-point tensor; None: there is none, or
    the files are not on this machine."""
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    for file in (WEIGHTS, INDEX):
        with suppress(OSError):
            found = cached_file(name, file, local_files_only=True)
            with safe_open(weight_files(Path(str(found)).parent)[0], "pt") as held:
                kinds = [held.get_slice(key).get_dtype() for key in held.keys()]  # noqa: SIM118
            return next((FLOATS[kind] for kind in kinds if kind in FLOATS), None)
    return None


def _counted(keys: Iterable[str], what: str) -> Sequence[str]:
    """`3 tensors are missing (a, b, c)`, or nothing."""
    names = sorted(keys)
    if not names:
        return []
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    count = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return [f"{count} {what} ({shown})"]


def _shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes)) or "a single number"


# An adapter folder as a plain model: its base with the adapter in every weight.


def with_adapter(model: Any, folder: Path) -> Any:
    """The base with the adapter of a folder merged in, in the base's own memory."""
    refuse_broken_adapter(folder)
    peft = import_peft()
    facts = adapter_facts(folder)
    if "load_in_4bit" in facts or "fp8" in facts:
        _round_as_trained(model, bool(facts.get("bf16")), in_fp8="fp8" in facts)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*missing adapter keys", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by old names
        try:
            merged = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
        except (UserWarning, ValueError, RuntimeError, KeyError) as error:
            said = (str(error).strip() or type(error).__name__).split("\n")[0]
            raise WrongWeights(
                f"{folder}: its adapter does not fit its base model: {said[:300]}. Get the "
                "adapter and the model that its adapter_config.json names"
            ) from error
    for parameter in merged.parameters():
        parameter.requires_grad_()
    return merged


def _round_as_trained(model: Any, bf16: bool, in_fp8: bool) -> None:
    """Let the base have the numbers that the adapter was trained with: packed in four bits, or in
    FP8, and unpacked again.

    bf16: the weights were packed from bf16, and unpacked into bf16.
    """
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is nn.Linear and module is not head:
            weight = module.weight.data.to(torch.bfloat16 if bf16 else module.weight.dtype)
            if not in_fp8:
                weight = unpacked(packed(weight), torch.empty_like(weight))
            elif fp8.fits(module):
                weight = fp8.widened(*fp8.rounded(weight), weight.dtype)
            module.weight.data.copy_(weight)
