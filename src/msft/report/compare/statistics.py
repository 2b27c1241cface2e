"""The certainty of scores and differences: spread, Student's paired t-test, bootstrap over rows,
Wilson's intervals of counts, sign tests over rows.

Scores that are counts stay exact fractions until the last step, so that equal differences are
equal, and not 1e-17 apart.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import comb, exp, fsum, lgamma, log, log1p, sqrt
from typing import TYPE_CHECKING, TypeVar

from msft.report.wording import number
from msft.run.history import History
from msft.run.rows import RowTokens, Verdict, VerdictsByKey
from msft.search.curves import Number, Score
from msft.search.draws import stream
from msft.search.rollout import BASE, CheckpointId, checkpoint_id, place_of
from msft.search.student import t_quantile, t_survival

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


DRAWS = 5000
"""Resamples of a paired bootstrap."""

MIDDLE = (0.025, 0.975)
"""The ends of a 95 % percentile interval."""

Name = TypeVar("Name", bound=Hashable)


def mean(values: Sequence[Number]) -> Number:
    """Exact where all values are."""
    exact = [Fraction(value) for value in values if isinstance(value, Fraction | int)]
    if len(exact) == len(values):
        return sum(exact, Fraction(0)) / len(values)
    return fsum(values) / len(values)


def minus(one: Number | None, two: Number | None) -> Number | None:
    """A difference, if both are known."""
    return None if one is None or two is None else one - two


def known_mean(values: Iterable[Number | None]) -> Number | None:
    """The mean, if there are values and all are known."""
    found = [*values]
    known = [value for value in found if value is not None]
    return mean(known) if known and len(known) == len(found) else None


def sample_sd(values: Sequence[Number]) -> float | None:
    """The standard deviation over n − 1; None of fewer than two values."""
    if len(values) < 2:
        return None
    centre = mean(values)
    squares = [(value - centre) ** 2 for value in values]
    return sqrt(mean(squares) * len(values) / (len(values) - 1))


def paired_t(first: Sequence[Number], second: Sequence[Number]) -> tuple[float, float] | None:
    """Student's t of paired differences, and the two-sided p that their mean is 0.

    None of fewer than two pairs, and where all differences are equal: t has no value there.
    """
    differences = [one - two for one, two in zip(first, second, strict=True)]
    spread = sample_sd(differences)
    if not spread:
        return None
    count = len(differences)
    t = float(mean(differences)) / (spread / sqrt(count))
    return t, min(1.0, 2 * t_survival(abs(t), count - 1))


def paired_interval(differences: Sequence[Number]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean of paired differences; None where `paired_t` is."""
    spread = sample_sd(differences)
    if not spread:
        return None
    count, centre = len(differences), float(mean(differences))
    half = t_quantile(MIDDLE[1], count - 1) * spread / sqrt(count)
    return centre - half, centre + half


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A difference, its 95 % percentile interval, and the share of draws below 0."""

    difference: float
    low: float
    high: float
    below: float


def paired_bootstrap(
    strata: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
    draws: int = DRAWS,
    seed: int = 0,
) -> Bootstrap:
    """The weighted sum of row differences, with the rows of each stratum drawn again.

    strata: per sub-dataset the differences of the same rows under two models.
    weights: what one row of a sub-dataset counts in the difference of the means.
    """
    import numpy as np

    totals = np.zeros(draws)
    for name, differences in strata.items():
        moved = np.array([difference for difference in differences if difference])
        drawn = draws_of(len(differences), len(moved), draws, seed, "bootstrap", name)
        totals += weights[name] * np.array([moved[places].sum() for places in drawn])
    found = fsum(weights[name] * fsum(differences) for name, differences in strata.items())
    below = float((totals < -1e-12).mean())  # sums of floats that should be 0 are not below it
    low, high = np.quantile(totals, MIDDLE)
    return Bootstrap(found, float(low), float(high), below)


def draws_of(
    rows: int, moved: int, draws: int, seed: int, *place: str | int
) -> Iterator["NDArray[np.int64]"]:
    """For each draw of `rows` rows with replacement, the drawn ones among the `moved` rows.

    The other rows add nothing to a sum: how many of the moved ones come up is binomial, and only
    those are drawn one by one.
    """
    import numpy as np

    _, (*state, at), _ = stream(seed, *place).getstate()
    twister = np.random.RandomState()  # gives the numbers of the stream, many at a time
    twister.set_state(("MT19937", np.array(state, dtype=np.uint32), at, 0, 0.0))
    bounds = _binomial_bounds(rows, moved)
    for _ in range(draws):
        times = min(bisect_right(bounds, twister.random_sample() * bounds[-1]), rows)
        yield (twister.random_sample(times) * moved).astype(np.int64)


def _binomial_bounds(rows: int, moved: int) -> list[float]:
    """P(X <= k) for k = 0 … rows, where each of `rows` draws hits one of `moved` rows."""
    if moved in (0, rows):
        return [*[float(moved == 0)] * rows, 1.0]
    hit, miss, whole = log(moved / rows), log1p(-moved / rows), lgamma(rows + 1)
    terms = (
        exp(whole - lgamma(k + 1) - lgamma(rows - k + 1) + k * hit + (rows - k) * miss)
        for k in range(rows + 1)
    )
    return [*accumulate(terms)]


@dataclass(frozen=True, slots=True)
class Places:
    """First places of a method, and how many of them it shares with another method."""

    first: int = 0
    shared: int = 0


def first_places(rounds: Sequence[Mapping[Name, Number]]) -> dict[Name, Places]:
    """First places over rounds in which the highest wins; on a tie all of the highest do."""
    found: dict[Name, Places] = {}
    for heights in rounds:
        top = max(heights.values())
        winners = [name for name, height in heights.items() if height == top]
        for name in heights:
            held = found.get(name, Places())
            won = name in winners
            found[name] = Places(held.first + won, held.shared + (won and len(winners) > 1))
    return found


Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Wilson's interval for a share of right rows; it stays within 0 and 1, unlike p ± z·se."""
    if rows < 1:
        return (0.0, 1.0)
    z, share, spread = Z95, right / rows, Z95 * Z95 / rows
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / rows + spread / (4 * rows))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == rows else min(1.0, centre + half)
    return (low, high)


def sign_test(wins: int, losses: int) -> Fraction:
    """Two-sided p of a sign test, ties left out: exact, in whole numbers until the last division.

    p = min(1, 2 · P(X <= min(wins, losses))) with X ~ Binomial(wins + losses, 1/2)
    """
    trials = wins + losses
    tail = sum(comb(trials, number) for number in range(min(wins, losses) + 1))
    return min(Fraction(1), Fraction(2 * tail, 2**trials))


@dataclass(frozen=True, slots=True)
class Paired:
    """Two models on the same rows: on how many the first is better, and on how many worse."""

    better: int
    worse: int

    @property
    def p(self) -> Fraction:
        return sign_test(self.better, self.worse)

    def __add__(self, other: "Paired") -> "Paired":
        return Paired(self.better + other.better, self.worse + other.worse)


def paired(first: Verdict, second: Verdict, lower_is_better: bool = False) -> Paired | None:
    """Row by row; None where the two are not of the same rows."""
    if len(first) != len(second) or isinstance(first, str) != isinstance(second, str):
        return None
    one, two = [*map(float, first)], [*map(float, second)]
    higher = sum(a > b for a, b in zip(one, two, strict=True))
    lower = sum(a < b for a, b in zip(one, two, strict=True))
    if lower_is_better:
        higher, lower = lower, higher
    return Paired(higher, lower)


def paired_together(
    pairs: Iterable[tuple[Verdict | None, Verdict | None, bool]],
) -> Paired | None:
    """The rows of several sub-datasets, each with whether lower is better there; None where some
    are lost or not of the same rows."""
    total = Paired(0, 0)
    for first, second, lower_is_better in pairs:
        if first is None or second is None:
            return None
        found = paired(first, second, lower_is_better)
        if found is None:
            return None
        total += found
    return total


def verdict_at(
    history: History, verdicts: VerdictsByKey, checkpoint: CheckpointId, split: str, name: str
) -> Verdict | None:
    """The verdict of a checkpoint; a tick without a step is the same model as the one before."""
    while (verdict := verdicts.get((checkpoint, split, name))) is None:
        if checkpoint == BASE or checkpoint in history.averages:
            break
        rollout, tick = place_of(checkpoint)
        stage = history.stages[rollout]
        if stage.points[tick - 1].steps:
            break
        checkpoint = checkpoint_id(rollout, tick - 1) if tick > 1 else stage.asked.start
    return verdict


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows of a run folder that selected, for the test of falls."""

    history: History
    verdicts: VerdictsByKey
    row_tokens: RowTokens

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None:
        return verdict_at(self.history, self.verdicts, checkpoint, self.history.selection, name)

    def tokens(self, name: str) -> Sequence[int] | None:
        return self.row_tokens.get((self.history.selection, name))


RESAMPLES = 1000
_MOST_DRAWS = 10_000_000
"""Rows drawn in all; of very large splits fewer resamples are made."""

Interval = tuple[float, float]


class Intervals:
    """The 95 % interval of any score of a run on the split that selects, each worked out once.

    Rows are drawn anew with replacement, the same draws at every checkpoint, so that a band shows
    what another such split would have moved. The losses of rows do not say how many tokens
    each has; a drawn set counts as long as the whole split.
    """

    def __init__(self, history: History, verdicts: VerdictsByKey) -> None:
        self.history = history
        self._verdicts = verdicts
        self._known: dict[tuple[CheckpointId, str], Interval | None] = {}
        self._shares: dict[int, NDArray[np.float64]] = {}

    def at(self, checkpoint: CheckpointId, name: str) -> Interval | None:
        """The interval of a sub-dataset at a checkpoint; None without its score or its rows."""
        key = (checkpoint, name)
        if key not in self._known:
            score = self.history.known(checkpoint).get(name)
            self._known[key] = None if score is None else self._of(score, checkpoint, name)
        return self._known[key]

    def text(self, checkpoint: CheckpointId, name: str) -> str:
        """The interval in the unit of its score, or nothing."""
        score, found = self.history.known(checkpoint).get(name), self.at(checkpoint, name)
        if score is None or found is None:
            return ""
        return " to ".join(number(bound, score.metric) for bound in found)

    def kinds(self) -> set[str]:
        """The sources of this run's intervals: `counts`, `rows`, or both."""
        best = self.history.best or BASE
        return {
            "counts" if score.metric == "accuracy" else "rows"
            for name, score in self.history.known(best).items()
            if self.at(best, name) is not None
        }

    def _of(self, score: Score, checkpoint: CheckpointId, name: str) -> Interval | None:
        if score.metric == "accuracy":
            return wilson(int(score.total), score.count)
        selection = self.history.selection
        rows = verdict_at(self.history, self._verdicts, checkpoint, selection, name)
        if rows is None or isinstance(rows, str) or len(rows) < 2:
            return None
        scale = len(rows) / score.count if score.metric == "nll" else 1.0
        try:
            low, high = self._bootstrap(rows)
        except (ValueError, TypeError):  # somebody else's file
            return None
        return (low * scale, high * scale)

    def _bootstrap(self, rows: Sequence[float]) -> Interval:
        """The middle 95 % of the means of drawn rows."""
        import numpy as np

        count = len(rows)
        if count not in self._shares:
            times = max(100, min(RESAMPLES, _MOST_DRAWS // count))
            drawn = draws_of(count, count, times, 0, "report", "bootstrap", count)
            shares = [np.bincount(places, minlength=count) / count for places in drawn]
            self._shares[count] = np.array(shares)
        low, high = np.quantile(self._shares[count] @ np.asarray(rows, dtype=float), MIDDLE)
        return (float(low), float(high))
