"""Divergence (paper, section 3.1): how far peaks move when one sub-dataset is taken out.

Training is split at a checkpoint into two branches: one goes on with everybody, the other without
the sub-dataset that overfitted first. The change of a survivor's optimal compute is
c'_j - c_j: its peak in the branch without, less its peak in the branch with all.
"""

from collections.abc import Mapping, Sequence
from math import fsum

from msft.run.history import History


def changes(with_all: History, without: History, excluded: str) -> dict[str, float]:
    """The change of each survivor's optimal compute, in epochs; below 0 it peaks earlier now.

    with_all, without: runs whose last roll-outs are the two branches, from the same checkpoint.
    """
    full, reduced = _branch(with_all), _branch(without)
    if excluded not in with_all.stages[full].asked.active:
        raise ValueError(f"{excluded!r} is not trained in the branch with all sub-datasets")
    if excluded in without.stages[reduced].asked.active:
        raise ValueError(f"{excluded!r} is trained in the branch that was to go on without it")
    return {
        name: _optimum(without, reduced, name) - _optimum(with_all, full, name)
        for name in with_all.stages[full].asked.active
        if name in without.stages[reduced].asked.active
    }


def left_out(with_all: History, without: History) -> str:
    """The one sub-dataset that only the first branch trains."""
    reduced = without.stages[_branch(without)].asked.active
    full = with_all.stages[_branch(with_all)].asked.active
    names = [name for name in full if name not in reduced]
    if len(names) != 1:
        raise ValueError(f"the branches differ by {len(names)} sub-datasets; expected one")
    return names[0]


def mean_shift(moved: Mapping[str, float]) -> float:
    """Mean absolute change, as in the paper's Fig. 3b."""
    return fsum(abs(change) for change in moved.values()) / len(moved) if moved else 0.0


def _branch(history: History) -> int:
    """The last roll-out that has a point."""
    for number in range(len(history.stages) - 1, -1, -1):
        if history.stages[number].points:
            return number
    raise ValueError("this branch has no evaluation yet; wait until it has been trained")


def _optimum(history: History, stage: int, name: str) -> float:
    """Epochs from the start of a roll-out to a sub-dataset's peak."""
    return history.rule.peak(history.curve(stage, name)) / history.evals_per_epoch


def fork_of(history: History, candidates: Sequence[str]) -> tuple[str, list[int]] | None:
    """Who overfitted first in a run of `with_everybody`, and the legs of its trunk."""
    legs: list[int] = []
    for number, stage in enumerate(history.stages):
        last = max((tick for tick, point in enumerate(stage.points, 1) if point.steps), default=0)
        peaks = {name: history.rule.peak(history.curve(number, name)) for name in candidates}
        first = min(peaks.values())
        if first < last:
            return next(name for name in candidates if peaks[name] == first), [*legs, first]
        legs.append(stage.ticks)
    return None
