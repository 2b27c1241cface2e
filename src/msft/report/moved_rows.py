"""Who is off the base model by its rows alone, whatever the curve between looks like."""

from collections.abc import Mapping

from msft.report.compare.evidence import sign_test
from msft.run.history import History, Stage
from msft.run.rows import RowVerdicts, row_scores
from msft.search.falls import Fall
from msft.search.rollout import BASE

LEVEL = 0.05


def moved_from_base(
    history: History, rows: RowVerdicts, stage: Stage, tested: Mapping[str, Fall]
) -> frozenset[str]:
    """Those of whom the test of falls does not say that they learned, and whose rows say it: a
    sign test at the highest tick and at the last one, for as many chances as there are ticks.

    A few steep ticks look like jitter to the test of falls.
    """
    points = [point.checkpoint for point in stage.points if point.steps]
    moved: set[str] = set()
    for name in (name for name, fall in tested.items() if fall.learned is None):
        known = [at for at in points if name in history.known(at)]
        heights = [history.known(at)[name].height for at in known]
        if not known:
            continue
        highest = known[heights.index(max(heights))]
        try:
            scores = row_scores(history, rows, name, [highest, known[-1]], BASE)
        except (ValueError, TypeError, KeyError):  # lost, or somebody else's file
            continue
        for tick in scores.ticks:
            pairs = [*zip(tick, scores.base, strict=True)]
            better = sum(now > before for now, before in pairs)
            worse = sum(now < before for now, before in pairs)
            if sign_test(better, worse) * len(points) <= LEVEL:
                moved.add(name)
    return frozenset(moved)
