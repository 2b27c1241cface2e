"""Schedules: what a schedule.json must have before `msft replay` trains it."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from msft.errors import RecipeError
from msft.run.folder import RunFolder
from msft.search.options import ticks_of
from msft.search.rollout import OptimizerStart
from msft.text import shown

MOST_EPOCHS = 10_000
MOST_COPIES = 1000
"""Rows of a stage per row of its sub-dataset; a weight of 1000 means the sub-dataset alone."""


def found_schedule(folder: Path) -> Path:
    """The schedule of a finished run; RecipeError where its folder has none."""
    run = RunFolder(folder)
    if run.schedule.is_file():
        return run.schedule
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
