"""Who falls for sure: whether the scores of a sub-dataset really go down after their peak.

The fall is the mean of the peak and its neighbours minus the mean of the last three ticks, paired
over rows. The highest of noisy scores flatters, so the peak is chosen on one half of the rows and
the fall is measured on the other half, and the other way round; the mean of both is tested.

Two kinds of noise are reckoned with. Rows: the paired differences say how large that is. Jitter:
a whole checkpoint is a little better or worse than its neighbours, on all rows alike, so that
neither more rows nor halves help. It is estimated from the second differences of the curves in
the second half of the roll-out, after the steep part of learning, beyond what rows explain.

    fall:    f = (f_A + f_B) / 2, where half A chose the peak of f_B and half B that of f_A
    variance:    (var_A + var_B) / 4 + sigma² · sum of the squared weights of the ticks
    p:       chances · P(T > f / sqrt(variance)), T of Student

`chances` counts how often luck had a try: twice where rows are the noise, since a fluke on all
rows is likely to be found by both halves; where jitter is, which both halves share, as often as
there are separate windows. docs/results/simulation.md has the level and the power that follow.

A guard asks less: whether one checkpoint is surely below the base model. Nothing was chosen there,
so it is one paired comparison over rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
from typing import Literal

from msft.search.draws import shuffled
from msft.search.student import t_quantile, t_survival

LAST = 3
"""Ticks at the end that a peak is compared with."""

FEWEST_TICKS = LAST + 1
"""A shorter roll-out has no peak whose neighbours are not among the last ticks."""

ROUNDING = 1e-12
"""Smaller differences, in shares of the scores, are none: thirds and halves of equal scores do not
cancel to the last bit, and a curve that never moves has no noise to hold that against."""

GUARD_CONFIDENCE = 0.95
"""Of the one-sided bound of a drop that a guard looks at."""

Learned = Literal["above", "below"]
Weights = Mapping[int, float]
"""What each tick counts in a contrast of ticks."""
Halves = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class RowScores:
    """A sub-dataset over a roll-out, row by row; higher is better.

    ticks: at the start and at each tick, every row's score.
    base: every row's score under the base model.
    weights: what each row counts, such as its tokens; a score is a sum over rows by theirs.
    """

    ticks: Sequence[Sequence[float]]
    base: Sequence[float]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Fall:
    """How a sub-dataset fell after its peak.

    peaks: the ticks that the two halves of the rows chose.
    fall, error, p: in score units, its standard error, and how likely luck alone gives as much.
    sure: the fall is real, at the confidence asked for, over all sub-datasets of the roll-out.
    learned: its peak is surely above the base model, or its end surely below; None: neither.
    """

    peaks: tuple[int, int]
    fall: float
    error: float
    p: float
    sure: bool
    learned: Learned | None

    @property
    def leaves(self) -> bool:
        """Whether it should leave: who has learned nothing yet cannot have overfitted."""
        return self.sure and self.learned is not None


@dataclass(frozen=True, slots=True)
class Drop:
    """How far a checkpoint lies below the base model on a guarded sub-dataset.

    drop: in score units; below 0 it has gained.
    low: the one-sided 95 % lower bound of the drop; None: one row says nothing of its noise.
    kept: the bound is not above what the guard allows.
    """

    drop: float
    low: float | None
    kept: bool


@dataclass(frozen=True, slots=True)
class _Contrast:
    """A difference between ticks.

    variance: what rows give it.
    squares: sum of the squared weights of its ticks.
    windows: how many its peak was chosen from; 0 where nothing was chosen.
    """

    value: float
    variance: float
    squares: float
    windows: int


@dataclass(frozen=True, slots=True)
class _Noise:
    """Of one tick of a curve: its variance over short times, how much of it rows explain, and
    the degrees of freedom of the estimate over all curves."""

    squared: float
    by_rows: float
    freedom: float


def falls(rows: Mapping[str, RowScores], rollout: int, confidence: float) -> dict[str, Fall]:
    """The fall of every active sub-dataset of a roll-out.

    All are tested together, by Holm's rule, which holds whatever they have to do with each
    other: with this confidence, a roll-out in which nobody falls has no sure fall at all.
    """
    level = (1 - confidence) / max(1, len(rows))
    noises = {name: _noise(each, len(rows)) for name, each in rows.items()}
    found = [noise.squared / noise.by_rows for noise in noises.values() if noise.by_rows]
    excess = max(0.0, fsum(found) / len(found) - 1) if found else 0.0
    tested: dict[str, Fall] = {}
    for name, each in rows.items():
        halves = _halves(len(each.base), name, rollout)
        peaks = (_peak(each, halves[0]), _peak(each, halves[1]))
        fall = _fall(each, halves, peaks)
        error, p = _p(fall, noises[name], excess)
        _, above = _p(_rise(each, halves, peaks), noises[name], excess)
        _, below = _p(_loss(each), noises[name], excess)
        learned: Learned | None = "above" if 2 * above <= level else None
        if learned is None and 2 * below <= level:
            learned = "below"
        tested[name] = Fall(peaks, fall.value, error, p, False, learned)
    return at_confidence(tested, confidence)


def drop_from_base(rows: RowScores, max_drop: float) -> Drop:
    """What a guard says of the only tick of these rows."""
    count = len(rows.base)
    if count == 1:
        return Drop((rows.base[0] - rows.ticks[0][0]) / (rows.weights[0] or 1.0), None, True)
    gain, variance = _measured(rows, [*range(count)], {0: 1.0}, over_base=True)
    drop = 0.0 - gain
    low = drop - t_quantile(GUARD_CONFIDENCE, count - 1) * sqrt(variance)
    return Drop(drop, low, low <= max_drop)


def at_confidence(tested: Mapping[str, Fall], confidence: float) -> dict[str, Fall]:
    """The same falls, sure at this confidence over all of them; `learned` stays as it was found."""
    together = joint_p({name: fall.p for name, fall in tested.items()})
    return {
        name: replace(fall, sure=together[name] <= 1 - confidence) for name, fall in tested.items()
    }


def joint_p(alone: Mapping[str, float]) -> dict[str, float]:
    """How likely luck alone gives as much to any of them, by Holm: the smallest p counts n times,
    the next n - 1 times, and none less than the one before it."""
    found: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(alone, key=alone.__getitem__)):
        least = max(least, alone[name] * (len(alone) - rank))
        found[name] = least
    return found


def _halves(count: int, name: str, rollout: int) -> Halves:
    order = shuffled(count, 0, "halves", name, rollout)
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def _window(tick: int, count: int) -> Weights:
    """A tick and its neighbours."""
    ticks = range(max(0, tick - 1), min(count, tick + 2))
    return {each: 1 / len(ticks) for each in ticks}


def _end(count: int) -> Weights:
    ticks = range(max(1, count - LAST), count)
    return {each: 1 / len(ticks) for each in ticks}


def _peak(each: RowScores, half: Sequence[int]) -> int:
    """The tick with the highest mean of itself and its neighbours, the earliest of equal ones."""
    sums = [fsum([scores[row] for row in half]) for scores in each.ticks]
    count = len(sums)
    windows = (range(max(0, t - 1), min(count, t + 2)) for t in range(count))
    heights = [fsum(sums[tick] for tick in window) / len(window) for window in windows]
    return heights.index(max(heights))


def _fall(each: RowScores, halves: Halves, peaks: tuple[int, int]) -> _Contrast:
    """From the peak to the end; none where the peak's neighbours reach into the last ticks."""
    count = len(each.ticks)
    contrasts: list[Weights] = []
    for peak in peaks:
        falls = peak + 1 < count - LAST
        contrasts.append(_minus(_window(peak, count), _end(count)) if falls else {})
    return _crossed(each, halves, contrasts, windows=count - LAST - 1, over_base=False)


def _rise(each: RowScores, halves: Halves, peaks: tuple[int, int]) -> _Contrast:
    """From the base model to the peak."""
    count = len(each.ticks)
    contrasts = [_window(peak, count) for peak in peaks]
    return _crossed(each, halves, contrasts, windows=count, over_base=True)


def _loss(each: RowScores) -> _Contrast:
    """From the base model to the end, on all rows: nothing was chosen."""
    everybody = [*range(len(each.base))]
    end = _end(len(each.ticks))
    value, variance = _measured(each, everybody, end, over_base=True)
    return _Contrast(-value, variance, fsum(w * w for w in end.values()), 0)


def _crossed(
    each: RowScores,
    halves: Halves,
    contrasts: Sequence[Weights],
    windows: int,
    over_base: bool,
) -> _Contrast:
    """The mean of what either half chose, measured on the other one. Jitter is shared by both."""
    values, variances = list[float](), list[float]()
    for half, contrast in zip(reversed(halves), contrasts, strict=True):
        value, variance = _measured(each, half, contrast, over_base) if contrast else (0.0, 0.0)
        values.append(value)
        variances.append(variance)
    ticks = range(len(each.ticks))
    shared = (fsum(c.get(tick, 0.0) for c in contrasts) / 2 for tick in ticks)
    return _Contrast(
        fsum(values) / 2, fsum(variances) / 4, fsum(weight * weight for weight in shared), windows
    )


def _minus(one: Weights, other: Weights) -> Weights:
    return {tick: one.get(tick, 0.0) - other.get(tick, 0.0) for tick in {**one, **other}}


def _measured(
    each: RowScores, half: Sequence[int], contrast: Weights, over_base: bool
) -> tuple[float, float]:
    """A contrast of ticks on some rows, and its variance."""
    chosen = [(each.ticks[tick], weight) for tick, weight in contrast.items()]
    if over_base:
        chosen.append((each.base, -1.0))
    columns = [[weight * scores[row] for row in half] for scores, weight in chosen]
    differences = [*map(fsum, zip(*columns, strict=True))]
    value, variance = _ratio(differences, [each.weights[row] for row in half])
    largest = max(max(map(abs, column), default=0.0) for column in columns)
    rounding = ROUNDING * largest * len(half) / (fsum(each.weights[row] for row in half) or 1.0)
    return (value if abs(value) > rounding else 0.0), variance


def _ratio(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Sum over sum of weights, and its variance over rows."""
    count, whole = len(values), fsum(weights)
    if count < 2 or not whole:
        return 0.0, 0.0
    mean = fsum(values) / whole
    squares = fsum([(value - mean * w) ** 2 for value, w in zip(values, weights, strict=True)])
    return mean, squares / whole**2 * count / (count - 1)


def _noise(each: RowScores, curves: int) -> _Noise:
    """From second differences in the second half of a roll-out: x(t-1) - 2·x(t) + x(t+1) has six
    times the variance of a tick. They overlap, so only every other one is a degree of freedom."""
    squared, by_rows = list[float](), list[float]()
    for tick in range(1 + (len(each.ticks) - 2) // 2, len(each.ticks) - 1):
        before, here, after = each.ticks[tick - 1 : tick + 2]
        bends = [a - 2 * b + c for a, b, c in zip(before, here, after, strict=True)]
        bend, variance = _ratio(bends, each.weights)
        squared.append(bend * bend / 6)
        by_rows.append(variance / 6)
    count = len(squared) or 1
    return _Noise(fsum(squared) / count, fsum(by_rows) / count, curves * len(squared) / 2)


def _p(contrast: _Contrast, noise: _Noise, excess: float) -> tuple[float, float]:
    """Standard error and p.

    excess: jitter over the noise of rows, the mean of all curves; a curve with more has its own.
    """
    jitter = max(excess * noise.by_rows, noise.squared - noise.by_rows)
    shaken = contrast.squares * jitter
    variance = contrast.variance + shaken
    if contrast.value <= 0:
        return sqrt(variance), 1.0
    if not variance:
        return 0.0, 0.0
    freedom, estimated = noise.freedom, contrast.squares * (jitter + noise.by_rows)
    if estimated:
        freedom *= (variance / estimated) ** 2
    chances = 1.0
    if contrast.windows:  # every other window counts: neighbours share two of their three ticks
        chances = 2 + max(0.0, contrast.windows / 2 - 2) * shaken / variance
    # Without a degree of freedom nothing is known of the noise: either sign is as likely.
    tail = t_survival(contrast.value / sqrt(variance), freedom) if freedom > 0 else 0.5
    return sqrt(variance), min(1.0, chances * tail)
