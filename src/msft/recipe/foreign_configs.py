"""Configs of Axolotl, LLaMA-Factory, TRL and ms-swift as recipes, key by key.

`foreign_keys` knows what each key means here; this file only adds how values change, and what a
tool does where its config is silent.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msft.checks import shown
from msft.errors import RecipeError
from msft.recipe.blocks import TRACKERS
from msft.recipe.draft import DEFAULT, Draft
from msft.recipe.foreign_adapters import adapter_keys, read_adapter
from msft.recipe.foreign_datasets import DATASETS_OF, READERS
from msft.recipe.foreign_defaults import (
    AXOLOTL,
    CUTS_ROWS,
    DEFAULTS,
    FACTORY,
    NEWER,
    RATES,
    SWIFT,
    TEMPLATED,
    TRL,
    WHOLE_CONVERSATIONS,
)
from msft.recipe.foreign_keys import ALIASES, FOREIGN
from msft.recipe.foreign_refusals import refuse_other_training
from msft.recipe.foreign_steps import STEP_KEYS, Lengths, read_steps
from msft.recipe.recipe import Recipe, recipe_keys


def drafted(config: Any, folder: Path, place: Path, lengths: Lengths = lambda draft: None) -> Draft:
    """The recipe that a config means, as far as msft can do it. RecipeError where it cannot be.

    folder: of the config. place: of the recipe, from which data files are named.
    lengths: of the rows, for a batch that counts packed sequences.
    """
    tool = tool_of(config)
    refuse_other_training(config, tool)
    config = _unfolded(config, tool)
    given = {key: value for key, value in config.items() if not _is_empty(value)}
    draft = Draft(given, folder, tool)
    draft.silent += [key for key in config if key not in given and key != "max_length"]
    draft.keys["method"] = "sft"
    READERS[tool](draft, place)
    read_adapter(draft)
    apart = {*DATASETS_OF, *STEP_KEYS, *adapter_keys(tool)}
    for key, value in given.items():
        if key not in apart and key not in draft.left:
            _key(draft, key, value)
    for key, value in DEFAULTS[tool].items():
        if key == "max_length" and key in config and key not in given:
            _unlimited(draft)
        elif _ours(key) not in draft.keys:
            _key(draft, key, value, DEFAULT)
    if tool == SWIFT:
        draft.keys.setdefault("learning_rate", RATES[draft.keys.get("use_peft", False)])
        draft.remarks["adam_beta2"] = "ms-swift's is 0.95, AdamW's here is the usual 0.999"
        if "max_length" not in draft.keys:
            _unlimited(draft)
    if tool in (FACTORY, NEWER, SWIFT) and "template" not in draft.left:
        draft.remarks["template"] = TEMPLATED
    read_steps(draft, place, lengths)
    if tool == TRL and "completion_only_loss" not in draft.keys:
        draft.remarks["completion_only_loss"] = WHOLE_CONVERSATIONS
    return draft


def tool_of(config: Any) -> str:
    """Whose config this is, by keys that only one of them has."""
    if isinstance(config, Mapping):
        keys = {*config}
        if _is_recipe(config):
            raise RecipeError("this is a recipe of msft already; `msft validate` checks it")
        if "base_model" in keys:
            return AXOLOTL
        swift = {"dataset", "tuner_type", "train_type", "sft_type", "rlhf_type"}
        if "model_name_or_path" not in keys and {"model", "train_dataset"} <= keys:
            return NEWER
        if "model_name_or_path" not in keys and {"model", "model_type"} & keys and swift & keys:
            return SWIFT
        if {"finetuning_type", "stage", "cutoff_len", "dataset_dir", "template"} & keys:
            return FACTORY
        if "model_name_or_path" in keys and "dataset" in keys:
            return FACTORY
        mixtures = {"dataset_name", "datasets", "dataset_mixture", "dataset_mixer"}
        trained = {"learning_rate", "per_device_train_batch_size", "num_train_epochs"}
        if "model_name_or_path" in keys and (mixtures | trained) & keys:
            return TRL
    raise RecipeError(
        "this is no config of Axolotl (it has base_model), LLaMA-Factory (model_name_or_path with "
        "stage, finetuning_type, template or cutoff_len, or model with train_dataset), ms-swift "
        "(model with dataset) or TRL and Alignment Handbook (model_name_or_path with "
        "dataset_name, datasets or dataset_mixture)"
    )


def _is_recipe(config: Mapping[str, Any]) -> bool:
    named = config.get("datasets")
    entries = named if isinstance(named, list) else []
    return any(isinstance(each, Mapping) and {"train", "benchmark"} & {*each} for each in entries)


def _unfolded(config: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Keys inside of keys, and older names of keys, as keys of their own."""
    inside = ("peft_config", "quant_config", "optim_config", "lr_scheduler_config")
    found: dict[str, Any] = {}
    for key, value in config.items():
        if tool == NEWER and key in inside and isinstance(value, Mapping):
            found |= {f"{key}.{name}": each for name, each in value.items()}
        elif tool == SWIFT and key in ("train_type", "sft_type"):
            found["tuner_type"] = value
        else:
            found[key] = value
    return found


def _unlimited(draft: Draft) -> None:
    draft.remarks["max_length"] = (
        f"{draft.tool} cuts no row then; msft leaves out those above max_length, "
        f"{Recipe.max_length} by default"
    )


def _ours(key: str) -> str:
    """Our name of a key that takes the same values, or nothing."""
    if key in recipe_keys():
        return key
    known = FOREIGN[key].ours if key in FOREIGN and FOREIGN[key].renamed else ""
    return ALIASES.get(key) or _INSIDE.get(key) or known


_INSIDE = {
    "optim_config.name": "optim",
    "optim_config.wd": "weight_decay",
    "lr_scheduler_config.name": "lr_scheduler_type",
    "custom_chat_template": "chat_template",
    "enable_activation_checkpointing": "gradient_checkpointing",
}
"""Names in LLaMA-Factory's newer layout."""


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _key(draft: Draft, key: str, value: Any, note: str = "") -> None:
    """A key that stands for itself: ours, another name for one of ours, or not there."""
    ours = _ours(key)
    if key in _MEANINGS:
        _MEANINGS[key](draft, key, value)
    elif not ours:
        (draft.leave if value else draft.silent.append)(key)
    elif ours in _VALUES:
        found = _VALUES[ours](value)
        if found is None:
            now = getattr(Recipe, ours)
            draft.leave(key, f"{ours} here has no {shown(value)}; now it is {now}", changes=True)
        else:
            draft.carry(key, ours, found, note or _changed(value, found))
            if ours == "lr_scheduler_type" and value != found:
                draft.leave(key, f"{ours} here has no {shown(value)}; now it is {found}", True)
    else:
        cut = ours == "max_length" and draft.tool in CUTS_ROWS
        notes = (note, "longer rows are left out, not cut" if cut else "")
        draft.carry(key, ours, value, "; ".join(filter(None, notes)))


def _changed(value: Any, found: Any) -> str:
    return "" if value == found else f"theirs is {shown(value)}"


def _scheduler(value: Any) -> str | None:
    """Ours, or the plain cosine for one of its variants."""
    known = ("constant", "constant_with_warmup", "linear", "cosine")
    if value in known:
        return str(value)
    return "cosine" if str(value).startswith("cosine") else None


_ADAMW = re.compile(
    r"(paged_)?adamw(_torch|_hf|_bnb|_torch_fused|_apex_fused|_torch_xla)?(_32bit)?"
)
_SMALL = re.compile(r"(paged_)?(ao_)?adamw(_torch|_bnb)?_8bit|adamw_bf16|adamw_anyprecision")
"""AdamW, and AdamW whose moments are small."""


def _optimizer(value: Any) -> str | None:
    if _SMALL.fullmatch(str(value)):
        return "adamw_bf16"
    return "adamw" if _ADAMW.fullmatch(str(value)) else None


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
    "torch_compile": _switch,
    "gradient_checkpointing": _recomputed,
    "report_to": _trackers,
}
"""How values of our keys are read from theirs; None: there is no such value here."""


def _prompts(draft: Draft, key: str, value: Any) -> None:
    draft.carry(key, "completion_only_loss", not value)


def _answers(draft: Draft, key: str, value: Any) -> None:
    """TRL's keys that leave prompts out of the loss. The second, where it is off, says nothing."""
    if key == "assistant_only_loss" and not value:
        draft.silent.append(key)
    else:
        draft.carry(key, "completion_only_loss", bool(value))


def _template(draft: Draft, key: str, value: Any) -> None:
    """A file or a text is ours too; a name of a built-in template is not."""
    is_file = str(value).endswith((".jinja", ".jinja2")) or "{%" in str(value)
    if is_file:
        draft.carry(key, "chat_template", value)
    elif value == "tokenizer_default":
        draft.leave(key, "the default")
    else:
        _named_template(draft, key, value)


def _wandb(draft: Draft, key: str, value: Any) -> None:
    if value:
        draft.carry(key, "report_to", "wandb", f"set WANDB_PROJECT={value} in the shell")


def _hub(draft: Draft, key: str, value: Any) -> None:
    draft.carry(key, "hub_model_id", value, "push_to_hub: true uploads the result")


def _scored(draft: Draft, key: str, value: Any) -> None:
    if value:
        draft.carry(key, key, value)
    else:
        draft.leave(key, "msft scores every checkpoint, since it chooses among them")


def _generated(draft: Draft, key: str, value: Any) -> None:
    draft.leave(key, "a key of each sub-dataset here, for a metric that generates")


def _not_recomputed(draft: Draft, key: str, value: Any) -> None:
    draft.carry(key, "gradient_checkpointing", not value)


def _named_template(draft: Draft, key: str, value: Any) -> None:
    draft.leave(
        key,
        f"not {shown(value)}: conversations get the tokenizer's own template (chat_template takes "
        "a .jinja file), and rows with instruction and output get Alpaca's prompt",
        changes=True,
    )


def _adam(draft: Draft, key: str, value: Any) -> None:
    usual = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}[key]
    draft.leave(key, changes=value != usual)


def _special(draft: Draft, key: str, value: Any) -> None:
    """A token for padding is nobody's business, where nothing is padded."""
    if isinstance(value, Mapping) and {*value} <= {"pad_token"}:
        draft.leave(key, "msft pads with no token that is trained")
    else:
        draft.leave(key)


def _changes(draft: Draft, key: str, value: Any) -> None:
    draft.leave(key, changes=True)


def _half(draft: Draft, key: str, value: Any) -> None:
    """Where computing is fp16, it is not meant to be fp32."""
    if _switch(value) is None:
        draft.leave(key, f"bf16 here has no {shown(value)}", changes=True)
    elif value is False and draft.config.get("fp16"):
        draft.leave(key, "fp16 is bf16 here, where the device has it")
    else:
        draft.carry(key, key, value)


def _revision(draft: Draft, key: str, value: Any) -> None:
    (draft.silent.append if value == "main" else draft.leave)(key)


_MEANINGS: dict[str, Callable[[Draft, str, Any], None]] = {
    "train_on_inputs": _prompts,
    "train_on_prompt": _prompts,
    "assistant_only_loss": _answers,
    "completion_only_loss": _answers,
    "evals_per_epoch": _scored,
    "max_new_tokens": _generated,
    "disable_gradient_checkpointing": _not_recomputed,
    "template": _named_template,
    "chat_template": _template,
    "chat_template_path": _template,
    "chat_template_jinja": _template,
    "wandb_project": _wandb,
    "hub_model_id": _hub,
    "special_tokens": _special,
    "bf16": _half,
    "lora_model_dir": _changes,
    "adapter_name_or_path": _changes,
    "unfrozen_parameters": _changes,
    "freeze_trainable_layers": _changes,
    "model_revision": _revision,
    "revision": _revision,
    "revision_of_model": _revision,
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), _adam),
}
"""Keys whose value decides what becomes of them."""
