"""Scores and their means: exact where counted, order-free where summed."""

from fractions import Fraction
from itertools import permutations
from math import fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.curves import (
    Score,
    accuracy,
    mean,
    mean_gain,
    nll,
    overall,
    overall_height,
    value,
)


def test_values_as_people_read_them() -> None:
    assert accuracy(1, 3).value == Fraction(1, 3)
    assert nll(6.0, 4).value == 1.5
    assert value(0.25).value == 0.25


def test_heights_are_higher_is_better() -> None:
    assert accuracy(2, 3).height > accuracy(1, 3).height
    assert nll(1.0, 1).height > nll(2.0, 1).height
    assert value(2.0).height > value(1.0).height


@pytest.mark.parametrize(
    ("score", "raw"),
    [
        (accuracy(3, 7), [3, 7]),
        (Score("accuracy", 3, 7, 0.25), [3, 7, 0.25]),
        (nll(1.25, 9), {"nll": 1.25, "tokens": 9}),
        (value(0.125), 0.125),
        (value(1.5, 4), {"value": 1.5, "rows": 4}),
    ],
)
def test_a_score_survives_the_log(score: Score, raw: Any) -> None:
    assert score.to_json() == raw
    assert Score.from_json(raw) == score


@pytest.mark.parametrize("raw", ["0.5", None, [1], [1, 2, 3], [0.5, 2], {"nll": 1.0}, {}])
def test_what_is_no_score_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="not a score"):
        Score.from_json(raw)


# Means

UNEQUAL = {"few": accuracy(8, 10), "many": accuracy(30, 100)}


def test_the_macro_mean_gives_each_subdataset_the_same_weight() -> None:
    assert mean(UNEQUAL) == mean(UNEQUAL, "macro") == Fraction(11, 20)


def test_the_pooled_mean_gives_each_row_the_same_weight() -> None:
    assert mean(UNEQUAL, "pooled") == Fraction(38, 110)


def test_numbers_of_an_own_metric_are_pooled_by_rows() -> None:
    numbers = {"few": value(1.5, 2), "many": value(2.0, 8)}
    assert (mean(numbers), mean(numbers, "pooled")) == (0.5, 0.35)


def test_pooled_and_macro_agree_for_equal_sizes() -> None:
    scores = {"a": accuracy(3, 200), "b": accuracy(77, 200), "c": accuracy(120, 200)}
    assert mean(scores) == mean(scores, "pooled") == Fraction(200, 600)


@given(st.lists(st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
                min_size=1, max_size=8))  # fmt: skip
def test_the_mean_of_counts_is_exact(counts: list[tuple[int, int]]) -> None:
    scores = {str(i): accuracy(right, rows) for i, (right, rows) in enumerate(counts)}
    shares = [Fraction(right, rows) for right, rows in counts]
    assert mean(scores) == sum(shares) / len(shares)
    pooled = Fraction(sum(right for right, _ in counts), sum(rows for _, rows in counts))
    assert mean(scores, "pooled") == pooled


def test_the_mean_of_floats_is_by_fsum_so_the_order_cannot_matter() -> None:
    numbers = [0.1, 0.2, 0.3, 1e16, -1e16]
    means = {
        mean({str(i): value(number) for i, number in enumerate(order)})
        for order in permutations(numbers)
    }
    assert means == {fsum(numbers) / 5}


def test_the_mean_of_losses_is_per_subdataset_or_per_token() -> None:
    scores = {"a": nll(10.0, 10), "b": nll(90.0, 30)}
    assert mean(scores) == 2.0
    assert mean(scores, "pooled") == 2.5


def test_a_plain_mean_of_mixed_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match="one metric"):
        mean({"a": accuracy(1, 2), "b": nll(1.0, 1)})


# Mixed metrics

BASE = {"right": accuracy(40, 100), "loss": nll(8.0, 2)}
BETTER = {"right": accuracy(50, 100), "loss": nll(4.0, 2)}
WORSE = {"right": accuracy(30, 100), "loss": nll(10.0, 2)}


def test_gains_are_in_points_for_accuracy_and_relative_for_losses() -> None:
    """0.40 → 0.50 is +0.1 points; 4.0 → 2.0 is a decrease by half."""
    assert mean_gain(BETTER, BASE) == pytest.approx((0.1 + 0.5) / 2)
    assert mean_gain(WORSE, BASE) == pytest.approx((-0.1 - 0.25) / 2)
    assert mean_gain(BASE, BASE) == 0


def test_own_metrics_count_in_points() -> None:
    base, now = {"v": value(3.0), **BASE}, {"v": value(3.3), **BASE}
    assert mean_gain(now, base) == pytest.approx(0.1)


def test_a_base_loss_of_0_is_no_division_by_0() -> None:
    assert mean_gain({"loss": nll(1.0, 1)}, {"loss": nll(0.0, 1)}) == 0


def test_overall_is_the_gain_where_metrics_are_mixed_and_the_mean_elsewhere() -> None:
    assert overall(BETTER, BASE) == mean_gain(BETTER, BASE)
    assert overall(UNEQUAL, UNEQUAL) == mean(UNEQUAL)
    assert overall(UNEQUAL, UNEQUAL, "pooled") == mean(UNEQUAL, "pooled")
    losses = {"a": nll(4.0, 2)}
    assert overall(losses, losses) == 2.0


def test_overall_height_is_higher_is_better_for_every_metric() -> None:
    assert overall_height(BETTER, BASE) > overall_height(BASE, BASE) > overall_height(WORSE, BASE)
    high, low = {"a": nll(4.0, 1)}, {"a": nll(3.0, 1)}
    assert overall_height(low, high) > overall_height(high, high)
    more, fewer = {"a": accuracy(2, 3)}, {"a": accuracy(1, 3)}
    assert overall_height(more, fewer) > overall_height(fewer, fewer)
