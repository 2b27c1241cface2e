"""Headroom: what taking every sub-dataset at its own peak would gain over one tick for all.

From one roll-out, on the split that selects. The naive figure is measured on the rows that chose
the ticks, so it is never below 0, whatever noise did. Cross-fitted, the peaks and the mean's tick
are chosen on one half of the rows and scored on the other, over many splits. The base model is a
candidate for both. Scores count upwards: a gain of an nll is a decrease.

The interval is a normal one: each split has the variance of its paired row differences, and their
mean over the splits is taken one and a half times: each half chooses for the other one, so the
two are not independent, and half of the rows chooses a little worse than all of them do, whose
choice is the one in question. docs/results/simulation.md says how often it covers.

The numbers come first, then their words: on the terminal, as JSON, on the page of a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

from msft.errors import UsageError
from msft.report.compare.statistics import Z95, verdict_at
from msft.report.tables import Cell, Table, TableRow, wrapped
from msft.report.wording import Unit, difference
from msft.run.history import History, Stage
from msft.run.rows import RowTokens, VerdictsByKey
from msft.search.curves import MeanRule, Scores, overall_height
from msft.search.draws import number
from msft.search.rollout import BASE, CheckpointId
from msft.text import SELECTED_ON_TEST, counted, cut, epochs
from msft.text import table as text_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SPLITS = 100
"""Splits into halves; each half chooses for the other one."""

WIDER = 1.5
"""A factor of the variance: the two halves are not independent."""


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
    """The weight of each sub-dataset in the mean: see `scores.overall`."""
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
    """The mask of the first half's rows for each split."""
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


NOTE = (
    "Naive: each sub-dataset's score at its own peak minus its score at the peak of the mean, on "
    "the rows that chose both. Cross-fitted: chosen on one half of the rows and scored on the "
    "other, over 100 splits, with a 95 % interval. This judges stopping each sub-dataset at its "
    "own peak in this roll-out, not every use of mSFT."
)
_UNITS = {"accuracy": " points", "nll": " nats saved", "value": "", None: " in mean gain"}


@dataclass(frozen=True, slots=True)
class HeadroomSection:
    """As a page has it: the mean in words, and each sub-dataset in a table."""

    words: str
    table: Table


def headroom_words(history: History, found: Headroom) -> str:
    """The naive headroom, and the part of it that cross-fitting leaves."""
    unit, mean = history.mean_unit, found.mean
    promise = f"{difference(mean.naive, unit)}{_UNITS[unit]}"
    rows = counted(found.rows, f"{history.selection} row")
    if promise.startswith("±"):
        return (
            f"On these {rows}, every sub-dataset is at its own peak where the mean is, so stopping "
            "each at its peak promises nothing."
        )
    text = (
        f"On these {rows}, stopping each sub-dataset at its own "
        f"peak promises {promise}; cross-fitted it is {difference(mean.crossfitted, unit)} "
        f"(95\u00a0% interval {_interval(mean, unit)})."
    )
    if mean.low > 0:
        return f"{text} Some of it would hold on unseen rows."
    return f"{text} It may be chance: nothing says that any of it would hold on unseen rows."


def headroom_rows(history: History, found: Headroom) -> list[tuple[str, ...]]:
    """A head, a row of each sub-dataset, and the mean."""
    per_epoch = history.evals_per_epoch
    rows: list[tuple[str, ...]] = [
        ("sub-dataset", "peak, epoch", "naive", "cross-fitted", "95 % interval")
    ]
    for name, gain in found.datasets.items():
        peak = epochs(found.ticks[name] / per_epoch)
        rows.append((cut(name, 24), peak, *_cells(gain, history.unit_of(name))))
    mean = epochs(found.mean_tick / per_epoch)
    rows.append(("mean", mean, *_cells(found.mean, history.mean_unit)))
    return rows


def headroom_text(history: History, found: Headroom, width: int) -> str:
    """For a terminal of this width."""
    rows = text_table(headroom_rows(history, found), width)
    marks = [SELECTED_ON_TEST] if history.selected_on_test else []
    texts = (headroom_words(history, found), NOTE, *marks)
    said = (wrapped(text, width) for text in texts)
    return "\n".join([*rows, "", *chain(*said)])


def headroom_content(history: History, found: Headroom) -> dict[str, Any]:
    """For a program, as the contract has it."""
    return {
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "mean": asdict(found.mean),
        "datasets": {name: asdict(gain) for name, gain in found.datasets.items()},
    }


def headroom_section(
    history: History, verdicts: VerdictsByKey, tokens: RowTokens
) -> HeadroomSection | None:
    """The headroom of a run; None where it has none, and of one sub-dataset, whose peak is the
    mean's."""
    if len(history.start.datasets) < 2:
        return None
    try:
        found = headroom_of(history, verdicts, tokens)
    except (UsageError, ValueError, TypeError):  # no verdicts, or somebody else's file
        return None
    head, *rows = headroom_rows(history, found)[:-1]
    lines = [TableRow(name, tuple(map(Cell, cells))) for name, _, *cells in rows]
    table = Table("headroom", "", NOTE, (head[0], *head[2:]), tuple(lines))
    return HeadroomSection(headroom_words(history, found), table)


def _cells(gain: Gain, unit: Unit) -> tuple[str, str, str]:
    naive, crossed = difference(gain.naive, unit), difference(gain.crossfitted, unit)
    return naive, crossed, _interval(gain, unit)


def _interval(gain: Gain, unit: Unit) -> str:
    return f"{difference(gain.low, unit)} to {difference(gain.high, unit)}"
