"""The verb `average`: what it records, refuses, recovers, and holds."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mortal import LEARNERS, Killed, MortalLog, files_of
from msft.errors import Diverged, StoreError
from msft.run.history import History, flops_of, summary_of
from msft.run.log import AverageEvent, RolloutEvent, from_line, read_log, to_line
from msft.search.rollout import BASE, CheckpointId, Run, checkpoint_id
from msft.store.store import Disk
from msft.testing import SimulatedEngine, scripted, simulate


def small(method: Any, folder: Path | None = None, **changed: Any) -> History:
    settings: dict[str, Any] = {
        "num_train_epochs": 2,
        "evals_per_epoch": 2,
        "train_batch_size": 8,
        "folder": folder,
        **changed,
    }
    return simulate(method, LEARNERS, **settings)


def ids(*numbers: int, rollout: int = 0) -> list[CheckpointId]:
    return [checkpoint_id(rollout, number) for number in numbers]


def test_an_average_is_an_event_with_its_parts_and_is_scored_on_both_splits(folder: Path) -> None:
    small("soup", folder, method_options={"of": "last", "k": 2}, score_test="best")
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_bytes().splitlines()]
    at = next(number for number, line in enumerate(lines) if line["event"] == "average")
    assert lines[at] == {
        "event": "average",
        "checkpoint": "a0",
        "of": ["r0-t3", "r0-t4"],
        "disk": lines[at]["disk"],
        "crc": lines[at]["crc"],
    }
    shown = [(line["event"], line.get("split") or line.get("what")) for line in lines[at + 1 :]]
    assert shown == [
        ("scores", "validation"),
        ("scores", "test"),
        ("decision", "report"),
        ("scores", "test"),  # of the base model
        ("scores", "test"),  # of the best tick, which SFT would have reported
        ("end", None),
    ]
    assert lines[-1]["best"] == "a0"


def test_ticks_to_be_held_are_in_the_log_only_where_a_method_asks_for_other_than_usual() -> None:
    asked = RolloutEvent(0, BASE, {"a": 1}, {}, 2, {"name": "shuffled"}, "fresh", True)
    assert b"keep" not in to_line(asked)
    assert from_line(to_line(asked)) == asked
    for keep, text in (("all", b'"keep":"all"'), ((1, 2), b'"keep":[1,2]'), ((), b'"keep":[]')):
        other = RolloutEvent(0, BASE, {"a": 1}, {}, 2, {"name": "shuffled"}, "fresh", True, keep)  # type: ignore[arg-type]
        assert text in to_line(other)
        assert from_line(to_line(other)) == other
    for line in (to_line(asked), to_line(asked)[:-2] + b',"keep":"best"}\n'):
        assert to_line(from_line(line)) == to_line(asked), "no answer depends on it"
    average = AverageEvent(CheckpointId("a0"), (BASE, BASE), Disk(1, 2, 3))
    assert from_line(to_line(average)) == average


# What has no answer is refused.


def refused(ask: Any, why: str) -> None:
    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 3, keep="best")
        ask(run, rollout, run.average([rollout.end]))

    with pytest.raises(ValueError, match=why):
        scripted(method, ["a"], lambda *_: {"a": [0.0, 0.1, 0.2, 0.3]})


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda run, rollout, mean: run.average([]), "an average of no checkpoints"),
        (lambda run, rollout, mean: run.average([rollout.at(1)]), "r0-t1 .*not kept; kept are"),
        (lambda run, rollout, mean: run.average([mean]), "an average from a0 .*nothing goes on"),
        (lambda run, rollout, mean: run.average(["a7"]), "an average from a7"),
        (lambda run, rollout, mean: run.rollout(mean, run.mixture, 1), "a roll-out from a0"),
        (lambda run, rollout, mean: run.go_on(mean), "to go on from a0 .*is an average"),
        (lambda run, rollout, mean: run.exclude(["a"], mean, 1), "to go on from a0"),
        (lambda run, rollout, mean: run.report("a1"), "a result from a1 .*not kept"),
    ],
)
def test_what_has_no_answer_is_refused(ask: Any, why: str) -> None:
    refused(ask, why)


def test_other_parts_than_in_the_log_are_noticed(folder: Path) -> None:
    def method(parts: list[int]) -> Any:
        def averaging(run: Run) -> None:
            rollout = run.rollout(run.base, run.mixture, 3, keep="all")
            run.report(run.average([rollout.at(tick) for tick in parts]))

        return averaging

    small(method([1, 2]), folder)
    with pytest.raises(Diverged, match=r"the same with \{.of.:\[.r0-t2.,.r0-t1.\]\}"):
        small(method([2, 1]), folder)


# An average is no candidate, and the seam between it and the search.


def test_an_average_is_the_result_only_by_report() -> None:
    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 2, keep="all")
        run.average([rollout.at(1), rollout.at(2)])

    out = scripted(method, ["a"], lambda *_: {"a": [0.0, 0.2, 0.1]}, average=lambda ids: {"a": 0.9})
    assert out.best == "r0-t1"
    assert out.history.candidates == 3, "the base model and two ticks"
    assert float(out.history.mean(CheckpointId("a0"))) == 0.9
    assert summary_of(out.history)["best"]["average_of"] is None


def test_a_method_may_score_averages_and_report_the_one_it_likes() -> None:
    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 3, keep="all")
        averages = [run.average([rollout.at(tick), run.base]) for tick in (1, 2, 3)]
        run.report(max(averages, key=lambda each: run.score(each)["a"].height))

    out = scripted(method, ["a"], lambda *_: {"a": [0.5, 0.2, 0.8, 0.1]})
    assert out.averaged == [[tick, "base"] for tick in ids(1, 2, 3)]
    assert out.best == "a1"
    assert out.best_mean == pytest.approx(0.65)


def test_the_next_roll_out_drops_averages_unless_one_was_reported() -> None:
    held: list[list[str]] = []

    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 2)
        first, second = run.average([rollout.end]), run.average([rollout.end])
        run.report(second)
        run.rollout(run.base, run.mixture, 1)
        for average in (first, second):
            try:
                run.score(average)
                held.append([average])
            except ValueError:
                pass

    scripted(method, ["a"], lambda *_: {"a": [0.0, 0.2, 0.1]})
    assert held == [["a1"]]


def test_ticks_that_were_asked_for_are_held_to_the_end_over_other_roll_outs() -> None:
    def method(run: Run) -> None:
        first = run.rollout(run.base, run.mixture, 2, keep="all")
        second = run.rollout(first.at(1), run.mixture, 2, keep=(2,))
        third = run.rollout(run.base, run.mixture, 2)
        run.report(run.average([first.at(1), first.at(2), second.at(2), third.end]))

    out = scripted(method, ["a"], lambda *_: {"a": [0.0, 0.2, 0.1]})
    assert out.averaged == [["r0-t1", "r0-t2", "r1-t2", "r2-t2"]]


def test_a_span_drops_what_lies_before_every_peak_that_is_still_possible() -> None:
    """a peaks at tick 3, b later: ticks 1 and 2 are of no use once that is known."""
    curves = {"a": [0.0, 0.1, 0.2, 0.9, 0.3, 0.2, 0.1], "b": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.4]}

    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 6, keep="span")
        run.report(run.average([rollout.at(tick) for tick in (3, 4, 5)]))
        run.average([rollout.at(2)])

    with pytest.raises(ValueError, match=r"r0-t2 .*not kept; kept are \['a0', 'r0-t3', .*'r0-t6'"):
        scripted(method, ["a", "b"], lambda *_: curves)


def test_without_room_for_what_must_be_held_the_store_says_so() -> None:
    with pytest.raises(StoreError, match="no room for checkpoint r0-t3"):
        small("soup", memory_copies=2, method_options={"of": "all"})


# What was lost is made again, and never more than one part is held at a time.


class WatchedEngine(SimulatedEngine):
    """Counts steps and averages, and what happened while the parts of one were fetched."""

    def __init__(self) -> None:
        super().__init__(LEARNERS)
        self.steps = 0
        self.averages = 0
        self.passes: list[float] = []
        self.steps_beside = 0

    def work(self, batch: Any) -> Any:
        self.steps += 1
        return super().work(batch)

    def average(self, weights: Iterable[Any]) -> Any:
        self.averages += 1
        before, parts = self.steps, list(weights)
        self.passes = [part["passes"] for part in parts]
        self.steps_beside += self.steps - before
        return super().average(parts)


ALL = {"of": "all"}


def killed_after_the_average(folder: Path, memory: int | None) -> None:
    """The average is in the log, its scores are not."""
    events = [event.event for event in read_log(folder / "run.jsonl")] if folder.exists() else []
    assert not events
    folder.mkdir(parents=True)
    log = MortalLog(folder / "run.jsonl", last=7, written=True)
    with pytest.raises(Killed):
        small("soup", folder, log=log, memory_copies=memory, method_options=ALL)
    assert [event.event for event in read_log(folder / "run.jsonl")][-1] == "average"


@pytest.mark.parametrize("memory", [None, 99])
@pytest.mark.parametrize("lost", ["nothing", "the average", "a part", "everything"])
def test_a_lost_average_is_made_again_from_its_parts(
    lost: str, memory: int | None, folder: Path
) -> None:
    whole = folder / "whole"
    whole.mkdir()
    expected = small("soup", whole, memory_copies=memory, method_options=ALL)
    place = folder / "killed"
    killed_after_the_average(place, memory)
    gone = {"nothing": [], "the average": ["a0.*"], "a part": ["a0.*", "r0-t2.*"]}
    for pattern in gone.get(lost, ["*"]):
        for path in (place / "checkpoints").glob(pattern):
            shutil.rmtree(path)
    engine = WatchedEngine()
    again = small("soup", place, memory_copies=memory, engine=engine, method_options=ALL)
    assert (place / "run.jsonl").read_bytes() == (whole / "run.jsonl").read_bytes()
    assert files_of(place / "checkpoints") == files_of(whole / "checkpoints")
    assert flops_of(again) == flops_of(expected)
    if memory is None:
        assert engine.averages == (lost != "nothing")
        # five steps an epoch; the only moments are the newest tick's, so it starts at the base
        assert engine.steps == {"nothing": 0, "the average": 0, "a part": 5}.get(lost, 10)
    else:  # memory died with the process: every tick is trained again, none of them twice
        assert engine.averages == 1
        assert engine.steps <= 10
    assert engine.steps_beside == 0, "what was lost is trained before the sum is begun"


def test_parts_are_averaged_in_the_order_given_and_as_often() -> None:
    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 3, keep="all")
        run.report(run.average([rollout.at(3), rollout.at(1), run.base, rollout.at(3)]))

    engine = WatchedEngine()
    history = small(method, engine=engine)
    last, first, base, again = engine.passes
    assert base == 0 < first < last == again
    assert history.best == "a0"


def test_a_damaged_part_is_noticed_while_it_is_averaged(folder: Path) -> None:
    whole, place = folder / "whole", folder / "killed"
    whole.mkdir()
    small("soup", whole, method_options=ALL)
    place.mkdir()
    log = MortalLog(place / "run.jsonl", last=7, written=False)
    with pytest.raises(Killed):
        small("soup", place, log=log, method_options=ALL)
    (place / "checkpoints" / "r0-t3.weights" / "state.json").write_text("{}")
    small("soup", place, method_options=ALL)
    assert (place / "run.jsonl").read_bytes() == (whole / "run.jsonl").read_bytes()
    left = files_of(place / "checkpoints")
    assert {name: left[name] for name in left if ".bad" not in name} == files_of(
        whole / "checkpoints"
    )


def test_a_reported_average_outlives_its_parts_and_is_made_again_without_them(folder: Path) -> None:
    """After the next roll-out the parts are dropped; the average was in memory only and is lost."""

    def method(run: Run) -> None:
        first = run.rollout(run.base, run.mixture, 4, keep="span")
        run.report(run.average(ids(*range(2, 5))))
        assert first.ticks == 4
        run.rollout(run.base, run.mixture, 2, keep="best")

    whole, place = folder / "whole", folder / "killed"
    whole.mkdir()
    expected = small(method, whole, memory_copies=99)
    events = len(read_log(whole / "run.jsonl"))
    for last in range(events - 1):  # the end is written when the result is on disk
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        log = MortalLog(place / "run.jsonl", last, written=True)
        with pytest.raises(Killed):
            small(method, place, log=log, memory_copies=99)
        shutil.rmtree(place / "checkpoints")
        again = small(method, place, memory_copies=99)
        assert summary_of(again) == summary_of(expected)
        assert (place / "run.jsonl").read_bytes() == (whole / "run.jsonl").read_bytes()
        assert files_of(place / "checkpoints") == files_of(whole / "checkpoints")
