"""SRO SFT: Algorithm 2 of the paper line by line, on scripted curves (one tick is one epoch)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msft.search.rollout import CheckpointId
from msft.testing import Learner, Scripted, scripted, simulate

Curves = Mapping[str, Sequence[float]]

SEARCH: Curves = {
    "a": [0, 1, 2, 1, 0, 0],  # peak 2
    "b": [0, 1, 2, 3, 4, 3],  # peak 4
    "c": [0, 1, 2, 1, 0, 0],  # peak 2
    "d": [5, 4, 3, 2, 1, 0],  # peak 0
    "e": [0, 1, 2, 3, 4, 5],  # peak 5
}


def run(search: Curves, *phases: Curves, peaks: Any = None, **options: Any) -> Scripted:
    later = phases or (search,)
    return scripted(
        "sro",
        list(search),
        lambda index, start, active, ticks: (search, *later)[min(index, len(later))],
        num_train_epochs=5,
        evals_per_epoch=1,
        peaks=peaks,
        method_options=options,
    )


def peaking_at(peak: int, ticks: int = 5) -> list[float]:
    return [float(-abs(tick - peak)) for tick in range(ticks + 1)]


def test_lines_1_and_2_the_search_is_one_rollout_of_everybody_from_the_base_model() -> None:
    out = run(SEARCH)
    assert out.rollouts[0] == ("base", tuple(SEARCH), 5)


def test_the_search_takes_num_train_epochs_not_the_compute_budget() -> None:
    curves = {"a": [float(tick) for tick in range(41)]}
    out = scripted("sro", ["a"], lambda index, start, active, ticks: curves)
    assert [ticks for _, _, ticks in out.rollouts] == [40, 40]


def test_line_3_each_leaves_at_its_own_peak_of_the_search() -> None:
    out = run(SEARCH)
    assert out.excluded == [("d", 0), ("a", 2), ("c", 2), ("b", 4), ("e", 5)]


def test_line_3_the_second_phase_does_not_move_the_peaks() -> None:
    other = {name: peaking_at(1) for name in SEARCH}
    assert run(SEARCH, other).excluded == run(SEARCH).excluded


def test_line_4_training_starts_again_from_the_base_model() -> None:
    assert run(SEARCH).rollouts[1][0] == "base"


def test_line_5_loops_until_nobody_is_active() -> None:
    out = run(SEARCH)
    assert sorted(name for name, _ in out.excluded) == sorted(SEARCH)
    assert out.history.ended is not None
    assert out.history.ended.by == "all_excluded"


def test_lines_6_to_8_the_active_are_trained_to_the_next_smallest_peak() -> None:
    assert run(SEARCH).rollouts[1:] == [
        ("base", ("a", "b", "c", "e"), 2),
        ("r1-t2", ("b", "e"), 2),
        ("r2-t2", ("e",), 1),
    ]


def test_line_8_is_one_continuous_run_the_optimizer_is_kept() -> None:
    stages = run(SEARCH).history.stages
    assert [stage.asked.optimizer for stage in stages] == ["fresh", "fresh", "kept", "kept"]


def test_lines_9_and_10_all_who_peak_together_leave_together() -> None:
    out = run({"a": peaking_at(3), "b": peaking_at(3), "c": peaking_at(4)})
    assert out.excluded == [("a", 3), ("b", 3), ("c", 4)]
    assert [decision.names for decision in out.history.stages[1].decisions] == [("a", "b")]
    assert [active for _, active, _ in out.rollouts[1:]] == [("a", "b", "c"), ("c",)]


def test_a_peak_of_0_means_never_trained() -> None:
    out = run(SEARCH)
    assert out.excluded[0] == ("d", 0)
    assert all("d" not in active for _, active, _ in out.rollouts[1:])


def test_if_all_peaks_are_0_the_base_model_is_the_result() -> None:
    falling = {"a": peaking_at(0), "b": peaking_at(0)}
    out = run(falling)
    assert out.rollouts == [("base", ("a", "b"), 5)]
    assert out.excluded == [("a", 0), ("b", 0)]
    assert out.best == "base"


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_each_is_trained_exactly_to_its_peak(peaks: list[int]) -> None:
    names = [f"d{number}" for number in range(len(peaks))]
    out = run({name: peaking_at(peak) for name, peak in zip(names, peaks, strict=True)})
    trained = [
        sum(ticks for _, active, ticks in out.rollouts[1:] if name in active) for name in names
    ]
    assert trained == peaks
    assert all(ticks > 0 for _, _, ticks in out.rollouts)


def test_the_search_cannot_be_the_best() -> None:
    high = {name: [0, 9, 9, 9, 9, 9] for name in SEARCH} | {"a": [0, 10, 0, 0, 0, 0]}
    low = {name: [0, 1, 1, 1, 1, 1] for name in SEARCH}
    out = run(high, low)
    assert (out.best, out.best_mean) == ("r1-t1", 1)


def test_the_base_model_can_be_the_best() -> None:
    learned_badly = {name: [-1] * 6 for name in SEARCH}
    out = run(SEARCH, learned_badly)
    assert (out.best, out.best_mean) == ("base", 1)
    assert out.history.candidates == 1 + 5


def test_the_best_is_by_the_mean_over_all_the_excluded_too() -> None:
    search = {"a": peaking_at(1), "b": peaking_at(3)}
    first = {"a": [-1, 6, 0, 0], "b": [-3, 1, 0, 0]}
    second = {"a": [6, 6, 0, 0], "b": [1, 2, 7, 0]}
    out = run(search, first, second)
    assert (out.best, out.best_mean) == ("r2-t1", 4)


def test_score_excluded_rollback_sees_all_only_where_somebody_leaves() -> None:
    search = {"a": peaking_at(1), "b": peaking_at(3)}
    out = run(search, score_excluded="rollback")
    assert sorted(out.history.known(CheckpointId("r2-t1"))) == ["b"]
    assert not out.history.missing(CheckpointId("r2-t2"))


def test_rehearsal_keeps_a_share_of_those_who_left() -> None:
    stages = run(SEARCH, rehearsal_fraction=0.2).history.stages
    assert dict(stages[1].asked.rehearsed) == {"d": 20}
    assert dict(stages[3].asked.rehearsed) == {"a": 20, "b": 20, "c": 20, "d": 20}


def test_the_peak_rule_of_the_recipe_is_used() -> None:
    out = run(SEARCH, peaks={"include_start": False})
    assert out.excluded[0] == ("d", 1)


def test_a_kept_subdataset_stays_to_the_last_peak() -> None:
    learners = {
        "a": Learner(limit=0.2, damage=2.0, keep=True),
        "b": Learner(limit=1.5),
        "c": Learner(limit=0.6),
    }
    history = simulate("sro", learners, train_batch_size=8)
    ticks = {
        name: sum(stage.ticks for stage in history.stages[1:] if name in stage.asked.active)
        for name in learners
    }
    peaks = {name: history.rule.peak(history.curve(0, name)) for name in learners}
    assert peaks["a"] < ticks["a"] == max(peaks.values()) < history.stages[0].ticks
    assert {name: ticks[name] for name in "bc"} == {name: peaks[name] for name in "bc"}


def test_its_own_peak_may_be_the_last() -> None:
    learners = {"a": Learner(limit=0.6, damage=2.0), "b": Learner(limit=1.5, keep=True)}
    history = simulate("sro", learners, train_batch_size=8)
    peaks = {name: history.rule.peak(history.curve(0, name)) for name in learners}
    assert peaks["a"] < peaks["b"] < history.stages[0].ticks
    assert sum(stage.ticks for stage in history.stages[1:]) == peaks["b"]


@pytest.mark.parametrize("option", ["patience", "on_rollback", "drop_ties"])
def test_options_that_mean_nothing_here_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"option of method sro: '{option}'"):
        run(SEARCH, **{option: 1})
