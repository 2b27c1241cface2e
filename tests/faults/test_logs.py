"""Logs that no run wrote: every command that reads one refuses it with its line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import run
from toy_runs import write_recipe
from toys import read_lines

from msft.errors import LogError, UsageError
from msft.report import write_report
from msft.run.folder import read_history

Lines = list[dict[str, Any]]
"""Of the log of one roll-out: run, rollout, scores of base, two points, end."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run in `out`, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    write_recipe(folder)
    assert run("train", "recipe.yaml", "--out", "out", cwd=folder).code == 0
    return folder


def put(place: tuple[Any, ...], value: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        owner: Any = lines
        for key in place[:-1]:
            owner = owner[key]
        owner[place[-1]] = value

    return change


def without(*place: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        owner: Any = lines
        for key in place[:-1]:
            owner = owner[key]
        del owner[place[-1]]

    return change


FIRST = (3, "scores", "upper")
CASES: list[tuple[Callable[[Lines], object], str]] = [
    (put((0, "seed"), "1"), "line 1: 'seed' of the event 'run' is '1'"),
    (put((0, "num_parameters"), None), "line 1: 'num_parameters'"),
    (put((0, "num_parameters"), 10**40), "line 1: 'num_parameters'"),
    (put((0, "datasets"), {}), "line 1: the run has no sub-datasets"),
    (put((0, "settings", "evals_per_epoch"), 0), "line 1: the setting evals_per_epoch is 0"),
    (put((0, "settings", "mean"), "best"), "line 1: the setting mean is 'best'"),
    (put((0, "settings", "peaks"), {"smooth": -1}), "line 1: it does not fit"),
    (without(0, "settings", "peaks"), "line 1: it does not fit"),
    (without(0, "settings"), "line 1: not an event of msft"),
    (put((0, "event"), "zap"), "line 1: not an event of msft"),
    (put((0,), [1]), "line 1: not an event of msft"),
    (put((0,), {"jsonrpc": "2.0"}), "line 1: not an event of msft"),
    (put((1, "active"), {"other": 3}), "line 2: the sub-dataset 'other' is not one of this run"),
    (put((1, "start"), "r7-t1"), "line 2: the checkpoint r7-t1 is not one of this run"),
    (put((1, "start"), "../x"), "line 2: 'start' of the event 'rollout'"),
    (put((1, "rollout"), 3), "line 2: roll-out 3 cannot be the next one"),
    (put((3, "loss"), [float("nan"), 48]), "line 4: 'loss' of the event 'point'"),
    (put((3, "loss"), []), "line 4: 'loss' of the event 'point'"),
    (put((3, "tokens"), [1, 2]), "line 4: not an event of msft"),
    (put((3, "checkpoint"), "r0-t2"), "line 4: r0-t2 is not the next tick"),
    (put(FIRST, {"nll": "69.8", "tokens": 24}), "line 4: not a score"),
    (put(FIRST, {"nll": float("inf"), "tokens": 24}), "line 4: 'scores' of the event 'point'"),
    (put(FIRST, {"nll": 1.0, "tokens": 0}), "line 4: a score is one of no rows"),
    (without(*FIRST), "line 4: 'upper' has no score at this tick"),
    (put((5, "best"), "r9-t9"), "line 6: the checkpoint r9-t9 is not one of this run"),
    (put((5, "by"), ["budget"]), "line 6: 'by' of the event 'end'"),
    (lambda lines: lines.append(lines[4]), "line 7: the event 'point' stands after the end"),
    (lambda lines: lines.pop(0), "line 1: the event 'rollout' stands before the start"),
    (lambda lines: lines.insert(1, lines[0]), "line 2: a second run starts here"),
    (lambda lines: lines.reverse(), "line 1: the event 'end' stands before the start"),
]


def changed(finished: Path, folder: Path, change: Callable[[Lines], object]) -> None:
    """A run folder whose log was changed by somebody who took the checksums away. A last line that
    is wrong is taken for torn, so another one follows."""
    shutil.copytree(finished / "out", folder)
    lines: Any = read_lines(folder / "run.jsonl")
    for line in lines:
        del line["crc"]
    change(lines)
    (folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "0\n")


@pytest.mark.parametrize(("change", "said"), CASES)
def test_a_log_that_no_run_wrote_is_refused_with_its_line(
    change: Callable[[Lines], object], said: str, finished: Path, tmp_path: Path
) -> None:
    changed(finished, tmp_path / "out", change)
    with pytest.raises(LogError) as caught:
        read_history(tmp_path / "out")
    assert f"run.jsonl, {said}" in str(caught.value)


BYTES = [b"\xff\xfe\0\n{}\n", b"[" * 100_000 + b"\n{}\n", b"9" * 5000 + b"\n{}\n"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"event":"run"'])
def test_an_empty_log_has_no_events_yet(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match="has no events yet"):
        write_report(tmp_path)


def test_every_command_that_reads_a_log_refuses_it_in_words(finished: Path, tmp_path: Path) -> None:
    """Bytes that are no JSON, and a number that is text, in real commands."""
    changed(finished, tmp_path / "sft-s1", put((3, "steps"), "3"))
    shutil.copy(finished / "recipe.yaml", tmp_path)
    commands = (
        ("report", "sft-s1"),
        ("analyze", "headroom", "sft-s1"),
        ("train", "recipe.yaml", "--out", "sft-s1"),
        ("compare", "recipe.yaml", "--out", ".", "--no-run"),
    )
    for content in [(tmp_path / "sft-s1/run.jsonl").read_bytes(), *BYTES]:
        (tmp_path / "sft-s1/run.jsonl").write_bytes(content)
        for command in commands:
            ended = run(*command, cwd=tmp_path)
            assert ended.code in (1, 2), (command, ended.err)
            assert "sft-s1/run.jsonl, line " in ended.err, (command, ended.err)
            assert "traceback" not in ended.err.lower(), (command, ended.err)


BESIDE = {
    "recipe.yaml": b"\xff\xfe: [",
    "verdicts.jsonl": b"[" * 100_000 + b"\n",
    "steps.jsonl": b'{"rollout": Infinity, "tick": 1, "loss": 1, "rows": 1, "seconds": 1}\n',
    "samples.jsonl": b"[" * 100_000 + b"\n",
    "environment.json": b"[" * 100_000,
    "losses.jsonl": b"[" * 100_000 + b"\n",
}


def test_damaged_files_beside_a_log_end_no_report(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    for name, content in BESIDE.items():
        (tmp_path / "out" / name).write_bytes(content)
    ended = run("report", "out", cwd=tmp_path)
    assert ended.code == 0, ended.err
