"""Keys of a recipe over a trainer: those that `train` takes, and why it takes no others."""

from collections.abc import Iterator, Mapping
from typing import Any

from msft.errors import RecipeError
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.recipe import recipe_keys
from msft.search.methods import METHODS, ROLLING_BACK

TAKEN = (
    *("method_options", "compute_budget", "evals_per_epoch", "peaks", "mean", "score_test"),
    *(
        "selection_split",
        "report_split",
        "evaluation_tokens",
        "validation_loss",
        "samples",
        "disk_policy",
    ),
)
"""Keys that mean the same as in a recipe. Every other key of a recipe is refused."""

THE_TRAINERS = {
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
"""Keys that are the trainer's to say, and how it says them."""

_ADAPTER = (
    "an adapter is a part of the trainer's model: give the SFTTrainer peft_config=LoraConfig(…), "
    "or the Trainer a model from peft's get_peft_model"
)
_DEVICES = "this engine is of one device: use `torchrun … -m msft train` with a recipe"

ELSEWHERE = {
    **dict.fromkeys(("use_peft", "lora_r", "lora_alpha", "lora_dropout"), _ADAPTER),
    **dict.fromkeys(("lora_target_modules", "use_dora", "use_rslora"), _ADAPTER),
    "load_in_4bit": "weights are as the trainer's model has them: load it with "
    "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "merge_adapter": "the result is the adapter alone: merge it after the run, with "
    "trainer.model.merge_and_unload()",
    "export_dtype": "the result has the dtype of the trainer's model: load that in another one",
    "lanes": _DEVICES,
    "sharding": _DEVICES,
}
"""Keys of what a trainer has in another way, and in which."""


def refuse_keys(keys: Mapping[str, Any]) -> None:
    """RecipeError for a key of a recipe that would change nothing. Keys that no recipe has are
    left to the recipe, which knows what was meant."""
    known = recipe_keys()
    for key in keys:
        meant = ALIASES.get(key, key) or "train_batch_size"  # aliases of nothing divide a batch
        if meant in TAKEN or meant not in known:
            continue
        if meant in THE_TRAINERS:
            what = f"was given to train, but it is the trainer's: {THE_TRAINERS[meant]}"
        elif meant in ELSEWHERE:
            what = f"was given to train, but {ELSEWHERE[meant]}; leave {key} out"
        else:
            what = "means nothing over a trainer; leave it out"
        raise RecipeError(f"{key} {what}")


def unused_length(keys: Mapping[str, Any], method: str, epochs: float) -> Iterator[str]:
    """A note on the length of roll-outs that was given to a method without any."""
    if "compute_budget" in keys and method in METHODS and method not in ROLLING_BACK:
        yield f"compute_budget is not used by {method}; args.num_train_epochs ({epochs:g}) is"
