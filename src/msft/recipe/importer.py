"""Configs of Axolotl, LLaMA-Factory and TRL as recipes, key by key.

`foreign_keys.py` knows what each key means here, `draft.py` what a tool does where its config is
silent. This file adds how values change: of single keys, of the adapter, and of everything that is
counted in steps (batch, length, warm-up).
"""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from msft.errors import RecipeError
from msft.recipe.draft import (
    AXOLOTL,
    DEFAULT,
    FACTORY,
    NEWER,
    TOOLS,
    TRL,
    Draft,
    Tool,
    refuse_other_training,
)
from msft.recipe.foreign_keys import ALIASES, FOREIGN
from msft.recipe.importer_datasets import DATASETS_OF, READERS
from msft.recipe.keys import ALL_LINEAR, TRACKERS
from msft.recipe.recipe import Recipe, recipe_keys
from msft.recipe.templates import TEMPLATES
from msft.text import shown

Lengths = Callable[[Draft], tuple[Sequence[int], str] | None]
"""Tokens of rows that stand for all rows of a mixture, and how they were counted; None where the
rows cannot be read."""


TEMPLATING = (FACTORY, NEWER)
TEMPLATED = (
    "they write rows with instruction and output as turns of a conversation, by the model's "
    "template; msft gives those rows Alpaca's prompt: format: chat in each sub-dataset writes turns"
)
WHOLE_CONVERSATIONS = (
    "TRL trains on all of a conversation, and on the completion alone where rows have a prompt and "
    "a completion; msft on answers only: completion_only_loss: false adds the prompts"
)


def drafted(config: Any, folder: Path, place: Path, lengths: Lengths = lambda draft: None) -> Draft:
    """The recipe that a config means, as far as msft can do it. RecipeError where it cannot be.

    folder: of the config. place: of the recipe, from which data files are named.
    lengths: of the rows, for a batch that counts packed sequences.
    """
    tool = tool_of(config)
    refuse_other_training(config, tool)
    config = _unfolded(config, tool)
    given = {key: value for key, value in config.items() if value not in (None, "", [], {})}
    draft = Draft(given, folder, place, tool)
    draft.silent += [key for key in config if key not in given and key != "max_length"]
    draft.keys["method"] = "sft"
    READERS[tool.name](draft)
    read_adapter(draft)
    apart = {*DATASETS_OF, *STEP_KEYS, *adapter_keys(tool)}
    for key, value in sorted(given.items(), key=lambda item: item[0] != "template"):
        if key not in apart and key not in draft.left:
            _key(draft, key, value)
    for key, value in tool.defaults.items():
        if key == "max_length" and key in config and key not in given:
            _unlimited(draft)
        elif _ours(key) not in draft.keys:
            _key(draft, key, value, DEFAULT)
    if tool in TEMPLATING and "template" not in draft.config:
        draft.remarks["template"] = TEMPLATED
    read_steps(draft, lengths)
    if tool is TRL and "completion_only_loss" not in draft.keys:
        draft.remarks["completion_only_loss"] = WHOLE_CONVERSATIONS
    return draft


def tool_of(config: Any) -> Tool:
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
            raise RecipeError(
                "this is a config of ms-swift, which msft does not read; docs/coming-from.md has "
                "the keys, which are like TRL's"
            )
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
        "stage, finetuning_type, template or cutoff_len, or model with train_dataset) or TRL and "
        "Alignment Handbook (model_name_or_path with dataset_name, datasets or dataset_mixture)"
    )


def _is_recipe(config: Mapping[str, Any]) -> bool:
    named = config.get("datasets")
    entries = named if isinstance(named, list) else []
    return any(isinstance(each, Mapping) and {"train", "benchmark"} & {*each} for each in entries)


def _unfolded(config: Mapping[str, Any], tool: Tool) -> dict[str, Any]:
    """Keys inside of keys, and older names of keys, as keys of their own."""
    inside = ("peft_config", "quant_config", "optim_config", "lr_scheduler_config")
    found: dict[str, Any] = {}
    for key, value in config.items():
        if tool is NEWER and key in inside and isinstance(value, Mapping):
            found |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            found[key] = value
    return found


def _unlimited(draft: Draft) -> None:
    draft.remarks["max_length"] = (
        f"{draft.tool} cuts no row then; msft leaves out those above max_length, "
        f"{Recipe.max_length} by default"
    )


# Single keys


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


def _key(draft: Draft, key: str, value: Any, note: str = "") -> None:
    """Read a key by itself: one of ours, another name for one of ours, or one that msft lacks."""
    ours = _ours(key)
    if _by_value(draft, key, value):
        return
    if not ours:
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
        cut = ours == "max_length" and draft.tool.cuts_rows
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


def _trackers(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    known = [name for name in names if name in (*TRACKERS, "none")]
    return (known[0] if len(known) == 1 else known) if known else None


_VALUES: dict[str, Callable[[Any], Any]] = {
    "lr_scheduler_type": _scheduler,
    "optim": _optimizer,
    "torch_compile": _switch,
    "gradient_checkpointing": lambda value: value not in (False, "false"),
    "report_to": _trackers,
}
"""How values of our keys are read from theirs; None: there is no such value here."""


def _by_value(draft: Draft, key: str, value: Any) -> bool:
    """Read a key whose value decides what becomes of it; False where it is none of these."""
    usual = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
    match key:
        case "train_on_inputs" | "train_on_prompt":
            draft.carry(key, "completion_only_loss", not value)
        case "prompt_loss_weight" if type(value) in (int, float) and 0 <= value <= 1:
            draft.carry(key, key, value)
        case "prompt_loss_weight":
            draft.leave(key, "expected a number from 0 to 1", True)
        case "assistant_only_loss" if not value:  # off, it says nothing about prompts
            draft.silent.append(key)
        case "assistant_only_loss" | "completion_only_loss":
            draft.carry(key, "completion_only_loss", bool(value))
        case "disable_gradient_checkpointing":
            draft.carry(key, "gradient_checkpointing", not value)
        case "evals_per_epoch" if value:
            draft.carry(key, key, value)
        case "evals_per_epoch":
            draft.leave(key, "msft scores every checkpoint, since it chooses among them")
        case "early_stopping_patience" | "early_stopping_steps":
            if type(value) is int and value > 0:
                note = "evaluations in a row without a better mean over sub-datasets"
                draft.carry(key, "early_stopping_patience", value, note)
            elif value:
                draft.leave(key, "expected a number of evaluations", changes=True)
            else:
                draft.silent.append(key)
        case "max_new_tokens":
            draft.leave(key, "a key of each sub-dataset here, for a metric that generates")
        case "wandb_project" if value:
            draft.carry(key, "report_to", "wandb", f"set WANDB_PROJECT={value} in the shell")
        case "wandb_project":
            pass
        case "hub_model_id":
            draft.carry(key, key, value, "push_to_hub: true uploads the result")
        case "template" | "chat_template" | "chat_template_path" | "chat_template_jinja":
            _read_template(draft, key, value)
        case "default_system" | "default_system_message" | "default_system_prompt" | "system":
            _read_chat(draft, key, "system_prompt", value)
        case "enable_thinking" if "chat_template" not in draft.keys:
            _read_chat(draft, key, "chat_template_kwargs", {key: value})
        case "dataset_text_field" if value != "text":
            for spec in [spec for spec in draft.datasets if "columns" not in spec]:
                spec["columns"] = {"text": value}
            draft.carry_data(key, "columns", f"{{text: {value}}}")
        case "special_tokens" if isinstance(value, Mapping) and {*value} <= {"pad_token"}:
            draft.leave(key, "msft pads with no token that is trained")
        case "bf16" if _switch(value) is None:
            draft.leave(key, f"bf16 here has no {shown(value)}", changes=True)
        case "bf16" if value is False and draft.config.get("fp16"):  # it is not meant to be fp32
            draft.leave(key, "fp16 is bf16 here, where the device has it")
        case "bf16":
            draft.carry(key, key, value)
        case "adam_beta1" | "adam_beta2" | "adam_epsilon":
            draft.leave(key, changes=value != usual[key])
        case "lora_model_dir" | "adapter_name_or_path":
            draft.leave(key, changes=True)
        case "unfrozen_parameters" | "freeze_trainable_layers":
            draft.leave(key, changes=True)
        case "model_revision" | "revision" | "revision_of_model" if value == "main":
            draft.silent.append(key)
        case _:
            return False
    return True


_NAMED = {
    **{name: name for name in TEMPLATES},
    "qwen_25": "qwen",
    "qwen2": "qwen",
    "qwen2_5": "qwen",
    "mistral_v1": "mistral",
    "gemma2": "gemma",
    "gemma3": "gemma",
}
"""Other tools' names of templates that we have."""
_PLAIN_PROMPTS = ("default", "alpaca", "empty", "fewshot", "vanilla", "default-generation")
"""Names of templates that are no turns of a model's."""


def _read_template(draft: Draft, key: str, value: Any) -> None:
    """A file or a text is a template here too, and some names of templates are ours."""
    name, is_file = str(value), str(value).endswith((".jinja", ".jinja2")) or "{%" in str(value)
    all_rows = draft.tool in TEMPLATING and key == "template" and name not in _PLAIN_PROMPTS
    if is_file and key != "template":
        draft.carry(key, "chat_template", value)
    elif value == "tokenizer_default" and key != "template":
        draft.leave(key, "the default")
    elif name in _NAMED:
        draft.carry(key, "chat_template", _NAMED[name], _changed(value, _NAMED[name]))
    else:
        more = "" if all_rows else ", and rows with instruction and output get Alpaca's prompt"
        why = (
            f"not {shown(value)}: conversations get the tokenizer's own template (chat_template "
            f"takes a name or a .jinja file){more}"
        )
        draft.leave(key, why, changes=True)
    if all_rows:
        for spec in draft.datasets:
            spec["format"] = "chat"
        draft.carry_data(key, "format", "chat")


def _read_chat(draft: Draft, key: str, ours: str, value: Any) -> None:
    """A system prompt, or a variable of the template, for every sub-dataset of conversations."""
    named = [spec for spec in draft.datasets if spec["name"] in draft.turns]
    turns = [*named, *(spec for spec in draft.datasets if spec.get("format") and spec not in named)]
    for spec in turns:
        spec[ours] = value
    if turns:
        draft.carry_data(key, ours, value)
    else:
        draft.leave(key, changes=True)


# The adapter

_SAME = ("lora_r", "lora_alpha", "lora_dropout", "load_in_4bit", "fp8", "use_dora", "use_rslora")
_BITS = ("quantization_bit", "quant_config.quantization_bit")
_LORA = (True, "lora", "qlora")
_TARGETS = "lora_target_modules"
_TARGET_KEYS = (
    *("lora_target_linear", "lora_target", _TARGETS),
    *("target_modules", "peft_config.target_modules"),
)


def adapter_keys(tool: Tool) -> set[str]:
    """The keys that `read_adapter` reads."""
    return {tool.switch, *_BITS, *_TARGET_KEYS, *tool.adapter_names, *_SAME}


def read_adapter(draft: Draft) -> None:
    """LoRA and its relatives, or all weights."""
    config, tool, switch = draft.config, draft.tool, draft.tool.switch
    kind = config.get(switch, tool.adapter)
    given = [key for key in config if key in adapter_keys(tool)]
    if kind not in _LORA:
        _read_none(draft, given, kind)
        return
    draft.carry(switch, "use_peft", True, _told(kind) if switch in config else DEFAULT)
    for key, value in {**tool.adapter_defaults, **config}.items():
        ours = tool.adapter_names.get(key, key if key in _SAME else "")
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
    if tool is FACTORY and "lora_alpha" not in config:
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
    switch = draft.tool.switch
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
    """Names in a list or between commas; `all` and `all-linear` mean every layer."""
    given = [key for key in _TARGET_KEYS if draft.config.get(key)]
    if not given:
        usual = draft.tool.adapter_defaults.get(_TARGETS)
        if usual:
            draft.carry(_TARGETS, _TARGETS, usual, f"{DEFAULT}, of most models")
        return
    key, *rest = given
    found = draft.config[key]
    names = found if isinstance(found, list) else [name.strip() for name in str(found).split(",")]
    if key == "lora_target_linear" or names in (["all"], [ALL_LINEAR]):
        draft.carry(key, _TARGETS, ALL_LINEAR)
    elif all(re.fullmatch(r"[\w.]+", str(name)) for name in names):
        draft.carry(key, _TARGETS, names)
    else:
        why = "a pattern; msft takes names of layers, and this recipe has all-linear"
        draft.leave(key, why, changes=True)
    for other in rest:
        draft.leave(other, f"{key} is {ALL_LINEAR} already")


# What is counted in steps: batch, length, warm-up

_WARM_UP_KEYS = ("warmup_steps", "warmup_ratio")
STEP_KEYS = {
    *(*_WARM_UP_KEYS, "max_steps", "batch_size", "global_batch_size"),
    *(key for tool in TOOLS for key, _ in tool.batch),
}
"""The keys that `read_steps` reads."""


def read_steps(draft: Draft, lengths: Lengths) -> None:
    """All other keys have been read."""
    for key in ("max_length", "train_batch_size"):
        _refuse_no_count(key, draft.keys.get(key, 1))
    _read_batch(draft, lengths)
    _read_length(draft)
    _read_warm_up(draft)


def _read_batch(draft: Draft, lengths: Lengths) -> None:
    """The rows of a step. Axolotl's `batch_size` is all of them, in steps of `micro_batch_size`."""
    factors, total = draft.tool.batch, draft.tool.total
    if total in draft.config:
        if "gradient_accumulation_steps" in draft.config:
            draft.leave(total, "gradient_accumulation_steps says it")
        else:
            factors = ((total, 1),)
    if "micro_batch_size" in draft.config and factors[0][0] == total:
        draft.leave("micro_batch_size", "msft chooses micro-batches by itself")
    count = 1
    for key, default in factors:
        found = draft.config.get(key, default)
        _refuse_no_count(key, found)
        count *= found
    names = " × ".join(key for key, _ in factors)
    devices = "on one device; times the devices you used"
    if not _is_packed(draft):
        draft.carry(names, "train_batch_size", count, devices)
        return
    length = draft.keys.get("max_length", Recipe.max_length)
    read = lengths(draft)
    fitting = [tokens for tokens in (read[0] if read else ()) if tokens <= length]
    if read is None or not fitting:
        draft.leave(
            names,
            f"theirs counts packed sequences: {count:,} of {length:,} tokens, {devices}. The rows "
            f"cannot be read here, so write train_batch_size: {count * length:,} / the mean tokens "
            f"of a row, which `msft validate` shows (without it: {Recipe.train_batch_size})",
            changes=True,
        )
        return
    each = _rows_a_sequence(fitting, length, draft.config.get("packing_strategy") == "wrapped")
    draft.carry(
        names,
        "train_batch_size",
        max(1, round(count * each)),
        f"{count:,} packed sequences of {length:,} tokens, {each:.3g} rows in each "
        f"(rows of {sum(fitting) / len(fitting):.0f} tokens on average, {read[1]}), {devices}",
    )


def _refuse_no_count(key: str, found: Any) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise RecipeError(f"{key} is {shown(found)}; expected a whole number above 0")


def _is_packed(draft: Draft) -> bool:
    strategy = str(draft.config.get("batching_strategy", ""))
    return strategy.startswith("dynamic") or any(
        draft.config.get(key) is True for key in draft.tool.packing
    )


def _rows_a_sequence(lengths: Sequence[int], most: int, wrapped: bool) -> float:
    """Rows in a packed sequence: the longest first, each where the least space remains. Wrapped
    sequences have no gaps, since a row goes on in the next."""
    if wrapped:
        return len(lengths) * most / sum(lengths)
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        found = bisect_left(spaces, length)
        insort(spaces, (spaces.pop(found) if found < len(spaces) else most) - length)
    return len(lengths) / len(spaces)


def _read_length(draft: Draft) -> None:
    """`max_steps` goes before epochs in all of these tools."""
    wanted = draft.config.get("max_steps")
    off = isinstance(wanted, int | float) and wanted < 1
    if off and not isinstance(wanted, float):
        draft.silent.append("max_steps")
    elif wanted is not None:
        draft.leave(
            "max_steps",
            f"their run ends after {shown(wanted)} steps, whatever the epochs: write "
            "num_train_epochs, which is these steps / the steps of an epoch, which `msft plan` "
            f"shows (now it is {draft.keys.get('num_train_epochs')})",
            changes=True,
        )


def _read_warm_up(draft: Draft) -> None:
    """`warmup_steps`, where it is a number of steps. transformers 5 takes one below 1 as a share,
    and of a share it is said what to write."""
    given = [key for key in _WARM_UP_KEYS if draft.config.get(key)]
    draft.silent += [key for key in _WARM_UP_KEYS if key in draft.config and key not in given]
    is_constant = draft.keys.get("lr_scheduler_type", Recipe.lr_scheduler_type) == "constant"
    for key in given:
        value = draft.config[key]
        if is_constant:
            draft.leave(key, "a constant rate has no warm-up; constant_with_warmup has")
        elif not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise RecipeError(
                f"{key} is {shown(value)}; expected a number of steps or a share of them"
            )
        elif key == "warmup_steps" and value >= 1:
            draft.carry(key, key, int(value))
        else:
            draft.leave(key, FOREIGN["warmup_ratio"].answer, changes=True)
    silent = draft.tool is AXOLOTL and not draft.config.keys() & {*_WARM_UP_KEYS}
    if silent and not is_constant:
        draft.remarks["warmup_steps"] = (
            "Axolotl warms up over 3% of the steps, 100 at most; msft does not: "
            f"{FOREIGN['warmup_ratio'].answer}"
        )
