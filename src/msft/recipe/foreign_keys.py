"""Keys of other tools, read as ours with a note, and keys that the method does not use."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msft.checks import shown
from msft.errors import Place, RecipeError
from msft.recipe.strict_yaml import Places, place_of
from msft.search.methods import METHODS, ROLLING_BACK

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe

ALIASES: dict[str, str | None] = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "num_epochs": "num_train_epochs",
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
}
"""Keys of Axolotl and LLaMA-Factory, and what they are read as; None: not needed here."""

_ADAPTERS = (
    "adapter use_peft peft_config load_in_4bit load_in_8bit lora_r lora_rank lora_alpha "
    "lora_dropout lora_target lora_target_linear lora_target_modules"
)
FOREIGN = {
    **dict.fromkeys(
        _ADAPTERS.split(),
        "LoRA and quantised training are not there yet; leave it out: all weights are trained",
    ),
    "val_set_size": "did you mean validation_fraction? it is a key of each sub-dataset",
}
"""Keys of other tools that cannot be read as one of ours, and what to do about each."""


def canonical(
    mapping: Mapping[str, Any], places: Places, batch: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys with aliases replaced, in `places` too, and a note for each.

    batch: `train_batch_size` where the recipe does not give it.
    """
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in mapping.items():
        if key in FOREIGN:
            raise RecipeError(f"unknown key {key!r}; {FOREIGN[key]}", (key,))
        target = ALIASES.get(key, key)
        at = place_of((key,), "", places)
        if target is None:
            notes.append(
                f"{at}{key} is ignored: msft chooses micro-batches by itself; a step has "
                f"train_batch_size ({shown(mapping.get('train_batch_size', batch))}) samples"
            )
            continue
        if target != key:
            notes.append(f"{at}{key} was read as {target}")
        if target in keys or (target != key and target in mapping):
            raise RecipeError(f"{key} means {target}, which is given too; keep one", (key,))
        keys[target] = value
        if (key,) in places:
            places[(target,)] = places[(key,)]
    return keys, tuple(notes)


def unused_length(
    recipe: "Recipe", keys: Mapping[str, Any], places: Mapping[Place, str]
) -> tuple[str, ...]:
    """A note on the key for a run's length that the method does not use, if it was meant for it.

    keys: those given. Recipes for several methods give both; only a `--set` then means this one.
    """
    used, other = "num_train_epochs", "compute_budget"
    if recipe.method in ROLLING_BACK:
        used, other = other, used
    at = place_of((other,), "", places)
    meant = other in keys and (used not in keys or at.startswith("--set"))
    if not meant or recipe.method not in METHODS:
        return ()
    return (f"{at}{other} is not used by {recipe.method}; {used} ({getattr(recipe, used):g}) is",)
