"""DynamixSFT (methods.md §6): the bandit's formulas, its presets, and when it looks ahead."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.run.history import summary_of
from msft.search.feeds import Batch, FeedContext, Losses, Mixture
from msft.search.methods.dynamix import Dynamix, DynamixFeed, probabilities
from msft.testing import Learner, scripted, simulate

SIZES = {"a": 30, "b": 10, "c": 20}
PRIOR = [30 / 60, 10 / 60, 20 / 60]
OFTEN = Dynamix(0.3, 0.95, 4.0, 1, 5, False)
"""Looks ahead at every step, without min-max."""

Reward = Callable[[str], float]


def chosen(**options: Any) -> Dynamix:
    """The settings that these options of the method come to, as the log has them."""
    out = scripted("dynamix", ["a"], lambda *question: {"a": [0.0] * 41}, method_options=options)
    feed = dict(out.history.stages[0].asked.feed)
    assert feed.pop("name") == "dynamix"
    return Dynamix(**feed)


def place(ticks: int = 4, sizes: Mapping[str, int] = SIZES, batch_size: int = 6) -> FeedContext:
    return FeedContext(Mixture.of(sizes), ticks, 4, batch_size, seed=20, rollout=0)


def drive(feed: DynamixFeed, ticks: range, reward: Reward = lambda name: 0.0) -> list[Batch]:
    """All batches; a sub-dataset's virtual step lowers each of its losses by that share."""
    batches: list[Batch] = []
    for tick in ticks:
        for batch in feed.batches(tick):
            batches.append(batch)
            before = [2.0 + number for _, number in batch.rows]
            ahead = batch.use == "look_ahead"
            after = [
                loss - reward(name) * (loss + 1e-8)
                for (name, _), loss in zip(batch.rows, before, strict=True)
            ]
            feed.observe(batch, Losses(before, after if ahead else ()))
    return batches


def trained(batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if batch.use == "train"]


def looked_ahead(batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if batch.use == "look_ahead"]


# The probabilities

numbers = st.floats(-1, 1, allow_nan=False)
sizes_strategy = st.lists(st.integers(1, 2000), min_size=1, max_size=8)


@given(
    st.lists(st.tuples(numbers, st.integers(1, 2000)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 5000),
)
def test_probabilities_sum_to_1_and_none_is_below_its_share_of_gamma(
    arms: list[tuple[float, int]], gamma: float, beta: float
) -> None:
    rows = sum(size for _, size in arms)
    p = probabilities([q for q, _ in arms], [size / rows for _, size in arms], gamma, beta)
    assert fsum(p) == pytest.approx(1)
    assert all(p_k >= gamma / len(arms) * (1 - 1e-9) for p_k in p)


@given(sizes_strategy, numbers, st.floats(0, 5000))
def test_equal_rewards_leave_the_prior_mixed_with_the_uniform_share(
    sizes: list[int], q: float, beta: float
) -> None:
    prior = [size / sum(sizes) for size in sizes]
    assert probabilities([q] * len(sizes), prior, 0.0, beta) == pytest.approx(prior)
    mixed = [0.7 * p0 + 0.3 / len(sizes) for p0 in prior]
    assert probabilities([q] * len(sizes), prior, 0.3, beta) == pytest.approx(mixed)


def test_probabilities_are_those_of_the_formula() -> None:
    q, g, b = [0.1, 0.3, 0.0], 0.3, 4.0
    odds = [exp(b * q_k) * p0 for q_k, p0 in zip(q, PRIOR, strict=True)]
    expected = [(1 - g) * odd / sum(odds) + g / 3 for odd in odds]
    assert probabilities(q, PRIOR, g, b) == pytest.approx(expected)


def test_a_huge_beta_does_not_overflow() -> None:
    assert probabilities([1.0, 0.0], [0.5, 0.5], 0.3, 5000.0) == pytest.approx([0.85, 0.15])


# Presets and options


def test_the_preset_of_the_msft_paper_is_the_default() -> None:
    expected = Dynamix(
        gamma=0.3,
        alpha=0.95,
        beta=5000.0,
        update_every=0.01,
        lookahead_batch_size=128,
        min_max=False,
        virtual_step="sgd",
    )
    assert chosen() == chosen(preset="msft-paper") == expected


def test_the_original_preset() -> None:
    assert chosen(preset="original") == Dynamix(
        gamma=0.3,
        alpha=0.95,
        beta=4.0,
        update_every=50,
        lookahead_batch_size=None,
        min_max=True,
        virtual_step="sgd",
    )


def test_an_option_overrides_only_itself() -> None:
    overridden = chosen(preset="original", beta=7, virtual_step="optimizer", min_max=False)
    original = chosen(preset="original")
    assert overridden == replace(original, beta=7.0, virtual_step="optimizer", min_max=False)


@pytest.mark.parametrize(
    "option",
    [
        {"gamma": 1.5},
        {"alpha": -0.1},
        {"beta": -1},
        {"update_every": 0},
        {"lookahead_batch_size": 0},
        {"min_max": "yes"},
        {"virtual_step": "adam"},
        {"preset": "msft"},
    ],
)
def test_values_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"method dynamix: {next(iter(option))} is .*; expected"):
        scripted("dynamix", ["a"], lambda *question: {"a": [0.0] * 41}, method_options=option)


# The roll-out


def test_one_rollout_of_everybody_and_every_point_can_be_the_best() -> None:
    curve = [0.0, 1.0, 3.0, 2.0, 3.0]
    out = scripted(
        "dynamix", ["a", "b"], lambda *question: {"a": curve, "b": curve}, num_train_epochs=1
    )
    assert out.rollouts == [("base", ("a", "b"), 4)]
    assert out.excluded == []
    assert (out.best, out.history.candidates) == ("r0-t2", 5)


# Look-ahead


@pytest.mark.parametrize(("rows", "epochs"), [(100, 1), (101, 1), (199, 1), (60, 10), (333, 7)])
def test_the_msft_paper_updates_exactly_100_times_in_100_steps_or_more(
    rows: int, epochs: int
) -> None:
    here = place(4 * epochs, {"a": rows}, batch_size=1)
    batches = drive(chosen().open(here), range(1, here.ticks + 1))
    assert len(trained(batches)) == here.steps == rows * epochs
    assert len(looked_ahead(batches)) == 100


def test_with_fewer_steps_it_updates_at_every_step() -> None:
    here = place(4, {"a": 40}, batch_size=1)
    assert len(looked_ahead(drive(chosen().open(here), range(1, 5)))) == 40


def test_the_original_updates_before_every_50th_step() -> None:
    here = place(4, {"a": 120}, batch_size=1)
    uses = [batch.use for batch in drive(chosen(preset="original").open(here), range(1, 5))]
    steps_before = [uses[:at].count("train") for at, use in enumerate(uses) if use == "look_ahead"]
    assert steps_before == [0, 50, 100]


def test_an_update_looks_at_each_subdataset_once_in_recipe_order() -> None:
    batches = drive(OFTEN.open(place()), range(1, 5))
    for first in range(0, len(batches), 4):
        uses = [batch.use for batch in batches[first : first + 4]]
        assert uses == ["look_ahead"] * 3 + ["train"]
        names = [{name for name, _ in batch.rows} for batch in batches[first : first + 3]]
        assert names == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a": 128, "b": 10, "c": 50}),  # 128, or all it has
        ({"preset": "original"}, {"a": 16, "b": 10, "c": 16}),  # as the training batch
        ({"preset": "original", "lookahead_batch_size": 3}, {"a": 3, "b": 3, "c": 3}),
    ],
)
def test_look_ahead_batch_sizes(options: dict[str, Any], expected: dict[str, int]) -> None:
    here = place(4, {"a": 300, "b": 10, "c": 50}, batch_size=16)
    first = looked_ahead(drive(chosen(**options).open(here), range(1, 2)))[:3]
    assert {batch.rows[0][0]: len(set(batch.rows)) for batch in first} == expected
    assert all(len(set(batch.rows)) == len(batch.rows) for batch in first)


def test_each_update_looks_at_other_rows() -> None:
    batches = looked_ahead(drive(OFTEN.open(place()), range(1, 5)))
    assert len({frozenset(batch.rows) for batch in batches[::3]}) > 1


@pytest.mark.parametrize("rule", ["sgd", "optimizer"])
def test_the_virtual_step_follows_the_rule_asked_for(rule: Any) -> None:
    batches = drive(replace(OFTEN, virtual_step=rule).open(place()), range(1, 5))
    assert {batch.step for batch in looked_ahead(batches)} == {rule}
    assert {batch.step for batch in trained(batches)} == {"optimizer"}


def test_look_ahead_leaves_the_training_as_it_was() -> None:
    """With beta 0 rewards do not matter: however often it looks ahead, all scores are the same."""

    def scores(update_every: int) -> list[Any]:
        history = simulate(
            "dynamix",
            {"a": Learner(), "b": Learner(limit=0.5)},
            num_train_epochs=2,
            train_batch_size=8,
            method_options={"beta": 0, "update_every": update_every, "virtual_step": "optimizer"},
        )
        assert history.tokens.lookahead > 0
        return [point.scores for point in history.stages[0].points]

    assert scores(1) == scores(50)


# Rewards and Q


def q_after(updates: int, spec: Dynamix, reward: Reward) -> list[float]:
    feed = spec.open(place(4, SIZES, batch_size=60 // updates))
    drive(feed, range(1, 5), reward)
    q: list[float] = feed.state()["q"]
    return q


def test_q_starts_at_0_and_is_a_moving_mean_of_the_rewards() -> None:
    rewards = {"a": 0.5, "b": 0.25, "c": -0.1}
    spec = replace(OFTEN, alpha=0.9)
    assert OFTEN.open(place()).state()["q"] == [0, 0, 0]
    once = [0.1 * reward for reward in rewards.values()]
    assert q_after(1, spec, rewards.__getitem__) == pytest.approx(once, abs=1e-6)
    twice = [0.9 * q + 0.1 * r for q, r in zip(once, rewards.values(), strict=True)]
    assert q_after(2, spec, rewards.__getitem__) == pytest.approx(twice, abs=1e-6)


def test_the_reward_is_the_mean_relative_decrease_per_row() -> None:
    """Losses 4 → 1 and 1 → 1: mean of 3/4 and 0, not 3/5."""
    feed = replace(OFTEN, alpha=0.0, lookahead_batch_size=2).open(place(4, {"a": 2}, 2))
    for batch in feed.batches(1):
        ahead = batch.use == "look_ahead"
        feed.observe(batch, Losses([4.0, 1.0], [1.0, 1.0] if ahead else []))
    assert feed.state()["q"] == pytest.approx([3 / 8])


def test_a_loss_of_0_gives_no_reward() -> None:
    feed = replace(OFTEN, alpha=0.0).open(place(4, {"a": 2}, 2))
    for batch in feed.batches(1):
        feed.observe(batch, Losses([0.0, 0.0], [0.0, 0.0] if batch.use == "look_ahead" else []))
    assert feed.state()["q"] == [0]


def test_min_max_stretches_rewards_to_0_and_1() -> None:
    rewards = {"a": 0.5, "b": 0.25, "c": 0.3}
    spec = replace(OFTEN, alpha=0.0, min_max=True)
    assert q_after(1, spec, rewards.__getitem__) == pytest.approx([1, 0, 0.2], abs=1e-6)


def test_min_max_of_equal_rewards_is_0() -> None:
    spec = replace(OFTEN, alpha=0.0, min_max=True, lookahead_batch_size=1)
    feed = spec.open(place())
    for batch in feed.batches(1):
        feed.observe(batch, Losses([2.0], [1.0] if batch.use == "look_ahead" else []))
    assert feed.state()["q"] == [0, 0, 0]


# The training batches


def shares(batches: Sequence[Batch]) -> dict[str, float]:
    counts = Counter(name for batch in trained(batches) for name, _ in batch.rows)
    return {name: count / counts.total() for name, count in counts.items()}


def test_a_rewarded_subdataset_is_drawn_more_often() -> None:
    here = place(400, SIZES)
    spec = replace(OFTEN, update_every=50.0, beta=50.0, alpha=0.0)
    batches = drive(spec.open(here), range(1, 401), lambda name: float(name == "b"))
    assert shares(batches) == pytest.approx({"a": 0.1, "b": 0.8, "c": 0.1}, abs=0.02)


def test_without_rewards_it_draws_by_the_prior_and_the_uniform_share() -> None:
    batches = drive(chosen(preset="original").open(place(400)), range(1, 401))
    expected = {name: 0.7 * p0 + 0.1 for name, p0 in zip(SIZES, PRIOR, strict=True)}
    assert shares(batches) == pytest.approx(expected, abs=0.02)


def test_steps_and_rows_of_a_tick_are_those_of_the_mixture() -> None:
    """60 rows in batches of 7: 9 steps, the last of 4 rows; ticks end after 3, 5, 7, 9 steps."""
    feed = OFTEN.open(place(8, SIZES, batch_size=7))
    sizes = [[len(b.rows) for b in trained(drive(feed, range(t, t + 1)))] for t in range(1, 9)]
    epoch = [[7, 7, 7], [7, 7], [7, 7], [7, 4]]
    assert sizes == epoch + epoch


def test_each_subdataset_is_gone_through_in_one_shuffled_cyclic_order() -> None:
    batches = trained(drive(OFTEN.open(place(40)), range(1, 41)))
    for name, size in SIZES.items():
        rows = [number for batch in batches for n, number in batch.rows if n == name]
        assert len(rows) > 2 * size
        assert sorted(rows[:size]) == list(range(size)) != rows[:size]
        assert all(row == rows[at - size] for at, row in enumerate(rows) if at >= size)


# Resuming


@pytest.mark.parametrize("stop", [1, 2, 4, 7])
def test_a_restored_feed_goes_on_identically(stop: int) -> None:
    spec = replace(OFTEN, update_every=3.0, min_max=True)
    rewards = {"a": 0.5, "b": 0.25, "c": 0.3}.__getitem__
    straight = spec.open(place(8))
    drive(straight, range(1, stop + 1), rewards)
    restored = spec.open(place(8))
    restored.restore(json.loads(json.dumps(straight.state())))
    rest = range(stop + 1, 9)
    assert drive(restored, rest, rewards) == drive(straight, rest, rewards)
    assert restored.state() == straight.state()


def test_look_ahead_is_accounted_for_apart() -> None:
    history = simulate("dynamix", {"a": Learner()}, num_train_epochs=1, train_batch_size=8)
    tokens = summary_of(history)["tokens"]
    assert tokens["train"] == 64 * 10
    assert tokens["lookahead"] == 8 * 64 * 10  # at each of 8 steps all 64 rows, fewer than 128
