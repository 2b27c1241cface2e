"""Replay: train a schedule that was found before in one straight run, without the search.

A schedule is relative (which sub-datasets, for how many epochs), so it can be used with another
seed, other rows or a larger model. Its result is the model at its end, or the average that the
schedule names.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msft.search.feeds import Mixture, Part
from msft.search.rollout import OptimizerStart, Run, ticks_of


def replay(
    run: Run,
    *,
    stages: Sequence[Mapping[str, Any]],
    sizes: Mapping[str, int],
    average_of: Sequence[float] = (),
) -> None:
    """Each stage's mixture for its epochs, one after the other.

    average_of: where the checkpoints lie whose average is the result, in epochs from the start.
    """
    what = "an averaged checkpoint of the schedule"
    averaged = [
        ticks_of(epochs, run.evals_per_epoch, what) if epochs else 0 for epochs in average_of
    ]
    path = [run.base]
    for stage in stages:
        ticks = ticks_of(stage["epochs"], run.evals_per_epoch, "a stage of the schedule")
        optimizer: OptimizerStart = stage["optimizer"]
        needed = {tick - len(path) + 1 for tick in averaged} & {*range(1, ticks + 1)}
        rollout = run.rollout(
            path[-1],
            _mixture(run.mixture, stage, sizes),
            ticks,
            optimizer=optimizer,
            eligible=False,
            keep=tuple(sorted(needed)) if averaged else "best",
        )
        path += [rollout.at(tick) for tick in range(1, ticks + 1)]
    run.report(run.average([path[tick] for tick in averaged]) if averaged else path[-1])


def _mixture(mixture: Mixture, stage: Mapping[str, Any], sizes: Mapping[str, int]) -> Mixture:
    """The stage's mixture, in proportion to the rows that there are now."""
    rows = {**stage["active"], **stage["rehearsed"]}
    parts = (
        Part(
            part.name,
            part.size,
            max(1, rows[part.name] * part.size // sizes[part.name]),
            rehearsed=part.name in stage["rehearsed"],
            anew=part.anew,
        )
        for part in mixture.parts
        if part.name in rows
    )
    return Mixture(tuple(parts))
