"""Keys of a recipe that must agree with each other, each of them fitting by itself."""

from typing import TYPE_CHECKING

from msft.errors import OptionError, RecipeError
from msft.recipe.blocks import refuse_wrong_options
from msft.search.methods import METHODS, ROLLING_BACK
from msft.search.mixture import Mixture
from msft.search.rehearsal import Rehearsal, rehearse
from msft.search.rollout import ticks_of
from msft.search.scores import TEST

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe


def refuse_wrong_names(recipe: "Recipe") -> None:
    """Sub-datasets: at least one, each with a name of its own, and metrics that have a mean."""
    if not recipe.datasets:
        raise RecipeError(
            "datasets is empty; expected at least one sub-dataset, e.g. "
            "`- {name: mine, train: mine.jsonl, validation_fraction: 0.1}`",
            ("datasets",),
        )
    seen: dict[str, str] = {}
    for number, spec in enumerate(recipe.datasets):
        other = seen.setdefault(spec.name.casefold(), spec.name)
        if number and len(seen) <= number:
            how = "" if other == spec.name else " (upper and lower case are not told apart)"
            raise RecipeError(
                f"name {spec.name!r} is taken by {other!r} already{how}; choose another",
                ("datasets", number, "name"),
            )
    metrics = sorted({spec.metric for spec in recipe.datasets})
    if recipe.mean == "pooled" and len(metrics) > 1:
        raise RecipeError(
            f"mean is pooled, but the sub-datasets have the metrics {', '.join(metrics)}, "
            "whose counts cannot be added; use mean: macro",
            ("mean",),
            because=("metric",),
        )


def refuse_no_selection(recipe: "Recipe") -> None:
    """Every sub-dataset needs rows that choose a checkpoint; where test rows do, keys that are
    about validation rows, or about test rows that do not choose, contradict it."""
    on_test = recipe.selection_split == TEST
    for number, spec in enumerate(recipe.datasets):
        if spec.benchmark is not None or spec.path is not None:
            continue
        if on_test and spec.test is None:
            raise RecipeError(
                f"sub-dataset {spec.name!r}: no test, but selection_split is test, so checkpoints "
                "are chosen on test rows; add `test: ` with a file, or leave selection_split out",
                ("datasets", number, "test"),
                because=("selection_split",),
            )
        if not on_test and spec.validation is None and spec.validation_fraction is None:
            raise RecipeError(
                f"sub-dataset {spec.name!r}: neither validation nor validation_fraction, but a "
                "checkpoint can only be chosen on rows that were not trained; add one, e.g. "
                "`validation_fraction: 0.1`",
                ("datasets", number, "validation"),
            )
    if on_test and recipe.score_test != "best":
        raise RecipeError(
            f"score_test is {recipe.score_test}, but selection_split is test, so every point is "
            "scored on test already; leave score_test out",
            ("score_test",),
            because=("selection_split",),
        )
    if on_test and recipe.validation_loss:
        raise RecipeError(
            "validation_loss is true, but selection_split is test, so no validation rows are read; "
            "leave validation_loss out",
            ("validation_loss",),
            because=("selection_split",),
        )


def refuse_wrong_schedule(recipe: "Recipe") -> None:
    """The learning rate's course must suit the method, and the warm-up the course."""
    kind = recipe.lr_scheduler_type
    if recipe.method in ROLLING_BACK and kind != "constant":
        raise RecipeError(
            f"lr_scheduler_type is {kind}, but method {recipe.method} rolls back, and what a "
            "changing learning rate should return to then is not defined; use constant",
            ("lr_scheduler_type",),
            because=("method",),
        )
    if kind == "constant" and recipe.warmup_steps:
        cure = "0" if recipe.method in ROLLING_BACK else "0, or constant_with_warmup"
        raise RecipeError(
            f"warmup_steps is {recipe.warmup_steps}, but lr_scheduler_type constant has no "
            f"warm-up; use {cure}",
            ("warmup_steps",),
            because=("lr_scheduler_type", "method"),
        )


def refuse_wrong_lanes(recipe: "Recipe") -> None:
    """Every lane needs a row, and an engine that sums over lanes; an adapter is not sliced."""
    if recipe.use_peft and recipe.sharding == "full":
        raise RecipeError(
            "sharding is full, but an adapter (use_peft) needs its whole frozen model in every "
            "process; use sharding: optimizer, with load_in_4bit: true if memory is short",
            ("sharding",),
            because=("use_peft",),
        )
    if recipe.lanes == "auto" or recipe.lanes == 1:
        return
    if recipe.lanes > recipe.train_batch_size:
        raise RecipeError(
            f"lanes is {recipe.lanes}, but a step has train_batch_size ({recipe.train_batch_size}) "
            "rows, and every lane needs one; use fewer lanes, or a larger train_batch_size",
            ("lanes",),
            because=("train_batch_size",),
        )
    if recipe.engine == "simple":
        raise RecipeError(
            f"lanes is {recipe.lanes}, but engine simple has one; leave one of them out",
            ("lanes",),
            because=("engine",),
        )


def refuse_wrong_method(recipe: "Recipe") -> None:
    """What `prepare` refuses, and the contradictions that a method of ours finds itself."""

    def ticks(key: str) -> int:
        return ticks_of(getattr(recipe, key), recipe.evals_per_epoch, key)

    budget, epochs = ticks("compute_budget"), ticks("num_train_epochs")
    refuse_wrong_options(recipe.options_by_method, budget, recipe.peak_rule)
    try:
        method = recipe.prepared()
        if recipe.method in METHODS:
            mixture = Mixture.of({spec.name: 1 for spec in recipe.datasets})
            rehearsal = Rehearsal(mixture, budget, epochs, recipe.evals_per_epoch)
            rehearse(method.carry_out, rehearsal)
    except OptionError as error:
        inside = error.place[0] in recipe.method_options
        place = ("method_options", *error.place) if inside else error.place
        because = () if place == ("method",) else ("method", *error.because)
        raise RecipeError(str(error), place, because) from error
    except ValueError as error:
        raise RecipeError(str(error), ("method",)) from error
