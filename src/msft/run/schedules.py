"""Schedules: from a schedule.json to the method `replay`, which trains it in one run."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from msft.errors import RecipeError
from msft.run.folder import RunFolder, refuse_audit
from msft.search.curves import SELECTION, TEST
from msft.search.methods import PreparedMethod
from msft.search.methods.replay import replay
from msft.search.options import MixtureOptions, RolloutOptions, ticks_of
from msft.search.rollout import OptimizerStart
from msft.text import shown

MOST_EPOCHS = 10_000
MOST_COPIES = 1000
"""Rows of a stage per row of its sub-dataset; a weight of 1000 means the sub-dataset alone."""


def prepared_replay(
    file: Path, names: Sequence[str], evals_per_epoch: int, selection: str = SELECTION
) -> PreparedMethod:
    """The method `replay` with the schedule of a file; RecipeError where it cannot be used.

    file: a schedule.json, or the folder of a finished run.
    selection: the split whose rows select in the replay.
    """
    if file.is_dir():
        file = found_schedule(file)
    try:
        schedule = json.loads(file.read_text())
        stages, sizes = schedule["stages"], schedule["rows"]
        feeds = {stage["feed"]["name"] for stage in stages}
        averaged = schedule.get("average_of") or []
        selected_on = schedule.get("selection_split", SELECTION)
    except OSError as error:
        raise RecipeError(
            f"{file} cannot be read: {error.strerror}; expected the schedule.json of a finished run"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecipeError(
            f"{file} is not a schedule; expected the schedule.json of a finished run"
        ) from error
    if feeds - {"shuffled"}:
        raise RecipeError(
            f"{file} is of {schedule['method']}, which chooses its rows while it trains; such a "
            "run cannot be replayed as a schedule"
        )
    unknown = sorted(set(sizes) ^ set(names))
    if unknown:
        raise RecipeError(
            f"{file} is a schedule of {sorted(sizes)}, but the recipe has {sorted(names)}: "
            f"{unknown[0]!r} is not in both"
        )
    if selected_on == TEST != selection:
        raise RecipeError(
            f"{file} was selected on test rows (selection_split: test), so the test scores of its "
            "replay are optimistic too; add --set selection_split=test, which says so beside them"
        )
    refuse_wrong_stages(file, schedule, evals_per_epoch)
    if None in averaged:
        raise RecipeError(
            f"{file} is of an average over roll-outs that do not follow each other; one straight "
            "run does not come by all of its checkpoints, so it cannot be replayed"
        )
    options = {"stages": stages, "sizes": sizes}
    if averaged:
        options["average_of"] = averaged
    carry_out = partial(replay, **options)
    return PreparedMethod(
        "replay",
        options,
        carry_out,
        RolloutOptions(),
        MixtureOptions(),
        averages=1 if averaged else 0,
    )


def found_schedule(folder: Path) -> Path:
    """The schedule of a finished run; RecipeError where its folder has none."""
    run = RunFolder(folder)
    if run.schedule.is_file():
        return run.schedule
    refuse_audit(folder)
    if run.log.is_file():
        raise RecipeError(
            f"{folder} is the folder of a run that is not finished, so it has no "
            f"{run.schedule.name} yet; finish it with `msft train`, then replay it"
        )
    raise RecipeError(
        f"{folder} is a folder without {run.schedule.name}; expected the folder of a finished run, "
        f"or its {run.schedule.name}"
    )


def refuse_wrong_stages(file: Path, schedule: Mapping[str, Any], evals_per_epoch: int) -> None:
    """RecipeError for the first thing in a schedule that cannot be trained."""
    stages, sizes = schedule["stages"], schedule["rows"]
    if not isinstance(stages, list) or not isinstance(sizes, dict):
        raise _wrong(file, "its stages are no list, or its rows no object")
    if not stages:
        raise _wrong(file, "it has no stages (the run it is of kept the model as it was given)")
    for name, size in sizes.items():
        if not _is_count(size):
            raise _wrong(file, f"rows.{name} is {shown(size)}; expected a whole number above 0")
    for number, stage in enumerate(stages):
        _refuse_wrong_stage(file, f"stages[{number}]", stage, sizes, evals_per_epoch)
    total = sum(stage["epochs"] for stage in stages)
    averaged = schedule.get("average_of") or []
    if not isinstance(averaged, list):
        raise _wrong(file, f"average_of is {shown(averaged)}; expected a list of epochs")
    for epochs in averaged:
        if epochs is not None and not (_is_number(epochs) and 0 <= epochs <= total):
            raise _wrong(file, f"average_of has {shown(epochs)}; expected epochs from 0 to {total}")


def _refuse_wrong_stage(
    file: Path, place: str, stage: Mapping[str, Any], sizes: Mapping[str, int], evals: int
) -> None:
    for key in ("active", "rehearsed"):
        parts = stage.get(key)
        if not isinstance(parts, dict):
            raise _wrong(file, f"{place}.{key} is {shown(parts)}; expected names with their rows")
        for name, rows in parts.items():
            if name not in sizes:
                known = ", ".join(sizes)
                raise _wrong(file, f"{place}.{key} has {shown(name)}; expected one of: {known}")
            most = MOST_COPIES * sizes[name]
            if not _is_count(rows) or rows > most:
                raise _wrong(
                    file, f"{place}.{key}.{name} is {shown(rows)}; expected 1 to {most} rows"
                )
    if not stage["active"]:
        raise _wrong(file, f"{place}.active is empty; expected who is trained on")
    epochs: Any = stage.get("epochs")
    if not _is_number(epochs) or not 0 < epochs <= MOST_EPOCHS:
        raise _wrong(
            file, f"{place}.epochs is {shown(epochs)}; expected a number from 0 to {MOST_EPOCHS:,}"
        )
    try:
        ticks_of(epochs, evals, f"{place}.epochs")
    except ValueError as error:
        raise _wrong(file, str(error)) from error
    if stage.get("optimizer") not in get_args(OptimizerStart):
        choices = " or ".join(get_args(OptimizerStart))
        found = shown(stage.get("optimizer"))
        raise _wrong(file, f"{place}.optimizer is {found}; expected {choices}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _wrong(file: Path, reason: str) -> RecipeError:
    return RecipeError(f"{file}: {reason}; use the schedule.json of a finished run as it is")
