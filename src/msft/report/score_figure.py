"""Scores of all entrants of a contest beside each other, sub-dataset by sub-dataset."""

from typing import TYPE_CHECKING

from msft.report.bars import Series, lying_dots
from msft.report.chart import colour_at
from msft.report.contest import Contest
from msft.report.entrant import Entrant
from msft.report.evidence import wilson
from msft.report.units import points
from msft.report.wording import listed

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
    if "accuracy" in units and len(units) > 1:
        text += "; other metrics as they are"
    return text + (". Of nll, lower is better." if "nll" in units else ".")


def score_figure(contest: Contest, width: float) -> "Figure":
    series = [
        Series(
            entrant.label,
            colour_at(place),
            [_score(contest, entrant, name) for name in contest.names],
            [_interval(contest, entrant, name) for name in contest.names],
        )
        for place, entrant in enumerate(contest.entrants)
    ]
    return lying_dots(width, contest.names, series, f"score on {contest.split}", zero=False)


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
