"""Whether weights are those of the model that a config.json describes.

transformers fills what a file does not have with random numbers and passes over what the model does
not know. Here both are refused, with the names. What legitimately differs is known to transformers
(tied weights, buffers of old files), but for the attention masks in old files of a few families.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msft.engine.model.folders import (
    CONFIG,
    INDEX,
    WEIGHTS,
    refuse_broken_config,
    refuse_broken_weights,
    weight_files,
)
from msft.errors import WrongWeights

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
    """The last names of tensors that a model has whole numbers in, such as tables of its experts.
    Files may have other names before them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=trust_remote_code
            )
    except Exception:  # who loads it says what is wrong
        return set()
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {key.rpartition(".")[2] for key, each in tensors if not each.is_floating_point()}


def first_dtype(name: str) -> str | None:
    """What torch calls the dtype of a model's first floating-point tensor, where its files are
    here; None: they are not, or it has no such tensor."""
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
