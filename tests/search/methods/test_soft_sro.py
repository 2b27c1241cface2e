"""Soft SRO SFT: Algorithm 3 of the paper line by line (one tick is one epoch)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.feeds import Mixture, Part
from msft.search.methods.soft_sro import proportioned
from msft.testing import Learner, Scripted, scripted, simulate

Curves = Mapping[str, Sequence[float]]


def peaking_at(peak: int, ticks: int = 6) -> list[float]:
    return [float(-abs(tick - peak)) for tick in range(ticks + 1)]


def run(
    search: Curves,
    again: Curves | None = None,
    sizes: Mapping[str, int] | None = None,
    **peaks: Any,
) -> Scripted:
    return scripted(
        "soft_sro",
        list(search),
        lambda index, start, active, ticks: (search, again or search)[index],
        num_train_epochs=6,
        evals_per_epoch=1,
        sizes=sizes,
        peaks=peaks,
    )


def new_rows(sizes: Mapping[str, int], peaks: Mapping[str, int]) -> dict[str, int]:
    mixture = proportioned(Mixture.of(sizes), peaks)
    return {part.name: part.rows for part in mixture.parts}


def test_lines_1_and_2_the_search_is_one_rollout_of_everybody_from_the_base_model() -> None:
    assert run({"a": peaking_at(2), "b": peaking_at(4)}).rollouts[0] == ("base", ("a", "b"), 6)


def test_lines_3_to_6_rows_are_in_proportion_to_the_peaks_of_the_search() -> None:
    """For equal sizes w_i = c_i / mean c: peaks 2 and 4 have mean 3."""
    out = run({"a": peaking_at(2), "b": peaking_at(4)}, sizes={"a": 90, "b": 90})
    assert dict(out.history.stages[1].asked.active) == {"a": 60, "b": 120}


def test_line_6_sizes_weigh_too() -> None:
    """Z = 1·30 + 3·10 = 60, 40 rows in all: r = 40·30/60 and 40·30/60."""
    assert new_rows({"a": 30, "b": 10}, {"a": 1, "b": 3}) == {"a": 20, "b": 20}


def test_lines_8_to_10_whole_copies_are_taken_while_r_is_as_large_as_the_set() -> None:
    part = proportioned(Mixture.of({"a": 10, "b": 10}), {"a": 9, "b": 1}).parts[0]
    assert part.rows == 18
    assert set(Counter(part.epoch(20, 1, 0)).values()) == {1, 2}

    exactly_two = proportioned(Mixture.of({"a": 10, "b": 10}), {"a": 5, "b": 0}).parts[0]
    assert Counter(exactly_two.epoch(20, 1, 0)) == dict.fromkeys(range(10), 2)


def test_lines_12_to_14_the_rest_is_rounded_down_and_drawn_without_replacement() -> None:
    """r = 20·2/3 = 13.33 and 6.67."""
    mixture = proportioned(Mixture.of({"a": 10, "b": 10}), {"a": 2, "b": 1})
    more, fewer = mixture.parts
    assert (more.rows, fewer.rows) == (13, 6)
    assert sorted(Counter(more.epoch(20, 1, 0)).values()) == [1] * 7 + [2] * 3
    assert len(set(fewer.epoch(20, 1, 0))) == 6


def test_the_new_mixture_is_drawn_once() -> None:
    part = Part("a", size=100, rows=30)
    assert part.epoch(20, 1, 0) == part.epoch(20, 1, 5)
    assert part.epoch(20, 1, 0) != part.epoch(21, 1, 0)


def test_line_16_everybody_with_a_row_is_in_the_new_mixture_in_recipe_order() -> None:
    out = run({"z": peaking_at(4), "a": peaking_at(0), "m": peaking_at(2)})
    assert out.rollouts[1][1] == ("z", "m")


def test_line_18_the_new_mixture_is_trained_from_the_base_model_for_the_whole_budget() -> None:
    out = run({"a": peaking_at(2), "b": peaking_at(4)})
    assert out.rollouts == [("base", ("a", "b"), 6), ("base", ("a", "b"), 6)]
    assert [stage.asked.optimizer for stage in out.history.stages] == ["fresh", "fresh"]


def test_ten_epochs_each_by_default() -> None:
    curves = {"a": [float(tick) for tick in range(41)]}
    out = scripted("soft_sro", ["a"], lambda index, start, active, ticks: curves)
    assert [ticks for _, _, ticks in out.rollouts] == [40, 40]


def test_if_all_peaks_are_0_the_mixture_stays_as_it_is() -> None:
    out = run({"a": peaking_at(0), "b": peaking_at(0)}, sizes={"a": 7, "b": 30})
    assert dict(out.history.stages[1].asked.active) == {"a": 7, "b": 30}


def test_nobody_leaves() -> None:
    out = run({"a": peaking_at(2), "b": peaking_at(4)})
    assert out.excluded == []
    assert out.history.ended is not None
    assert out.history.ended.by == "budget"


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 40)), min_size=1, max_size=6).filter(
        lambda parts: any(peak for _, peak in parts)
    )
)
def test_rows_are_those_of_the_algorithm(parts: list[tuple[int, int]]) -> None:
    """Lines 5 to 16 as the paper writes them, with exact fractions."""
    sizes = {f"d{i}": size for i, (size, _) in enumerate(parts)}
    peaks = {f"d{i}": peak for i, (_, peak) in enumerate(parts)}
    z = sum(peaks[name] * size for name, size in sizes.items())
    expected: dict[str, int] = {}
    for name, size in sizes.items():
        r = Fraction(sum(sizes.values()) * peaks[name] * size, z)
        rows = 0
        while r >= size:
            rows += size
            r -= size
        if rows + floor(r):
            expected[name] = rows + floor(r)
    assert new_rows(sizes, peaks) == expected
    assert sum(sizes.values()) - len(sizes) < sum(expected.values()) <= sum(sizes.values())


def test_the_search_cannot_be_the_best_but_the_second_phase_can() -> None:
    high = {"a": [0, 9, 9, 9, 9, 9, 9]}
    low = {"a": [0, 0, 0, 1, 0, 0, 0]}
    out = run(high, low)
    assert (out.best, out.best_mean) == ("r1-t3", 1)


def test_the_base_model_can_be_the_best() -> None:
    out = run({"a": peaking_at(3)}, {"a": [-3.0, -9, -9, -9, -9, -9, -9]})
    assert out.best == "base"
    assert out.history.candidates == 1 + 6


def test_the_peak_rule_of_the_recipe_is_used() -> None:
    out = run({"a": peaking_at(0), "b": peaking_at(3)}, include_start=False)
    assert dict(out.history.stages[1].asked.active) == {"a": 50, "b": 150}


def test_a_kept_subdataset_is_never_left_out() -> None:
    learners = {"a": Learner(start=0.9, ceiling=0.2, keep=True), "b": Learner()}
    history = simulate("soft_sro", learners, train_batch_size=8)
    assert history.rule.peak(history.curve(0, "a")) == 0
    assert history.stages[1].asked.active["a"] > 0


def test_a_kept_subdataset_counts_as_peaking_at_tick_1_at_least() -> None:
    """Z = 1·10 + 3·30 = 100, 40 rows in all: r = 4 and 36."""
    mixture = Mixture((Part("a", 10, 10, keep=True), Part("b", 30, 30)))
    rows = [part.rows for part in proportioned(mixture, {"a": 0, "b": 3}).parts]
    assert rows == [4, 36]
    rows = [part.rows for part in proportioned(mixture, {"a": 2, "b": 3}).parts]
    assert rows == [40 * 20 // 110, 40 * 90 // 110]


@pytest.mark.parametrize("option", ["patience", "rehearsal_fraction", "on_rollback"])
def test_options_that_mean_nothing_here_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"option of method soft_sro: '{option}'"):
        scripted("soft_sro", ["a"], lambda *question: {}, method_options={option: 1})
