"""Rows from Python for the sub-datasets of a recipe."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msft.checks import refuse_unknown, shown
from msft.errors import OptionError, RecipeError
from msft.recipe.dataset_spec import DatasetSpec
from msft.recipe.recipe import Recipe

SPLITS = ("train", "validation", "test")


def with_rows(recipe: Recipe, datasets: Any) -> Recipe:
    """The recipe with these rows in place of the files of its sub-datasets; names that it does not
    have are added at the end.

    datasets: by name, the rows of each split: lists of dicts, a `datasets.Dataset`, or files.
    """
    if not isinstance(datasets, Mapping):
        raise RecipeError(
            f"datasets is {shown(datasets)}; expected names with their rows, such as "
            "{'mine': {'train': rows, 'validation': rows}}"
        )
    specs = {spec.name: spec for spec in recipe.datasets}
    for name, splits in datasets.items():
        if not isinstance(splits, Mapping):
            raise RecipeError(
                f"datasets[{name!r}] is {shown(splits)}; expected its splits, such as "
                "{'train': rows, 'validation': rows}"
            )
        try:
            refuse_unknown(splits, SPLITS, f"split of datasets[{name!r}]:")
        except OptionError as error:
            raise RecipeError(str(error)) from error
        keys: dict[str, Any] = dict(splits)
        if "train" in keys:
            keys["path"] = None
        if "validation" in keys:
            keys["validation_fraction"] = None
        known = specs.get(name)
        specs[name] = replace(known, **keys) if known else DatasetSpec(name=name, **keys)
    return replace(recipe, datasets=list(specs.values()))
