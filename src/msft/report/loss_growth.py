"""A training loss that grows: the learning rate is too high.

The rule, within one roll-out, since another mixture has another loss: two ticks in a row whose
mean loss is half as high again as the reference and at least half of the run's first. The
reference is the roll-out's first tick; of the first roll-out also the run's first steps, if they
were lower, because a model may be spoiled within the first tick. With fewer than 100 rows more is
asked for: the losses of rows scatter about as much as they are high, so a mean of n rows is off
by 1/√n of itself, and five of these are allowed for. Overfitting does not count: it lowers the
training loss. Nor do feeds that choose rows by their losses: what they leave out is the easy part.
"""

from dataclasses import dataclass
from math import sqrt

from msft.run.history import History

GROWTH = 0.5
ERRORS = 5
IN_A_ROW = 2

Loss = tuple[float, int]
"""Summed losses of rows, and rows."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Where the loss was too high for the second time in a row: from `first` to `now`."""

    stage: int
    tick: int
    first: float
    now: float


def growth_of(history: History, first: Loss | None = None) -> Growth | None:
    """The first place at which the loss has grown; first: that of the run's first steps."""
    begun: Loss | None = None
    for number, stage in enumerate(history.stages):
        ticks = [(t, p.loss) for t, p in enumerate(stage.points, start=1) if p.loss[1]]
        if not ticks:
            continue
        reference = ticks[0][1]
        if number == 0 and first and first[1] and _mean(first) < _mean(reference):
            reference = first
        begun = begun or reference
        if stage.asked.feed.get("name") != "shuffled":
            continue
        high = 0
        for tick, loss in ticks:
            high = high + 1 if _has_grown(reference, loss, begun) else 0
            if high == IN_A_ROW:
                return Growth(number, tick, _mean(reference), _mean(loss))
    return None


def _has_grown(reference: Loss, loss: Loss, begun: Loss) -> bool:
    allowed = max(GROWTH, ERRORS / sqrt(min(reference[1], loss[1])))
    return _mean(loss) > (1 + allowed) * _mean(reference) and _mean(loss) >= _mean(begun) / 2


def _mean(loss: Loss) -> float:
    return loss[0] / loss[1]
