"""IES (methods.md §7): rows whose loss has stopped bending rest for an epoch, and may return."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.feeds import SHUFFLED, Batch, FeedContext, Losses, Mixture, RowId
from msft.search.methods.ies import Ies, IesFeed
from msft.testing import Learner, scripted, simulate

SPEC = Ies(threshold=0.01, smoothing_window=1, permanent=False, track_excluded=True)
PER_EPOCH = 2

LossOf = Callable[[int, int], float]
"""loss(row number, epoch), both from 0."""


def steady(row: int, epoch: int) -> float:
    return 1.0


def bending(row: int, epoch: int) -> float:
    return float((epoch + 1) ** 2)


def open_feed(spec: Ies = SPEC, rows: int = 8, batch_size: int = 2, epochs: int = 10) -> IesFeed:
    mixture = Mixture.of({"a": rows})
    return spec.open(
        FeedContext(mixture, epochs * PER_EPOCH, PER_EPOCH, batch_size, seed=20, rollout=0)
    )


@dataclass
class Watched:
    """Rows with and without gradient in each epoch, and the uses in order."""

    trained: list[list[int]] = field(default_factory=list)
    tracked: list[list[int]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


def drive(feed: IesFeed, loss: LossOf, epochs: int, first: int = 0) -> Watched:
    watched = Watched()
    for epoch in range(first, epochs):
        uses: dict[str, list[int]] = {"train": [], "track": []}
        for tick in range(epoch * PER_EPOCH + 1, (epoch + 1) * PER_EPOCH + 1):
            for batch in feed.batches(tick):
                watched.batches.append(batch)
                uses[batch.use] += [number for _, number in batch.rows]
                feed.observe(batch, Losses([loss(number, epoch) for _, number in batch.rows]))
        watched.trained.append(sorted(uses["train"]))
        watched.tracked.append(sorted(uses["track"]))
    return watched


ALL = list(range(8))


def test_one_rollout_of_everybody_with_the_documented_defaults() -> None:
    curve = [0.0] * 40 + [1.0]
    out = scripted("ies", ["a", "b"], lambda *question: {"a": curve, "b": curve})
    assert out.rollouts == [("base", ("a", "b"), 40)]
    assert out.excluded == []
    assert (out.best, out.history.candidates) == ("r0-t40", 41)
    assert dict(out.history.stages[0].asked.feed) == {
        "name": "ies",
        "threshold": 0.01,
        "smoothing_window": 1,
        "permanent": False,
        "track_excluded": True,
    }


def test_nobody_rests_before_three_looks_the_first_effect_is_in_epoch_4() -> None:
    watched = drive(open_feed(), steady, 4)
    assert watched.trained == [ALL, ALL, ALL, []]


@given(st.lists(st.floats(0, 5), min_size=8 * 3, max_size=8 * 3), st.integers(1, 4))
def test_three_epochs_are_whole_whatever_the_losses(losses: list[float], window: int) -> None:
    spec = replace(SPEC, smoothing_window=window, threshold=100.0)
    watched = drive(open_feed(spec), lambda row, epoch: losses[8 * epoch + row], 3)
    assert watched.trained == [ALL, ALL, ALL]


def test_a_row_whose_loss_still_bends_goes_on() -> None:
    assert drive(open_feed(), bending, 6).trained == [ALL] * 6


@pytest.mark.parametrize(
    ("last", "rests"), [(1.0, True), (1.005, True), (1.02, False), (0.98, False)]
)
def test_the_rule_is_the_second_difference_against_the_threshold(last: float, rests: bool) -> None:
    """|L3 - 2·L2 + L1| < 0.01 with L1 = 3, L2 = 2: a straight line does not bend."""
    curve = [3.0, 2.0, last, 0.0]
    fourth = drive(open_feed(), lambda row, epoch: curve[epoch], 4).trained[3]
    assert fourth == ([] if rests else ALL)


def test_a_bend_of_just_the_threshold_goes_on() -> None:
    """1 - 2·2 + 4 = 1, to the last bit."""
    curve = [4.0, 2.0, 1.0, 0.0]
    feed = open_feed(replace(SPEC, threshold=1.0))
    assert drive(feed, lambda row, epoch: curve[epoch], 4).trained[3] == ALL


def test_the_threshold_is_an_option() -> None:
    curve = [3.0, 2.0, 1.02, 0.0]
    loose = open_feed(replace(SPEC, threshold=0.05))
    assert drive(loose, lambda row, epoch: curve[epoch], 4).trained[3] == []


def test_each_row_is_judged_by_its_own_losses() -> None:
    def loss(row: int, epoch: int) -> float:
        return bending(row, epoch) if row % 2 else 1.0

    watched = drive(open_feed(), loss, 5)
    assert watched.trained[3:] == [[1, 3, 5, 7], [1, 3, 5, 7]]


def test_who_rests_is_looked_at_without_gradient_at_the_end_of_the_epoch() -> None:
    def loss(row: int, epoch: int) -> float:
        return bending(row, epoch) if row % 2 else 1.0

    watched = drive(open_feed(), loss, 4)
    assert watched.tracked == [[], [], [], [0, 2, 4, 6]]
    assert [batch.use for batch in watched.batches[-4:]] == ["train", "train", "track", "track"]


def test_a_row_that_bends_again_returns() -> None:
    curve = [1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]
    watched = drive(open_feed(), lambda row, epoch: curve[epoch], 7)
    # rests in epoch 4, whose look (5) bends the curve; straight again after epochs 4, 5 and 6
    assert watched.trained == [ALL, ALL, ALL, [], ALL, ALL, []]


def test_permanent_rows_never_return() -> None:
    curve = [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
    watched = drive(open_feed(replace(SPEC, permanent=True)), lambda row, epoch: curve[epoch], 6)
    assert watched.trained[3:] == [[], [], []]


def test_without_tracking_no_forward_is_spent_on_resting_rows() -> None:
    feed = open_feed(replace(SPEC, permanent=True, track_excluded=False))
    watched = drive(feed, steady, 6)
    assert watched.tracked == [[]] * 6
    assert watched.trained[3:] == [[], [], []]


def test_track_excluded_false_implies_permanent() -> None:
    out = scripted(
        "ies",
        ["a"],
        lambda *question: {"a": [0.0] * 41},
        method_options={"track_excluded": False},
    )
    feed = out.history.stages[0].asked.feed
    assert (feed["track_excluded"], feed["permanent"]) == (False, True)


def test_permanent_false_without_tracking_is_refused() -> None:
    with pytest.raises(ValueError, match="permanent: false contradicts track_excluded: false"):
        scripted(
            "ies",
            ["a"],
            lambda *question: {"a": [0.0] * 41},
            method_options={"permanent": False, "track_excluded": False},
        )


def test_smoothing_averages_each_loss_with_the_ones_before_it() -> None:
    """As they are 4, 0, 2, 4 bend by 6 and by 0; means over two (4, 2, 1, 3) by 1 and by 3."""
    curve = [4.0, 0.0, 2.0, 4.0, 0.0]

    def epochs_trained(window: int) -> list[bool]:
        spec = replace(SPEC, smoothing_window=window, threshold=1.5)
        trained = drive(open_feed(spec), lambda row, epoch: curve[epoch], 5).trained
        return [bool(rows) for rows in trained[3:]]

    assert epochs_trained(1) == [True, False]
    assert epochs_trained(2) == [False, True]


def test_a_smoothed_loss_is_the_mean_of_its_window() -> None:
    """Means over two of 4, 2, 6 are 4, 3, 4, which bend by 2."""
    spec = replace(SPEC, smoothing_window=2, threshold=2.5)
    trained = drive(open_feed(spec), lambda row, epoch: (4.0, 2.0, 6.0, 0.0)[epoch], 4).trained
    assert trained[3] == []


@pytest.mark.parametrize(
    "option",
    [
        {"threshold": 0},
        {"smoothing_window": 0},
        {"smoothing_window": 1.5},
        {"permanent": "no"},
        {"track_excluded": None},
    ],
)
def test_values_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"method ies: {next(iter(option))} is .*; expected"):
        scripted("ies", ["a"], lambda *question: {"a": [0.0] * 41}, method_options=option)


def test_a_shrunken_epoch_is_still_one_epoch_with_its_steps_spread_over_its_ticks() -> None:
    def loss(row: int, epoch: int) -> float:
        return bending(row, epoch) if row < 3 else 1.0

    feed = open_feed(batch_size=1)
    drive(feed, loss, 3)
    steps = [
        sum(batch.use == "train" for batch in feed.batches(tick))
        for tick in (3 * PER_EPOCH + 1, 3 * PER_EPOCH + 2)
    ]
    assert steps == [2, 1]


@pytest.mark.parametrize("per_epoch", [1, 2, 3, 4])
def test_while_nobody_rests_it_is_the_shuffled_feed(per_epoch: int) -> None:
    place = FeedContext(Mixture.of({"a": 11}), 3 * per_epoch, per_epoch, 2, seed=20, rollout=1)
    feed, shuffled = SPEC.open(place), SHUFFLED.open(place)
    for tick in range(1, place.ticks + 1):
        assert [*feed.batches(tick)] == [*shuffled.batches(tick)]


def test_each_epoch_has_each_row_once_in_a_new_order() -> None:
    watched = drive(open_feed(), bending, 3)
    order: list[RowId] = [row for batch in watched.batches for row in batch.rows]
    first, second = order[:8], order[8:16]
    assert sorted(first) == sorted(second)
    assert first != second


def returning(row: int, epoch: int) -> float:
    """Even rows rest and return, odd ones bend for some epochs and then rest."""
    return (1.0, 1.0, 1.0, 5.0)[min(epoch, 3)] if row % 2 == 0 else max(0.0, (6.0 - epoch)) ** 2


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, permanent=True, smoothing_window=3)])
@pytest.mark.parametrize("stop", range(1, 14))
def test_a_restored_feed_goes_on_identically_also_inside_an_epoch(spec: Ies, stop: int) -> None:
    def go(feed: IesFeed, ticks: range) -> list[Batch]:
        batches: list[Batch] = []
        for tick in ticks:
            for batch in feed.batches(tick):
                batches.append(batch)
                epoch = (tick - 1) // PER_EPOCH
                feed.observe(batch, Losses([returning(row, epoch) for _, row in batch.rows]))
        return batches

    straight = open_feed(spec)
    go(straight, range(1, stop + 1))
    restored = open_feed(spec)
    restored.restore(json.loads(json.dumps(straight.state())))
    rest = range(stop + 1, 17)
    assert go(restored, rest) == go(straight, rest)
    assert json.dumps(restored.state()) == json.dumps(straight.state())


def test_looks_at_resting_rows_count_as_evaluation() -> None:
    still = {"a": Learner(passes=1e9)}

    def tokens(**options: bool) -> tuple[int, int]:
        history = simulate("ies", still, num_train_epochs=5, method_options=options)
        return history.tokens.train, history.tokens.evaluation

    tracked, untracked = tokens(), tokens(track_excluded=False)
    assert tracked[0] == untracked[0] == 3 * 64 * 10
    assert tracked[1] - untracked[1] == 2 * 64 * 10
