"""Every mistake of a recipe at once.

A recipe is built again and again: each time the first mistake is noted, and the wrong key is left
out or gets a stand-in, until nothing else is wrong. What follows from a mistake is not said twice.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from msft.errors import OptionError, Place, RecipeError
from msft.recipe.foreign_keys import ALIASES, FOREIGN, FOREIGN_OF_DATASETS
from msft.recipe.yaml import place_of

Made = TypeVar("Made")

SOURCES = ("train", "validation", "test")
"""Keys that may hold rows, which are not copied."""
MOST = 100
"""Mistakes that are looked for."""

_A_DATASET: dict[str, Any] = {"name": "x", "train": "x.jsonl", "validation_fraction": 0.1}
_OF_RECIPE: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "datasets": [_A_DATASET],
    "method": "sft",
}
_OF_DATASET: dict[str, Any] = {
    **_A_DATASET,
    "validation": "x.jsonl",
    "test": "x.jsonl",
    "path": "x/x",
    "benchmark": "sciq",
}
"""What stands in for a key that is wrong, where leaving it out would be another mistake."""
_EITHER = (("train", "path", "benchmark"), ("validation", "validation_fraction"))
"""Keys of a sub-dataset of which one is needed."""


def all_at_once(
    build: Callable[[Mapping[str, Any]], Made],
    mapping: Mapping[str, Any],
    where: str,
    places: Mapping[Place, str],
) -> Made:
    """What `build` makes of the keys; one RecipeError with everything that is wrong with them."""
    try:
        return build(mapping)
    except (OptionError, RecipeError) as found:
        first = error = found
    keys, wrong, seen = _copied(mapping), list[OptionError | RecipeError](), set[Place]()
    while error.place not in seen and len(seen) < MOST:
        seen.add(error.place)
        spoiled = {each.place[-1] for each in wrong if each.place}
        if not spoiled & set(error.because):
            wrong.append(error)
        if not _mended(keys, error.place):
            break
        try:
            build(keys)
            break
        except (OptionError, RecipeError) as another:
            error = another
    order = list(places)
    wrong.sort(key=lambda each: _position(each.place, order))
    texts = [f"{place_of(each.place, where, places)}{each}" for each in wrong]
    if len(texts) == 1:
        raise RecipeError(texts[0], first.place) from first
    head = f"{len(texts)} mistakes in the recipe:"
    raise RecipeError("\n  ".join([head, *texts]), wrong[0].place) from first


def _position(place: Place, order: Sequence[Place]) -> int:
    """Where a key stands among all; what is missing stands with the thing that should have it."""
    for end in range(len(place), 0, -1):
        if place[:end] in order:
            return order.index(place[:end])
    return len(order)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: v if k in SOURCES else _copied(v) for k, v in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _mended(keys: dict[str, Any], place: Place) -> bool:
    """Take the key at this place out, or put something right there; False where that is not
    possible."""
    if not place:
        return False
    owner: Any = keys
    outer: Any = {}
    for step in place[:-1]:
        try:
            outer, owner = owner, owner[step]
        except (LookupError, TypeError):
            return False
    if len(place) == 2 and place[0] == "datasets" and isinstance(owner, list):
        owner[int(place[1])] = {**_A_DATASET, "name": _name(place)}
        return True
    if not isinstance(owner, dict):
        return False
    in_dataset = len(place) == 3 and place[0] == "datasets"
    stand_ins = _OF_DATASET if in_dataset else _OF_RECIPE if len(place) == 1 else {}
    key = str(place[-1])
    if key not in owner:  # it may have been written as another name of this key
        key = next((alias for alias in owner if ALIASES.get(alias) == key), key)
    was_there = key in owner
    owner.pop(key, None)
    if was_there and not owner and isinstance(outer, dict):  # a block that had this key only
        outer.pop(place[-2], None)
    needed = key if key in stand_ins else _meant(key, stand_ins, in_dataset)
    instead = next((group for group in _EITHER if needed in group), (needed,))
    if needed and not any(other in owner for other in instead):
        owner[needed] = _name(place) if needed == "name" else _copied(stand_ins[needed])
    return was_there or bool(needed)


def _name(place: Place) -> str:
    """What messages call a sub-dataset that has no usable name."""
    return f"number-{int(place[1]) + 1}"


def _meant(key: str, stand_ins: Mapping[str, Any], in_dataset: bool) -> str:
    """The needed key that an unknown one probably stands for; empty if none."""
    foreign = (FOREIGN_OF_DATASETS if in_dataset else FOREIGN).get(key)
    near = [foreign.ours] if foreign else get_close_matches(key, stand_ins, n=1)
    return near[0] if near and near[0] in stand_ins else ""
