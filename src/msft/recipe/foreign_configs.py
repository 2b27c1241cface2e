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
from msft.recipe.foreign_adapters import adapter_keys, read_adapter
from msft.recipe.foreign_datasets import (
    DATASETS_OF,
    axolotl_datasets,
    factory_datasets,
    trl_datasets,
)
from msft.recipe.foreign_defaults import (
    AXOLOTL,
    BATCH,
    CUTS_ROWS,
    DEFAULTS,
    FACTORY,
    TRL,
    WHOLE_CONVERSATIONS,
)
from msft.recipe.foreign_keys import ALIASES, FOREIGN
from msft.recipe.foreign_warmup import WARM_UP_KEYS, read_warm_up
from msft.recipe.recipe import Recipe, recipe_keys


def drafted(config: Any, folder: Path, place: Path) -> Draft:
    """The recipe that a config means, as far as msft can do it. RecipeError where it cannot be.

    folder: of the config. place: of the recipe, from which data files are named.
    """
    tool = tool_of(config)
    _refuse_other_training(config)
    given = {key: value for key, value in config.items() if not _is_empty(value)}
    draft = Draft(given, folder, tool)
    draft.silent += [key for key in config if key not in given and key != "max_length"]
    draft.keys["method"] = "sft"
    {AXOLOTL: axolotl_datasets, FACTORY: factory_datasets, TRL: trl_datasets}[tool](draft, place)
    _batch(draft)
    read_adapter(draft)
    apart = {*DATASETS_OF, *_BATCH_KEYS, *WARM_UP_KEYS, *adapter_keys(tool)}
    for key, value in given.items():
        if key not in apart and key not in draft.left:
            _key(draft, key, value)
    for key, value in DEFAULTS[tool].items():
        if key == "max_length" and key in config and key not in given:
            draft.remarks[key] = (
                "TRL cuts no row then; msft leaves out those above max_length, "
                f"{Recipe.max_length} by default"
            )
        elif ALIASES.get(key, FOREIGN[key].ours if key in FOREIGN else key) not in draft.keys:
            _key(draft, key, value, DEFAULT)
    read_warm_up(draft, place)
    if tool == TRL and "completion_only_loss" not in draft.keys:
        draft.remarks["completion_only_loss"] = WHOLE_CONVERSATIONS
    return draft


def tool_of(config: Any) -> str:
    """Whose config this is, by keys that only one of them has."""
    if isinstance(config, Mapping):
        if _is_ours(config):
            raise RecipeError("this is a recipe of msft already; `msft validate` checks it")
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


def _is_ours(config: Mapping[str, Any]) -> bool:
    named = config.get("datasets")
    entries = named if isinstance(named, list) else []
    return any(isinstance(each, Mapping) and {"train", "benchmark"} & {*each} for each in entries)


def _refuse_other_training(config: Mapping[str, Any]) -> None:
    stage = config.get("stage", "sft")
    asked = config.get("rl") or (stage if stage != "sft" else "")
    for key in ("pretraining_dataset", "reward_model", "process_reward_model"):
        asked = asked or (key if config.get(key) else "")
    if asked:
        raise RecipeError(
            f"it asks for {shown(asked)}, but msft does supervised fine-tuning only (stage: sft)"
        )
    if config.get("do_predict") and not config.get("do_train"):
        raise RecipeError(
            "it trains nothing (do_predict without do_train); `msft eval MODEL RECIPE` scores a "
            "model on the sub-datasets of a recipe"
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
        cut = ours == "max_length" and draft.tool in CUTS_ROWS
        notes = (note, "longer rows are left out, not cut" if cut else "")
        draft.carry(key, ours, value, "; ".join(filter(None, notes)))


def _changed(value: Any, found: Any) -> str:
    return "" if value == found else f"theirs is {shown(value)}"


_BATCH_KEYS = {"batch_size", *(key for factors in BATCH.values() for key, _ in factors)}


def _batch(draft: Draft) -> None:
    """The rows of a step. Axolotl's `batch_size` is all of them, in steps of `micro_batch_size`."""
    factors = BATCH[draft.tool]
    if draft.tool == AXOLOTL and "batch_size" in draft.config:
        if "gradient_accumulation_steps" in draft.config:
            draft.leave("batch_size", "gradient_accumulation_steps says it")
        else:
            factors = (("batch_size", 1),)
    if "micro_batch_size" in draft.config and factors[0][0] == "batch_size":
        draft.leave("micro_batch_size", "msft chooses micro-batches by itself")
    rows = 1
    for key, default in factors:
        found = draft.config.get(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise RecipeError(f"{key} is {shown(found)}; expected a whole number above 0")
        rows *= found
    names = " × ".join(key for key, _ in factors)
    draft.carry(names, "train_batch_size", rows, "on one device; times the devices you used")


def _scheduler(value: Any) -> str | None:
    """Ours, or the plain cosine for one of its variants."""
    known = ("constant", "constant_with_warmup", "linear", "cosine")
    if value in known:
        return str(value)
    return "cosine" if str(value).startswith("cosine") else None


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
    else:
        draft.leave(key, FOREIGN["template"].answer)


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
        "conversations get the tokenizer's own template (chat_template takes a .jinja file); rows "
        "with instruction and output get Alpaca's prompt",
    )


def _steps(draft: Draft, key: str, value: Any) -> None:
    if isinstance(value, int) and value < 0:
        draft.silent.append(key)
    else:
        draft.leave(key)


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
    "max_steps": _steps,
}
"""Keys whose value decides what becomes of them."""
