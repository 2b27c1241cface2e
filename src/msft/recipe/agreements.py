"""Keys of a recipe that have to do with each other, each of them fitting by itself.

Contradictions are mistakes; what a user might not expect is noted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from msft.errors import OptionError, Place, RecipeError
from msft.recipe.mistakes import Mistakes
from msft.recipe.values import is_template
from msft.recipe.yaml import place_of
from msft.search.curves import TEST, PeakRule
from msft.search.feeds import Mixture
from msft.search.methods import METHODS, ROLLING_BACK, PreparedMethod, prepare
from msft.search.rehearsal import Rehearsal, rehearse
from msft.search.rollout import ticks_of
from msft.text import listed, shown

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe

ADAPTER_KEYS = (
    *("use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
    *("load_in_4bit", "use_dora", "use_rslora"),
)
"""Keys that what is trained depends on."""
LOW_RATE = 5e-5
"""Adapters are usually trained at 1e-4 to 2e-4; below this they hardly move."""


def contradictions(recipe: "Recipe") -> Iterator[RecipeError]:
    """Keys that do not go together."""
    yield from _of_datasets(recipe)
    yield from _of_selection(recipe)
    yield from _of_peaks(recipe)
    yield from _of_adapter(recipe)
    yield from _of_schedule(recipe)
    yield from _of_lanes(recipe)


def _of_datasets(recipe: "Recipe") -> Iterator[RecipeError]:
    """Sub-datasets: at least one, each with a name of its own, and metrics that have a mean."""
    if not recipe.datasets:
        yield RecipeError(
            "datasets is empty; expected at least one sub-dataset, e.g. "
            "`- {name: mine, train: mine.jsonl, validation_fraction: 0.1}`",
            ("datasets",),
        )
    seen: dict[str, str] = {}
    for number, spec in enumerate(recipe.datasets):
        other = seen.setdefault(spec.name.casefold(), spec.name)
        if number and len(seen) <= number:
            how = "" if other == spec.name else " (upper and lower case are not told apart)"
            yield RecipeError(
                f"name {spec.name!r} is taken by {other!r} already{how}; choose another",
                ("datasets", number, "name"),
            )
    metrics = sorted({spec.metric for spec in recipe.datasets})
    if recipe.mean == "pooled" and len(metrics) > 1:
        yield RecipeError(
            f"mean is pooled, but the sub-datasets have the metrics {', '.join(metrics)}, "
            "whose counts cannot be added; use mean: macro",
            ("mean",),
            because=("metric",),
        )


def _of_selection(recipe: "Recipe") -> Iterator[RecipeError]:
    """Every sub-dataset needs rows that choose a checkpoint; where test rows do, keys that are
    about validation rows, or about test rows that do not choose, contradict it."""
    on_test = recipe.selection_split == TEST
    for number, spec in enumerate(recipe.datasets):
        if spec.benchmark is not None or spec.path is not None:
            continue
        if on_test and spec.test is None:
            yield RecipeError(
                f"sub-dataset {spec.name!r}: no test, but selection_split is test, so checkpoints "
                "are chosen on test rows; add `test: ` with a file, or leave selection_split out",
                ("datasets", number, "test"),
                because=("selection_split",),
            )
        if not on_test and spec.validation is None and spec.validation_fraction is None:
            yield RecipeError(
                f"sub-dataset {spec.name!r}: neither validation nor validation_fraction, but a "
                "checkpoint can only be chosen on rows that were not trained; add one, e.g. "
                "`validation_fraction: 0.1`",
                ("datasets", number, "validation"),
                because=("validation_fraction",),
            )
    if on_test and recipe.score_test != "best":
        yield RecipeError(
            f"score_test is {recipe.score_test}, but selection_split is test, so every point is "
            "scored on test already; leave score_test out",
            ("score_test",),
            because=("selection_split",),
        )
    if on_test and recipe.validation_loss:
        yield RecipeError(
            "validation_loss is true, but selection_split is test, so no validation rows are read; "
            "leave validation_loss out",
            ("validation_loss",),
            because=("selection_split",),
        )


def _of_schedule(recipe: "Recipe") -> Iterator[RecipeError]:
    """The learning rate's course must suit the method, and the warm-up the course."""
    kind = recipe.lr_scheduler_type
    if recipe.method in ROLLING_BACK and kind != "constant":
        yield RecipeError(
            f"lr_scheduler_type is {kind}, but method {recipe.method} rolls back, and what a "
            "changing learning rate should return to then is not defined; use constant",
            ("lr_scheduler_type",),
            because=("method",),
        )
    if kind == "constant" and recipe.warmup_steps:
        cure = "0" if recipe.method in ROLLING_BACK else "0, or constant_with_warmup"
        yield RecipeError(
            f"warmup_steps is {recipe.warmup_steps}, but lr_scheduler_type constant has no "
            f"warm-up; use {cure}",
            ("warmup_steps",),
            because=("lr_scheduler_type", "method"),
        )


def _of_lanes(recipe: "Recipe") -> Iterator[RecipeError]:
    """Every lane needs a row, and an engine that sums over lanes; an adapter is not sliced."""
    if recipe.use_peft and recipe.sharding == "full":
        yield RecipeError(
            "sharding is full, but an adapter (use_peft) needs its whole frozen model in every "
            "process; use sharding: optimizer, with load_in_4bit: true if memory is short",
            ("sharding",),
            because=("use_peft",),
        )
    if recipe.lanes == "auto" or recipe.lanes == 1:
        return
    if recipe.lanes > recipe.train_batch_size:
        yield RecipeError(
            f"lanes is {recipe.lanes}, but a step has train_batch_size ({recipe.train_batch_size}) "
            "rows, and every lane needs one; use fewer lanes, or a larger train_batch_size",
            ("lanes",),
            because=("train_batch_size",),
        )
    if recipe.engine == "simple":
        yield RecipeError(
            f"lanes is {recipe.lanes}, but engine simple has one; leave one of them out",
            ("lanes",),
            because=("engine",),
        )


def _of_peaks(recipe: "Recipe") -> Iterator[RecipeError]:
    """Peaks by probability need choices, which are compared where the metric is accuracy; whether
    rows have some is seen when they are read."""
    for spec in recipe.datasets:
        if recipe.peak_rule.by == "probability" and spec.metric != "accuracy":
            yield RecipeError(
                f"peaks.by is probability, but sub-dataset {spec.name!r} has the metric "
                f"{spec.metric}, which compares no choices; use peaks.by: score, or metric: "
                "accuracy",
                ("peaks", "by"),
                because=("metric",),
            )


def _of_adapter(recipe: "Recipe") -> Iterator[RecipeError]:
    """Keys of an adapter need `use_peft`."""
    if recipe.use_peft:
        return
    defaults = {f.name: f.default for f in fields(recipe) if f.default is not MISSING}
    for key in (*ADAPTER_KEYS[1:], "merge_adapter"):
        value = getattr(recipe, key)
        if value != defaults[key]:
            yield RecipeError(
                f"{key} is {shown(value)}, but without use_peft all weights are trained; add "
                f"use_peft: true, or leave {key} out",
                (key,),
                because=("use_peft",),
            )


def check_methods(recipe: "Recipe", mistakes: Mistakes) -> None:
    """Note the methods that there are not, their wrong options, and the contradictions that a
    method of ours finds itself."""
    ticks = dict[str, int]()
    for key in ("compute_budget", "num_train_epochs"):
        ticks[key] = int(type(recipe).__dict__[key]) * recipe.evals_per_epoch
        with mistakes.noting():
            ticks[key] = ticks_of(getattr(recipe, key), recipe.evals_per_epoch, key)
    budget = ticks["compute_budget"]

    def build(method: str, options: dict[str, Any]) -> PreparedMethod:
        return prepare(method, options, budget, recipe.peak_rule)

    def wrong_beside(name: str, error: OptionError) -> RecipeError | None:
        if error.place[0] == "compute_budget":
            return None  # the recipe's own; this method need not be run
        inside = error.place if error.place[0] in recipe.options_by_method[name] else ()
        place = ("options_by_method", name, *inside)
        return RecipeError(f"options_by_method.{name}: {error}", place)

    for name, options in recipe.options_by_method.items():
        mistakes.made(options, partial(build, name), partial(wrong_beside, name))

    def wrong(error: OptionError) -> RecipeError:
        inside = error.place[0] in recipe.method_options
        place = ("method_options", *error.place) if inside else error.place
        return RecipeError(
            str(error), place, () if place == ("method",) else ("method", *error.because)
        )

    def rehearsed(options: dict[str, Any]) -> None:
        if recipe.method not in METHODS:
            build(recipe.method, options)
            return
        names = tuple(spec.name for spec in recipe.datasets) or ("x",)
        lengths = (budget, ticks["num_train_epochs"], recipe.evals_per_epoch)
        _rehearsed(recipe.method, json.dumps(options), recipe.peak_rule, names, lengths)

    try:
        mistakes.made(recipe.options_of(recipe.method), rehearsed, wrong)
    except ValueError as error:
        mistakes.note(RecipeError(str(error), ("method",)))


@lru_cache(maxsize=100)
def _rehearsed(
    name: str, options: str, peaks: PeakRule, names: tuple[str, ...], lengths: tuple[int, int, int]
) -> None:
    """A method is prepared and rehearsed once, however often a recipe with it is copied.

    options: as JSON. lengths: the budget, the epochs and the evaluations of an epoch, in ticks.
    """
    method = prepare(name, json.loads(options), lengths[0], peaks)
    rehearse(method.carry_out, Rehearsal(Mixture.of(dict.fromkeys(names, 1)), *lengths))


def remarks(
    recipe: "Recipe", keys: Mapping[str, Any], places: Mapping[Place, str]
) -> tuple[str, ...]:
    """What a user should be told about the keys of a recipe.

    keys: those given.
    """
    return (
        *_unused_length(recipe, keys, places),
        *_only_one(recipe),
        *_unusual(recipe),
        *_low_rate(recipe),
    )


def _unused_length(
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


def _unusual(recipe: "Recipe") -> tuple[str, ...]:
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


def _only_one(recipe: "Recipe") -> tuple[str, ...]:
    """A note where a method for mixtures gets one sub-dataset, which `split_by` does not divide."""
    alone = len(recipe.datasets) == 1 and recipe.datasets[0].split_by is None
    if not alone or recipe.method not in METHODS or recipe.method in ("sft", "soup"):
        return ()
    return (
        f"there is one sub-dataset only, so {recipe.method} has nothing to weigh against it; "
        "method: sft gives the best checkpoint too, and costs less",
    )


def _low_rate(recipe: "Recipe") -> tuple[str, ...]:
    """A note where an adapter would hardly move."""
    if not recipe.use_peft or recipe.learning_rate >= LOW_RATE:
        return ()
    return (
        f"learning_rate is {recipe.learning_rate:g}, which is low for an adapter: usual are 1e-4 "
        "to 2e-4",
    )
