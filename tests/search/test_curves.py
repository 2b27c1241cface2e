"""Scores and their means: exact where counted, order-free where summed."""

from fractions import Fraction
from itertools import permutations
from math import fsum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from msft.errors import OptionError
from msft.search.curves import (
    Follower,
    Leader,
    Number,
    PeakRule,
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


# The peak rule: where a curve peaks, and which ticks could still become its peak.


curves = st.lists(st.integers(0, 6).map(lambda n: n / 10), min_size=2, max_size=12)
rules = st.builds(
    PeakRule,
    smooth=st.integers(0, 3),
    min_delta=st.sampled_from([0.0, 0.1, 0.25]),
    include_start=st.booleans(),
)


# Plain


@given(curves)
def test_the_plain_rule_is_argmax_with_the_earliest_of_equals(curve: list[float]) -> None:
    assert PeakRule().peak(curve) == curve.index(max(curve))


@given(curves)
def test_without_the_start_it_is_the_argmax_of_the_rest(curve: list[float]) -> None:
    rest = curve[1:]
    assert PeakRule(include_start=False).peak(curve) == rest.index(max(rest)) + 1


def test_exact_fractions_are_compared_exactly() -> None:
    """A float would not tell these from one another."""
    tiny = Fraction(1, 10**30)
    assert PeakRule().peak([Fraction(1, 3), Fraction(1, 3) + tiny]) == 1


def test_a_curve_of_only_the_start_has_no_peak_without_the_start() -> None:
    assert PeakRule().peak([0.5]) == 0
    with pytest.raises(ValueError, match="no tick that may be a peak"):
        PeakRule(include_start=False).peak([0.5])


# min_delta


@pytest.mark.parametrize(
    ("curve", "min_delta", "peak"),
    [
        ([0.0, 0.5, 0.6], 0.1, 1),  # not higher by more than 0.1
        ([0.0, 0.5, 0.61], 0.1, 2),
        ([0.7, 0.8], 0.1, 0),  # in binary floats 0.8 > 0.7 + 0.1
        ([0.0, 0.5, 0.55, 0.62], 0.1, 3),  # against the leader, not against the tick before
        ([0.0, 0.5, 0.55, 0.6, 0.59], 0.1, 1),
        ([0.5, 0.1, 0.5], 0.0, 0),
    ],
)
def test_a_later_tick_takes_the_peak_only_if_higher_by_more_than_min_delta(
    curve: list[float], min_delta: float, peak: int
) -> None:
    assert PeakRule(min_delta=min_delta).peak(curve) == peak


def test_min_delta_is_read_as_a_decimal_beside_fractions_too() -> None:
    assert PeakRule(min_delta=0.1).peak([Fraction(7, 10), Fraction(8, 10)]) == 0
    assert PeakRule(min_delta=0.1).peak([Fraction(7, 10), Fraction(801, 1000)]) == 1


# smooth


def test_smoothing_is_a_centred_mean_over_2w_plus_1_ticks_clipped_at_the_ends() -> None:
    """[0, 3, 0, 3, 9] becomes [1.5, 1, 2, 4, 6] with w = 1."""
    curve = [0.0, 3.0, 0.0, 3.0, 9.0]
    rule = PeakRule(smooth=1)
    heights = [rule.lead(None, curve, tick, tick + 1) for tick in range(5)]
    assert heights == [Leader(t, h) for t, h in enumerate([1.5, 1.0, 2.0, 4.0, 6.0])]


def test_smoothing_over_five_ticks() -> None:
    """[0, 0, 9, 0, 0, 4, 4, 4] becomes [3, 2.25, 1.8, 2.6, 3.4, 2.4, 3, 4] with w = 2."""
    curve = [0.0, 0.0, 9.0, 0.0, 0.0, 4.0, 4.0, 4.0]
    assert PeakRule().peak(curve) == 2
    assert PeakRule(smooth=2).peak(curve) == 7


def test_the_start_belongs_to_the_window_even_if_it_cannot_be_the_peak() -> None:
    """With the 9 at the start tick 1 has mean 4, else it would have 1.5 and tick 3 would lead."""
    assert PeakRule(smooth=1, include_start=False).peak([9.0, 1.0, 2.0, 4.0, 2.0]) == 1


def test_smoothed_fractions_stay_exact() -> None:
    third = Fraction(1, 3)
    leader = PeakRule(smooth=1).lead(None, [third, third, third], 1, 2)
    assert leader == Leader(1, third)


def test_a_flat_curve_peaks_at_its_first_tick_smoothed_or_not() -> None:
    curve: list[Number] = [Fraction(1, 7)] * 9
    assert PeakRule(smooth=2).peak(curve) == 0
    assert PeakRule(smooth=2, include_start=False).peak(curve) == 1


def test_heights_of_both_kinds_are_summed_without_rounding() -> None:
    leader = PeakRule(smooth=1).lead(None, [1e100, Fraction(1), -1e100], 1, 2)
    assert leader == Leader(1, 1 / 3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("smooth", -1),
        ("min_delta", -0.1),
        ("min_delta", float("inf")),
        ("min_delta", float("nan")),
    ],
)
def test_what_no_rule_can_mean_is_refused(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"peaks.{option} is {value}; expected 0 or more"):
        PeakRule(**{option: value})  # type: ignore[arg-type]


# A curve that grows


def settled(rule: PeakRule, curve: list[float]) -> Leader | None:
    leader = None
    for ticks in range(1, len(curve) + 1):
        leader = rule.update_leader(leader, curve[:ticks])
    return leader


@given(rules, curves)
def test_the_peak_so_far_is_the_peak_of_the_curve_so_far(
    rule: PeakRule, curve: list[float]
) -> None:
    assert rule.peak_so_far(settled(rule, curve), curve) == rule.peak(curve)


@given(rules, curves, curves)
@example(PeakRule(smooth=1), [0.1, 0.5], [0.0, 0.6, 0.6])
def test_a_peak_is_always_among_the_contenders_whatever_the_future_brings(
    rule: PeakRule, past: list[float], future: list[float]
) -> None:
    """Nothing that a roll-back could need is ever forgotten."""
    contenders = set(rule.contenders(settled(rule, past), past))
    peak = rule.peak(past + future)
    assert peak in contenders or peak >= len(past)
    assert rule.peak(past) in contenders


@given(rules, curves)
def test_no_more_ticks_contend_than_must(rule: PeakRule, curve: list[float]) -> None:
    assert len(set(rule.contenders(settled(rule, curve), curve))) <= 1 + rule.smooth


# Several curves


def test_a_follower_knows_the_contenders_of_all_active_subdatasets() -> None:
    follower = Follower(PeakRule(), ["a", "b"])
    for a, b in [(0, 0), (2, 1), (1, 2), (1, 1)]:
        follower.follow({"a": value(a), "b": value(b), "gone": value(9)})
    assert follower.contenders == {1, 2}


def test_a_follower_waits_since_the_earliest_peak_of_those_who_may_leave() -> None:
    rows = [(0, 0), (2, 1), (1, 2), (1, 1)]
    follower = Follower(PeakRule(), ["a", "b"])
    for a, b in rows:
        follower.follow({"a": value(a), "b": value(b)})
    assert (follower.waited(["a", "b"]), follower.waited(["b"])) == (2, 1)


def test_nobody_has_waited_before_the_first_tick_that_counts() -> None:
    follower = Follower(PeakRule(include_start=False), ["a"])
    follower.follow({"a": value(1)})
    assert follower.waited(["a"]) == 0


# by


def test_the_curve_is_of_scores_or_of_probabilities() -> None:
    score = Score("accuracy", 3, 4, 0.6)
    assert PeakRule().height(score) == Fraction(3, 4)
    assert PeakRule().height(nll(3.0, 2)) == -1.5
    assert PeakRule(by="probability").height(score) == 0.6
    with pytest.raises(ValueError, match="says nothing of probabilities"):
        PeakRule(by="probability").height(accuracy(3, 4))


def test_a_follower_follows_the_curve_that_the_rule_names() -> None:
    ticks = [Score("accuracy", 9, 10, 0.5), Score("accuracy", 8, 10, 0.7)]
    for rule, peak in ((PeakRule(), 0), (PeakRule(by="probability"), 1)):
        follower = Follower(rule, ["a"])
        for score in ticks:
            follower.follow({"a": score})
        assert follower.contenders == {peak}
        assert follower.waited(["a"]) == 1 - peak


def test_what_is_younger_than_a_log_is_written_down_only_where_it_is_used() -> None:
    assert PeakRule(smooth=1).recorded() == {"smooth": 1, "min_delta": 0.0, "include_start": True}
    soft = PeakRule(by="probability")
    assert soft.recorded()["by"] == "probability"
    assert PeakRule(**soft.recorded()) == soft
