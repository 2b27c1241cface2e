"""`samples.jsonl`: which rows are shown, what is cut, and what a kill leaves."""

import json
from pathlib import Path

import pytest

from msft.data.corpus import Task
from msft.run.rows import Sample, Samples, read_samples
from msft.scoring.evaluation import (
    LONGEST_ANSWER,
    Answered,
    evenly,
    sampled,
    without_middle,
)
from msft.search.rollout import BASE, CheckpointId

FIRST, SECOND = CheckpointId("r0-t1"), CheckpointId("r0-t2")


def said(answer: str | None, row: int = 0, worth: bool | float = False) -> Sample:
    return Sample(row, "2 + 2 =", "4", answer, worth)


def test_rows_are_taken_evenly_and_never_twice() -> None:
    assert evenly(10, 3) == [0, 3, 6]
    assert evenly(2, 3) == [0, 1]
    assert evenly(10, 0) == []


def test_the_middle_of_a_long_text_is_cut_out() -> None:
    assert without_middle("x" * 30, 30) == "x" * 30
    assert without_middle("a" * 20 + "b" * 20, 30) == "a" * 20 + " [… 10 characters …] " + "b" * 10


def test_a_sample_has_no_exemplars_and_of_a_loss_no_answer() -> None:
    rows = [Answered("shot\n\nquestion", "x" * 700, "y", worth=True)]
    (found,) = sampled(Task("a", "accuracy", {}, shots="shot\n\n"), rows, 3)
    assert (found.prompt, found.reference, found.worth) == ("question", "y", True)
    assert found.answer is not None
    assert len(found.answer) < LONGEST_ANSWER + 30
    lost = [Answered("question", "", "y", worth=6.0, weight=4)]
    assert sampled(Task("a", "nll", {}), lost, 3) == [Sample(0, "question", "y", None, 1.5)]


def test_a_finished_file_has_the_base_model_and_the_result_in_order(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    samples = Samples(path)
    samples.add(BASE, "validation", {"a": [said("3")], "b": [said("5")]})
    samples.add(FIRST, "validation", {"a": [said("4", worth=True)]})
    samples.add(SECOND, "validation", {"b": [said("9")], "a": [said("8")]})
    samples.add(SECOND, "test", {"a": [said("never")]})
    assert samples.missing(FIRST, ["a", "b"]) == ["b"]
    samples.finish((BASE, SECOND, SECOND), ["a", "b"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(x["checkpoint"], x["dataset"], x["answer"]) for x in lines] == [
        ("base", "a", "3"),
        ("base", "b", "5"),
        ("r0-t2", "a", "8"),
        ("r0-t2", "b", "9"),
    ]
    keys = ("checkpoint", "split", "dataset", "row", "prompt", "reference", "answer", "worth")
    assert tuple(lines[0]) == keys


def test_what_is_written_beside_a_loss_is_kept_and_asked_for_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    samples = Samples(path, writer=lambda rows: {"a": ["four", "five"]})
    held = {"a": [said(None, worth=1.5), said(None, 4, 2.5)], "b": [said("5")]}
    samples.add(BASE, "validation", held)
    assert samples.unwritten(BASE) == {"a": [0, 4]}
    assert Samples(path).unwritten(BASE) == {}, "nobody writes"
    assert samples.unwritten(FIRST) == {}
    samples.write(BASE)
    written = [said("four", worth=1.5), said("five", 4, 2.5)]
    assert read_samples(path)[BASE] == {"a": written, "b": [said("5")]}
    again = Samples(path, writer=lambda rows: {})
    assert again.unwritten(BASE) == {}
    again.finish((BASE,), ["a", "b"])
    assert read_samples(path)[BASE] == {"a": written, "b": [said("5")]}
    assert path.read_text().count("\n") == 3


def test_half_a_line_is_dropped_and_joins_nothing(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    Samples(path).add(BASE, "validation", {"a": [said("3"), said("4", 1)]})
    path.write_bytes(path.read_bytes()[:-9])
    Samples(path).add(FIRST, "validation", {"a": [said("5"), said("6", 1)]})
    assert read_samples(path) == {
        BASE: {"a": [said("3")]},
        FIRST: {"a": [said("5"), said("6", 1)]},
    }


def test_what_nobody_asks_for_any_more_does_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    samples = Samples(path)
    for tick in range(1, 40):
        place = CheckpointId(f"r0-t{tick}")
        samples.add(place, "validation", {"a": [said(str(tick), row) for row in range(100)]})
        samples.forget({place})
    assert path.read_bytes().count(b"\n") <= 4 * 100 + 1000 + 100
    assert place in read_samples(path)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        '{"checkpoint": "base"}',
        '{"checkpoint": "base", "split": "validation", "dataset": "a", "row": 0, "prompt": 1,'
        ' "reference": "", "answer": "", "worth": 1}',
        '{"checkpoint": "base", "split": "validation", "dataset": "a", "row": [], "prompt": "",'
        ' "reference": "", "answer": "", "worth": "x"}',
    ],
)
def test_lines_that_are_no_samples_are_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    Samples(path).add(BASE, "validation", {"a": [said("3")]})
    path.write_text(f"{line}\n{path.read_text()}")
    assert read_samples(path) == {BASE: {"a": [said("3")]}}


def test_answers_cannot_act_on_a_terminal_that_shows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    Samples(path).add(BASE, "validation", {"a": [said("\x1b[2J\u202e\ud800")]})
    assert path.read_bytes().isascii()
    assert b"\x1b" not in path.read_bytes()
    assert read_samples(path)[BASE]["a"] == [said("\x1b[2J\u202e\ud800")]


def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    samples = Samples(None)
    samples.add(BASE, "validation", {"a": [said("3")]})
    assert samples.missing(BASE, ["a"]) == []
    samples.finish((BASE,), ["a"])
    assert not [*tmp_path.iterdir()]
