"""The shortfall of an average: a tick of the same training that is above it by more than chance.

An average is the result whatever scored best. Where scores still rose at the end of training, or
fell for long, it has weights in it that were trained too little or too long.
"""

from dataclasses import dataclass

from msft.report.compare.evidence import Paired, paired
from msft.report.wording import Unit, height
from msft.run.history import History
from msft.run.rows import RowVerdicts
from msft.search.rollout import CheckpointId, place_of
from msft.search.scores import Number

LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The best tick of the training that was averaged.

    gap: the average's mean less the tick's, on the split that selects.
    p: of a sign test over all rows of that split, for as many chances as there were ticks.
    is_last: it is the last tick, so scores still rose.
    """

    tick: CheckpointId
    gap: Number
    unit: Unit
    p: float
    is_last: bool


def shortfall_of(history: History, rows: RowVerdicts) -> Shortfall | None:
    """Of a result that is an average, and below the best tick by more than chance; None where it is
    not, or where rows are lost."""
    average, tick = history.best, history.best_tick
    if average is None or tick is None or history.average_of is None:
        return None
    if not (history.has_mean(average) and history.has_mean(tick)):
        return None
    gap, unit = history.mean(average) - history.mean(tick), history.mean_unit
    together = _compared(history, rows, tick, average)
    lower = height(gap, unit)
    if together is None or lower is None or lower >= 0 or together.better <= together.worse:
        return None
    ticks = [
        point.checkpoint
        for stage in history.stages
        if stage.asked.eligible
        for point in stage.points
        if point.steps
    ]
    p = float(together.p) * len(ticks)
    return Shortfall(tick, gap, unit, p, tick == max(ticks, key=place_of)) if p <= LEVEL else None


def _compared(
    history: History, rows: RowVerdicts, first: CheckpointId, second: CheckpointId
) -> Paired | None:
    """All rows that select, at two checkpoints; None where some are lost."""
    together = Paired(0, 0)
    for name in history.start.datasets:
        one, two = rows.at(first, name), rows.at(second, name)
        if one is None or two is None:
            return None
        found = paired(one, two, lower_is_better=history.unit_of(name) == "nll")
        if found is None:
            return None
        together += found
    return together
