"""The peak rule: where a curve peaks, and which ticks could still become its peak."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from msft.errors import OptionError
from msft.search.curves import Follower, Leader, Number, PeakRule, Score, accuracy, nll, value

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
        leader = rule.settle(leader, curve[:ticks])
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
    follower = Follower(PeakRule(), ["a", "b"], ["a", "b"])
    for a, b in [(0, 0), (2, 1), (1, 2), (1, 1)]:
        follower.follow({"a": value(a), "b": value(b), "gone": value(9)})
    assert follower.contenders() == {1, 2}


def test_a_follower_waits_since_the_earliest_peak_of_those_who_may_leave() -> None:
    rows = [(0, 0), (2, 1), (1, 2), (1, 1)]
    both = Follower(PeakRule(), ["a", "b"], ["a", "b"])
    kept = Follower(PeakRule(), ["a", "b"], ["b"])
    for follower in (both, kept):
        for a, b in rows:
            follower.follow({"a": value(a), "b": value(b)})
    assert (both.waited, kept.waited) == (2, 1)


def test_nobody_has_waited_before_the_first_tick_that_counts() -> None:
    follower = Follower(PeakRule(include_start=False), ["a"], ["a"])
    follower.follow({"a": value(1)})
    assert follower.waited == 0


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
        follower = Follower(rule, ["a"], ["a"])
        for score in ticks:
            follower.follow({"a": score})
        assert follower.contenders() == {peak}
        assert follower.waited == 1 - peak


def test_what_is_younger_than_a_log_is_written_down_only_where_it_is_used() -> None:
    assert PeakRule(smooth=1).recorded() == {"smooth": 1, "min_delta": 0.0, "include_start": True}
    soft = PeakRule(by="probability")
    assert soft.recorded()["by"] == "probability"
    assert PeakRule(**soft.recorded()) == soft
