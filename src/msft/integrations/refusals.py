"""What an engine over a Trainer cannot do, refused by name before anything starts.

Everything that is wrong is said at once, each with what was found and what to do.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msft.engine.model.tokenizers import wrong_class
from msft.errors import RecipeError, UsageError
from msft.integrations.engine import inner_model
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.recipe import recipe_keys
from msft.run.environment import version_of
from msft.run.folder import RunFolder, write_json
from msft.search.methods import METHODS, ROLLING_BACK
from msft.text import counted

TAKEN_KEYS = (
    *("method_options", "compute_budget", "evals_per_epoch", "peaks", "mean", "score_test"),
    *("selection_split", "report_split", "evaluation_tokens", "validation_loss", "samples"),
    *("disk_policy", "early_stopping_patience"),
)
"""Keys that mean the same as in a recipe. Every other key of a recipe is refused."""

TRAINER_KEYS = {
    "model_name_or_path": "model",
    "train_batch_size": "args.per_device_train_batch_size and args.gradient_accumulation_steps",
    "report_to": "args.report_to",
    "engine": "trainer itself",
    "push_to_hub": "push_to_hub(), after the run",
    **{
        key: f"args.{key}"
        for key in (
            *("seed", "num_train_epochs", "learning_rate", "lr_scheduler_type", "warmup_steps"),
            *("weight_decay", "max_grad_norm", "bf16", "gradient_checkpointing", "optim"),
            *("torch_compile", "max_length", "completion_only_loss", "hub_model_id"),
        )
    },
}
"""Keys whose values a trainer has itself, and their names there."""

_ADAPTER = (
    "an adapter is a part of the trainer's model: give the SFTTrainer peft_config=LoraConfig(…), "
    "or the Trainer a model from peft's get_peft_model"
)
_DEVICES = "this engine is of one device: use `torchrun … -m msft train` with a recipe"

OTHER_WAYS = {
    **dict.fromkeys(("use_peft", "lora_r", "lora_alpha", "lora_dropout"), _ADAPTER),
    **dict.fromkeys(("lora_target_modules", "use_dora", "use_rslora"), _ADAPTER),
    "load_in_4bit": "weights are as the trainer's model has them: load it with "
    "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "fp8": "weights are as the trainer's model has them",
    "merge_adapter": "the result is the adapter alone: merge it after the run, with "
    "trainer.model.merge_and_unload()",
    "export_dtype": "the result has the dtype of the trainer's model: load that in another one",
    "exclude_rows": "rows of a trainer come as they are: take these rows out of what is given to "
    "train",
    "prompt_loss_weight": "the loss is the trainer's: it trains prompts with the weight 0 or 1, by "
    "completion_only_loss and assistant_only_loss in its args",
    "lanes": _DEVICES,
    "sharding": _DEVICES,
}
"""Keys of what a trainer has in another way, with that way."""


def refuse_keys(keys: Mapping[str, Any]) -> None:
    """RecipeError for a key of a recipe that would change nothing. Keys that no recipe has are
    left to the recipe, which knows what was meant."""
    known = recipe_keys()
    for key in keys:
        meant = ALIASES.get(key, key) or "train_batch_size"  # aliases of nothing divide a batch
        if meant in TAKEN_KEYS or meant not in known:
            continue
        if meant in TRAINER_KEYS:
            what = f"was given to train, but it is the trainer's: {TRAINER_KEYS[meant]}"
        elif meant in OTHER_WAYS:
            what = f"was given to train, but {OTHER_WAYS[meant]}; leave {key} out"
        else:
            what = "means nothing over a trainer; leave it out"
        raise RecipeError(f"{key} {what}")


def unused_length(keys: Mapping[str, Any], method: str, epochs: float) -> Iterator[str]:
    """A note on the length of roll-outs that was given to a method without any."""
    if "compute_budget" in keys and method in METHODS and method not in ROLLING_BACK:
        yield f"compute_budget is not used by {method}; args.num_train_epochs ({epochs:g}) is"


HOOK = "_run_epoch"
"""The method of a Trainer in whose place a run is carried out."""

ROW_LOSS_METHODS = {
    "dynamix": "asks for the losses of single rows before and after a step",
    "ies": "watches the losses of single rows",
}
"""Methods that need losses of single rows; `compute_loss` of a Trainer gives one number."""

SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine")
"""Schedules of the learning rate that a recipe knows."""

OWN_FORWARD_ADAPTERS = ("POLY", "SHADOW", "XLORA")
"""Adapters of peft that need a forward pass of their own, besides those with virtual tokens."""

RECORDED_ARGUMENTS = (
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "label_smoothing_factor"),
    *("neftune_noise_alpha", "loss_type", "padding_free", "use_liger_kernel"),
    *("lr_scheduler_kwargs", "gradient_checkpointing"),
)
"""Arguments of a Trainer that change what is trained and that no recipe has."""


def refuse_trainer(trainer: Any, method: str) -> None:
    """UsageError with all reasons for which this trainer cannot carry out this method."""
    if not hasattr(trainer, "args") or not hasattr(trainer, "training_step"):
        raise UsageError(
            f"trainer is a {type(trainer).__name__}; expected a transformers Trainer or a TRL "
            "SFTTrainer, with its model, args and processing_class"
        )
    _refuse_other_work(trainer)
    wrong = [
        *_wrong_kind(trainer),
        *_wrong_model(trainer.model),
        *_wrong_method(trainer, method),
        *_wrong_arguments(trainer.args),
        *_wrong_devices(trainer),
    ]
    if len(wrong) == 1:
        raise UsageError(wrong[0])
    if wrong:
        raise UsageError(
            "\n  ".join([f"{counted(len(wrong), 'thing')} must change first:", *wrong])
        )


def _refuse_other_work(trainer: Any) -> None:
    """UsageError for a trainer of something else than fine-tuning, or a model that writes no text;
    then no other mistake matters."""
    kinds = type(trainer).__mro__
    of_trl = next((kind for kind in kinds if kind.__module__.split(".")[0] == "trl"), None)
    if of_trl is not None and of_trl.__name__ != "SFTTrainer":
        raise UsageError(
            f"trainer is a {of_trl.__name__} of TRL, whose rows and loss are not those of "
            "supervised fine-tuning; msft trains prompts with one answer each: use TRL's "
            "SFTTrainer or a transformers Trainer, or train with this one before or after msft"
        )
    model = getattr(trainer, "model", None)
    wrong = wrong_class(inner_model(model)) if hasattr(model, "config") else None
    if wrong is not None:
        raise UsageError(wrong)


def _wrong_kind(trainer: Any) -> Iterator[str]:
    if not callable(getattr(trainer, HOOK, None)):
        yield (
            f"this {type(trainer).__name__} has no {HOOK}, in whose place msft trains; "
            f"transformers 5.17 and later have it, and {version_of('transformers')} is installed: "
            "upgrade transformers"
        )
    if hasattr(trainer, "_prepare_dataset") and not hasattr(trainer, "_formatting_func"):
        yield (
            "this SFTTrainer does not keep its formatting_func, so rows could not be prepared as "
            f"it does; TRL 1.16 does, and {version_of('trl')} is installed: upgrade trl"
        )
    tokenizer = getattr(trainer, "processing_class", None)
    if not hasattr(tokenizer, "decode") or not hasattr(tokenizer, "__len__"):
        yield (
            f"processing_class is {type(tokenizer).__name__}; expected the model's tokenizer, "
            "which reads answers: give the trainer processing_class=tokenizer"
        )
    if getattr(trainer, "model_init", None) is not None:
        yield "the trainer has a model_init, which makes a new model for each run; give it a model"
    for callback in trainer.callback_handler.callbacks:
        if any(kind.__name__ == "EarlyStoppingCallback" for kind in type(callback).__mro__):
            yield (
                "EarlyStoppingCallback stops a whole run by evaluations of the trainer, which "
                "msft does not make; remove it (trainer.remove_callback), and give "
                f"early_stopping_patience={getattr(callback, 'early_stopping_patience', 3)} to "
                "methods sft and soup, or "
                'method_options={"patience": 3} to msft and continual'
            )


def _wrong_model(model: Any) -> Iterator[str]:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield (
            f"every weight of the {type(model).__name__} is frozen, so nothing could be trained; "
            "set requires_grad_(True) for what should be, or add an adapter with peft"
        )
    for name, config in getattr(model, "peft_config", {}).items():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        activated = getattr(config, "alora_invocation_tokens", None)
        if config.is_prompt_learning or activated or kind in OWN_FORWARD_ADAPTERS:
            yield (
                f"adapter {name!r} is {'an activated LoRA' if activated else kind}, which does not "
                "work within the model's layers alone, so answers would be scored without it; use "
                "another, such as LoRA"
            )


def _wrong_method(trainer: Any, method: str) -> Iterator[str]:
    if method in ROW_LOSS_METHODS:
        yield (
            f"method {method} {ROW_LOSS_METHODS[method]}, but compute_loss of a Trainer gives one "
            "number for a batch; use another method, or `msft train` with an engine of msft's own"
        )
    args = trainer.args
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if method in ROLLING_BACK and schedule != "constant":
        yield (
            f"lr_scheduler_type is {schedule}, but method {method} rolls back, and what a changing "
            'learning rate should return to then is not defined; set lr_scheduler_type="constant" '
            f"in {type(args).__name__}"
        )
    elif schedule not in SCHEDULES:
        yield f"lr_scheduler_type is {schedule}; expected one of {', '.join(SCHEDULES)}"
    scheduler = getattr(trainer, "lr_scheduler", None)
    if scheduler is not None and not getattr(trainer, "_created_lr_scheduler", False):
        if method in ROLLING_BACK:
            yield (
                "the trainer has a scheduler of your own, but what a changing learning rate should "
                f"return to when method {method} rolls back is not defined; leave it out of "
                "optimizers=(…, None)"
            )
        elif not hasattr(scheduler, "lr_lambdas"):
            yield (
                f"the trainer's scheduler is a {type(scheduler).__name__}, which cannot be set to "
                "a step; expected a LambdaLR, or none and lr_scheduler_type"
            )


def _wrong_arguments(args: Any) -> Iterator[str]:
    name = type(args).__name__
    for key in ("packing", "eval_packing"):
        if getattr(args, key, None):
            yield (
                f"{key} is True, but a packed sequence mixes rows, so no sub-dataset could be "
                f"told apart or left out; set {key}=False in {name} (padding_free=True also saves "
                "padding)"
            )
    if args.load_best_model_at_end:
        yield (
            "load_best_model_at_end is True, but the best checkpoint is chosen here by the mean "
            f"over sub-datasets, and is in the model afterwards; leave it out of {name}"
        )
    if args.auto_find_batch_size:
        yield (
            "auto_find_batch_size is True, but a batch that changes on the way would train "
            "something else after a resume; set per_device_train_batch_size and "
            f"gradient_accumulation_steps in {name}"
        )
    if args.max_steps > 0:
        yield (
            f"max_steps is {args.max_steps}, but lengths are in epochs here, so that every "
            f"sub-dataset is scored at the same share of its rows; leave it out of {name} and set "
            "num_train_epochs, or compute_budget for methods that roll back"
        )
    if args.fp16:
        yield (
            "fp16 is True, but its loss scale is no part of a checkpoint and would not roll back; "
            f"set bf16=True in {name}, or neither"
        )
    if getattr(args, "accelerator_config", None) and args.accelerator_config.split_batches:
        yield "split_batches is True, but batches are made here; leave it out of accelerator_config"


def _wrong_devices(trainer: Any) -> Iterator[str]:
    args = trainer.args
    if getattr(args, "deepspeed", None) or getattr(trainer, "is_deepspeed_enabled", False):
        yield (
            "DeepSpeed is on, but its engine cannot load weights and moments once it has trained, "
            "so nothing could roll back; run without DeepSpeed"
        )
    elif getattr(trainer, "is_fsdp_enabled", False):
        yield "FSDP is on, but this engine holds whole weights on one device; run without FSDP"
    if args.world_size > 1:
        yield (
            f"{args.world_size} processes were started, but this engine is of one; start the "
            "script with python, or use `torchrun … -m msft train` with a recipe"
        )
    elif args.n_gpu > 1:
        yield (
            f"the Trainer sees {args.n_gpu} GPUs and would spread batches over them, but this "
            "engine is of one device; set CUDA_VISIBLE_DEVICES=0"
        )


def refuse_changed_trainer(trainer: Any, folder: RunFolder) -> None:
    """RecipeError where a started run goes on with other arguments of the trainer; those of a new
    run are written down."""
    file, now = folder.path / "trainer.json", _recorded(trainer)
    if not folder.log.exists() or not file.exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        write_json(file, now)
        return
    before = json.loads(file.read_text())
    changed = [
        f"  {key} was {before.get(key)!r}, now it is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise RecipeError(
            f"{folder.path} holds a run of another trainer:\n"
            + "\n".join(changed[:5])
            + "\nundo the change, or give another output_dir"
        )


def _recorded(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    found = {key: getattr(args, key) for key in RECORDED_ARGUMENTS if hasattr(args, key)}
    found |= {"trainer": type(trainer).__name__, "model": type(trainer.model).__name__}
    for name, config in getattr(trainer.model, "peft_config", {}).items():
        found |= {f"adapter.{name}.{key}": value for key, value in config.to_dict().items()}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
