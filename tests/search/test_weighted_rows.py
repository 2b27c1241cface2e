"""Weights of sub-datasets: how many rows of each an epoch has, in every method."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.feeds import (
    Batch,
    Cycles,
    FeedContext,
    Losses,
    Mixture,
    Part,
    RowLosses,
)
from msft.search.methods.ies import Ies
from msft.search.methods.replay import _mixture
from msft.search.methods.soft_sro import proportioned

HALF, TWICE, USUAL = (
    Part.weighted("half", 10, 0.5),
    Part.weighted("twice", 4, 2),
    Part.weighted("usual", 6, 1),
)
MIXTURE = Mixture((HALF, TWICE, USUAL), 0.5)


def place(mixture: Mixture, seed: int = 20, rollout: int = 0) -> FeedContext:
    return FeedContext(mixture, 4, 1, 5, seed, rollout)


def counts(mixture: Mixture, epoch: int, seed: int = 20, rollout: int = 0) -> Counter[str]:
    return Counter(name for name, _ in place(mixture, seed, rollout).shuffled_epoch(epoch))


@given(st.integers(1, 50), st.floats(0.01, 9), st.integers(0, 3), st.integers(0, 5))
def test_rows_of_an_epoch_are_whole_copies_and_a_drawn_rest(
    size: int, weight: float, rollout: int, epoch: int
) -> None:
    part = Part.weighted("a", size, weight)
    seen = Counter(part.epoch(7, rollout, epoch))
    assert part.rows == max(1, round(Fraction(repr(weight)) * size)) == sum(seen.values())
    copies = part.rows // size
    assert {seen[row] for row in range(size)} <= {copies, copies + 1}
    assert part.epoch(7, rollout, epoch) == part.epoch(7, rollout, epoch)


def test_a_weight_of_one_is_no_weight() -> None:
    assert Part("usual", 6, 6) == USUAL
    assert not USUAL.anew


def test_some_of_its_rows_have_the_share_of_an_epoch_that_all_of_them_have() -> None:
    assert Counter(TWICE.among([0, 3]).epoch(20, 0, 0)) == {0: 2, 3: 2}
    half = HALF.among([1, 3, 5, 7])
    assert (half.size, half.rows) == (4, 2)
    assert set(half.epoch(20, 0, 0)) < {1, 3, 5, 7}


def test_the_rest_is_drawn_anew_in_each_epoch_and_roll_out() -> None:
    drawn = {(r, e): tuple(sorted(HALF.epoch(20, r, e))) for r in range(2) for e in range(10)}
    assert len(set(drawn.values())) > 15
    assert {row for rows in drawn.values() for row in rows} == set(range(10))
    assert HALF.epoch(20, 0, 0) != HALF.epoch(21, 0, 0)


def test_the_epoch_of_a_mixture_counts_weighted_rows() -> None:
    assert (MIXTURE.rows, MIXTURE.sizes) == (19, {"half": 10, "twice": 4, "usual": 6})
    assert place(MIXTURE).steps_per_epoch == 4
    for epoch in range(3):
        assert counts(MIXTURE, epoch) == {"half": 5, "twice": 8, "usual": 6}
    assert counts(MIXTURE.only("twice"), 0) == {"twice": 8}
    left = MIXTURE.without(("half", "twice"))
    assert counts(left, 0) == {"half": 3, "twice": 4, "usual": 6}, "half of an epoch's rows stay"


def test_soft_sro_keeps_the_weights_and_the_rows_of_an_epoch() -> None:
    equal = proportioned(MIXTURE, dict.fromkeys(MIXTURE.active, 3))
    assert {part.name: part.rows for part in equal.parts} == {"half": 5, "twice": 8, "usual": 6}
    late = proportioned(MIXTURE, {"half": 1, "twice": 2, "usual": 0})
    assert {part.name: part.rows for part in late.parts} == {"half": 19 * 5 // 21, "twice": 14}
    assert all(part.anew for part in late.parts)


def test_a_replayed_schedule_draws_the_same_rows() -> None:
    stage = {"active": {"half": 5, "usual": 6}, "rehearsed": {"twice": 4}}
    replayed = _mixture(MIXTURE, stage, MIXTURE.sizes)
    assert replayed.parts[0].epoch(20, 1, 3) == HALF.epoch(20, 1, 3)
    assert replayed.parts == MIXTURE.without(("twice",)).parts


def test_dynamix_draws_from_all_rows_and_by_weight() -> None:
    from msft.search.methods.dynamix import ORIGINAL, DynamixFeed

    cycles = Cycles(place(MIXTURE))
    assert sorted(cycles.next(0)[1] for _ in range(10)) == list(range(10))
    assert sorted(cycles.next(1)[1] for _ in range(4)) == list(range(4))
    feed = DynamixFeed(ORIGINAL, place(MIXTURE))
    assert feed._prior == [5 / 19, 8 / 19, 6 / 19]


def looked_at(mixture: Mixture, epochs: int) -> list[Counter[tuple[str, int]]]:
    """The rows of each epoch of IES where every row's loss is the number of its look."""
    feed, seen = Ies(0.01, 1, False, True).open(place(mixture)), []
    for epoch in range(epochs):
        trained = Counter[tuple[str, int]]()
        for batch in feed.batches(epoch + 1):
            feed.observe(batch, Losses([float(epoch)] * len(batch.rows)))
            if batch.use == "train":
                trained.update(batch.rows)
        seen.append(trained)
    return seen


def test_ies_takes_one_look_an_epoch_at_rows_that_come_twice() -> None:
    """Three looks are needed: with two an epoch, rows would rest from the third epoch on."""
    epochs = looked_at(Mixture((TWICE,)), 4)
    assert [sum(each.values()) for each in epochs] == [8, 8, 8, 0]


def test_of_a_row_that_comes_twice_in_an_epoch_the_last_loss_counts() -> None:
    looks = RowLosses(Mixture((TWICE,)))
    first, second = ("twice", 0), ("twice", 1)
    for epoch in (1.0, 2.0):
        looks.begin_epoch()
        looks.add([first, second, second], [epoch, 9.0, 10 * epoch])
        looks.add([first], [epoch / 2])
    assert looks.losses == {first: [0.5, 1.0], second: [10.0, 20.0]}


def test_a_look_is_not_taken_again_after_a_resume_within_an_epoch() -> None:
    spec, where = Ies(0.01, 1, False, True), FeedContext(Mixture((TWICE,)), 8, 2, 4, 20, 0)
    whole, resumed = spec.open(where), spec.open(where)
    for tick in (1, 2):
        if tick == 2:
            resumed.restore(whole.state())
        for batch in whole.batches(tick):
            whole.observe(batch, Losses([float(tick)] * len(batch.rows)))
            if tick == 2:
                resumed.observe(batch, Losses([float(tick)] * len(batch.rows)))
    assert resumed.state() == whole.state()
    assert {len(looks) for _, _, looks in whole.state()["losses"]} == {1}
    unweighted = spec.open(FeedContext(Mixture((USUAL,)), 8, 2, 4, 20, 0))
    unweighted.observe(Batch((("usual", 1),)), Losses([1.0]))
    assert set(unweighted.state()) == {"losses", "resting"}, "as in older folders"


@pytest.mark.parametrize("weight", [0.25, 3])
def test_keep_goes_with_a_weight(weight: float) -> None:
    kept = Mixture((Part.weighted("a", 8, weight, keep=True), USUAL))
    assert kept.droppable == ("usual",)
    assert kept.without(("usual",)).rows == 8 * weight


def test_a_sample_is_drawn_anew_only_where_there_is_a_weight() -> None:
    assert Part.weighted("a", 8, 0.5) == Part("a", 8, 4, anew=True)
    assert Part.weighted("a", 8, 2, keep=True) == Part("a", 8, 16, keep=True, anew=True)
    assert Part.weighted("a", 8, 1) == Part("a", 8, 8)
