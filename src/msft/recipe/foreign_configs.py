"""Configs of Axolotl, LLaMA-Factory and TRL as recipes, key by key.

`foreign_keys` knows what each key means here; this file only adds how values change, and what a
tool does where its config is silent.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msft.checks import shown
from msft.errors import RecipeError
from msft.recipe.blocks import TRACKERS
from msft.recipe.draft import DEFAULT, Draft
from msft.recipe.foreign_datasets import (
    DATASETS_OF,
    axolotl_datasets,
    factory_datasets,
    trl_datasets,
)
from msft.recipe.foreign_keys import ALIASES, FOREIGN
from msft.recipe.recipe import recipe_keys

AXOLOTL, FACTORY, TRL = "Axolotl", "LLaMA-Factory", "TRL"

_HF = {"num_train_epochs": 3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "seed": 42}
DEFAULTS: dict[str, dict[str, Any]] = {
    AXOLOTL: {
        "num_epochs": 1,
        "sequence_len": 512,
        "lr_scheduler": "cosine",
        "max_grad_norm": 1.0,
        "seed": 42,
    },
    FACTORY: {**_HF, "learning_rate": 5e-5, "cutoff_len": 2048},
    TRL: {**_HF, "learning_rate": 2e-5, "max_length": 1024},
}
"""What a tool does where its config says nothing, as far as ours does something else."""
BATCH = {
    AXOLOTL: (("micro_batch_size", 1), ("gradient_accumulation_steps", 1)),
    FACTORY: (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1)),
    TRL: (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1)),
}
"""The factors of a batch on one device, with their defaults."""
LORA = {
    AXOLOTL: {"peft_use_dora": "use_dora", "peft_use_rslora": "use_rslora"},
    FACTORY: {"lora_rank": "lora_r"},
    TRL: {},
}
"""Keys of an adapter that have another name here."""
SAME_LORA = ("lora_r", "lora_alpha", "lora_dropout", "load_in_4bit", "use_dora", "use_rslora")
LORA_DEFAULTS: dict[str, dict[str, Any]] = {
    AXOLOTL: {},
    FACTORY: {"lora_rank": 8},
    TRL: {"lora_dropout": 0.05},
}


def drafted(config: Any, folder: Path, place: Path) -> Draft:
    """The recipe that a config means, as far as msft can do it. RecipeError where it cannot be.

    folder: of the config. place: of the recipe, from which data files are named.
    """
    tool = tool_of(config)
    _refuse_other_training(config)
    draft = Draft({key: value for key, value in config.items() if not _is_empty(value)}, folder)
    draft.silent += [key for key in config if key not in draft.config]
    draft.keys["method"] = "sft"
    {AXOLOTL: axolotl_datasets, FACTORY: factory_datasets, TRL: trl_datasets}[tool](draft, place)
    _batch(draft, tool)
    _adapter(draft, tool)
    apart = {*DATASETS_OF, *(key for key, _ in BATCH[tool]), *_adapter_keys(tool)}
    for key, value in draft.config.items():
        if key not in apart and key not in draft.left:
            _key(draft, key, value)
    for key, value in DEFAULTS[tool].items():
        if ALIASES.get(key, FOREIGN[key].ours if key in FOREIGN else key) not in draft.keys:
            _key(draft, key, value, DEFAULT)
    return draft


def tool_of(config: Any) -> str:
    """Whose config this is, by keys that only one of them has."""
    if isinstance(config, Mapping):
        if "base_model" in config:
            return AXOLOTL
        if {"finetuning_type", "stage", "cutoff_len", "dataset_dir", "template"} & {*config}:
            return FACTORY
        if "model_name_or_path" in config and {"dataset_name", "datasets"} & {*config}:
            return TRL
    raise RecipeError(
        "this is no config of Axolotl (it has base_model), LLaMA-Factory (model_name_or_path with "
        "stage, finetuning_type, template or cutoff_len) or TRL (model_name_or_path with "
        "dataset_name or datasets)"
    )


def _refuse_other_training(config: Mapping[str, Any]) -> None:
    stage, method = config.get("stage", "sft"), config.get("rl")
    if stage != "sft" or method:
        raise RecipeError(
            f"it asks for {shown(method or stage)}, but msft does supervised fine-tuning only "
            "(stage: sft)"
        )


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _key(draft: Draft, key: str, value: Any, note: str = "") -> None:
    """A key that stands for itself: ours, another name for one of ours, or not there."""
    ours = ALIASES.get(key) or (key if key in recipe_keys() else "")
    if not ours and key in FOREIGN and FOREIGN[key].renamed:
        ours = FOREIGN[key].ours
    if key in _MEANINGS:
        _MEANINGS[key](draft, key, value)
    elif not ours:
        (draft.silent.append if value is False else draft.leave)(key)
    elif ours in _VALUES:
        found = _VALUES[ours](value)
        if found is None:
            draft.leave(key, f"{ours} here has no {shown(value)}")
        else:
            draft.carry(key, ours, found, note or _changed(value, found))
    else:
        draft.carry(key, ours, value, note)


def _changed(value: Any, found: Any) -> str:
    return "" if value == found else f"theirs is {shown(value)}"


def _batch(draft: Draft, tool: str) -> None:
    rows = 1
    for key, default in BATCH[tool]:
        found = draft.config.get(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise RecipeError(f"{key} is {shown(found)}; expected a whole number above 0")
        rows *= found
    names = " × ".join(key for key, _ in BATCH[tool])
    draft.carry(names, "train_batch_size", rows, "on one device; times the devices you used")


def _adapter_keys(tool: str) -> set[str]:
    own = {"adapter", "finetuning_type", "use_peft", "quantization_bit", "lora_target_linear"}
    return {*own, "lora_target", "lora_target_modules", *LORA[tool], *SAME_LORA}


def _adapter(draft: Draft, tool: str) -> None:
    """LoRA and its relatives; without them all weights are trained, in all of these tools."""
    config, given = draft.config, [key for key in draft.config if key in _adapter_keys(tool)]
    kind = config.get("adapter", config.get("finetuning_type", config.get("use_peft")))
    switch = next((key for key in ("adapter", "finetuning_type", "use_peft") if key in given), "")
    if kind not in (True, "lora", "qlora") or "use_peft" not in recipe_keys():
        for key in given:
            off = config[key] in (False, "full")
            why = "" if kind in (True, "lora", "qlora") else "there is no adapter to apply it to"
            why = f"msft has no {shown(kind)}" if key == switch and kind not in _KINDS else why
            (draft.silent.append if off else lambda name, why=why: draft.leave(name, why))(key)
        return
    draft.carry(switch, "use_peft", True, _changed(True, kind))
    for key, value in {**LORA_DEFAULTS[tool], **config}.items():
        ours = LORA[tool].get(key, key if key in SAME_LORA else "")
        if ours:
            draft.carry(key, ours, value, "" if key in config else DEFAULT)
    if kind == "qlora" and "load_in_4bit" not in config:
        draft.carry(switch, "load_in_4bit", True)
    bits = config.get("quantization_bit")
    if bits == 4:
        draft.carry("quantization_bit", "load_in_4bit", True)
    elif bits is not None:
        draft.leave("quantization_bit", f"the base is in 4 bits or in bf16, not in {shown(bits)}")
    if tool == FACTORY and "lora_alpha" not in config:
        draft.carry("lora_alpha", "lora_alpha", 2 * draft.keys["lora_r"], DEFAULT)
    _targets(draft)
    told = {each.theirs for each in draft.carried}
    for key in given:
        if key not in told and key not in draft.left:
            (draft.silent.append if config[key] is False else draft.leave)(key)


_KINDS = (True, False, None, "lora", "qlora", "full")


def _targets(draft: Draft) -> None:
    config, ours = draft.config, "lora_target_modules"
    every = "all-linear"
    if config.get("lora_target_linear") is True or config.get("lora_target") == "all":
        key = "lora_target" if "lora_target" in config else "lora_target_linear"
        draft.carry(key, ours, every)
        if ours in config:
            draft.leave(ours, f"{key} names every linear layer already")
    elif "lora_target" in config:
        draft.carry(
            "lora_target", ours, [name.strip() for name in str(config["lora_target"]).split(",")]
        )
    elif ours in config:
        draft.carry(ours, ours, config[ours])


def _scheduler(value: Any) -> str | None:
    known = ("constant", "constant_with_warmup", "linear", "cosine")
    return value if value in known else None


def _optimizer(value: Any) -> str | None:
    name = str(value).removeprefix("paged_")
    if not name.startswith("adamw"):
        return None
    return "adamw_bf16" if "8bit" in name or name == "adamw_bf16" else "adamw"


def _switch(value: Any) -> Any:
    return value if value in (True, False, "auto") else None


def _recomputed(value: Any) -> bool:
    return value not in (False, "false")


def _trackers(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = [name for name in names if name in (*TRACKERS, "none")]
    return (known[0] if len(known) == 1 else known) if known else None


_VALUES: dict[str, Callable[[Any], Any]] = {
    "lr_scheduler_type": _scheduler,
    "optim": _optimizer,
    "bf16": _switch,
    "torch_compile": _switch,
    "gradient_checkpointing": _recomputed,
    "report_to": _trackers,
}
"""How values of our keys are read from theirs; None: there is no such value here."""


def _prompts(draft: Draft, key: str, value: Any) -> None:
    trained = key != "assistant_only_loss" and bool(value)
    draft.carry(key, "completion_only_loss", not trained)


def _template(draft: Draft, key: str, value: Any) -> None:
    """A file or a text is ours too; a name of a built-in template is not."""
    is_file = str(value).endswith((".jinja", ".jinja2")) or "{%" in str(value)
    if is_file:
        draft.carry(key, "chat_template", value)
    else:
        draft.leave(key, FOREIGN["template"].answer)


def _wandb(draft: Draft, key: str, value: Any) -> None:
    if value:
        draft.carry(key, "report_to", "wandb", f"set WANDB_PROJECT={value} in the shell")


def _hub(draft: Draft, key: str, value: Any) -> None:
    draft.carry(key, "hub_model_id", value, "push_to_hub: true uploads the result")


def _steps(draft: Draft, key: str, value: Any) -> None:
    if isinstance(value, int) and value < 0:
        draft.silent.append(key)
    else:
        draft.leave(key)


_MEANINGS: dict[str, Callable[[Draft, str, Any], None]] = {
    "train_on_inputs": _prompts,
    "train_on_prompt": _prompts,
    "assistant_only_loss": _prompts,
    "chat_template": _template,
    "chat_template_path": _template,
    "chat_template_jinja": _template,
    "wandb_project": _wandb,
    "hub_model_id": _hub,
    "max_steps": _steps,
}
"""Keys whose value decides what becomes of them."""
