"""Continual SFT: one sub-dataset after the other, each cut at its own peak (methods.md §3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from msft.run.history import summary_of
from msft.search.rollout import CheckpointId
from msft.testing import Learner, Scripted, scripted, simulate

Curves = Mapping[str, Sequence[float]]

THREE: tuple[Curves, ...] = (
    {"a": [0, 1, 2, 1], "b": [0, 9, 0, 0], "c": [0, 5, 5, 5]},  # a stops at 2
    {"a": [2, 1, 0, 0], "b": [0, 1, 2, 3], "c": [5, 9, 9, 9]},  # b stops at 3
    {"a": [0, 0, 0, 0], "b": [3, 2, 1, 0], "c": [9, 10, 0, 0]},  # c stops at 1
)


def run(*rollouts: Curves, peaks: Any = None, **options: Any) -> Scripted:
    return scripted(
        "continual",
        list(rollouts[0]),
        lambda index, start, active, ticks: rollouts[index],
        compute_budget=3,
        evals_per_epoch=1,
        peaks=peaks,
        method_options=options,
    )


def test_in_recipe_order_each_from_where_the_one_before_stopped() -> None:
    out = run(*THREE)
    assert out.rollouts == [("base", ("a",), 3), ("r0-t2", ("b",), 3), ("r1-t3", ("c",), 3)]


def test_each_is_cut_at_its_own_peak_whatever_the_others_do() -> None:
    assert run(*THREE).excluded == [("a", 2), ("b", 3), ("c", 1)]


def test_recipe_order_is_not_the_order_of_names() -> None:
    curves = {"z": [0, 1, 0, 0], "a": [0, 1, 2, 0]}
    assert [active for _, active, _ in run(curves, curves).rollouts] == [("z",), ("a",)]


def test_each_gets_at_most_c_not_num_train_epochs() -> None:
    curves = {"a": [float(tick) for tick in range(41)]}
    out = scripted("continual", ["a"], lambda index, start, active, ticks: curves)
    assert out.rollouts[0][2] == 12


def test_the_result_is_the_model_after_the_last_stop() -> None:
    out = run(*THREE)
    assert out.best == "r2-t1"
    assert out.best_mean == pytest.approx((0 + 2 + 10) / 3)
    assert summary_of(out.history)["best"]["candidates"] == 1


def test_a_last_subdataset_that_learns_nothing_leaves_the_model_as_it_was() -> None:
    out = run(*THREE[:2], {"a": [0] * 4, "b": [0] * 4, "c": [9, 8, 7, 6]})
    assert out.excluded[2] == ("c", 0)
    assert out.best == "r1-t3"


def test_if_nobody_learns_anything_the_result_is_the_base_model() -> None:
    falling = {"a": [3, 2, 1, 0], "b": [3, 2, 1, 0]}
    out = run(falling, falling)
    assert [start for start, _, _ in out.rollouts] == ["base", "base"]
    assert out.best == "base"


def test_every_tick_scores_all_subdatasets() -> None:
    history = run(*THREE).history
    assert all(not history.missing(CheckpointId(f"r{r}-t{t}")) for r in range(3) for t in (1, 2, 3))


def test_each_starts_with_a_fresh_optimizer() -> None:
    assert {stage.asked.optimizer for stage in run(*THREE).history.stages} == {"fresh"}


def test_on_rollback_restore_keeps_the_moments_of_the_stop() -> None:
    stages = run(*THREE, on_rollback="restore").history.stages
    assert [stage.asked.optimizer for stage in stages] == ["fresh", "kept", "kept"]


def test_its_epochs_are_the_mean_of_the_stops() -> None:
    assert summary_of(run(*THREE).history)["best"]["epochs"] == (2 + 3 + 1) / 3


def test_there_is_no_rehearsal_by_default() -> None:
    assert all(not stage.asked.rehearsed for stage in run(*THREE).history.stages)


def test_rehearsal_mixes_in_a_sample_of_every_earlier_subdataset() -> None:
    stages = run(*THREE, rehearsal_fraction=0.01).history.stages
    assert [dict(stage.asked.rehearsed) for stage in stages] == [{}, {"a": 1}, {"a": 1, "b": 1}]
    assert [tuple(stage.asked.active) for stage in stages] == [("a",), ("b",), ("c",)]


def test_rehearsal_fights_forgetting() -> None:
    learners = {"a": Learner(), "b": Learner(passes=3.0, limit=9.0)}

    def score_of_a(**options: float) -> float:
        history = simulate("continual", learners, method_options=options, train_batch_size=8)
        assert history.best is not None
        return float(history.known(history.best)["a"].value)

    assert score_of_a(rehearsal_fraction=0.25) > score_of_a()


def test_patience_ends_a_stage_early_and_stops_at_the_same_peak() -> None:
    out = run(*THREE, patience=1)
    assert out.excluded == [("a", 2), ("b", 3), ("c", 1)]
    assert [ticks for _, _, ticks in out.rollouts] == [3, 3, 2]


def test_the_peak_rule_of_the_recipe_is_used() -> None:
    falling = {"a": [3, 2, 1, 0], "b": [0, 1, 2, 3]}
    assert run(falling, falling, peaks={"include_start": False}).excluded == [("a", 1), ("b", 3)]


def test_score_excluded_rollback_scores_all_only_at_the_stops() -> None:
    history = run(*THREE, score_excluded="rollback").history
    assert sorted(history.known(CheckpointId("r0-t1"))) == ["a"]
    assert not history.missing(CheckpointId("r0-t2"))
    assert history.best == "r2-t1"
    assert not history.missing(CheckpointId("r2-t1"))
