"""Statistics of a comparison, by hand: spread, Student's paired t-test, bootstrap over rows.

Scores that are counts stay exact fractions until the last step, so that equal differences are
equal, and not 1e-17 apart.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import exp, fsum, lgamma, log, log1p, sqrt
from typing import TYPE_CHECKING, TypeVar

from msft.search.draws import stream
from msft.search.scores import Number
from msft.search.student import t_survival

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


def t_quantile(share: float, df: float) -> float:
    """The t above 0 that a share of Student's distribution lies below, by bisection."""
    low, high = 0.0, 1.0
    while t_survival(high, df) > 1 - share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_survival(middle, df) > 1 - share else (low, middle)
    return (low + high) / 2


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
    """Which of the `moved` rows come up as `rows` rows are drawn with replacement, draw by draw.

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
    """How often somebody came first, and how often of these with others."""

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
