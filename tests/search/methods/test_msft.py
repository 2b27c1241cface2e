"""mSFT: Algorithms 1 and 4 of the paper line by line, and each point that the paper leaves open.

Line numbers are the paper's. One tick is one epoch here (`evals_per_epoch=1`) unless said, so that
a curve can be read as it stands: index 0 is the start of the roll-out, the last one is C.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from msft.errors import BadScore
from msft.run.history import History, summary_of
from msft.run.log import Log, ScoresEvent, Tokens
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Scored
from msft.run.worker import EngineWorker
from msft.search.curves import SELECTION, MeanRule, Score, accuracy, nll
from msft.search.feeds import Batch, Losses, Mixture
from msft.search.methods import prepare
from msft.search.rollout import BASE, CheckpointId, Settings
from msft.store.store import CheckpointStore, MemoryTier
from msft.testing import Learner, Scripted, SimulatedEngine, scripted, simulate
from msft.testing.scripted import Answer

Curves = Mapping[str, Sequence[float]]
AB = ("a", "b")
ABC = ("a", "b", "c")

WALK: tuple[Curves, ...] = (
    {"a": [0, 1, 0, 0], "b": [0, 1, 2, 0], "c": [0, 1, 2, 3]},  # peaks 1, 2, 3: a leaves at 1
    {"a": [1, 9, 0, 0], "b": [1, 2, 3, 4], "c": [1, 2, 3, 4]},  # peaks 3, 3 = C: go on
    {"a": [0, 9, 0, 0], "b": [4, 5, 6, 0], "c": [4, 5, 0, 0]},  # peaks 2, 1: c leaves at 1
    {"a": [9, 9, 9, 9], "b": [5, 4, 3, 2], "c": [5, 9, 9, 9]},  # peak 0: b leaves at 0
)
"""One search that goes through every line of Algorithm 1."""


def answering(*rollouts: Curves) -> Answer:
    """The n-th roll-out is answered by the n-th curves, later ones by the last."""
    return lambda index, start, active, ticks: rollouts[min(index, len(rollouts) - 1)]


def search(*rollouts: Curves, budget: float = 3, peaks: Any = None, **options: Any) -> Scripted:
    return scripted(
        "msft",
        list(rollouts[0]),
        answering(*rollouts),
        compute_budget=budget,
        evals_per_epoch=1,
        peaks=peaks,
        method_options=options,
    )


def simulated(learners: Mapping[str, Learner], **settings: Any) -> History:
    """Eight steps an epoch, so that every tick has a step."""
    return simulate("msft", learners, train_batch_size=8, **settings)


def rising(*names: str, ticks: int = 3) -> Curves:
    return {name: list(range(ticks + 1)) for name in names}


# Algorithm 1


def test_line_1_the_first_rollout_is_of_everybody_from_the_base_model() -> None:
    assert search(*WALK).rollouts[0] == ("base", ABC, 3)


def test_line_2_loops_until_nobody_is_active() -> None:
    out = search(*WALK)
    assert sorted(name for name, _ in out.excluded) == ["a", "b", "c"]
    assert len(out.rollouts) == 4
    assert out.history.ended is not None
    assert out.history.ended.by == "all_excluded"


def test_line_3_each_rollout_is_of_the_active_from_where_the_last_one_left_off_for_c() -> None:
    assert search(*WALK).rollouts == [
        ("base", ("a", "b", "c"), 3),
        ("r0-t1", ("b", "c"), 3),
        ("r1-t3", ("b", "c"), 3),
        ("r2-t1", ("b",), 3),
    ]


def test_line_4_only_active_subdatasets_have_a_peak() -> None:
    """`a` would peak first in the second roll-out, but it has left."""
    out = search(WALK[0], {"a": [1, 9, 0, 0], "b": [1, 2, 3, 0], "c": [1, 2, 3, 4]})
    assert out.excluded[:2] == [("a", 1), ("b", 2)]


def test_line_4_the_peak_is_the_highest_not_the_first_local_one() -> None:
    out = search({"a": [0, 2, 1, 3], "b": [0, 1, 2, 0]}, rising("a", "b"), max_stages=1)
    assert out.excluded == [("b", 2)]


def test_line_5_the_earliest_peak_leaves_wherever_it_stands_in_the_recipe() -> None:
    out = search({"a": [0, 1, 2, 0], "b": [0, 1, 2, 3], "c": [0, 1, 0, 0]}, max_stages=1)
    assert out.excluded == [("c", 1)]


def test_lines_6_and_7_if_nobody_overfitted_it_goes_on_from_the_end_without_roll_back() -> None:
    out = search(*WALK)
    assert out.rollouts[2] == ("r1-t3", out.rollouts[1][1], 3)
    stage = summary_of(out.history)["stages"][1]
    assert stage["excluded"] == []
    assert stage["rolled_back_to"] is None


def test_lines_6_and_7_ticks_without_a_step_are_no_fall() -> None:
    """Of one step an epoch, three of four ticks are the model before them: c_min = C there."""
    rising = Learner(rows=8, limit=99.0, passes=10.0, validation_rows=10**6)
    history = simulate("msft", {"a": rising, "b": rising}, train_batch_size=16, compute_budget=2)
    for number, stage in enumerate(history.stages):
        assert [point.steps for point in stage.points] == [1, 0, 0, 0, 1, 0, 0, 0]
        assert [history.rule.peak(history.curve(number, name)) for name in AB] == [5, 5]
        assert [(d.what, d.checkpoint) for d in stage.decisions] == [("go_on", f"r{number}-t8")]
    early = Learner(rows=8, limit=0.3, damage=0.6, validation_rows=10**6)
    history = simulate("msft", {"a": rising, "b": early}, train_batch_size=16, compute_budget=2)
    assert history.stages[0].excluded == [("b", 1)]


def test_line_9_who_left_is_never_trained_again() -> None:
    out = search(*WALK)
    for number, (_, active, _) in enumerate(out.rollouts):
        gone = {name for stage in out.history.stages[:number] for name, _ in stage.excluded}
        assert not gone & set(active)
        assert not out.history.stages[number].asked.rehearsed


def test_line_10_the_model_is_rolled_back_to_c_min() -> None:
    out = search(*WALK)
    assert out.excluded == [("a", 1), ("c", 1), ("b", 0)]
    assert [out.rollouts[1][0], out.rollouts[3][0]] == ["r0-t1", "r2-t1"]
    stages = summary_of(out.history)["stages"]
    assert [stage["rolled_back_to"] for stage in stages] == [1, None, 1, 0]


# Algorithm 4


def test_alg_4_line_1_the_base_model_is_the_best_if_nothing_is_better() -> None:
    out = search({"a": [5, 4, 3, 2], "b": [5, 4, 3, 2]})
    assert (out.best, out.best_mean) == ("base", 5)


def test_alg_4_lines_12_to_14_the_best_is_by_the_mean_over_all_of_d_the_excluded_too() -> None:
    """Over the active ones alone r1-t2 would be the best; `a`, excluded, speaks against it."""
    first = {"a": [0, 6, 0, 0], "b": [0, 1, 2, 3]}
    second = {"a": [6, 5, 0, 0], "b": [1, 3, 4, 0]}
    out = search(first, second)
    assert out.excluded == [("a", 1), ("b", 2)]
    assert (out.best, out.best_mean) == ("r1-t1", 4)


def test_alg_4_lines_12_to_14_the_discarded_part_of_a_rollout_may_hold_the_best() -> None:
    out = search({"a": [0, 3, 2, 2], "b": [0, 0, 8, 9]}, {"a": [3, 0, 0, 0], "b": [0, 0, 0, 0]})
    assert out.rollouts[1][0] == "r0-t1"
    assert (out.best, out.best_mean) == ("r0-t3", 5.5)


def test_alg_4_line_13_better_is_strict_so_the_earliest_of_equals_is_the_best() -> None:
    out = search({"a": [0, 3, 1, 1], "b": [0, 1, 3, 3]}, {"a": [3, 3, 3, 3], "b": [1, 1, 1, 1]})
    assert (out.best, out.best_mean) == ("r0-t1", 2)


class Watching(SimulatedEngine):
    """Notes which weights lie on the disk whenever training goes on."""

    def __init__(self, learners: Mapping[str, Learner], checkpoints: Path) -> None:
        super().__init__(learners)
        self.seen: list[set[str]] = []
        self._checkpoints = checkpoints

    def work(self, batch: Batch) -> tuple[Losses, int]:
        weights = (path.stem for path in self._checkpoints.glob("*.weights"))
        self.seen.append(set(weights))
        return super().work(batch)


@pytest.mark.parametrize("peaks", [{}, {"smooth": 1}, {"include_start": False, "min_delta": 0.02}])
def test_alg_4_lines_5_and_16_peaks_are_kept_in_the_rollout_and_all_others_discarded_after_it(
    tmp_path: Path, peaks: dict[str, Any]
) -> None:
    """Line 5: at every tick each active set's present peak is on disk. Line 16: when the next
    stage begins to train, only theta^ and theta* are."""
    learners = {
        "a": Learner(limit=0.5),
        "b": Learner(limit=1.5, passes=2.0),
        "c": Learner(limit=1.0, ceiling=0.7),
    }
    engine = Watching(learners, tmp_path / "checkpoints")
    history = simulated(learners, folder=tmp_path, engine=engine, peaks=peaks)
    seen = iter(engine.seen)
    base = ScoresEvent(BASE, SELECTION, Tokens(), history.known(BASE))
    so_far = History([history.start, base])
    for number, stage in enumerate(history.stages):
        so_far.add(stage.asked)
        best = {so_far.best}
        ids = [stage.asked.start]
        for point in stage.points:
            during_tick = [next(seen) for _ in range(point.steps)]
            held = {"base", *during_tick[0]}
            if len(ids) == 1:
                assert held == {"base", stage.asked.start, *best}
            else:
                assert set(present_peaks(history, number, len(ids) - 1)) | best <= held
                smooth = history.rule.smooth
                unsettled = set(ids[len(ids) - smooth :]) if smooth else set()
                assert len(held - {"base"} - best - unsettled) <= len(stage.asked.active) + 1
            ids.append(point.checkpoint)
            so_far.add(point)
            best = {so_far.best}
    assert next(seen, None) is None
    assert len(history.stages) >= 3


def present_peaks(history: History, number: int, tick: int) -> list[CheckpointId]:
    """The checkpoints that would be rolled back to if the roll-out ended at this tick."""
    stage = history.stages[number]
    ids = [stage.asked.start, *(point.checkpoint for point in stage.points)]
    curves = [history.curve(number, name)[: tick + 1] for name in stage.asked.active]
    return [ids[history.rule.peak(curve)] for curve in curves]


def test_alg_4_line_18_only_the_best_is_left_at_the_end(tmp_path: Path) -> None:
    history = simulated({"a": Learner(limit=0.5), "b": Learner()}, folder=tmp_path)
    assert [path.stem for path in (tmp_path / "checkpoints").iterdir()] == [history.best]
    assert history.ended is not None
    assert history.ended.best == history.best


# What the paper leaves open: is the start a candidate peak?


def test_the_start_is_a_candidate_peak_by_default() -> None:
    out = search({"a": [5, 4, 3, 2], "b": [0, 1, 2, 3]}, {"a": [5, 4, 3, 2], "b": [0, 1, 0, 0]})
    assert out.excluded[0] == ("a", 0)
    assert out.rollouts[1] == ("base", ("b",), 3)


def test_the_start_is_no_candidate_without_include_start() -> None:
    out = search(
        {"a": [5, 4, 3, 2], "b": [0, 1, 2, 3]}, max_stages=1, peaks={"include_start": False}
    )
    assert out.excluded == [("a", 1)]


def test_the_scores_of_the_start_are_those_of_the_stage_before() -> None:
    """The script says 99 at the start of the second roll-out; 1 was measured there before."""
    out = search({"a": [0, 2, 0, 0], "b": [0, 1, 2, 3]}, {"a": [9, 0, 0, 0], "b": [99, 2, 3, 0]})
    assert out.excluded == [("a", 1), ("b", 2)]


def test_the_start_costs_an_evaluation_only_at_the_base_model() -> None:
    history = simulated({"a": Learner(limit=0.5), "b": Learner()})
    points = sum(stage.ticks for stage in history.stages)
    one_evaluation = 2 * 200 * 20
    assert len(history.stages) > 1
    assert history.tokens.evaluation == (points + 1) * one_evaluation


# Ties


def test_of_equal_ticks_the_earliest_is_the_peak() -> None:
    out = search({"a": [0, 4, 4, 4], "b": [0, 1, 2, 3]}, max_stages=1)
    assert out.excluded == [("a", 1)]


TIE: Curves = {"b": [0, 1, 0, 0], "a": [0, 2, 0, 0], "c": [0, 1, 2, 0]}


def test_of_subdatasets_that_peak_together_the_first_in_the_recipe_leaves() -> None:
    out = search(TIE, max_stages=1)
    assert out.excluded == [("b", 1)]


def test_drop_ties_all_drops_all_who_peak_first_together() -> None:
    out = search(TIE, TIE, max_stages=2, drop_ties="all")
    assert out.excluded[:2] == [("b", 1), ("a", 1)]
    assert out.rollouts[1] == ("r0-t1", ("c",), 3)


def test_drop_ties_does_not_matter_if_nobody_overfitted() -> None:
    out = search(rising("a", "b"), max_stages=1, drop_ties="all")
    assert out.excluded == []


# The optimizer at a roll-back

OVERFITTING = {"a": Learner(limit=0.5), "b": Learner(passes=2.0), "c": Learner(limit=1.0)}


class Stepping(SimulatedEngine):
    """Notes how many steps the optimizer had behind it at each training step."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        super().__init__(learners)
        self.ages: list[int] = []

    def work(self, batch: Batch) -> tuple[Losses, int]:
        self.ages.append(self.optimizer()["steps"])
        return super().work(batch)


def ages_at_stage_starts(on_rollback: str | None) -> tuple[History, list[int]]:
    """Age of the optimizer at the first step of each stage after the first."""
    engine = Stepping(OVERFITTING)
    options = {"on_rollback": on_rollback} if on_rollback else {}
    history = simulated(OVERFITTING, engine=engine, method_options=options)
    first, ages = 0, list[int]()
    for stage in history.stages:
        ages.append(engine.ages[first])
        first += sum(point.steps for point in stage.points)
    assert len(ages) >= 3
    return history, ages[1:]


@pytest.mark.parametrize("on_rollback", [None, "reset"])
def test_a_stage_starts_with_a_fresh_optimizer_by_default(on_rollback: str | None) -> None:
    history, ages = ages_at_stage_starts(on_rollback)
    assert set(ages) == {0}
    assert {stage.asked.optimizer for stage in history.stages} == {"fresh"}


def test_on_rollback_restore_goes_on_with_the_moments_of_the_peak() -> None:
    history, ages = ages_at_stage_starts("restore")
    on_path = [
        sum(point.steps for leg, ticks in history.path(stage.asked.start)
            for point in history.stages[leg].points[:ticks])
        for stage in history.stages[1:]
    ]  # fmt: skip
    assert ages == on_path
    assert any(ages)
    assert [s.asked.optimizer for s in history.stages] == [
        "fresh" if stage.asked.start == "base" else "kept" for stage in history.stages
    ]


# Data order


class Reading(SimulatedEngine):
    """Notes the rows of every training step."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        super().__init__(learners)
        self.rows: list[tuple[str, int]] = []

    def work(self, batch: Batch) -> tuple[Losses, int]:
        self.rows += batch.rows
        return super().work(batch)


def rows_by_stage(seed: int = 20, **options: Any) -> list[list[tuple[str, int]]]:
    learners = {"a": Learner(limit=0.3, rows=12), "b": Learner(rows=20, limit=9.0)}
    engine = Reading(learners)
    history = simulate(
        "msft",
        learners,
        engine=engine,
        seed=seed,
        train_batch_size=4,
        method_options={"max_stages": 3, **options},
    )
    rows, stages = iter(engine.rows), list[list[tuple[str, int]]]()
    for stage in history.stages:
        stages.append([next(rows) for point in stage.points for _ in range(point.loss[1])])
    assert "a" in dict(stages[0])
    assert "a" not in history.stages[1].asked.active
    return stages


def test_a_new_stage_starts_a_new_shuffled_epoch_of_the_rest() -> None:
    _, second, third = rows_by_stage()
    everybody = [("b", number) for number in range(20)]
    for stage in (second, third):
        for epoch in range(3):
            assert sorted(stage[epoch * 20 : (epoch + 1) * 20]) == everybody
    assert second[:20] != third[:20]
    assert second[:20] != second[20:40]


def test_the_order_is_a_function_of_seed_stage_and_epoch() -> None:
    assert rows_by_stage() == rows_by_stage()
    assert rows_by_stage(seed=21)[1] != rows_by_stage()[1]


# When it ends


def test_if_nobody_ever_overfits_it_ends_after_twice_as_many_stages_as_subdatasets() -> None:
    out = search(rising("a", "b", "c"), *(ever_higher(n, "a", "b", "c") for n in range(1, 9)))
    assert len(out.rollouts) == 6
    assert out.rollouts[5][0] == "r4-t3"
    assert out.excluded == []
    assert ended_by(out) == "max_stages"
    assert {stage.asked.optimizer for stage in out.history.stages} == {"fresh"}


def ever_higher(stage: int, *names: str) -> Curves:
    return {name: [3 * stage + tick for tick in range(4)] for name in names}


def ended_by(out: Scripted) -> str:
    assert out.history.ended is not None
    return out.history.ended.by


def test_max_stages_counts_stages_with_and_without_an_exclusion() -> None:
    out = search(*WALK, max_stages=3)
    assert len(out.rollouts) == 3
    assert ended_by(out) == "max_stages"


def test_a_search_that_needs_all_its_stages_has_not_been_cut() -> None:
    out = search(*WALK, max_stages=4, max_epochs=12)
    assert ended_by(out) == "all_excluded"


def test_there_is_no_limit_of_epochs_by_default() -> None:
    out = search(*(ever_higher(n, "a") for n in range(60)), max_stages=50)
    assert sum(ticks for _, _, ticks in out.rollouts) == 150


def test_max_epochs_counts_discarded_epochs_and_cuts_the_last_rollout_to_fit() -> None:
    out = search(*WALK, max_epochs=7)
    assert [ticks for _, _, ticks in out.rollouts] == [3, 3, 1]
    assert ended_by(out) == "max_epochs"


def test_who_rises_to_the_end_of_a_rollout_that_was_cut_has_not_overfitted() -> None:
    """C is then where the roll-out ended, not the budget that it did not have."""
    out = search(*(ever_higher(n, *AB) for n in range(2)), max_epochs=4)
    assert [ticks for _, _, ticks in out.rollouts] == [3, 1]
    assert out.excluded == []
    decisions = [(d.what, d.checkpoint) for stage in out.history.stages for d in stage.decisions]
    assert decisions == [("go_on", "r0-t3"), ("go_on", "r1-t1")]


def test_max_epochs_may_end_between_two_stages() -> None:
    out = search(*WALK, max_epochs=6)
    assert [ticks for _, _, ticks in out.rollouts] == [3, 3]
    assert ended_by(out) == "max_epochs"


def test_max_epochs_is_in_epochs_not_in_ticks() -> None:
    curve = [float(tick) for tick in range(13)]
    out = scripted(
        "msft", ["a"], answering({"a": curve}), method_options={"max_epochs": 1.25}
    )  # fmt: skip
    assert [ticks for _, _, ticks in out.rollouts] == [5]


def test_max_epochs_must_be_whole_ticks() -> None:
    with pytest.raises(ValueError, match=r"max_epochs is 0\.3.*multiple of 1/4"):
        scripted("msft", ["a"], answering(rising("a")), method_options={"max_epochs": 0.3})


def test_a_budget_of_one_tick_without_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compute_budget is one tick.*include_start is false"):
        search(rising("a"), budget=1, peaks={"include_start": False})


@pytest.mark.parametrize(("budget", "include_start"), [(1, True), (2, False)])
def test_a_budget_that_can_exclude_is_accepted(budget: int, include_start: bool) -> None:
    falling = {"a": [3, 2, 1], "b": [3, 2, 1]}
    out = search(falling, budget=budget, peaks={"include_start": include_start})
    assert [name for name, _ in out.excluded] == ["a", "b"]


# score_excluded

FORGOTTEN: tuple[Curves, ...] = (
    {"a": [0, 6, 0, 0], "b": [0, 1, 2, 3]},  # a leaves at 1
    {"a": [6, 6, 6, 6], "b": [1, 5, 9, 8]},  # the best of all is r1-t2: b leaves there
)


def scored_names(out: Scripted, checkpoint: str) -> list[str]:
    return sorted(out.history.known(CheckpointId(checkpoint)))


def test_excluded_sets_are_scored_at_every_tick_by_default() -> None:
    out = search(*FORGOTTEN)
    assert all(scored_names(out, f"r1-t{tick}") == ["a", "b"] for tick in (1, 2, 3))
    assert out.best == "r1-t2"


def test_score_excluded_rollback_scores_them_only_where_the_search_goes_on() -> None:
    out = search(*FORGOTTEN, score_excluded="rollback")
    assert [scored_names(out, f"r1-t{tick}") for tick in (1, 2, 3)] == [["b"], ["a", "b"], ["b"]]
    assert (out.best, out.best_mean) == ("r1-t2", 7.5)


def test_score_excluded_rollback_scores_them_too_where_nobody_left() -> None:
    out = search(FORGOTTEN[0], {"a": [6, 6, 6, 5], "b": [1, 5, 9, 10]}, max_stages=2,
                 score_excluded="rollback")  # fmt: skip
    assert scored_names(out, "r1-t3") == ["a", "b"]
    assert (out.best, out.best_mean) == ("r1-t3", 7.5)


def test_only_fully_scored_points_can_be_the_best() -> None:
    """r1-t3 has the best mean, and with `rollback` nobody ever sees it."""
    curves = (FORGOTTEN[0], {"a": [6, 0, 0, 60], "b": [1, 5, 9, 8]})
    assert search(*curves).best == "r1-t3"
    assert search(*curves, score_excluded="rollback").best == "r1-t2"


def test_a_stale_score_is_never_carried_forward() -> None:
    """`a` stood at 6 when it left and at 0 ever after; with the 6 carried on r1-t2 would win."""
    curves = (FORGOTTEN[0], {"a": [6, 0, 0, 0], "b": [1, 2, 6, 5]})
    out = search(*curves, score_excluded="rollback")
    assert float(out.history.known(CheckpointId("r1-t2"))["a"].value) == 0
    assert (out.best, out.best_mean) == ("r0-t1", 3.5)


def test_score_excluded_rollback_decides_the_same_and_costs_less() -> None:
    every = simulated(OVERFITTING)
    rollback = simulated(OVERFITTING, method_options={"score_excluded": "rollback"})
    assert [s.excluded for s in every.stages] == [s.excluded for s in rollback.stages]
    assert rollback.tokens.evaluation < every.tokens.evaluation
    assert rollback.tokens.train == every.tokens.train
    assert rollback.candidates < every.candidates


# The mean over sub-datasets, and the metrics


ROWS = 64


def recited(script: Mapping[str, Callable[[int], Score]], mean: MeanRule = "macro") -> History:
    """One stage of three epochs on these scores."""
    settings = Settings(Mixture.of(dict.fromkeys(script, ROWS)), 3, 10, 1, mean=mean)
    prepared = prepare("msft", {"max_stages": 1}, 3, settings.peaks)
    engine = Reciting(script)
    worker = EngineWorker(engine, engine.score, seed=20, batch_size=64, evals_per_epoch=1)
    store = CheckpointStore([MemoryTier("memory", capacity=99)])
    return RecordedRun(settings, prepared, worker, Log(), store).carry_out()


class Reciting(SimulatedEngine):
    """Gives the scores of a script, by the epochs trained so far."""

    def __init__(self, script: Mapping[str, Callable[[int], Score]]) -> None:
        super().__init__({name: Learner(rows=ROWS) for name in script})
        self._script = script

    def load(self, weights: int | None) -> None:
        self._rows = weights or 0

    def weights(self) -> int:
        return self._rows

    def work(self, batch: Batch) -> tuple[Losses, int]:
        self._rows += len(batch.rows)
        return Losses([0.0] * len(batch.rows)), 0

    def score(self, names: Sequence[str], split: str) -> Scored:
        epoch = self._rows // (ROWS * len(self._script))
        return Scored({name: self._script[name](epoch) for name in names}, 0)


@pytest.mark.parametrize(("mean", "best", "value"), [
    ("macro", "r0-t1", (8 / 10 + 30 / 100) / 2),
    ("pooled", "r0-t2", (5 + 50) / 110),
])  # fmt: skip
def test_the_mean_is_over_subdatasets_or_pooled_over_rows(
    mean: MeanRule, best: str, value: float
) -> None:
    script = {
        "few": lambda t: accuracy([0, 8, 5, 0][t], 10),
        "many": lambda t: accuracy([0, 30, 50, 0][t], 100),
    }
    history = recited(script, mean)
    assert history.best == best
    assert float(history.mean(CheckpointId(best))) == pytest.approx(value)


def test_a_loss_peaks_where_it_is_lowest_and_the_lowest_mean_loss_is_the_best() -> None:
    script = {
        "a": lambda t: nll([3.0, 2.0, 1.5, 1.8][t], 1),
        "b": lambda t: nll([3.0, 2.5, 1.5, 1.0][t], 1),
    }
    history = recited(script)
    assert history.stages[0].excluded == [("a", 2)]
    assert history.best == "r0-t3"
    assert history.mean(CheckpointId("r0-t3")) == pytest.approx(1.4)


def test_with_mixed_metrics_the_best_is_by_the_mean_gain_over_the_base_model() -> None:
    """Accuracy in points, loss in relative decrease: t1 +0.30 and +0.00, t2 +0.10 and +0.50."""
    script = {
        "right": lambda t: accuracy([40, 70, 50, 40][t], 100),
        "loss": lambda t: nll([4.0, 4.0, 2.0, 4.0][t], 1),
    }
    history = recited(script)
    assert history.best == "r0-t2"
    assert float(history.mean(CheckpointId("r0-t2"))) == pytest.approx((0.1 + 0.5) / 2)


# Noise


def test_smooth_passes_over_a_lonely_spike() -> None:
    spike = {"a": [0, 9, 0, 6, 7, 4], "b": [0, 1, 2, 3, 4, 5]}
    assert search(spike, budget=5, max_stages=1).excluded == [("a", 1)]
    assert search(spike, budget=5, max_stages=1, peaks={"smooth": 1}).excluded == [("a", 4)]


def test_min_delta_lets_a_later_tick_take_the_peak_only_if_it_is_higher_by_more() -> None:
    slow = {"a": [0.0, 0.5, 0.55, 0.6], "b": [0.0, 0.2, 0.4, 0.6]}
    assert search(slow, max_stages=1).excluded == []
    assert search(slow, max_stages=1, peaks={"min_delta": 0.1}).excluded == [("a", 1)]
    assert search(slow, max_stages=1, peaks={"min_delta": 0.09}).excluded == []


LONG: Curves = {"a": [0, 1, 2, 1, 1, 1, 1], "b": [0, 1, 2, 3, 4, 5, 6]}


def test_patience_ends_a_rollout_when_the_earliest_peak_is_that_many_ticks_old() -> None:
    out = search(LONG, budget=6, patience=2, max_stages=1)
    assert out.rollouts == [("base", AB, 4)]
    assert out.excluded == [("a", 2)]


def test_without_patience_a_rollout_is_of_c_ticks() -> None:
    out = search(LONG, budget=6, max_stages=1)
    assert out.rollouts == [("base", AB, 6)]
    assert out.excluded == [("a", 2)]


def test_patience_saves_compute_and_the_summary_says_so() -> None:
    patient = simulated(OVERFITTING)
    hasty = simulated(OVERFITTING, method_options={"patience": 2})
    assert hasty.tokens.train < patient.tokens.train
    run_ticks = sum(stage.ticks for stage in hasty.stages)
    assert any(stage.ticks < stage.asked.ticks for stage in hasty.stages)
    assert summary_of(hasty)["epochs_trained"] == run_ticks / 4


def test_the_points_that_patience_saved_cannot_be_the_best() -> None:
    late = {"a": [0, 2, 1, 1, 9], "b": [0, 1, 2, 3, 4]}
    out = search(late, {"a": [2, 0, 0, 0, 0], "b": [1, 0, 0, 0, 0]}, budget=4, patience=2)
    assert out.excluded[0] == ("a", 1)
    assert out.best == "r0-t3"


def test_a_curve_that_rises_again_within_patience_is_not_cut() -> None:
    out = search({"a": [0, 2, 1, 3, 4], "b": [0, 1, 2, 3, 4]}, budget=4, patience=3, max_stages=1)
    assert out.rollouts[0][2] == 4
    assert out.excluded == []


# rehearsal_fraction


def test_nothing_of_an_excluded_set_is_trained_by_default() -> None:
    assert all(name == "b" for stage in rows_by_stage()[1:] for name, _ in stage)


def test_rehearsal_keeps_a_share_of_each_excluded_set_drawn_anew_each_epoch() -> None:
    """A quarter of 12 rows in each of the three epochs of the second stage."""
    second = rows_by_stage(rehearsal_fraction=0.25)[1]
    epochs = [second[start : start + 23] for start in (0, 23, 46)]
    rehearsed = [sorted(row for row in epoch if row[0] == "a") for epoch in epochs]
    assert [len(set(rows)) for rows in rehearsed] == [3, 3, 3]
    assert rehearsed[0] != rehearsed[1] or rehearsed[1] != rehearsed[2]
    assert all(sum(name == "b" for name, _ in epoch) == 20 for epoch in epochs)


def test_a_rehearsed_set_is_not_active_and_cannot_leave_again() -> None:
    out = search(*WALK, rehearsal_fraction=0.1)
    assert out.excluded == search(*WALK).excluded
    assert out.rollouts == search(*WALK).rollouts
    assert dict(out.history.stages[3].asked.rehearsed) == {"a": 10, "c": 10}


# keep


def test_a_kept_subdataset_is_never_excluded() -> None:
    learners = {
        "a": Learner(limit=0.2, damage=2.0, keep=True),
        "b": Learner(limit=1.0),
        "c": Learner(limit=0.6),
    }
    droppable = Learner(limit=0.2, damage=2.0)
    assert simulated({**learners, "a": droppable}).stages[0].excluded[0][0] == "a"
    history = simulated(learners)
    left = [name for stage in history.stages for name, _ in stage.excluded]
    assert sorted(left) == ["b", "c"]
    assert all("a" in stage.asked.active for stage in history.stages)


def test_once_only_kept_sets_are_left_it_ends_when_they_overfit() -> None:
    learners = {"a": Learner(limit=0.5, keep=True), "b": Learner(limit=0.2)}
    history = simulated(learners)
    assert tuple(history.stages[-1].asked.active) == ("a",)
    assert history.stages[-1].decisions == []
    assert history.ended is not None
    assert history.ended.by == "all_excluded"


def test_with_only_kept_sets_that_never_overfit_max_stages_ends_it() -> None:
    never = Learner(limit=99.0, passes=10.0, validation_rows=10**6, keep=True)
    history = simulated({"a": never})
    assert len(history.stages) == 2
    assert history.ended is not None
    assert history.ended.by == "max_stages"


# Ours: `exclude`, only those leave that fall for sure.

EIGHT = 8
"""Ticks of a roll-out in these tests, one an epoch; with its start it has nine points."""


def surely(
    *rollouts: Curves, rows: Sequence[Curves] | None = None, peaks: Any = None, **options: Any
) -> Scripted:
    """Curves in rights of 200 rows; rows: other ones for the rows than for the scores."""

    def right(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        curves = (rows or rollouts)[min(index, len(rollouts) - 1)]
        return {
            name: [[1] * int(2 * h) + [0] * (200 - int(2 * h)) for h in curves[name]]
            for name in active
        }

    return scripted(
        "msft",
        list(rollouts[0]),
        answering(*rollouts),
        compute_budget=EIGHT,
        evals_per_epoch=1,
        peaks=peaks,
        method_options={"exclude": {"confidence": 0.95}, **options},
        rows=right,
    )


RISING = [10, 20, 30, 40, 50, 60, 70, 80, 90]
FALLS_AT_2 = [10, 60, 90, 85, 75, 65, 55, 45, 35]
FALLS_AT_3 = [10, 50, 70, 90, 80, 70, 60, 50, 40]
DIPS_AT_2 = [40, 41, 43, 42, 41, 42, 42, 41, 42]


def test_by_the_papers_rule_the_first_peak_leaves_for_sure_only_a_real_fall_does() -> None:
    curves = {"a": DIPS_AT_2, "b": FALLS_AT_3}
    paper = search(curves, curves, budget=EIGHT, max_stages=1)
    assert paper.excluded == [("a", 2)]
    assert surely(curves, curves, max_stages=1).excluded == [("b", 3)]


def test_of_several_sure_falls_the_one_with_the_earliest_peak_leaves_first() -> None:
    curves = {"a": FALLS_AT_3, "b": FALLS_AT_2}
    out = surely(curves, {"a": FALLS_AT_3, "b": RISING}, max_stages=2)
    assert out.excluded == [("b", 2), ("a", 3)]
    assert [start for start, *_ in out.rollouts] == [BASE, "r0-t2"]


def test_sure_falls_that_tie_leave_one_by_one_or_together() -> None:
    curves = {"a": FALLS_AT_3, "b": FALLS_AT_3}
    assert surely(curves, max_stages=1).excluded == [("a", 3)]
    assert surely(curves, max_stages=1, drop_ties="all").excluded == [("a", 3), ("b", 3)]


def test_who_falls_from_the_start_of_a_rollout_can_leave() -> None:
    again = {"a": [60, 55, 50, 45, 40, 35, 30, 25, 20], "b": RISING}
    out = surely({"a": [10, 20, 30, 40, 45, 50, 54, 57, 60], "b": RISING}, again, max_stages=2)
    assert out.excluded == [("a", 0)]
    assert [decision.what for stage in out.history.stages for decision in stage.decisions] == [
        "go_on",
        "exclude",
    ]


def test_nobody_falls_and_nothing_is_gained_so_it_ends() -> None:
    flat = {name: [90, 89, 90, 89, 90, 90, 89, 89, 90] for name in AB}
    out = surely({"a": RISING, "b": RISING}, flat, max_stages=9)
    assert len(out.rollouts) == 2
    assert [decision.what for decision in out.history.stages[1].decisions] == ["go_on"]
    assert ended_by(out) == "no_gain"
    assert out.best == "r0-t8"


def test_it_goes_on_while_the_mean_rises() -> None:
    more = {"a": [90 + tick for tick in range(9)], "b": [90] * 9}
    out = surely({"a": RISING, "b": RISING}, more, more, max_stages=9)
    assert len(out.rollouts) == 3  # the third has the same mean as the second at best
    assert ended_by(out) == "no_gain"


def test_a_first_rollout_that_is_no_better_than_the_base_model_gains_nothing() -> None:
    out = surely({"a": [50, 49, 48, 49, 49, 48, 49, 49, 49]}, max_stages=9)
    assert (len(out.rollouts), out.best, ended_by(out)) == (1, BASE, "no_gain")


def test_one_that_is_kept_never_leaves_however_it_falls() -> None:
    learners = {
        "kept": Learner(limit=0.2, damage=0.6, keep=True),
        "free": Learner(limit=0.6, damage=0.6),
    }
    history = simulated(learners, method_options={"exclude": {}})
    assert [each.name for each in history.exclusions] == ["free"]
    assert history.stages[0].falls["kept"].leaves
    assert history.ended is not None
    assert history.ended.by == "all_excluded"


def test_the_test_is_in_the_log_with_its_numbers() -> None:
    out = surely({"a": FALLS_AT_3, "b": RISING}, max_stages=1)
    fall = out.history.stages[0].falls["a"]
    assert fall.peaks == (3, 3)
    assert fall.fall == pytest.approx((0.7 + 0.9 + 0.8) / 3 - (0.6 + 0.5 + 0.4) / 3, abs=0.03)
    assert (fall.sure, fall.learned) == (True, "above")
    assert not out.history.stages[0].falls["b"].sure


def test_scores_choose_the_peak_and_rows_say_whether_it_is_real() -> None:
    curves = {"a": FALLS_AT_3, "b": RISING}
    out = surely(curves, rows=[{"a": DIPS_AT_2, "b": RISING}], max_stages=1)
    assert out.excluded == []


def test_without_rows_a_test_is_refused_in_words() -> None:
    with pytest.raises(BadScore, match="rows="):
        scripted("msft", ["a"], answering({"a": [0] * 13}), method_options={"exclude": {}})
