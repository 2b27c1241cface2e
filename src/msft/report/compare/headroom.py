"""Headroom: what taking every sub-dataset at its own peak would gain over one tick for all.

From one roll-out, on the split that selects. The naive figure is measured on the rows that chose
the ticks, so it is never below 0, whatever noise did. Cross-fitted, the peaks and the mean's tick
are chosen on one half of the rows and scored on the other, over many splits. The base model is a
candidate for both. Scores count upwards: a gain of an nll is a decrease.

The interval is a normal one: each split has the variance of its paired row differences, and their
mean over the splits is taken one and a half times: each half chooses for the other one, so the
two are not independent, and half of the rows chooses a little worse than all of them do, whose
choice is the one in question. docs/simulation.md says how often it covers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

from msft.errors import UsageError
from msft.report.compare.statistics import Z95, verdict_at
from msft.run.history import History, Stage
from msft.run.rows import RowTokens, VerdictsByKey
from msft.search.curves import MeanRule, Scores, overall_height
from msft.search.draws import number
from msft.search.rollout import BASE, CheckpointId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SPLITS = 100
"""Splits into halves; each half chooses for the other one."""

WIDER = 1.5
"""What the variance is multiplied by."""


@dataclass(frozen=True, slots=True)
class Gain:
    """In score units; low and high are the ends of a 95 % interval."""

    naive: float
    crossfitted: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """The gain of the mean, and of each sub-dataset at its own peak.

    ticks, mean_tick: the candidate that all rows choose for each, 0 the base model.
    rows: of all sub-datasets, of the split that selects.
    """

    mean: Gain
    datasets: Mapping[str, Gain]
    ticks: Mapping[str, int]
    mean_tick: int
    rows: int


@dataclass(frozen=True, slots=True)
class Heights:
    """A sub-dataset at every candidate: (candidates, rows), the weights of its rows, and its share
    of the mean."""

    rows: "NDArray[np.float64]"
    weights: "NDArray[np.float64]"
    share: float


def eligible_stage(history: History) -> Stage:
    """The one roll-out whose points may be the best; UsageError of a run with more or none."""
    eligible = [stage for stage in history.stages if stage.asked.eligible]
    if len(eligible) != 1:
        raise UsageError(
            f"this run of {history.start.method} has {len(eligible)} roll-outs whose points may be "
            "the best; headroom is worked out from runs with one, such as those of sft"
        )
    if history.ended is None:
        raise UsageError("this run is not finished; headroom is worked out from a finished one")
    return eligible[0]


def headroom_of(history: History, verdicts: VerdictsByKey, tokens: RowTokens) -> Headroom:
    """The headroom of a finished run with one eligible roll-out; UsageError if it has none."""
    stage = eligible_stage(history)
    places = [BASE, *(point.checkpoint for point in stage.points)]
    scores: list[Scores] = []
    for place in places:
        missing = history.missing(place)
        if missing:
            raise UsageError(f"{missing[0]} is not scored at {place}; headroom needs all of them")
        scores.append(history.known(place))
    rule: MeanRule = history.start.settings["mean"]
    means = [overall_height(each, scores[0], rule) for each in scores]
    mean_tick = means.index(max(means))
    ticks = {}
    for name in history.start.datasets:
        curve = [each[name].height for each in scores]
        ticks[name] = curve.index(max(curve))
    heights = {
        name: _heights(history, verdicts, tokens, places, name, shares_of(history)[name])
        for name in history.start.datasets
    }
    crossed = crossfitted(heights)
    naive = {
        name: float(scores[tick][name].height - scores[mean_tick][name].height)
        for name, tick in ticks.items()
    }
    whole = fsum(heights[name].share * gain for name, gain in naive.items())
    return Headroom(
        mean=_gain(whole, crossed[None]),
        datasets={name: _gain(gain, crossed[name]) for name, gain in naive.items()},
        ticks=ticks,
        mean_tick=mean_tick,
        rows=sum(each.rows.shape[1] for each in heights.values()),
    )


def shares_of(history: History) -> dict[str, float]:
    """What a sub-dataset's height counts in the mean: see `scores.overall`."""
    base = history.known(BASE)
    if history.mixed:
        relative = {n: float(s.value) if s.metric == "nll" else 1.0 for n, s in base.items()}
        return {name: 1 / by / len(base) if by else 0.0 for name, by in relative.items()}
    if history.start.settings["mean"] == "pooled":
        whole = sum(score.count for score in base.values())
        return {name: score.count / whole for name, score in base.items()}
    return dict.fromkeys(base, 1 / len(base))


def crossfitted(
    heights: Mapping[str, Heights], splits: int = SPLITS
) -> dict[str | None, tuple[float, float]]:
    """The cross-fitted gain and its standard error, of each sub-dataset and (None) of the mean."""
    import numpy as np

    halves = {name: _halves(name, each.rows.shape[1], splits) for name, each in heights.items()}
    gains = dict.fromkeys(heights, 0.0)
    variances = dict.fromkeys(heights, 0.0)
    for chooses in (True, False):
        curves = {n: _curves(h, halves[n] == chooses) for n, h in heights.items()}
        mean = sum((h.share * curves[n] for n, h in heights.items()), np.zeros(1))
        common = _highest(mean)
        for name, each in heights.items():
            own = _highest(curves[name])
            moved = each.rows[own] - each.rows[common]  # (splits, rows)
            gain, variance = _ratios(moved, each.weights, halves[name] != chooses)
            gains[name] += float(gain.mean()) / 2
            variances[name] += float(variance.mean()) / 4
    errors = {name: sqrt(WIDER * variance) for name, variance in variances.items()}
    whole = fsum(each.share * gains[name] for name, each in heights.items())
    error = sqrt(fsum((each.share * errors[name]) ** 2 for name, each in heights.items()))
    return {None: (whole, error), **{name: (gains[name], errors[name]) for name in heights}}


def _halves(name: str, rows: int, splits: int) -> "NDArray[np.bool_]":
    """Which rows are in the first half, split by split."""
    import numpy as np

    twister = np.random.RandomState(number(0, "headroom", name) % 2**32)  # a promised sequence
    order = np.argsort(twister.random_sample((splits, rows)), axis=1)
    first = np.zeros((splits, rows), dtype=bool)
    np.put_along_axis(first, order[:, : rows // 2], True, axis=1)
    return first


def _curves(each: Heights, half: "NDArray[np.bool_]") -> "NDArray[np.float64]":
    """The score on half of the rows, (candidates, splits)."""
    found: NDArray[np.float64] = (each.rows @ half.T) / (each.weights @ half.T)
    return found


def _highest(curves: "NDArray[np.float64]") -> "NDArray[np.intp]":
    """The earliest of the highest candidates; sums that should be equal may differ by rounding."""
    import numpy as np

    found: NDArray[np.intp] = np.argmax(curves >= curves.max(axis=0) - 1e-12, axis=0)
    return found


def _ratios(
    moved: "NDArray[np.float64]", weights: "NDArray[np.float64]", half: "NDArray[np.bool_]"
) -> tuple["NDArray[np.float64]", "NDArray[np.float64]"]:
    """Sum over sum of weights on half of the rows, and its variance, split by split."""
    import numpy as np

    count, whole = half.sum(axis=1), half @ weights
    gain = (moved * half).sum(axis=1) / whole
    rest = (moved - gain[:, None] * weights) * half
    return gain, (rest**2).sum(axis=1) / whole**2 * count / np.maximum(1, count - 1)


def _heights(
    history: History,
    verdicts: VerdictsByKey,
    tokens: RowTokens,
    places: Sequence[CheckpointId],
    name: str,
    share: float,
) -> Heights:
    import numpy as np

    loss, score = history.unit_of(name) == "nll", history.known(BASE)[name]
    lines: list[list[float]] = []
    for place in places:
        rows = verdict_at(history, verdicts, place, history.selection, name)
        if rows is None or len(rows) < 4:
            raise UsageError(
                f"verdicts.jsonl has no four rows of {name} at {place}; headroom needs the "
                "verdicts of single rows"
            )
        lines.append([float(row) for row in rows])
    found: Any = np.array(lines)
    counts = tokens.get((history.selection, name))
    if loss and counts is None:  # a folder of an earlier version: rows count as if equally long
        counts = [1] * len(lines[0])
        found = found * len(counts) / score.count
    weights = np.array(counts if loss else [1] * len(lines[0]), dtype=float)
    return Heights(-found if loss else found, weights, share)


def _gain(naive: float, crossed: tuple[float, float]) -> Gain:
    value, error = crossed
    return Gain(naive, value, value - Z95 * error, value + Z95 * error)
