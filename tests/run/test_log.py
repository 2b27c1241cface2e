"""The log file: what is written is read again, and only its end may ever be torn."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mortal import PLAIN, quick_folder
from msft.errors import LogError
from msft.run.log import (
    Chain,
    DecisionEvent,
    EndEvent,
    Event,
    Log,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    from_line,
    read_log,
    score_from_json,
    score_to_json,
    to_line,
)
from msft.search.curves import Score, accuracy, nll, value
from msft.search.rollout import BASE, checkpoint_id
from msft.store.store import Disk

EVENTS: list[Event] = [
    RunEvent("msft", 20, 7, {"a": 3, "ü": 4}, {"mean": "macro"}, {"data": "00ff"}),
    RolloutEvent(0, BASE, {"a": 3}, {"ü": 1}, 12, {"name": "shuffled"}, "fresh", True),
    ScoresEvent(BASE, "validation", Tokens(evaluation=5), {"a": accuracy(1, 3), "ü": nll(0.1, 7)}),
    PointEvent(
        checkpoint_id(0, 1), 2, (0.1 + 0.2, 3), Tokens(1, 2, 3), Disk(1, 2, 3), {"a": value(1 / 3)}
    ),
    DecisionEvent("exclude", checkpoint_id(0, 1), ("a", "ü"), 1),
    DecisionEvent("go_on", BASE),
    EndEvent("all_excluded", checkpoint_id(0, 1)),
]
OLD = [to_line(event) for event in EVENTS]
"""The lines of an earlier version, which have no checksums."""


def sealed() -> list[bytes]:
    chain = Chain()
    return [chain.seal(line) for line in OLD]


LINES = sealed()
WHOLE = b"".join(LINES)


def opened(path: Path) -> list[Event]:
    """What a process finds that is going to write."""
    log = Log(path)
    log.close()
    return log.events


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_an_event_survives_its_line(event: Event) -> None:
    line = to_line(event)
    assert from_line(line) == event
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_what_is_appended_is_there_for_the_next_process(tmp_path: Path) -> None:
    log = Log(tmp_path / "run.jsonl")
    for event in EVENTS:
        log.append(event)
        assert read_log(tmp_path / "run.jsonl")[-1] == event, "on disk when append returns"
    log.close()
    assert opened(tmp_path / "run.jsonl") == EVENTS


def test_an_event_is_synced_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "run.jsonl", list[bytes]()
    log = Log(path)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(path.read_bytes()))
    for number, event in enumerate(EVENTS, start=1):
        log.append(event)
        assert synced[-1] == b"".join(LINES[:number])
    log.close()


def test_a_torn_last_line_is_cut_off_wherever_it_is_torn() -> None:
    with quick_folder() as folder:
        path = folder / "run.jsonl"
        for cut in range(len(WHOLE)):
            path.write_bytes(WHOLE[:cut])
            whole_lines = WHOLE[:cut].count(b"\n")
            assert read_log(path) == EVENTS[:whole_lines]
            assert path.read_bytes() == WHOLE[:cut], "reading changes nothing"
            log = Log(path)
            assert log.events == EVENTS[:whole_lines]
            for event in EVENTS[whole_lines:]:
                log.append(event)
            log.close()
            assert path.read_bytes() == WHOLE


@pytest.mark.parametrize(
    "tail", [b"\0" * 5, b"\0\0\n\0\n", b'{"event"', b"\xff\xfe", LINES[1][:-1]]
)
def test_a_tail_that_a_crash_can_leave_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(LINES[0] + tail)
    assert opened(path) == EVENTS[:1]
    assert path.read_bytes() == LINES[0]


@pytest.mark.parametrize(
    "garbage",
    [b"garbage\n", b"\0\0\n", b"{}\n", b"[1]\n", b"7\n", b"\n", b'{"event":"moon"}\n', b"\xff\n"],
)
def test_garbage_before_the_end_is_refused_with_its_line(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "run.jsonl"
    content = LINES[0] + LINES[1] + garbage + LINES[2]
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"run\.jsonl, line 3"):
        Log(path)
    assert path.read_bytes() == content, "nothing of it may be lost"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@example(20, ord("\r") ^ WHOLE[20])
def test_no_changed_byte_is_taken_for_an_event(at: int, mask: int) -> None:
    """It is refused, and nothing is lost; in the last line it is cut off and done again."""
    data = bytearray(WHOLE)
    data[at] ^= mask
    with quick_folder() as folder:
        path = folder / "run.jsonl"
        path.write_bytes(data)
        if at < len(WHOLE) - len(LINES[-1]):
            with pytest.raises(LogError, match=r"run\.jsonl"):
                opened(path)
            assert path.read_bytes() == data
        else:
            assert opened(path) == EVENTS[:-1]
            assert path.read_bytes() == b"".join(LINES[:-1])


def test_every_digit_counts(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    end = len(WHOLE) - len(LINES[-1])
    digits = [at for at in range(end) if WHOLE[at : at + 1].isdigit()]
    for at in digits:
        data = bytearray(WHOLE)
        data[at] = ord(b"9") - (WHOLE[at] - ord(b"0"))
        path.write_bytes(data)
        with pytest.raises(LogError, match="only ever torn at its end"):
            read_log(path)
    assert len(digits) > 60


@pytest.mark.parametrize(
    "order",
    [(0, 2, 3, 4), (0, 1, 1, 2), (0, 2, 1, 3), (1, 2, 3)],
    ids=["lost", "twice", "moved", "begun too late"],
)
def test_lines_that_are_lost_repeated_or_moved_are_refused(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(LINES[number] for number in order))
    with pytest.raises(LogError, match="its checksum does not fit the bytes before it"):
        Log(path)


def test_a_log_of_an_earlier_version_goes_on_with_checksums(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(OLD[:3]))
    log = Log(path)
    assert log.events == EVENTS[:3]
    for event in EVENTS[3:]:
        log.append(event)
    log.close()
    assert opened(path) == EVENTS
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[:3] == OLD[:3]
    assert all(json.loads(line)["crc"] and [*json.loads(line)][-1] == "crc" for line in lines[3:])
    assert lines[3] != LINES[3], "the bytes before it are others"
    path.write_bytes(b"".join(lines).replace(b"0.30000000000000004", b"0.30000000000000005"))
    with pytest.raises(LogError, match="line 4"):
        read_log(path)


def test_a_line_without_a_checksum_is_refused_after_one_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(LINES[0] + OLD[1] + OLD[2])
    with pytest.raises(LogError, match="line 2: it has no checksum, but a line before it has one"):
        Log(path)


@pytest.mark.parametrize(
    "content",
    [b'{"name":"mine"}\n', b"my notes", b"\n", b'{"event":"moon"}\n', b'{"event":"run"}\n'],
)
def test_a_file_of_somebody_else_is_not_overwritten(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogError, match="is not a log of msft, and it is not overwritten"):
        Log(path)
    assert path.read_bytes() == content


def test_a_second_process_is_locked_out_and_told_by_whom(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib, msft.run.log\n"
        "log = msft.run.log.Log(pathlib.Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "run.jsonl")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LogError, match=rf"in use by pid {holder.pid} on "):
            Log(tmp_path / "run.jsonl")
        with pytest.raises(LogError, match=str(tmp_path)):
            PLAIN["sft"].run(tmp_path)
        holder.kill()
    assert "pid" in (tmp_path / "run.lock").read_text(), "a killed process leaves its name behind"
    PLAIN["sft"].run(tmp_path)


def test_a_log_in_memory_needs_no_file() -> None:
    log = Log()
    log.append(EVENTS[0])
    log.close()
    assert log.events == EVENTS[:1]


@pytest.mark.parametrize(
    ("score", "raw"),
    [
        (accuracy(3, 7), [3, 7]),
        (Score("accuracy", 3, 7, 0.25), [3, 7, 0.25]),
        (nll(1.25, 9), {"nll": 1.25, "tokens": 9}),
        (value(0.125), 0.125),
        (value(1.5, 4), {"value": 1.5, "rows": 4}),
    ],
)
def test_a_score_survives_the_log(score: Score, raw: Any) -> None:
    assert score_to_json(score) == raw
    assert score_from_json(raw) == score


@pytest.mark.parametrize("raw", ["0.5", None, [1], [1, 2, 3], [0.5, 2], {"nll": 1.0}, {}])
def test_what_is_no_score_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="not a score"):
        score_from_json(raw)
