"""Durable writes, cut after every operation: the old or the new, never a mixture of both."""

from functools import partial
from pathlib import Path

from recorded_writes import put_back, states_of, tree_of

from msft.files import replace_bytes
from msft.run.log import EndEvent, Event, Log, RunEvent
from msft.run.rows import Verdicts, read_verdicts
from msft.search.curves import SELECTION
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import CheckpointStore, DiskTier
from msft.testing import JsonCodec

ONE = CheckpointId("r0-t1")
KEY = f"{ONE}.weights"


def test_a_checkpoint_is_whole_or_not_there_at_every_moment_of_its_write(tmp_path: Path) -> None:
    folder, cut = tmp_path / "disk", tmp_path / "cut"
    disk = DiskTier(folder, JsonCodec())
    found = set[object]()
    for content in ("first", "second"):
        for tree in states_of(folder, partial(disk.put, KEY, content)):
            put_back(tree, cut)
            after = DiskTier(cut, JsonCodec())
            found.add(after.get(KEY))
            store = CheckpointStore([], after)
            store.enter(ONE)
            store.go_live()
            assert {path.name for path in cut.iterdir()} <= {KEY}, "nothing half done stays"
            store.put(ONE, lambda: "again", dict)
            assert after.get(KEY) == "again"
    assert found == {None, "first", "second"}


def test_a_checkpoint_that_is_being_dropped_is_whole_gone_or_set_aside(tmp_path: Path) -> None:
    folder, cut = tmp_path / "disk", tmp_path / "cut"
    disk = DiskTier(folder, JsonCodec())
    disk.put(KEY, "content")
    for tree in states_of(folder, lambda: disk.drop(KEY)):
        put_back(tree, cut)
        assert DiskTier(cut, JsonCodec()).get(KEY) in ("content", None)


def test_the_log_has_whole_events_at_every_moment(tmp_path: Path) -> None:
    folder, cut = tmp_path / "run", tmp_path / "cut"
    folder.mkdir()
    events: list[Event] = [RunEvent("sft", 1, 10, {"a": 1}, {}, {}), EndEvent("budget", BASE)]

    def work() -> None:
        log = Log(folder / "run.jsonl")
        for event in events:
            log.append(event)
        log.close()

    found = set[int]()
    whole = b""
    for tree in states_of(folder, work):
        put_back(tree, cut)
        log = Log(cut / "run.jsonl")
        assert log.events == events[: len(log.events)]
        found.add(len(log.events))
        for event in events[len(log.events) :]:
            log.append(event)
        log.close()
        whole = whole or (cut / "run.jsonl").read_bytes()
        assert (cut / "run.jsonl").read_bytes() == whole, "as if nothing had happened"
    assert found == {0, 1, 2}


def test_a_small_file_is_the_old_or_the_new_at_every_moment(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    replace_bytes(folder / "summary.json", b"old old old")
    seen = {
        tree["summary.json"]
        for tree in states_of(folder, lambda: replace_bytes(folder / "summary.json", b"new new"))
    }
    assert seen == {b"old old old", b"new new"}
    assert list(tree_of(folder)) == ["summary.json"]


def test_verdicts_are_cut_to_what_the_log_has_at_every_moment(tmp_path: Path) -> None:
    folder, cut = tmp_path / "run", tmp_path / "cut"
    folder.mkdir()
    path = folder / "verdicts.jsonl"
    Verdicts(path).add(BASE, SELECTION, {"a": "10"})
    logged = {(BASE, SELECTION, "a")}
    for tree in states_of(folder, lambda: Verdicts(path).add(ONE, SELECTION, {"a": "11"})):
        put_back(tree, cut)
        after = Verdicts(cut / "verdicts.jsonl")
        after.resume(logged)
        assert read_verdicts(cut / "verdicts.jsonl") == {(BASE, SELECTION, "a"): "10"}
