"""Time left, as it is told while a run goes on: of the stage, and of the whole run."""

from pathlib import Path
from typing import Any

import pytest

from msft.app.terminal.board import (
    Ahead,
    Board,
    Pace,
    TimeLeft,
    clock,
    stages_ahead,
    time_left_text,
)
from msft.run.history import History
from msft.run.log import EndEvent, Event, PointEvent, RolloutEvent, read_log
from msft.run.worker import Step
from msft.testing.simulated import Learner, simulate

LEARNERS = {
    "a": Learner(rows=32, limit=0.3, damage=0.6),
    "b": Learner(rows=64, limit=0.6, damage=0.6),
    "c": Learner(rows=96, limit=9.0),
}


def events_of(method: str, folder: Path, **options: Any) -> list[Event]:
    simulate(
        method,
        LEARNERS,
        folder=folder,
        compute_budget=1,
        num_train_epochs=2,
        train_batch_size=32,
        peaks={"include_start": False},
        **options,
    )
    return read_log(folder / "run.jsonl")


def at_stage(events: list[Event], number: int) -> History:
    """The history as a stage begins."""
    asked = [place for place, event in enumerate(events) if isinstance(event, RolloutEvent)]
    return History(events[: asked[number] + 1])


@pytest.mark.parametrize("method", ["sft", "dynamix", "ies", "soup"])
def test_after_the_only_stage_nothing_follows(method: str, tmp_path: Path) -> None:
    assert stages_ahead(at_stage(events_of(method, tmp_path), 0)) == ()


def test_what_follows_is_known_for_methods_with_a_plan(tmp_path: Path) -> None:
    (tmp_path / "continual").mkdir()
    continual = events_of("continual", tmp_path / "continual")
    rest = (Ahead(64, 4), Ahead(96, 4))
    assert stages_ahead(at_stage(continual, 0)) == rest
    assert stages_ahead(at_stage(continual, 2)) == ()
    (tmp_path / "soft_sro").mkdir()
    soft = events_of("soft_sro", tmp_path / "soft_sro")
    again = (Ahead(192, 8),)
    assert stages_ahead(at_stage(soft, 0)) == again
    assert stages_ahead(at_stage(soft, 1)) == ()
    (tmp_path / "sro").mkdir()
    sro = events_of("sro", tmp_path / "sro")
    assert stages_ahead(at_stage(sro, 0)) == again, "at most; how long, its peaks will say"


def test_of_msft_one_leaves_each_time(tmp_path: Path) -> None:
    events = events_of("msft", tmp_path)
    about = stages_ahead(at_stage(events, 0))
    assert about == (Ahead(128, 4), Ahead(64, 4)), "each takes a third of the rows with it"
    kept = stages_ahead(at_stage(events, 0), kept=["c"])
    assert kept == (Ahead(144, 4), Ahead(96, 4)), "the last stage is that of the kept one"


def test_the_limits_of_msft_are_kept(tmp_path: Path) -> None:
    events = events_of("msft", tmp_path, method_options={"max_stages": 5, "max_epochs": 2.5})
    about = stages_ahead(at_stage(events, 0))
    assert about == (Ahead(128, 4), Ahead(64, 2)), "six ticks are left"
    assert stages_ahead(at_stage(events, 2)) == ()


def test_training_goes_by_rows_and_evaluation_by_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("msft.app.terminal.board.time.monotonic", lambda: now)
    pace = Pace()
    assert pace.seconds(1, 100) is None, "nothing is known yet"
    for _ in range(2):
        pace.begin()
        for _ in range(5):
            now += 1.0
            pace.step(10)
        now += 20.0
        pace.end()
    assert pace.seconds(3, 100) == pytest.approx(100 * 0.1 + 3 * 20)


def test_steps_and_the_bar_move_between_evaluations(tmp_path: Path) -> None:
    board, done = Board(), 0
    assert board.time_left is None
    for event in events_of("sft", tmp_path):
        if isinstance(event, PointEvent):
            before = board.ticks
            for number in range(1, event.steps + 1):
                board.step(Step(0, 1, 1.0, 32, 10))
                done += 1
                assert board.steps == (done, 12), "192 rows in steps of 32, twice"
                assert board.ticks == pytest.approx(before + number / event.steps)
                assert board.is_evaluating == (number == event.steps)
        board.event(event, live=True)
        if isinstance(event, PointEvent):
            left = board.time_left
            assert left is not None
            assert left.stage == left.run
        assert isinstance(event, EndEvent) == (board.time_left is None and done == 12)


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (TimeLeft(65, 65), "1:05 of the whole run"),
        (TimeLeft(65, 3600), "1:05 of stage 2, about 1:00:00 of the whole run"),
        (TimeLeft(5, None), "0:05 of stage 2; how many stages follow is not known"),
    ],
)
def test_every_time_is_said_with_what_it_is_of(left: TimeLeft, said: str) -> None:
    assert time_left_text(left, 2) == f"time left: {said}"


def test_clocks() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 3599, 7325)] == [
        "0:00",
        "1:00",
        "59:59",
        "2:02:05",
    ]
