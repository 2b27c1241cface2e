"""The adapter of another tool's config as ours."""

import re
from collections.abc import Callable
from typing import Any

from msft.checks import shown
from msft.recipe.draft import DEFAULT, Draft
from msft.recipe.foreign_defaults import (
    ADAPTER,
    AXOLOTL,
    FACTORY,
    LORA_DEFAULTS,
    NEWER,
    SWIFT,
    TRL,
)

_NAMES = {
    AXOLOTL: {"peft_use_dora": "use_dora", "peft_use_rslora": "use_rslora"},
    FACTORY: {"lora_rank": "lora_r"},
    TRL: {},
    SWIFT: {"lora_rank": "lora_r"},
    NEWER: {
        "peft_config.r": "lora_r",
        **{f"peft_config.{key}": key for key in ("lora_alpha", "lora_dropout")},
        **{f"peft_config.{key}": key for key in ("use_dora", "use_rslora")},
    },
}
"""Keys that have another name here."""
_SAME = ("lora_r", "lora_alpha", "lora_dropout", "load_in_4bit", "use_dora", "use_rslora")
_SWITCHES = {
    AXOLOTL: "adapter",
    FACTORY: "finetuning_type",
    TRL: "use_peft",
    SWIFT: "tuner_type",
    NEWER: "peft_config.name",
}
_BITS = ("quantization_bit", "quant_bits", "quant_config.quantization_bit")
_LORA = (True, "lora", "qlora")
_TARGETS = "lora_target_modules"


def adapter_keys(tool: str) -> set[str]:
    """Keys that are read here."""
    return {_SWITCHES[tool], *_BITS, *_TARGETS_OF, *_NAMES[tool], *_SAME}


def read_adapter(draft: Draft) -> None:
    """LoRA and its relatives, or all weights."""
    config, tool, switch = draft.config, draft.tool, _SWITCHES[draft.tool]
    kind = config.get(switch, ADAPTER[tool])
    given = [key for key in config if key in adapter_keys(tool)]
    if kind not in _LORA:
        _read_none(draft, given, kind)
        return
    draft.carry(switch, "use_peft", True, _told(kind) if switch in config else DEFAULT)
    for key, value in {**LORA_DEFAULTS[tool], **config}.items():
        ours = _NAMES[tool].get(key, key if key in _SAME else "")
        if ours:
            draft.carry(key, ours, value, "" if key in config else DEFAULT)
    if kind == "qlora" and "load_in_4bit" not in config:
        draft.carry(switch, "load_in_4bit", True, _told(kind))
    for key in [key for key in _BITS if config.get(key) is not None]:
        bits = config[key]
        if bits == 4:
            draft.carry(key, "load_in_4bit", True, "theirs is 4")
        else:
            why = f"the base is in 4 bits or in bf16, not in {shown(bits)}"
            draft.leave(key, why, changes=True)
    if tool == FACTORY and "lora_alpha" not in config:
        draft.carry("lora_alpha", "lora_alpha", 2 * draft.keys["lora_r"], DEFAULT)
    _read_targets(draft)
    told = {each.theirs for each in draft.carried}
    for key in given:
        if key not in told and key not in draft.left:
            (draft.silent.append if config[key] is False else draft.leave)(key)


def _told(kind: Any) -> str:
    return "" if kind is True else f"theirs is {kind}"


def _read_none(draft: Draft, given: list[str], kind: Any) -> None:
    """Keys of an adapter where there is none, or none that msft has."""
    switch = _SWITCHES[draft.tool]
    for key in given:
        if key == switch and kind not in (False, None, "full"):
            why = f"msft has no {shown(kind)}: this recipe trains all weights"
            draft.leave(key, why, changes=True)
        elif draft.config[key] == "full":
            draft.carry(key, "use_peft", False, _told(kind))
        elif draft.config[key] is False:
            draft.silent.append(key)
        else:
            draft.leave(key, "there is no adapter to apply it to")


def _read_targets(draft: Draft) -> None:
    config, every = draft.config, "all-linear"
    keys = [key for key in _TARGETS_OF if config.get(key)]
    if not keys:
        found = LORA_DEFAULTS[draft.tool].get(_TARGETS)
        if found:
            draft.carry(_TARGETS, _TARGETS, found, f"{DEFAULT}, of most models")
        return
    first, *rest = keys
    _TARGETS_OF[first](draft, first)
    for key in rest:
        draft.leave(key, f"{first} is {every} already")


def _read_linear(draft: Draft, key: str) -> None:
    draft.carry(key, _TARGETS, "all-linear")


def _read_names(draft: Draft, key: str) -> None:
    """Names in a list or between commas; `all` and `all-linear` mean every one."""
    found = draft.config[key]
    names = found if isinstance(found, list) else [name.strip() for name in str(found).split(",")]
    if names in (["all"], ["all-linear"]):
        draft.carry(key, _TARGETS, "all-linear")
    elif all(re.fullmatch(r"[\w.]+", str(name)) for name in names):
        draft.carry(key, _TARGETS, names)
    else:
        why = "a pattern; msft takes names of layers, and this recipe has all-linear"
        draft.leave(key, why, changes=True)


_TARGETS_OF: dict[str, Callable[[Draft, str], None]] = {
    "lora_target_linear": _read_linear,
    "lora_target": _read_names,
    _TARGETS: _read_names,
    "target_modules": _read_names,
    "peft_config.target_modules": _read_names,
}
