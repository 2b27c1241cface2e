"""The verdicts file goes as far as the log, whatever happened to it."""

import json
import tracemalloc
from pathlib import Path

import pytest

from mortal import PLAIN, VARIED, Case
from msft.run.rows import Verdicts
from msft.search.curves import SELECTION, TEST
from msft.search.rollout import BASE, checkpoint_id

FIRST = (BASE, SELECTION, "a")
SECOND = (checkpoint_id(0, 1), SELECTION, "a")


def written(path: Path) -> bytes:
    verdicts = Verdicts(path)
    verdicts.add(BASE, SELECTION, {"a": [0.5, 0.25]}, {"a": [3, 4]})
    verdicts.add(checkpoint_id(0, 1), SELECTION, {"a": [0.75, 0.5]}, {"a": [3, 4]})
    verdicts.add(checkpoint_id(0, 1), TEST, {"a": [0.125]}, {"a": [9]})
    return path.read_bytes()


def test_lines_that_the_log_does_not_know_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    whole = written(path)
    notices = list[str]()
    Verdicts(path, notices.append).resume({FIRST, SECOND})
    kept = path.read_bytes()
    assert whole.startswith(kept)
    assert [json.loads(line).get("rows") for line in kept.splitlines()] == [
        None, [0.5, 0.25], [0.75, 0.5],
    ], "the row tokens of test belong to a line that is not logged"  # fmt: skip
    assert not notices
    path.write_bytes(whole + whole[:20])
    everything = {FIRST, SECOND, (checkpoint_id(0, 1), TEST, "a")}
    Verdicts(path, notices.append).resume(everything)
    assert (path.read_bytes(), notices) == (whole, []), "a torn last line"


def test_what_the_file_has_lost_is_said(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    lines = written(path).splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    notices = list[str]()
    Verdicts(path, notices.append).resume({FIRST, SECOND})
    assert notices == [
        "verdicts.jsonl has lost the rows of 1 of 2 scores; statistics over rows leave them out"
    ]
    path.unlink()
    Verdicts(path, notices.append).resume({FIRST, SECOND})
    assert "the rows of 2 of 2 scores" in notices[1]
    Verdicts(path, notices.append).resume(set())
    assert len(notices) == 2, "a new run has lost nothing"


@pytest.mark.parametrize(
    "case", [PLAIN["msft"], VARIED["continual-accounted"]], ids=["msft", "continual"]
)
def test_a_run_killed_before_its_line_leaves_the_same_verdicts(case: Case, tmp_path: Path) -> None:
    case.run(tmp_path / "whole")
    whole = (tmp_path / "whole" / "verdicts.jsonl").read_bytes()
    events = (tmp_path / "whole" / "run.jsonl").read_bytes().count(b"\n")
    moments = [(last, False) for last in range(events)]
    for moment, folder in case.killed(tmp_path / "killed", None, moments).items():
        case.run(folder)
        assert (folder / "verdicts.jsonl").read_bytes() == whole, moment


def test_the_rows_of_a_long_roll_out_take_little_memory(tmp_path: Path) -> None:
    """They are held until the next roll-out, and after a resume again."""
    rows, ticks = 2000, 50
    verdicts = Verdicts(tmp_path / "verdicts.jsonl")
    tracemalloc.start()
    try:
        for tick in range(ticks):
            losses = [tick + row / rows for row in range(rows)]
            verdicts.add(checkpoint_id(0, tick + 1), SELECTION, {"a": losses}, {"a": [1] * rows})
        held = [tracemalloc.get_traced_memory()[0]]
        resumed = Verdicts(tmp_path / "verdicts.jsonl")
        assert list(resumed.at(checkpoint_id(0, ticks), "a") or ()) == losses
        held.append(tracemalloc.get_traced_memory()[0] - held[0])
    finally:
        tracemalloc.stop()
    assert max(held) < 12 * rows * ticks
