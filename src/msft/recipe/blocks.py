"""The keys that hold more than one value: `peaks`, `method_options`, `report_to`."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from msft.checks import checked, checked_text, recipe_place, shown
from msft.errors import OptionError, RecipeError
from msft.search.peaks import PeakRule

TRACKERS = ("tensorboard", "wandb", "trackio")
"""What `report_to` may name."""


def plain_options(given: Any) -> dict[str, Any]:
    """A copy of `method_options`, which may hold what YAML can hold: it is written down."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"method_options is {shown(given)}; expected options such as {{patience: 3}}",
            ("method_options",),
        )
    with recipe_place("method_options"):
        return {key: _plain(value, key) for key, value in given.items()}


def peak_options(given: Any) -> dict[str, Any]:
    """The block `peaks`, checked and complete but for a `by` that is `score`."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"peaks is {shown(given)}; expected options such as {{smooth: 1}}", ("peaks",)
        )
    with recipe_place("peaks"):
        return PeakRule(**checked(PeakRule, given, "peaks")).recorded()


def refuse_no_choices(rule: PeakRule, metrics: Mapping[str, str]) -> None:
    """Peaks by probability need choices, which are compared where the metric is accuracy; whether
    rows have some is seen when they are read."""
    for name, metric in metrics.items():
        if rule.by == "probability" and metric != "accuracy":
            raise RecipeError(
                f"peaks.by is probability, but sub-dataset {name!r} has the metric {metric}, which "
                "compares no choices; use peaks.by: score, or metric: accuracy",
                ("peaks", "by"),
            )


def tracker_names(given: Any) -> str | list[str]:
    """The key `report_to`, checked: `none`, a tracker, or a list of different ones."""
    several = isinstance(given, list | tuple)
    names = list(given) if several else [given]
    known = TRACKERS if several else ("none", *TRACKERS)
    if any(name not in known for name in names):
        expected = ", ".join(map(repr, known)) + ("" if several else ", or a list of trackers")
        raise RecipeError(f"report_to is {shown(given)}; expected {expected}", ("report_to",))
    if len(set(names)) < len(names):
        raise RecipeError(f"report_to is {shown(given)}; name each tracker once", ("report_to",))
    return names or "none" if several else str(given)


def _plain(value: Any, option: str) -> Any:
    at = f"method_options.{option}"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(inner, option) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, option) for inner in value]
    if isinstance(value, str):
        return checked_text(value, at, option)
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise OptionError(
        f"{at} is {shown(value)}; expected text, a finite number, true, false, null, or lists and "
        "mappings of them",
        option,
    )
