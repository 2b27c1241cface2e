"""The keys that hold more than a plain value: `peaks`, `method_options`, `options_by_method`,
`report_to`, `chat_template`."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from msft.checks import checked, checked_text, recipe_place
from msft.errors import OptionError, RecipeError
from msft.search.methods import prepare
from msft.search.peaks import PeakRule
from msft.text import shown

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""What `report_to` may name."""
LONGEST_TEMPLATE = 1_000_000


def plain_options(given: Any, *place: str) -> dict[str, Any]:
    """A copy of `method_options`, which may hold what YAML can hold: it is written down.

    place: of the block, where it is another one.
    """
    place = place or ("method_options",)
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"{'.'.join(place)} is {shown(given)}; expected options such as {{patience: 3}}", place
        )
    with recipe_place(*place):
        return {key: _plain(value, key, ".".join(place)) for key, value in given.items()}


def options_of_methods(given: Any) -> dict[str, dict[str, Any]]:
    """The block `options_by_method`, copied: options by the names of methods."""
    key = "options_by_method"
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RecipeError(
            f"{key} is {shown(given)}; expected options of methods, such as "
            "{ies: {track_excluded: false}}",
            (key,),
        )
    return {name: plain_options(options, key, name) for name, options in given.items()}


def refuse_wrong_options(
    by_method: Mapping[str, Mapping[str, Any]], compute_budget: int, peaks: PeakRule
) -> None:
    """RecipeError for a method that there is not, or an option that it does not have."""
    for name, options in by_method.items():
        try:
            prepare(name, options, compute_budget, peaks)
        except OptionError as error:
            if error.place[0] == "compute_budget":
                continue  # the recipe's own; this method need not be run
            inside = error.place if error.place[0] in options else ()
            place = ("options_by_method", name, *inside)
            raise RecipeError(f"options_by_method.{name}: {error}", place) from error


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
                because=("metric",),
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


def is_template(written: str) -> bool:
    """Whether this is the text of a chat template, not the name of a file."""
    return "{{" in written or "{%" in written


def refuse_wrong_template(given: Any) -> None:
    """RecipeError where `chat_template` is neither the text of one nor the name of a file."""
    if given is None or (isinstance(given, str) and is_template(given) and "\0" not in given):
        return
    if not isinstance(given, str):
        raise RecipeError(
            f"chat_template is {shown(given)}; expected a .jinja file, or the text of a template",
            ("chat_template",),
        )
    with recipe_place():
        checked_text(given, "chat_template", "chat_template")


def template_in(file: Path, at: str) -> str:
    """The text of a template's file; `at` stands before messages."""
    try:
        with file.open("rb") as stream:
            text = stream.read(LONGEST_TEMPLATE + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{at}{file} cannot be read as a chat template: {error}", ("chat_template",)
        ) from error
    if len(text) > LONGEST_TEMPLATE or not is_template(text):
        raise RecipeError(
            f"{at}{file} is no chat template: expected Jinja with {{{{ or {{% in it, and "
            f"{LONGEST_TEMPLATE:,} characters at most",
            ("chat_template",),
        )
    return text


def _plain(value: Any, option: str, block: str) -> Any:
    at = f"{block}.{option}"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(inner, option, block) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, option, block) for inner in value]
    if isinstance(value, str):
        return checked_text(value, at, option)
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise OptionError(
        f"{at} is {shown(value)}; expected text, a finite number, true, false, null, or lists and "
        "mappings of them",
        option,
    )
