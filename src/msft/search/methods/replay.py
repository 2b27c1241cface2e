"""Replay: train a schedule that was found before in one straight run, without the search.

A schedule is relative (which sub-datasets, for how many epochs), so it can be used with another
seed, other rows or a larger model. Its result is the model at its end.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msft.errors import RecipeError
from msft.search.methods import PreparedMethod
from msft.search.mixture import Mixture, Part
from msft.search.options import MixtureOptions, RolloutOptions
from msft.search.rollout import OptimizerStart, Run, ticks_of


def replay(run: Run, *, stages: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    """Each stage's mixture for its epochs, one after the other."""
    theta = run.base
    for stage in stages:
        ticks = ticks_of(stage["epochs"], run.evals_per_epoch, "a stage of the schedule")
        optimizer: OptimizerStart = stage["optimizer"]
        theta = run.rollout(
            theta, _mixture(run.mixture, stage, sizes), ticks, optimizer=optimizer, eligible=False
        ).end
    run.report(theta)


def prepared_replay(file: Path, names: Sequence[str]) -> PreparedMethod:
    """The method `replay` with the schedule of a file; RecipeError where it cannot be used."""
    try:
        schedule = json.loads(file.read_text())
        stages, sizes = schedule["stages"], schedule["rows"]
        feeds = {stage["feed"]["name"] for stage in stages}
    except OSError as error:
        raise RecipeError(
            f"{file} cannot be read: {error.strerror}; expected the schedule.json of a finished run"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
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
    options = {"stages": stages, "sizes": sizes}
    carry_out = partial(replay, **options)
    return PreparedMethod("replay", options, carry_out, RolloutOptions(), MixtureOptions())


def _mixture(mixture: Mixture, stage: Mapping[str, Any], sizes: Mapping[str, int]) -> Mixture:
    """The stage's mixture, in proportion to the rows that there are now."""
    rows = {**stage["active"], **stage["rehearsed"]}
    parts = (
        Part(
            part.name,
            part.size,
            max(1, rows[part.name] * part.size // sizes[part.name]),
            rehearsed=part.name in stage["rehearsed"],
        )
        for part in mixture.parts
        if part.name in rows
    )
    return Mixture(tuple(parts))
