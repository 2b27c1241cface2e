"""The mixture: a value that says which rows of which sub-datasets make up an epoch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.feeds import Mixture, Part

SIZES = {"b": 10, "a": 30, "c": 20}
EVERYBODY = Mixture.of(SIZES)


def rows(mixture: Mixture) -> dict[str, int]:
    return {part.name: part.rows for part in mixture.parts}


def test_every_row_of_every_subdataset_is_in_an_epoch_once() -> None:
    epoch = EVERYBODY.epoch(20, 0, 0)
    assert sorted(epoch) == sorted((name, n) for name, size in SIZES.items() for n in range(size))
    assert EVERYBODY.rows == len(epoch) == 60


def test_order_is_that_of_the_recipe() -> None:
    assert EVERYBODY.active == ("b", "a", "c")
    assert EVERYBODY.without(("a",)).active == ("b", "c")


def test_without_leaves_the_others_as_they_are_and_the_mixture_unchanged() -> None:
    assert rows(EVERYBODY.without(("a",))) == {"b": 10, "c": 20}
    assert EVERYBODY.active == ("b", "a", "c")


def test_a_mixture_is_true_while_somebody_is_active() -> None:
    one = EVERYBODY.without(("a", "b"))
    assert one
    assert not one.without(("c",))
    assert not Mixture.of(SIZES, 0.5).without(("a", "b", "c"))


def test_who_is_not_active_cannot_be_excluded() -> None:
    with pytest.raises(ValueError, match=r"not active, cannot be excluded: \['x'\]"):
        EVERYBODY.without(("a", "x"))
    with pytest.raises(ValueError, match="not active"):
        Mixture.of(SIZES, 0.5).without(("a",)).without(("a",))


def test_only_one_with_the_earlier_ones_rehearsed() -> None:
    assert rows(EVERYBODY.only("a", after=("b",))) == {"a": 30}
    rehearsing = Mixture.of(SIZES, 0.1).only("c", after=("b", "a"))
    assert rows(rehearsing) == {"b": 1, "a": 3, "c": 20}
    assert rehearsing.active == ("c",)
    assert rows(Mixture.of(SIZES, 0.1).only("b")) == {"b": 10}


def test_sizes_are_those_of_the_subdatasets_whatever_rows_are_taken() -> None:
    resized = EVERYBODY.resized({"b": 25, "a": 5, "c": 0})
    assert rows(resized) == {"b": 25, "a": 5}
    assert resized.sizes == {"b": 10, "a": 30}
    assert resized.rows == 30


# Parts


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 5))
def test_a_part_has_whole_copies_and_a_sample_without_replacement(
    size: int, taken: int, epoch: int
) -> None:
    counts = Counter(Part("a", size, taken).epoch(20, 0, epoch))
    copies, rest = divmod(taken, size)
    assert counts.total() == taken
    assert set(counts) <= set(range(size))
    assert sum(count == copies + 1 for count in counts.values()) == rest
    assert all(count in (copies, copies + 1) for count in counts.values())


def test_a_sample_is_drawn_once_for_all_epochs_and_rollouts() -> None:
    part = Part("a", 100, 10)
    assert part.epoch(20, 0, 0) == part.epoch(20, 3, 7)
    assert part.epoch(21, 0, 0) != part.epoch(20, 0, 0)


def test_a_rehearsed_sample_is_drawn_anew_each_epoch() -> None:
    part = Part("a", 100, 10, rehearsed=True)
    draws = [part.epoch(20, rollout, epoch) for rollout in (0, 1) for epoch in (0, 1)]
    assert len({tuple(sorted(draw)) for draw in draws}) == 4
    assert part.epoch(20, 1, 1) == draws[3]


# Rehearsal


@pytest.mark.parametrize(
    ("fraction", "left"),
    [(0.0, {}), (0.1, {"b": 1, "a": 3}), (0.01, {"b": 1, "a": 1}), (0.25, {"b": 3, "a": 8})],
)
def test_rehearsal_keeps_a_share_of_who_left_rounded_up(
    fraction: float, left: dict[str, int]
) -> None:
    mixture = Mixture.of(SIZES, fraction).without(("a", "b"))
    assert rows(mixture) == {**left, "c": 20}
    assert mixture.active == ("c",)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0])
def test_a_share_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"rehearsal_fraction is {fraction}"):
        Mixture.of(SIZES, fraction)


# keep


def test_a_kept_part_may_not_leave_and_decides_only_when_alone() -> None:
    mixture = Mixture((Part("a", 9, 9, keep=True), Part("b", 9, 9)))
    assert mixture.droppable == mixture.candidates == ("b",)
    alone = mixture.without(("b",))
    assert alone.droppable == ()
    assert alone.candidates == alone.active == ("a",)
