"""Statistics by hand: against scipy, hand-made numbers and the table of the paper."""

from fractions import Fraction
from math import isclose, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from msft.report.compare.statistics import (
    Places,
    draws_of,
    first_places,
    mean,
    paired_bootstrap,
    paired_interval,
    paired_t,
    sample_sd,
)
from msft.search.draws import stream
from msft.search.student import t_quantile

SFT = [73.25, 73.05, 72.65]
MSFT = [74.25, 74.05, 73.25]


def test_the_papers_seed_table() -> None:
    """Means 72.98 and 73.85, sd 0.31 and 0.53, p = 0.023: two-sided, as its caption says."""
    assert [round(float(mean(scores)), 2) for scores in (SFT, MSFT)] == [72.98, 73.85]
    assert [round(sample_sd(scores) or 0, 2) for scores in (SFT, MSFT)] == [0.31, 0.53]
    test = paired_t(MSFT, SFT)
    assert test is not None
    assert (round(test[0], 3), round(test[1], 3)) == (6.5, 0.023)
    assert round(test[1] / 2, 3) == 0.011  # one-sided would be this
    exact = paired_t([Fraction(str(x)) for x in MSFT], [Fraction(str(x)) for x in SFT])
    assert exact is not None
    assert isclose(exact[1], test[1], rel_tol=1e-9)


def test_means_and_spread_of_exact_numbers() -> None:
    assert mean([Fraction(1, 3), Fraction(2, 3)]) == Fraction(1, 2)
    assert mean([1, 2]) == Fraction(3, 2)
    assert mean([0.5, Fraction(1, 4)]) == 0.375
    assert sample_sd([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx(sqrt(32 / 7))
    assert sample_sd([Fraction(1, 10)] * 3) == 0
    assert sample_sd([1.0]) is None


def test_a_t_test_that_has_no_answer() -> None:
    assert paired_t([1.0], [2.0]) is None
    assert paired_t([], []) is None
    tenth = Fraction(1, 10)
    same = paired_t([tenth, 2 * tenth, 3 * tenth], [Fraction(0), tenth, 2 * tenth])
    assert same is None  # exact, while floats would say p = 1e-17


@given(
    st.lists(
        st.tuples(st.floats(-100, 100, width=32), st.floats(-100, 100, width=32)),
        min_size=2,
        max_size=12,
    )
)
def test_the_paired_t_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ours = paired_t(first, second)
    spread = sample_sd([a - b for a, b in pairs])
    if ours is None:
        assert spread == 0
        return
    theirs = stats.ttest_rel(first, second)
    if spread is not None and spread > 1e-6:
        assert isclose(ours[0], float(theirs.statistic), rel_tol=1e-6, abs_tol=1e-9)
        assert isclose(ours[1], float(theirs.pvalue), rel_tol=1e-5, abs_tol=1e-12)


def test_the_bootstrap_has_the_spread_that_theory_gives_it() -> None:
    """Of a mean of differences its standard error, so the interval is the normal one."""
    rows = [1.0] * 60 + [-1.0] * 30 + [0.0] * 310
    found = paired_bootstrap({"a": rows}, {"a": 1 / 400}, draws=4000)
    centre = 30 / 400
    error = sqrt((90 / 400 - centre**2) / 400)
    assert found.difference == pytest.approx(centre)
    assert found.low == pytest.approx(centre - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(centre + 1.96 * error, abs=0.1 * error)
    assert found.below == pytest.approx(float(stats.norm.sf(centre / error)), abs=0.002)


def test_the_bootstrap_draws_each_sub_dataset_for_itself() -> None:
    """Variances of independent sub-datasets add up, each with its own weight."""
    strata = {"a": [1.0, -1.0] * 50, "b": [3.0, 0.0, 0.0, 0.0] * 10, "c": [0.0] * 7}
    weights = {"a": 1 / 300, "b": 1 / 120, "c": 1 / 21}
    found = paired_bootstrap(strata, weights, draws=4000)
    error = sqrt(100 * 1.0 / 300**2 + 40 * 1.6875 / 120**2)  # Var of b's rows: 9/4 − 9/16
    assert found.difference == pytest.approx(30 / 120)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.06)


def test_the_bootstrap_of_no_difference_and_of_a_certain_one() -> None:
    nothing = paired_bootstrap({"a": [0.0] * 10}, {"a": 0.1}, draws=50)
    assert (nothing.difference, nothing.low, nothing.high, nothing.below) == (0, 0, 0, 0)
    behind = paired_bootstrap({"a": [-0.5] * 8}, {"a": 1 / 8}, draws=50)
    assert (behind.low, behind.high, behind.below) == (-0.5, -0.5, 1)


def test_the_bootstrap_is_the_same_every_time_and_needs_no_order_of_names() -> None:
    strata = {"a": [1.0, 0.0, -1.0, 1.0], "b": [0.25, -0.5, 1.5]}
    weights = {"a": 1 / 8, "b": 1 / 6}
    once = paired_bootstrap(strata, weights, draws=500)
    assert paired_bootstrap(strata, weights, draws=500) == once
    turned = paired_bootstrap(dict(reversed(strata.items())), weights, draws=500)
    assert (turned.low, turned.high) == pytest.approx((once.low, once.high))
    assert paired_bootstrap(strata, weights, draws=500, seed=1) != once


def test_five_thousand_draws_unless_somebody_asks_for_others() -> None:
    strata, weights = {"a": [1.0, 0.0, -1.0, 1.0, 0.25]}, {"a": 0.2}
    assert paired_bootstrap(strata, weights) == paired_bootstrap(strata, weights, 5000, 0)


def test_the_draws_are_those_of_pythons_own_generator() -> None:
    """The first number of a draw says how many rows come up, the others which; so tables do not
    change with numpy's generators."""
    uniform = stream(3, "place").random
    for places in draws_of(4, 2, 20, 3, "place"):
        first = uniform()
        times = sum(first > bound for bound in (1 / 16, 5 / 16, 11 / 16, 15 / 16))
        assert places.tolist() == [int(2 * uniform()) for _ in range(times)]
    assert [len(places) for places in draws_of(4, 4, 3, 0)] == [4, 4, 4]
    assert [len(places) for places in draws_of(4, 0, 3, 0)] == [0, 0, 0]


def test_first_places_with_ties() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    rounds = [
        {"a": half, "b": third, "c": half},
        {"a": half, "b": third, "c": third},
        {"a": third, "b": half, "c": third},
        {"a": third, "b": third, "c": third},
    ]
    assert first_places(rounds) == {"a": Places(3, 2), "b": Places(2, 1), "c": Places(2, 2)}
    assert first_places([]) == {}


def test_students_interval_is_scipys() -> None:
    for df in (1, 2, 9, 100):
        for share in (0.6, 0.975):
            assert t_quantile(share, df) == pytest.approx(stats.t.ppf(share, df), rel=1e-9)
    assert t_quantile(0.975, 4) == pytest.approx(2.776445, rel=1e-6)
    assert t_quantile(0.975, 9) == pytest.approx(2.262157, rel=1e-6)
    gaps = [1.0, 2.5, 0.5]
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert paired_interval(gaps) == pytest.approx((low, high))
    assert paired_interval([1.0, 1.0]) is None
