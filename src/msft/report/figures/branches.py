"""The roll-outs of a run as branches over the epochs on the path: the geometry of the figures."""

from collections.abc import Mapping
from dataclasses import dataclass

from msft.report.figures.chart import BEST, FAINT, WENT_ON
from msft.run.history import History
from msft.search.rollout import BASE, CheckpointId, place_of

Polyline = tuple[list[float], list[float]]
"""Abscissas and ordinates; a gap is a pair of nan."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One roll-out.

    start: epochs on the path from the base model to where it begins.
    before: epochs trained before it, discarded ones included.
    to_best: its ticks on the path to the best checkpoint.
    went_on: its ticks on the path that the search took, to a later stage or to its present end.
    checkpoints: one per tick, its start first.
    peaks: the tick at which each active sub-dataset peaks, as far as the roll-out has gone; none
        where the method does not look for peaks.
    """

    number: int
    start: float
    before: float
    to_best: int
    went_on: int
    checkpoints: tuple[CheckpointId, ...]
    peaks: Mapping[str, int]
    per_epoch: int

    @property
    def ticks(self) -> int:
        return len(self.checkpoints) - 1

    @property
    def used(self) -> int:
        """Ticks that were not rolled back."""
        return max(self.to_best, self.went_on)

    @property
    def parts(self) -> tuple[tuple[int, int, str], ...]:
        """First and last tick and colour of what was rolled back, went on, led to the best."""
        parts = (
            (self.used, self.ticks, FAINT),
            (self.to_best, self.went_on, WENT_ON),
            (0, self.to_best, BEST),
        )
        return tuple(part for part in parts if part[1] > part[0])

    @property
    def end(self) -> float:
        return self.at(self.ticks)

    def at(self, tick: int) -> float:
        """Epochs on the path at a tick."""
        return self.start + tick / self.per_epoch

    def trained_at(self, tick: int) -> float:
        """Epochs trained in all at a tick."""
        return self.before + tick / self.per_epoch


def branches_of(history: History) -> list[Branch]:
    best = dict(history.path(history.best)) if history.best else {}
    went_on = dict(history.path(head_of(history)))
    branches: list[Branch] = []
    ticks = 0
    for number, stage in enumerate(history.stages):
        asked = stage.asked
        branches.append(
            Branch(
                number=number,
                start=epochs_to(history, asked.start),
                before=ticks / history.evals_per_epoch,
                to_best=best.get(number, 0),
                went_on=went_on.get(number, 0),
                checkpoints=(asked.start, *(point.checkpoint for point in stage.points)),
                peaks={
                    name: history.rule.peak(history.curve(number, name))
                    for name in asked.active
                    if stage.points and _searches(history, number)
                },
                per_epoch=history.evals_per_epoch,
            )
        )
        ticks += stage.ticks
    return branches


def _searches(history: History, number: int) -> bool:
    """Whether peaks of a roll-out mean anything: sro looks for them in its first one only."""
    return history.start.method != "sro" or number == 0


def head_of(history: History) -> CheckpointId:
    """Where the search stands: the last decision's checkpoint, or the end of what is running."""
    if not history.stages:
        return BASE
    last = history.stages[-1]
    if last.decisions:
        return last.decisions[-1].checkpoint
    return last.points[-1].checkpoint if last.points else last.asked.start


def epochs_to(history: History, checkpoint: CheckpointId) -> float:
    """Epochs on the path from the base model to a checkpoint."""
    return sum(ticks for _, ticks in history.path(checkpoint)) / history.evals_per_epoch


def rolled_back(history: History, number: int) -> bool:
    """Whether the next roll-out began elsewhere than where this one ended."""
    if number + 1 >= len(history.stages):
        decisions = history.stages[number].decisions
        if not decisions:
            return False
        following = decisions[-1].checkpoint
    else:
        following = history.stages[number + 1].asked.start
    rollout, tick = place_of(history.reach(following))
    return (rollout, tick) != (number, history.stages[number].ticks)
