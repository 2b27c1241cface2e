"""Replay: train a schedule that was found before in one straight run, without the search.

A schedule is relative (which sub-datasets, for how many epochs), so it can be used with another
seed, other rows or a larger model. Its result is the model at its end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msft.search.mixture import Mixture, Part
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
