"""What a user is told about how a recipe was read: aliases, keys that are not used."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msft.errors import Place, RecipeError
from msft.recipe.blocks import is_template
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.yaml import Places, place_of
from msft.search.methods import METHODS, ROLLING_BACK
from msft.search.scores import TEST
from msft.text import listed, shown

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe


def canonical(
    mapping: Mapping[str, Any], places: Places, batch: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys with aliases replaced, in `places` too, and a note for each.

    batch: `train_batch_size` where the recipe does not give it.
    """
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in mapping.items():
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


def unusual(recipe: "Recipe") -> tuple[str, ...]:
    """Notes on keys that change what every row looks like or teaches."""
    told = []
    if recipe.chat_template is not None:
        inline = is_template(recipe.chat_template)
        source = "the recipe's own text" if inline else recipe.chat_template
        told.append(f"chat_template: conversations are written by {source}")
    if not recipe.completion_only_loss:
        told.append("completion_only_loss is false: prompts are trained too")
    return (*told, *_unused_validation(recipe))


def _unused_validation(recipe: "Recipe") -> list[str]:
    """A note on keys for validation rows where test rows select."""
    keys = ("validation", "validation_fraction", "validation_rows")
    named = {
        key: [spec.name for spec in recipe.datasets if getattr(spec, key) is not None]
        for key in keys
    }
    given = {key: names for key, names in named.items() if names}
    if recipe.selection_split != TEST or not given:
        return []
    who = dict.fromkeys(name for names in given.values() for name in names)
    verb = "is" if len(given) == 1 else "are"
    return [
        f"{listed(given)} of {listed(who)} {verb} not used: selection_split is test, so no "
        "validation rows are read or held out"
    ]


def only_one(recipe: "Recipe") -> tuple[str, ...]:
    """A note where a method for mixtures gets one sub-dataset, which `split_by` does not divide."""
    alone = len(recipe.datasets) == 1 and recipe.datasets[0].split_by is None
    if not alone or recipe.method not in METHODS or recipe.method in ("sft", "soup"):
        return ()
    return (
        f"there is one sub-dataset only, so {recipe.method} has nothing to weigh against it; "
        "method: sft gives the best checkpoint too, and costs less",
    )
