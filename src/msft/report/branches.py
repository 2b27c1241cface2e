"""The roll-outs of a run as branches over the epochs on the path, and the curve that the peak rule
compared in each: the geometry of figures and tables."""

from collections.abc import Mapping
from dataclasses import dataclass

from msft.report.figures.chart import BEST, FAINT, WENT_ON
from msft.run.history import History
from msft.search.curves import Number, PeakRule, Score
from msft.search.rollout import BASE, CheckpointId, place_of


def is_derived(history: History) -> bool:
    """True where the rule compares smoothed scores or probabilities, not the scores themselves."""
    rule = history.rule
    return bool(rule.smooth) or rule.by != "score"


def deciding_curve(history: History, number: int, name: str) -> list[Number | None]:
    """What the rule compared at each tick of a roll-out, as people read scores; None where a score
    that it takes is missing."""
    rule = history.rule
    scores = [history.known(place).get(name) for place in history.stages[number].checkpoints]
    heights = [_height(rule, score) for score in scores]
    sign = -1 if rule.by == "score" and history.unit_of(name) == "nll" else 1
    found: list[Number | None] = []
    for tick in range(len(heights)):
        first = max(0, tick - rule.smooth)
        window = heights[first : tick + rule.smooth + 1]
        known = [height for height in window if height is not None]
        whole = len(known) == len(window)
        found.append(sign * rule.smoothed(known, tick - first) if whole else None)
    return found


def deciding_words(history: History) -> str:
    """The name of the deciding curve."""
    rule = history.rule
    what = "score" if rule.by == "score" else "probability of the right choice"
    return f"the {what} averaged over {2 * rule.smooth + 1} ticks" if rule.smooth else f"the {what}"


def _height(rule: PeakRule, score: Score | None) -> Number | None:
    if score is None or (rule.by == "probability" and score.probability is None):
        return None
    return rule.height(score)


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
    only_first = history.start.method == "sro"  # it looks for peaks in its first roll-out only
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
                    if stage.points and (number == 0 or not only_first)
                },
                per_epoch=history.evals_per_epoch,
            )
        )
        ticks += stage.ticks
    return branches


def head_of(history: History) -> CheckpointId:
    """The head of the search: the last decision's checkpoint, else the end of the last roll-out."""
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
    """True where the next roll-out does not begin at the end of this one."""
    this, following = history.stages[number], history.stages[number + 1]
    return place_of(following.asked.start) != (number, this.ticks)
