"""Watched sub-datasets, guards and early stopping in whole runs, with values by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mortal import GUARDS, LEARNERS, VARIED, WATCHED
from msft.errors import BadScore, Diverged, LogError
from msft.report.findings import findings_of, result_texts
from msft.report.watched import guard_texts, watched_table
from msft.run.history import History, history_in, summary_of
from msft.run.log import PointEvent, RunEvent, from_line, read_log, to_line
from msft.search.falls import Drop
from msft.search.rollout import BASE, Run, checkpoint_id
from msft.testing import Learner, Scripted, scripted, simulate

ROWS = 20


def right(count: int) -> list[float]:
    return [1.0] * count + [0.0] * (ROWS - count)


def one_rollout(
    curves: dict[str, list[float]],
    rights: Sequence[int],
    method: str = "sft",
    **keys: Any,
) -> Scripted:
    """A run of as many ticks as the curves have; of the watched w, so many of 20 rows are right."""

    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {**curves, "w": [count / ROWS for count in rights]}

    def rows(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"w": [right(count) for count in rights]}

    ticks = len(rights) - 1
    given: dict[str, Any] = {"num_train_epochs": ticks, "compute_budget": ticks}
    given |= {"evals_per_epoch": 1, "watched": ["w"], "rows": rows}
    return scripted(method, list(curves), answer, **{**given, **keys})


# Watched.


def test_a_watched_one_is_scored_at_every_tick_and_is_in_no_mean() -> None:
    """The mean of a and b is 0.5, 0.7, 0.6; w would turn it round."""
    out = one_rollout({"a": [0.4, 0.6, 0.6], "b": [0.6, 0.8, 0.6]}, [20, 0, 20])
    assert (out.best, out.best_mean) == ("r0-t1", 0.7)
    assert out.history.start.datasets.keys() == {"a", "b"}
    asked = out.history.stages[0].asked
    assert asked.active.keys() == {"a", "b"}
    assert not asked.rehearsed
    places = [BASE, checkpoint_id(0, 1), checkpoint_id(0, 2)]
    assert [float(out.history.seen(at)["w"].value) for at in places] == [1.0, 0.0, 1.0]
    assert all(out.history.known(at).keys() == {"a", "b"} for at in places)
    assert summary_of(out.history)["watched"] == {"w": {"base": 1.0, "best": 0.0, "guard": None}}
    assert summary_of(out.history)["best"]["validation"]["datasets"].keys() == {"a", "b"}


def test_methods_do_not_see_it() -> None:
    seen: list[set[str]] = []

    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 2)
        seen.extend({*point.scores} for point in rollout.points)
        seen.append({*run.score(run.base)})

    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"a": [0.1, 0.2, 0.3], "w": [0.5, 0.5, 0.5]}

    scripted(method, ["a"], answer, watched=["w"])
    assert seen == [{"a"}] * 4


def test_it_is_scored_at_every_tick_where_excluded_ones_are_not(tmp_path: Path) -> None:
    history = VARIED["msft-watched"].run(tmp_path)
    points = [e for e in read_log(tmp_path / "run.jsonl") if isinstance(e, PointEvent)]
    assert all(event.scores.keys() >= {*WATCHED} for event in points)
    assert any(event.scores.keys() != {*WATCHED, *LEARNERS} for event in points)
    assert {e.checkpoint for e in points} <= {*history.scores["validation"]}


def test_it_is_scored_on_test_where_it_has_such_rows_beside_others(tmp_path: Path) -> None:
    """drift: scores on test lie 0.02 lower."""
    history = VARIED["msft-watched"].run(tmp_path)
    found = summary_of(history)["watched"]["v"]
    assert found == {
        "base": 0.5,
        "best": 0.5,
        "guard": None,
        "test": {"base": 0.48, "best": 0.48},
    }


def test_without_these_keys_the_first_event_is_as_it_was() -> None:
    out = scripted("sft", ["a"], lambda *asked: {"a": [0.1, 0.2]}, 1, 1, 1)
    line = to_line(out.history.start)
    assert not any(key in line for key in (b"watched", b"guards", b"early_stopping"))
    [point] = out.history.stages[0].points
    assert b"guards" not in to_line(point)


def test_a_resume_with_another_watched_one_is_refused(tmp_path: Path) -> None:
    learners = {"a": Learner(rows=16)}
    given: dict[str, Any] = {"num_train_epochs": 1, "evals_per_epoch": 2, "folder": tmp_path}
    simulate("sft", learners, watched={"w": Learner()}, **given)
    with pytest.raises(Diverged, match=r"watched\.v was null"):
        simulate("sft", learners, watched={"w": Learner(), "v": Learner()}, **given)
    with pytest.raises(Diverged, match=r"guards\.w was null, now it is 0.1"):
        simulate("sft", learners, watched={"w": Learner()}, guards={"w": 0.1}, **given)
    with pytest.raises(Diverged, match=r"early_stopping_patience was null, now it is 3"):
        simulate("sft", learners, watched={"w": Learner()}, early_stopping_patience=3, **given)


# Guards. The bound by hand: of 20 rows two are lost, so the drop is 0.1, the variance of a row is
# (2·0.9² + 18·0.1²) / 19 = 1.8 / 19, and the bound 0.1 − 1.729133·sqrt(1.8 / 19 / 20) = −0.019.

RISES = {"a": [0.1, 0.2, 0.3, 0.4]}


def test_a_checkpoint_that_surely_lost_too_much_is_not_the_best() -> None:
    out = one_rollout(RISES, [20, 20, 18, 0], guards={"w": 0.02})
    assert out.best == "r0-t2", "which may have lost less than 0.02"
    drops = out.history.drops
    assert drops[checkpoint_id(0, 1)] == {"w": Drop(0.0, 0.0, True)}
    assert drops[checkpoint_id(0, 2)]["w"].drop == pytest.approx(0.1)
    assert drops[checkpoint_id(0, 2)]["w"].low == pytest.approx(-0.0190, abs=5e-5)
    assert drops[checkpoint_id(0, 3)] == {"w": Drop(1.0, 1.0, False)}
    assert out.history.refused == ["r0-t3"]
    summary = summary_of(out.history)
    assert summary["watched"]["w"]["guard"] == {"max_drop": 0.02, "kept": True}
    assert summary["best"]["candidates"] == 3
    assert guard_texts(out.history) == [
        "Checkpoint r0-t3 has a higher mean (0.400), but it does not keep a guard: w −1.000 "
        "(surely beyond −1.000, −0.020 allowed). So it is not the result."
    ]


def test_a_wide_guard_refuses_nobody() -> None:
    out = one_rollout(RISES, [20, 20, 18, 0], guards={"w": 1.0})
    assert out.best == "r0-t3"
    assert guard_texts(out.history) == []


def test_if_no_point_keeps_it_the_result_is_the_base_model_and_that_is_said() -> None:
    out = one_rollout(RISES, [20, 2, 1, 0], guards={"w": 0.02})
    assert out.best == "base"
    assert len(out.history.refused) == 3
    first, second = guard_texts(out.history)
    assert first == "No checkpoint keeps the guard of w, so the result is the model you gave."
    assert second.startswith("Checkpoint r0-t3 has a higher mean (0.400), but it does not keep")
    found = findings_of(out.history, _NoRows())
    assert result_texts(found) == [first, second], "and nobody says that nothing is better"


class _NoRows:
    def at(self, checkpoint: str, name: str) -> None:
        return None

    def tokens(self, name: str) -> None:
        return None


def test_where_the_method_names_the_result_a_guard_is_only_reported(tmp_path: Path) -> None:
    for name in ("continual-guarded", "soup-stopped"):
        history = VARIED[name].run(tmp_path / name)
        assert history.best == history.reported
        assert summary_of(history)["watched"]["w"]["guard"] == {"max_drop": 0.06, "kept": False}
        [said] = guard_texts(history)
        assert said.startswith("The result does not keep a guard: w −")
        assert said.endswith("does not choose its result by scores, so guards are only reported.")


def test_a_guard_holds_for_trained_ones_too() -> None:
    """a falls from 20 right rows to 2 while the mean rises."""

    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"a": [1.0, 0.1], "b": [0.0, 1.0]}

    def rows(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"a": [right(20), right(2)]}

    out = scripted("sft", ["a", "b"], answer, 1, 1, 1, rows=rows, guards={"a": 0.5})
    assert out.best == "base"
    assert summary_of(out.history)["watched"] == {}
    assert summary_of(out.history)["guards"] == {"a": {"max_drop": 0.5, "kept": True}}
    assert out.history.drops[checkpoint_id(0, 1)]["a"].low == pytest.approx(0.781, abs=1e-3)


def test_a_guard_needs_rows() -> None:
    with pytest.raises(BadScore, match=r"w at base has no verdicts .* leave the guard of w out"):
        one_rollout(RISES, [20, 20, 18, 0], guards={"w": 0.02}, rows=None)


def test_rows_of_the_base_model_that_are_lost_are_measured_again(tmp_path: Path) -> None:
    """verdicts.jsonl is emptied while the run is stopped; the log ends the same."""
    case = VARIED["sft-stopped"]
    case.run(tmp_path / "whole")
    whole = (tmp_path / "whole" / "run.jsonl").read_bytes()
    folder = tmp_path / "cut"
    case.run(folder)
    lines = whole.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if b'"r0-t2"' in line)
    (folder / "run.jsonl").write_bytes(b"".join(lines[:first]))
    (folder / "verdicts.jsonl").write_bytes(b"")
    case.run(folder)
    assert (folder / "run.jsonl").read_bytes() == whole


def test_a_log_with_guards_is_read_as_it_was_written(tmp_path: Path) -> None:
    VARIED["sft-stopped"].run(tmp_path)
    log = tmp_path / "run.jsonl"
    for event in read_log(log):
        assert from_line(to_line(event)) == event
    history = history_in(log)
    assert history.drops[checkpoint_id(0, 1)].keys() == GUARDS.keys()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    points = [line for line in lines if line["event"] == "point"]
    assert all(line["guards"]["w"].keys() == {"drop", "low", "kept"} for line in points)
    for spoiled in (
        {"guards": {"w": {"drop": "much", "low": 0, "kept": True}}},
        {"guards": {"nobody": {"drop": 0.1, "low": 0.0, "kept": True}}},
        {"scores": {"stranger": [1, 2]}},
    ):
        with pytest.raises(LogError, match=r"bad\.jsonl, line \d+: "):
            _with_point(log, tmp_path / "bad.jsonl", spoiled)


def _with_point(log: Path, bad: Path, change: dict[str, Any]) -> None:
    """Read the log with its first point changed."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.pop("crc", None)
    next(line for line in lines if line["event"] == "point").update(change)
    bad.write_text("".join(json.dumps(line) + "\n" for line in lines))
    history_in(bad)


# Early stopping.


def stopped(
    curve: list[float], patience: int, method: str = "sft", **options: Any
) -> tuple[int, str]:
    """Ticks of a run whose mean takes this course, and why it ended."""

    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"a": curve}

    out = scripted(
        method,
        ["a"],
        answer,
        num_train_epochs=len(curve) - 1,
        evals_per_epoch=1,
        early_stopping_patience=patience,
        method_options=options,
    )
    ended = out.history.ended
    assert ended is not None
    return out.history.stages[0].ticks, ended.by


@pytest.mark.parametrize(
    ("curve", "patience", "expected"),
    [
        ([0.1, 0.2, 0.2, 0.3, 0.3, 0.2, 0.9], 2, (5, "early_stopping")),  # equal is not better
        ([0.1, 0.2, 0.2, 0.3, 0.3, 0.2, 0.9], 1, (2, "early_stopping")),
        ([0.1, 0.2, 0.2, 0.3, 0.3, 0.2, 0.9], 3, (6, "budget")),
        ([0.5, 0.1, 0.2, 0.3, 0.4, 0.6], 3, (3, "early_stopping")),  # tick 0 is the reference
        ([0.5, 0.1, 0.2, 0.3], 3, (3, "budget")),  # over where the run is over anyway
        ([0.1, 0.2, 0.3, 0.4], 1, (3, "budget")),
    ],
)
def test_it_ends_after_so_many_evaluations_without_a_better_mean(
    curve: list[float], patience: int, expected: tuple[int, str]
) -> None:
    assert stopped(curve, patience) == expected


@pytest.mark.parametrize("method", ["sft", "soup", "dynamix", "ies"])
def test_every_method_of_one_rollout_stops(method: str, tmp_path: Path) -> None:
    learners = {"a": Learner(rows=16, limit=0.1, damage=2.0), "b": Learner(rows=16, limit=0.1)}
    history = simulate(
        method,
        learners,
        num_train_epochs=6,
        evals_per_epoch=2,
        train_batch_size=8,
        folder=tmp_path,
        early_stopping_patience=2,
    )
    [stage] = history.stages
    assert stage.ticks < stage.asked.ticks == 12, "the roll-out is asked for in its whole length"
    means = [history.height(c) for c in stage.checkpoints]
    assert max(means[:-2]) >= max(means[-2:])
    assert history.ended is not None
    assert history.ended.by == "early_stopping"


def test_ticks_without_a_step_do_not_count(tmp_path: Path) -> None:
    """8 rows are one step of an epoch of four ticks: only ticks 1, 5, 9 have a step."""
    history = simulate(
        "sft",
        {"a": Learner(rows=8, limit=0.0, damage=3.0)},
        num_train_epochs=6,
        evals_per_epoch=4,
        train_batch_size=8,
        folder=tmp_path,
        early_stopping_patience=2,
    )
    steps = [point.steps for point in history.stages[0].points]
    assert steps == [1, 0, 0, 0, 1], "tick 0 was the best, and two with a step came after it"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"of": "last", "k": 2}, ["r0-t3", "r0-t4"]),
        ({"of": "all"}, ["r0-t1", "r0-t2", "r0-t3", "r0-t4"]),
        ({"of": "span"}, ["r0-t2"]),
    ],
)
def test_soup_averages_the_ticks_that_were_trained(
    options: dict[str, Any], expected: list[str]
) -> None:
    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        return {"a": [0.1, 0.2, 0.5, 0.4, 0.3, 0.6, 0.7]}

    out = scripted(
        "soup",
        ["a"],
        answer,
        num_train_epochs=6,
        evals_per_epoch=1,
        early_stopping_patience=2,
        method_options=options,
    )
    assert out.averaged == [expected]


def test_guards_do_not_stop_a_run() -> None:
    """The mean rises at each tick, though no tick is eligible."""
    out = one_rollout(RISES, [20, 0, 0, 0], guards={"w": 0.02}, early_stopping_patience=1)
    assert (out.history.stages[0].ticks, out.best) == (3, "base")


# What is shown.


def test_the_table_of_a_run_has_base_best_change_and_guard() -> None:
    out = one_rollout(RISES, [20, 20, 18, 0], guards={"w": 0.02})
    table = watched_table(out.history)
    assert table is not None
    assert table.head == ("sub-dataset", "base, validation", "best, validation", "change", "guard")
    [row] = table.rows
    assert [row.name, *(cell.text for cell in row.cells)] == [
        "w",
        "1.000",
        "0.900",
        "−0.100",
        "kept, −0.020 allowed",
    ]


def test_a_run_that_watches_nobody_has_no_table() -> None:
    out = scripted("sft", ["a"], lambda *asked: {"a": [0.1, 0.2]}, 1, 1, 1)
    assert watched_table(out.history) is None


def test_path_exclusions_are_of_the_path_alone(tmp_path: Path) -> None:
    """a peaks first and leaves, then b; the best is before b has left."""

    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> Any:
        if index == 0:
            return {"a": [0.1, 0.5, 0.1], "b": [0.1, 0.2, 0.3]}
        return {"a": [0.5, 0.5, 0.5], "b": [0.2, 0.9, 0.1]}

    out = scripted(
        "msft", ["a", "b"], answer, compute_budget=2, num_train_epochs=2, evals_per_epoch=1
    )
    assert [name for name, _ in out.excluded] == ["a", "b"]
    assert out.best == "r1-t1"
    assert summary_of(out.history)["best"]["path_exclusions"] == ["a"]


def test_opened_has_what_is_watched(tmp_path: Path) -> None:
    VARIED["sft-stopped"].run(tmp_path)
    first = read_log(tmp_path / "run.jsonl")[0]
    assert isinstance(first, RunEvent)
    assert first.settings["watched"] == {name: ["validation", "test"] for name in WATCHED}
    assert first.settings["guards"] == GUARDS
    assert first.settings["early_stopping_patience"] == 1
    assert isinstance(history_in(tmp_path / "run.jsonl"), History)
