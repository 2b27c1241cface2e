"""Feeds: contract.md, "Epochs, steps, ticks", a test per sentence, and the shuffled feed."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.draws import shuffled
from msft.search.feeds import (
    SHUFFLED,
    Cycles,
    Feed,
    FeedContext,
    Losses,
    Mixture,
    Part,
    RowId,
    epoch_and_steps,
    steps_of,
)
from msft.search.rollout import CheckpointId
from msft.testing import Learner, simulate

whole = st.integers(3, 60)


def place(
    rows: int = 30, batch_size: int = 4, per_epoch: int = 4, epochs: int = 3, rollout: int = 0
) -> FeedContext:
    mixture = Mixture.of({"a": rows - rows // 3, "b": rows // 3})
    return FeedContext(mixture, epochs * per_epoch, per_epoch, batch_size, seed=20, rollout=rollout)


def ticks_of(where: FeedContext) -> list[list[tuple[RowId, ...]]]:
    """The batches of each tick."""
    feed = SHUFFLED.open(where)
    return [[batch.rows for batch in feed.batches(tick)] for tick in range(1, where.ticks + 1)]


def order(where: FeedContext, epoch: int = 0) -> list[RowId]:
    per_epoch = where.evals_per_epoch
    ticks = ticks_of(where)[epoch * per_epoch : (epoch + 1) * per_epoch]
    return [row for batches in ticks for batch in batches for row in batch]


@given(whole, st.integers(1, 20))
def test_an_epoch_is_r_over_batch_size_steps_rounded_up(rows: int, batch_size: int) -> None:
    where = place(rows, batch_size)
    first_epoch = [batch for batches in ticks_of(where)[:4] for batch in batches]
    assert len(first_epoch) == where.steps_per_epoch == steps_of(rows, batch_size)
    assert len(first_epoch) == ceil(rows / batch_size)


@given(whole, st.integers(1, 20))
def test_only_the_last_step_may_be_smaller(rows: int, batch_size: int) -> None:
    first_epoch = [len(b) for batches in ticks_of(place(rows, batch_size))[:4] for b in batches]
    assert all(size == batch_size for size in first_epoch[:-1])
    assert 1 <= first_epoch[-1] <= batch_size
    assert sum(first_epoch) == rows


@given(whole, st.integers(1, 20), st.integers(1, 7))
def test_every_row_comes_once_an_epoch(rows: int, batch_size: int, per_epoch: int) -> None:
    where = place(rows, batch_size, per_epoch)
    everybody = sorted(where.mixture.epoch(20, 0, 0))
    for epoch in range(3):
        assert sorted(order(where, epoch)) == everybody


@given(whole, st.integers(1, 9), st.integers(1, 30))
def test_tick_k_ends_after_k_s_over_evals_per_epoch_steps_rounded_up(
    steps: int, per_epoch: int, tick: int
) -> None:
    done = sum(len(epoch_and_steps(k, steps, per_epoch)[1]) for k in range(1, tick + 1))
    assert done == ceil(tick * steps / per_epoch)


def test_the_feed_and_the_place_count_steps_alike() -> None:
    where = place(rows=30, batch_size=7, epochs=2)
    for tick, batches in enumerate(ticks_of(where), start=1):
        assert [len(batch) for batch in batches] == [rows for _, rows in where.steps_of_tick(tick)]
    numbers = [step for tick in range(1, 9) for step, _ in where.steps_of_tick(tick)]
    assert numbers == list(range(10))


@pytest.mark.parametrize(("ticks", "steps"), [(8, 10), (4, 5), (5, 7), (6, 8), (7, 9), (1, 2)])
def test_steps_of_a_rollout_that_is_not_whole_epochs(ticks: int, steps: int) -> None:
    """Five steps an epoch, four ticks: 2, 1, 1, 1."""
    where = replace(place(rows=20, batch_size=4), ticks=ticks)
    assert where.steps == steps == sum(len(batches) for batches in ticks_of(where))


def test_with_fewer_steps_than_ticks_a_tick_may_have_no_step() -> None:
    assert [len(batches) for batches in ticks_of(place(rows=6, batch_size=3, epochs=1))] == [
        1,
        0,
        1,
        0,
    ]


def test_a_tick_without_a_step_repeats_the_scores_before_it_at_no_cost() -> None:
    history = simulate("sft", {"a": Learner(rows=64)}, num_train_epochs=2, train_batch_size=32)
    points = history.stages[0].points
    assert [point.steps for point in points] == [1, 0, 1, 0] * 2
    for before, after in zip(points[::2], points[1::2], strict=True):
        assert after.scores == before.scores
        assert after.tokens.evaluation == 0
        assert before.tokens.evaluation > 0
    assert points[0].scores != points[2].scores


def test_a_first_tick_without_a_step_repeats_the_scores_of_the_start() -> None:
    """IES: in epoch 4 all rows rest, so no tick of it has a step."""
    history = simulate("ies", {"a": Learner(passes=1e9)}, num_train_epochs=4, train_batch_size=8)
    last = history.stages[0].points
    assert [point.steps for point in last[12:]] == [0, 0, 0, 0]
    assert {tuple(point.scores.values()) for point in last[11:]} == {
        tuple(history.known(CheckpointId("r0-t12")).values())
    }


def test_the_order_is_new_each_epoch_and_each_rollout() -> None:
    orders = {
        tuple(order(place(rollout=rollout), epoch)) for rollout in range(3) for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_order_is_a_pure_function_of_seed_rollout_and_epoch() -> None:
    where = place()
    assert order(where, 2) == order(where, 2)
    assert order(replace(where, seed=21)) != order(where)
    longer = replace(where, ticks=99, evals_per_epoch=2, batch_size=9)
    assert order(longer, 1) == order(where, 1)


def test_a_feed_opened_in_the_middle_goes_on_as_if_it_had_been_there_before() -> None:
    where = place()
    straight = ticks_of(where)
    for stop in range(where.ticks):
        resumed: Feed = SHUFFLED.open(where)
        before: Feed = SHUFFLED.open(where)
        resumed.restore(before.state())
        assert [batch.rows for batch in resumed.batches(stop + 1)] == straight[stop]


def test_subdatasets_are_mixed_not_one_after_the_other() -> None:
    names = [name for name, _ in order(place(60))]
    assert sorted(names) != names != sorted(names, reverse=True)


def test_a_sample_is_without_replacement_and_at_most_all_rows() -> None:
    where = place(30)
    small, large = (where.sample(where.mixture.parts[0], size, "x", 0) for size in (5, 500))
    assert len(set(small)) == len(small) == 5
    assert sorted(large) == [("a", number) for number in range(20)]
    assert where.sample(where.mixture.parts[0], 5, "x", 1) != small


def test_every_roll_out_draws_samples_of_its_own() -> None:
    first, second = (place(30, rollout=rollout) for rollout in (0, 1))
    part = first.mixture.parts[0]
    assert first.sample(part, 5, "x", 0) == first.sample(part, 5, "x", 0)
    assert first.sample(part, 5, "x", 0) != second.sample(part, 5, "x", 0)


@pytest.mark.parametrize(
    ("every", "due"),
    [(1, list(range(10))), (4, [0, 4, 8]), (0.2, [0, 2, 4, 6, 8]), (0.3, [0, 3, 6, 9])],
)
def test_what_is_due_every_so_many_steps_or_every_share_of_them(
    every: float, due: list[int]
) -> None:
    where = place(rows=20, batch_size=4, epochs=2)
    assert where.steps == 10
    assert [step for step in range(10) if where.due(step, every)] == due


def test_the_drop_of_a_loss_is_in_shares_of_it_plus_1e_8() -> None:
    assert Losses([4.0, 1.0], [1.0, 1.0]).relative_drop() == pytest.approx(3 / 8)
    assert Losses([3e-8], [1e-8]).relative_drop() == pytest.approx(1 / 2)
    assert Losses([0.0], [0.0]).relative_drop() == 0


def test_a_cycle_goes_through_the_rows_of_the_first_epoch_again_and_again() -> None:
    mixture = Mixture.of({"a": 9, "b": 20}, rehearsal_fraction=0.3).without(("b",))
    where = replace(place(), mixture=mixture)
    cycles = Cycles(where)
    rows = [cycles.next(1) for _ in range(12)]
    assert cycles.taken == [0, 12]
    epoch = [row for row in mixture.epoch(20, 0, 0) if row[0] == "b"]
    assert rows == 2 * [epoch[number] for number in shuffled(6, 20, "cycle", 0, "b")]


@pytest.mark.parametrize("rehearsed", [False, True])
def test_a_cycle_of_a_weighted_part_has_all_its_rows_unless_it_was_excluded(
    rehearsed: bool,
) -> None:
    part = Part("a", 8, 4, rehearsed=rehearsed, anew=True)
    cycles = Cycles(replace(place(), mixture=Mixture((part,))))
    rows = {cycles.next(0) for _ in range(24)}
    assert rows == {("a", n) for n in (part.epoch(20, 0, 0) if rehearsed else range(8))}
    assert len(rows) == (4 if rehearsed else 8)


def test_a_cycle_of_a_part_that_is_drawn_once_has_its_rows_of_an_epoch() -> None:
    part = Part("a", 8, 4)
    cycles = Cycles(replace(place(), mixture=Mixture((part,))))
    assert {cycles.next(0)[1] for _ in range(24)} == set(part.epoch(20, 0, 0))
