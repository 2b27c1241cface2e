"""Scores of all entrants of a contest beside each other, sub-dataset by sub-dataset."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msft.report.compare.contest import Contest
from msft.report.compare.entrant import Entrant
from msft.report.compare.evidence import wilson
from msft.report.figures.bars import Panel, Series, lying_dots
from msft.report.figures.chart import colour_at
from msft.report.units import points, score_unit
from msft.report.wording import Unit, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_text(contest: Contest) -> str:
    """What the figure shows."""
    units = {contest.unit((name,)) for name in contest.names}
    text = "In per cent of rows right" if units == {"accuracy"} else "Accuracies in per cent"
    if "accuracy" not in units:
        text = "In the metric of each sub-dataset"
    elif _single(contest):
        text += "; the lines are Wilson's 95 % intervals"
    if not _single(contest):
        text += f"; mean over seeds {listed(map(str, contest.seeds))}"
    if len(units) > 1:
        text += "; each metric has an axis of its own"
    return text + (". Of nll, lower is better." if "nll" in units else ".")


def score_figure(contest: Contest, width: float) -> "Figure":
    """Sub-datasets with the same metric share an axis."""
    by_unit: dict[Unit, list[str]] = {}
    for name in contest.names:
        by_unit.setdefault(contest.unit((name,)), []).append(name)
    panels = [
        Panel(names, _series(contest, names), f"{score_unit(unit)} ({contest.split})")
        for unit, names in by_unit.items()
    ]
    return lying_dots(width, panels, zero=False)


def _series(contest: Contest, names: Sequence[str]) -> list[Series]:
    return [
        Series(
            entrant.label,
            colour_at(place),
            [_score(contest, entrant, name) for name in names],
            [_interval(contest, entrant, name) for name in names],
        )
        for place, entrant in enumerate(contest.entrants)
    ]


def _single(contest: Contest) -> bool:
    return all(len(entrant.over(contest.seeds)) == 1 for entrant in contest.entrants)


def _score(contest: Contest, entrant: Entrant, name: str) -> float | None:
    score = contest.score(entrant, (name,), contest.split)
    return None if score is None else points(score, contest.unit((name,)))


def _interval(contest: Contest, entrant: Entrant, name: str) -> tuple[float, float] | None:
    """Of a count under one seed."""
    run, *others = entrant.over(contest.seeds)
    score = run.history.known(run.best, contest.split).get(name)
    if others or score is None or score.metric != "accuracy":
        return None
    low, high = wilson(int(score.total), score.count)
    return (100 * low, 100 * high)
