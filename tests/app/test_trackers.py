"""Trackers: steps that never run backwards, roll-backs as markers, nothing told twice."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toys import write_lines

from msft.errors import RecipeError
from msft.observers import trackers as tracker_backends
from msft.observers.trackers import STEPS, Tracker, Trackers, read_told
from msft.run.history import History
from msft.run.log import DecisionEvent, Event, PointEvent, RolloutEvent, ScoresEvent, read_log
from msft.run.worker import Step
from msft.search.rollout import BASE
from msft.testing.simulated import Learner, simulate

SPEED = "train/tokens_per_second"
LEARNERS = {
    "quick": Learner(rows=300, limit=0.5, damage=0.4),
    "slow": Learner(rows=700, limit=3.0),
    "kept": Learner(rows=200, limit=9.0, keep=True),
}


class Remembering:
    """A tracker that keeps what it is told; it breaks after `breaks` calls."""

    def __init__(self, breaks: int | None = None) -> None:
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.finished = False
        self._breaks = breaks

    def log(self, values: dict[str, Any], step: int) -> None:
        if self._breaks is not None and len(self.told) >= self._breaks:
            raise ConnectionError("no network")
        self.told.append((step, values))

    def finish(self) -> None:
        self.finished = True

    def series(self, key: str) -> list[tuple[int, Any]]:
        return [(step, values[key]) for step, values in self.told if key in values]

    def without_speed(self) -> list[tuple[int, dict[str, Any]]]:
        return [(s, {k: v for k, v in values.items() if k != SPEED}) for s, values in self.told]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """An mSFT run with roll-backs, some ticks with more steps than one loss is the mean of."""
    folder = tmp_path_factory.mktemp("run")
    simulate(
        "msft",
        LEARNERS,
        folder=folder,
        train_batch_size=16,
        evals_per_epoch=2,
        score_test="best",
        peaks={"include_start": False},
    )
    return read_log(folder / "run.jsonl")


def play(
    events: Sequence[Event], trackers: Trackers, replayed: int = 0, steps_more: int = 0
) -> None:
    """Go through events as a session does: the first ones from the log, the others live.

    steps_more: steps of the tick after the last event, before the process dies.
    """
    history = History()
    for number, event in enumerate(events):
        live = number >= replayed
        if isinstance(event, PointEvent) and live:
            train(trackers, history, event.steps)
        history.add(event)
        trackers.event(history, event, live)
    if steps_more:
        train(trackers, history, steps_more)


def train(trackers: Trackers, history: History, steps: int) -> None:
    rollout = len(history.stages) - 1
    for number in range(steps):
        loss = rollout + history.stages[-1].ticks + number / 100
        parts = {"quick": (loss - 1, 12), "slow": (loss + 3, 4)}
        rate = 0.5 / (1 + number)
        tick = history.stages[-1].ticks + 1
        trackers.step(Step(rollout, tick, loss, 16, 160, parts, rate, 2.0 * loss))


def trackers_of(tracker: Tracker, memory: Path, notices: list[str] | None = None) -> Trackers:
    heard = notices if notices is not None else []
    return Trackers({"fake": tracker}, read_told(memory), memory, heard.append)


def whole(events: Sequence[Event], folder: Path) -> Remembering:
    tracker = Remembering()
    trackers = Trackers({"fake": tracker}, {}, folder / "whole.json", print)
    play(events, trackers)
    trackers.close()
    return tracker


def test_steps_count_all_training_and_never_go_back(events: list[Event], tmp_path: Path) -> None:
    tracker = whole(events, tmp_path)
    steps = [step for step, _ in tracker.told]
    assert steps == sorted(steps)
    assert steps[-1] == sum(event.steps for event in events if isinstance(event, PointEvent))
    assert tracker.finished


def test_training_is_told_by_sub_dataset_with_rate_and_norm(
    events: list[Event], tmp_path: Path
) -> None:
    tracker = whole(events, tmp_path)
    losses = tracker.series("train/loss")
    assert len(losses) > 3
    for name, apart in (("quick", -1.0), ("slow", 3.0)):
        series = tracker.series(f"train/loss/{name}")
        assert series == [(step, pytest.approx(float(loss) + apart)) for step, loss in losses]
    norms = tracker.series("train/grad_norm")
    assert norms == [(step, pytest.approx(2 * float(loss))) for step, loss in losses]
    (step, rate), *_ = tracker.series("train/learning_rate")
    assert (step, rate) == (losses[0][0], 0.5 / losses[0][0])


def test_samples_are_told_at_the_end(events: list[Event], tmp_path: Path) -> None:
    best = History(events).best
    lines = [
        {"checkpoint": place, "split": "validation", "dataset": "quick", "row": 3}
        | {"prompt": "2 + 2 =\nis", "reference": "4", "answer": answer, "worth": answer == "4"}
        for place, answer in ((BASE, "5"), (best, "4"), ("r9-t9", "6"))
    ]
    write_lines(tmp_path / "samples.jsonl", lines)
    tracker = whole(events, tmp_path)
    ((step, told),) = tracker.series("samples/quick")
    assert step == tracker.told[-1][0]
    assert told == (
        "    prompt: 2 + 2 =\n    is\n    reference: 4\n    base model: 5\n    result: 4\n"
        "    score: True"
    )


def test_the_values_are_those_of_the_log(events: list[Event], tmp_path: Path) -> None:
    tracker = whole(events, tmp_path)
    history = History(events)
    reached = [event for event in events if isinstance(event, PointEvent)]
    scored = tracker.series("eval/quick/accuracy")
    base = next(event for event in events if isinstance(event, ScoresEvent))
    assert scored[0] == (0, float(base.scores["quick"].value))
    assert [value for _, value in scored[1:]] == [float(e.scores["quick"].value) for e in reached]
    means = [value for _, value in tracker.series("eval/mean")]
    assert means[1:] == [float(history.mean(event.checkpoint)) for event in reached]
    stages = [value for _, value in tracker.series("stage")]
    assert stages == [n for n, stage in enumerate(history.stages) for _ in stage.points]
    active = [value for _, value in tracker.series("active")]
    assert active == [len(stage.asked.active) for stage in history.stages for _ in stage.points]
    assert active[0] == 3
    assert active[-1] < 3
    (step, mean), *rest = tracker.series("test/mean")
    assert (step, mean) == (tracker.told[-1][0], float(history.mean(history.best or BASE, "test")))
    assert not rest, "the base model's test score is no point of the curve"


def test_a_rollback_is_a_marker_at_the_present_step(events: list[Event], tmp_path: Path) -> None:
    tracker = whole(events, tmp_path)
    history = History(events)
    jumps = [
        (number, decision.checkpoint)
        for number, stage in enumerate(history.stages)
        for decision in stage.decisions
        if decision.checkpoint != stage.points[-1].checkpoint
    ]
    assert len(jumps) >= 2
    assert [value for _, value in tracker.series("rollback")] == [number for number, _ in jumps]
    ends = [sum(p.steps for s in history.stages[: n + 1] for p in s.points) for n, _ in jumps]
    assert [step for step, _ in tracker.series("rollback")] == ends
    texts = [text for _, text in tracker.series("rollback_text")]
    assert texts[0].startswith("quick left; back from ")
    assert [text[text.index("(") :] for text in texts[:2]] == ["(1 epoch)", "(3.5 epochs)"]
    for text, (_, checkpoint) in zip(texts, jumps, strict=True):
        assert f"to {checkpoint} (" in text
    committed = [values["epoch_committed"] for _, values in tracker.told if "rollback" in values]
    paths = [sum(ticks for _, ticks in history.path(c)) / 2 for _, c in jumps]
    assert committed == paths


def test_starting_again_from_the_base_model_is_marked_too(tmp_path: Path) -> None:
    folder = tmp_path / "sro"
    folder.mkdir()
    simulate("sro", LEARNERS, folder=folder, num_train_epochs=2)
    tracker = whole(read_log(folder / "run.jsonl"), tmp_path)
    (_, text), *_ = tracker.series("rollback_text")
    assert text == "back from r0-t8 to base (0 epochs)"
    assert tracker.series("rollback")[0][1] == 0


def test_losses_are_means_of_some_steps_and_of_the_rest_of_a_tick(
    events: list[Event], tmp_path: Path
) -> None:
    tracker = whole(events, tmp_path)
    first = next(event for event in events if isinstance(event, PointEvent))
    assert first.steps > 2 * STEPS, "else this test shows nothing"
    losses = tracker.series("train/loss")
    expected = [*range(STEPS, first.steps + 1, STEPS)]
    if first.steps % STEPS:
        expected.append(first.steps)
    assert [step for step, _ in losses[: len(expected)]] == expected
    assert losses[0][1] == pytest.approx(sum(n / 100 for n in range(STEPS)) / STEPS)
    assert all(speed > 0 for _, speed in tracker.series(SPEED))
    assert len(tracker.series(SPEED)) == len(losses)


def test_a_run_that_is_killed_anywhere_is_told_as_one_that_is_not(
    events: list[Event], tmp_path: Path
) -> None:
    uninterrupted = whole(events, tmp_path).without_speed()
    for killed in range(1, len(events)):
        tracker = Remembering()
        memory = tmp_path / f"{killed}.json"
        coming = events[killed]
        more = min(12, coming.steps - 1) if isinstance(coming, PointEvent) else 0
        play(events[:killed], trackers_of(tracker, memory), steps_more=more)
        play(events, trackers_of(tracker, memory), replayed=killed)
        assert tracker.without_speed() == uninterrupted, f"killed before event {killed}"


class Killed(BaseException):
    """Stands for SIGKILL."""


class Dying(Remembering):
    """The process dies when it has been told of something twice."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def log(self, values: dict[str, Any], step: int) -> None:
        super().log(values, step)
        if len(self.series(self._key)) == 2:
            raise Killed


@pytest.mark.parametrize(("key", "recorded"), [("stage", 1), ("train/loss", 0)])
def test_what_was_being_told_at_a_kill_may_be_there_twice_but_is_never_lost(
    events: list[Event], tmp_path: Path, key: str, recorded: int
) -> None:
    """recorded: whether the log has the event that was being told, or a tick goes on."""
    memory, dying, after = tmp_path / "trackers.json", Dying(key), Remembering()
    with pytest.raises(Killed):
        play(events, trackers_of(dying, memory))
    on_disk = read_told(memory)["fake"].events
    play(events, trackers_of(after, memory), replayed=on_disk + recorded)
    uninterrupted = whole(events, tmp_path).without_speed()
    told = dying.without_speed() + after.without_speed()
    twice = [entry for number, entry in enumerate(told) if entry in told[:number]]
    assert len(twice) == 1
    assert [entry for n, entry in enumerate(told) if entry not in told[:n]] == uninterrupted
    assert [step for step, _ in told] == sorted(step for step, _ in told)


def test_a_tracker_that_comes_late_is_told_everything(events: list[Event], tmp_path: Path) -> None:
    memory = tmp_path / "trackers.json"
    half = len(events) // 2
    play(events[:half], Trackers({}, {}, memory, print))
    late = Remembering()
    play(events, trackers_of(late, memory), replayed=half)
    assert late.series("eval/mean") == whole(events, tmp_path).series("eval/mean")
    first = next(event for event in events if isinstance(event, PointEvent))
    assert late.series("train/loss")[0] == (first.steps, first.loss[0] / first.loss[1])


def test_a_lost_checkpoint_that_is_trained_again_is_no_news(
    events: list[Event], tmp_path: Path
) -> None:
    tracker = Remembering()
    trackers = trackers_of(tracker, tmp_path / "trackers.json")
    fourth = [n for n, event in enumerate(events) if isinstance(event, PointEvent)][3]
    play(events[:fourth], trackers)
    before = list(tracker.told)
    for number in range(100):
        trackers.step(Step(0, 1 + number % 3, 9.0, 16, 160))
    assert tracker.told == before


@pytest.mark.parametrize("breaks", [0, 3, 20])
def test_a_tracker_that_fails_is_off_with_one_notice_and_the_other_goes_on(
    events: list[Event], tmp_path: Path, breaks: int
) -> None:
    broken, sound, notices = Remembering(breaks), Remembering(), list[str]()
    memory = tmp_path / "trackers.json"
    trackers = Trackers({"broken": broken, "sound": sound}, {}, memory, notices.append)
    play(events, trackers)
    trackers.close()
    assert len(notices) == 1
    assert "broken" in notices[0]
    assert "no network" in notices[0]
    uninterrupted = whole(events, tmp_path).without_speed()
    assert sound.without_speed() == uninterrupted
    assert not broken.finished
    mended = Remembering()
    play(events, Trackers({"broken": mended}, read_told(memory), memory, print), len(events))
    steps = [step for step, _ in broken.told + mended.told]
    assert steps == sorted(steps)
    scores = broken.series("eval/mean") + mended.series("eval/mean")
    assert scores == whole(events, tmp_path).series("eval/mean")


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    memory = tmp_path / "trackers.json"
    for text in ("", "{", "[1]", '{"wandb": 3}', '{"wandb": {"nothing": 1}}'):
        memory.write_text(text)
        assert read_told(memory) == {}


def test_no_tracker_leaves_no_file(events: list[Event], tmp_path: Path) -> None:
    trackers = tracker_backends.open_trackers("none", tmp_path, {}, 0, print)
    play(events, trackers)
    trackers.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["accelerate", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    tracker_backends.refuse_missing(["tensorboard"] if missing == "trackio" else "none")
    cure = rf"{missing} is not installed.*pip install accelerate trackio"
    with pytest.raises(RecipeError, match=cure):
        tracker_backends.refuse_missing(["trackio"])


def test_events_without_values_are_remembered_too(events: list[Event], tmp_path: Path) -> None:
    memory = tmp_path / "trackers.json"
    play(events, trackers_of(Remembering(), memory))
    assert json.loads(memory.read_text())["fake"]["events"] == len(events)
    assert any(isinstance(event, RolloutEvent | DecisionEvent) for event in events)
