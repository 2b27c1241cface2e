"""Data: formats, files, splits, caps, and what is said about rows that are left out."""

import csv
import importlib
import io
import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.data import readers
from msft.data.formats import ALPACA, ALPACA_WITH_INPUT, format_of
from msft.data.sources import Files, load_split, read_splits
from msft.data.splits import LoadedDataset, divided
from msft.errors import DataError
from msft.example import Example, Message
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import Recipe

Rows = Sequence[dict[str, Any]]


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(start, start + count)
    ]


def jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load_dataset_spec(spec: DatasetSpec, folder: Path | None, seed: int) -> LoadedDataset:
    other = DatasetSpec("other", train="x.jsonl", validation_fraction=0.1)
    return divided(spec, read_splits(spec, Recipe("tiny", [other], folder=folder))[0], seed)


def loaded(seed: int = 20, name: str = "a", **keys: Any) -> LoadedDataset:
    return load_dataset_spec(DatasetSpec(name, **keys), None, seed)


def read_examples(source: Any, where: str) -> list[Example]:
    files = Files((Path(source),)) if isinstance(source, str | Path) else source
    return list(load_split(files, where).examples)


def prompts(examples: Sequence[Example]) -> list[str]:
    return [example.prompt for example in examples]


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
]
SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Hi"},
    {"from": "gpt", "value": "Ho"},
]
TURNS = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Ho"))


@pytest.mark.parametrize(
    ("row", "form", "example"),
    [
        ({"prompt": "p", "completion": "c"}, "prompt+completion", Example("p", "c")),
        ({"prompt": "", "completion": "c", "id": 3}, "prompt+completion", Example("", "c")),
        (
            {"prompt": "p", "choices": ["x", "y"], "answer": 1},
            "choices",
            Example("p", "y", choices=("x", "y"), answer=1),
        ),
        (
            {"prompt": "p", "choices": ["x", "y"], "answer": "y"},
            "choices",
            Example("p", "y", choices=("x", "y"), answer=1),
        ),
        ({"messages": CHAT, "prompt": "Hi"}, "messages", Example("", "Ho", TURNS)),
        ({"conversations": SHAREGPT}, "sharegpt", Example("", "Ho", TURNS)),
        (
            {"instruction": "Add {x}.", "input": "1, 2", "output": "3"},
            "alpaca",
            Example(ALPACA_WITH_INPUT.format(instruction="Add {x}.", input="1, 2"), "3"),
        ),
        (
            {"instruction": "Sing.", "input": "", "output": "La"},
            "alpaca",
            Example(ALPACA.format(instruction="Sing."), "La"),
        ),
        (
            {"instruction": "Sing.", "input": None, "output": "La"},
            "alpaca",
            Example(ALPACA.format(instruction="Sing."), "La"),
        ),
        (
            {"messages": None, "prompt": "p", "completion": "c"},
            "prompt+completion",
            Example("p", "c"),
        ),
    ],
)
def test_formats(row: dict[str, Any], form: str, example: Example) -> None:
    assert format_of(row) == form
    split = load_split([row], "here")
    assert split.format == form
    found = split.examples[0]
    assert found.where == "here, row 1"
    assert found == Example(
        example.prompt,
        example.completion,
        example.messages,
        example.choices,
        example.answer,
        "here, row 1",
    )


def test_questions_and_answers_are_not_guessed() -> None:
    with pytest.raises(DataError, match="fit no format; expected one of: prompt"):
        format_of({"question": "q", "answer": "a"})


def parquet(path: Path, rows: Rows) -> None:
    table = importlib.import_module("pyarrow").Table.from_pylist(rows)
    importlib.import_module("pyarrow.parquet").write_table(table, path)


def as_csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


WRITERS: dict[str, Callable[[Path, Rows], Any]] = {
    "a.jsonl": jsonl,
    "a.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "data.json": lambda path, rows: path.write_text(json.dumps({"data": rows})),
    "a.csv": as_csv,
    "a.parquet": parquet,
    "a.JSONL": jsonl,
}


@pytest.mark.parametrize("file", WRITERS)
def test_files(tmp_path: Path, file: str) -> None:
    rows: Rows = [{"prompt": "ä, 1\n", "completion": '"b" 😀'}, {"prompt": "", "completion": "c"}]
    WRITERS[file](tmp_path / file, rows)
    found = read_examples(tmp_path / file, "")
    assert [{"prompt": e.prompt, "completion": e.completion} for e in found] == list(rows)


def test_places_are_lines_where_there_are_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,completion\n"one\ntwo",1\n\nthree,3\n')
    (tmp_path / "a.jsonl").write_text("\n" + json.dumps(numbered(1)[0]) + "\n")
    assert [e.where for e in read_examples(tmp_path / "a.csv", "")] == [
        f"{tmp_path / 'a.csv'}, line 2",
        f"{tmp_path / 'a.csv'}, line 5",
    ]
    assert read_examples(str(tmp_path / "a.jsonl"), "")[0].where.endswith("a.jsonl, line 2")


def test_bom_and_crlf_are_no_part_of_the_text(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in numbered(2)]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfprompt,completion\r\n0 + 1 =, 1\r\n")
    assert prompts(read_examples(tmp_path / "a.jsonl", "")) == ["0 + 1 =", "1 + 1 ="]
    assert prompts(read_examples(tmp_path / "a.csv", "")) == ["0 + 1 ="]


def test_a_long_line_is_refused_after_a_bounded_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Endless(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            asked.append(size)
            return b"x" * size

    monkeypatch.setattr(Path, "open", lambda path, mode: Endless(b"{}"))
    (path := tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match="line 1: more than 10,000,000 bytes"):
        read_examples(path, "")
    assert asked == [readers.MAX_LINE + 1]


def test_bad_rows_are_skipped_and_counted_if_the_recipe_says_so(tmp_path: Path) -> None:
    good = [json.dumps(row).encode() for row in numbered(5)]
    bad = [b"{", b"\xff", b"\x00", b"x" * 10_000_002, b'{"prompt": "p", "completion": ""}', b"[]"]
    mixed = [line for pair in zip(bad, good, strict=False) for line in pair] + [bad[-1]]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(mixed))
    with pytest.raises(DataError, match="line 1: not valid JSON"):
        loaded(train=str(path), validation=numbered(1, 50))
    found = loaded(train=str(path), validation=numbered(1, 50), skip_bad_rows=True)
    assert prompts(found.train) == prompts(read_examples(numbered(5), ""))
    assert [e.where for e in found.train] == [f"{path}, line {n}" for n in (2, 4, 6, 8, 10)]
    assert found.notes == (
        f"train: 6 bad rows skipped (first: {path}, line 1: not valid JSON: Expecting property "
        "name enclosed in double quotes at character 2; expected one JSON object per line)",
    )
    path.write_bytes(b"{\n{")
    with pytest.raises(DataError, match="no rows; expected at least one: all 2 are bad"):
        loaded(train=str(path), validation=numbered(1), skip_bad_rows=True)
    path.write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="gzip"):
        loaded(train=str(path), validation=numbered(1), skip_bad_rows=True)


def test_ragged_csv_rows_are_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,completion\na,b\nc\nd,e,f\ng,h\n")
    split = load_split(Files((tmp_path / "a.csv",)), "", skip_bad_rows=True)
    assert (prompts(split.examples), split.skipped) == (["a", "g"], 2)
    assert csv.field_size_limit() == 131072


def test_rows_in_memory() -> None:
    found = loaded(train=numbered(3), validation=numbered(2, 10))
    assert (len(found.train), len(found.validation), found.test) == (3, 2, ())
    assert found.train[1].where == "sub-dataset 'a', train, row 2"
    with pytest.raises(DataError, match="sub-dataset 'a', train, row 1: found 3"):
        loaded(train=[3], validation=numbered(1))


def test_a_datasets_object_is_read() -> None:
    train = importlib.import_module("datasets").Dataset.from_list(numbered(3))
    found = loaded(train=train, validation_fraction=0.4)
    assert (len(found.train), len(found.validation)) == (2, 1)


def test_files_are_relative_to_the_recipe(tmp_path: Path) -> None:
    jsonl(tmp_path / "t.jsonl", numbered(2))
    absolute = jsonl(tmp_path / "v.jsonl", numbered(2, 5))
    spec = DatasetSpec("a", train="t.jsonl", validation=str(absolute))
    found = load_dataset_spec(spec, tmp_path, 20)
    assert found.train[0].where == f"{tmp_path / 't.jsonl'}, line 1"


def test_a_folder_has_its_splits(tmp_path: Path) -> None:
    (folder := tmp_path / "data").mkdir()
    jsonl(folder / "train.jsonl", numbered(3))
    spec = DatasetSpec("a", path="data")
    with pytest.raises(DataError, match="no validation rows; add a validation file"):
        load_dataset_spec(spec, tmp_path, 20)
    parquet(folder / "validation.parquet", numbered(2, 10))
    as_csv(folder / "test.csv", numbered(1, 20))
    found = load_dataset_spec(spec, tmp_path, 20)
    assert (len(found.train), len(found.validation), len(found.test)) == (3, 2, 1)
    both = DatasetSpec("a", path="data", validation_fraction=0.5)
    with pytest.raises(DataError, match="remove validation_fraction"):
        load_dataset_spec(both, tmp_path, 20)


def test_hub_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def load_dataset(name: str, configuration: str | None) -> dict[str, Any]:
        asked.append((name, configuration))
        if name == "owner/gone":
            raise ConnectionError("no route\nto host")
        return {"train": numbered(4), "test": numbered(2, 10), "extra": []}

    hub = types.ModuleType("datasets")
    hub.__dict__["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = loaded(path="owner/name:main", validation_fraction=0.25)
    assert asked == [("owner/name", "main")]
    assert (len(found.train), len(found.validation), len(found.test)) == (3, 1, 2)
    with pytest.raises(DataError, match=r"^owner/gone: .*ConnectionError: 'no route'.*hf download"):
        loaded(path="owner/gone")


def test_caps_keep_the_order_and_depend_on_the_seed_only() -> None:
    keys: dict[str, Any] = {
        "train": numbered(50),
        "validation": numbered(50, 100),
        "test": numbered(9, 200),
    }
    caps: dict[str, Any] = {"train_rows": 10, "validation_rows": 7, "test_rows": 20}
    found = loaded(**keys, **caps)
    assert (len(found.train), len(found.validation), len(found.test)) == (10, 7, 9)
    assert found == loaded(**keys, **caps)
    assert found.train != loaded(30, **keys, **caps).train
    order = [int(prompt.split()[0]) for prompt in prompts(found.train)]
    assert order == sorted(order)
    assert order != list(range(10))
    assert found.notes == ("test: 9 rows, fewer than test_rows 20; all are used",)


def test_rows_that_are_held_out_for_nothing_are_counted() -> None:
    found = loaded(train=numbered(50), validation_fraction=0.2, validation_rows=7)
    assert (len(found.train), len(found.validation)) == (40, 7)
    assert found.notes == (
        "validation: 3 held-out rows beyond validation_rows 7 are neither trained nor scored; "
        "lower validation_fraction",
    )
    assert loaded(train=numbered(50), validation_fraction=0.14, validation_rows=7).notes == ()


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_held_out_rows_are_never_trained(letters: list[str], fraction: float, seed: int) -> None:
    rows = [{"prompt": letter, "completion": letter} for letter in letters]
    different = len(set(letters))
    if max(1, round(fraction * different)) >= different:
        with pytest.raises(DataError, match="would leave none to train"):
            loaded(seed, train=rows, validation_fraction=fraction)
        return
    found = loaded(seed, train=rows, validation_fraction=fraction)
    assert len(found.train) + len(found.validation) == len(rows)
    assert not set(prompts(found.train)) & set(prompts(found.validation))
    assert found.train
    assert found.validation


@pytest.mark.parametrize("split", ["validation", "test"])
def test_rows_that_are_scored_must_not_be_trained(tmp_path: Path, split: str) -> None:
    train = jsonl(tmp_path / "t.jsonl", numbered(9))
    leaked = [{"prompt": " 3  + 1 =\n", "completion": "four"}, *numbered(3, 5)]
    other = jsonl(tmp_path / "o.jsonl", [*numbered(1, 50), *leaked])
    keys: dict[str, Any] = {"validation": numbered(1, 70), split: str(other)}
    with pytest.raises(DataError) as caught:
        loaded(train=str(train), **keys)
    message = str(caught.value)
    assert message.startswith(f"{other}, line 2: 4 of 5 {split} rows of a are also in train")
    assert f"{other}, line 2 = {train}, line 4 ('3 + 1 =')" in message
    assert message.count("t.jsonl, line") == 3


def test_rows_that_choose_the_checkpoint_must_not_report_it() -> None:
    with pytest.raises(DataError, match="1 of 2 test rows of a are also in validation, which choo"):
        loaded(train=numbered(2), validation=numbered(2, 10), test=numbered(2, 11))


def test_the_same_question_with_other_choices_is_another_row() -> None:
    rows = [{"prompt": "Which?", "choices": [c, "no"], "answer": 0} for c in "abcd"]
    assert len(loaded(train=rows[:2], validation=rows[2:]).train) == 2
    with pytest.raises(DataError, match="also in train"):
        loaded(train=rows, validation=rows[:1])


def test_conversations_and_bare_texts_are_compared_too() -> None:
    chat = [{"messages": CHAT}]
    with pytest.raises(DataError, match="also in train"):
        loaded(train=chat, validation=chat)
    bare = [{"prompt": "", "completion": text} for text in ("one", "two")]
    assert loaded(train=bare[:1], validation=bare[1:]).validation[0].completion == "two"
    with pytest.raises(DataError, match="also in train"):
        loaded(train=bare, validation=bare[1:])


def test_repeats_are_counted() -> None:
    rows = numbered(2) + numbered(2) + numbered(1)
    found = loaded(train=rows, validation=numbered(2, 10), test=numbered(2, 12))
    assert found.notes == ("train: 3 rows repeat an earlier one",)
    once = loaded(train=rows[:3], validation=numbered(1, 10), validation_rows=5)
    assert once.notes == (
        "validation: 1 row, fewer than validation_rows 5; all are used",
        "train: 1 row repeats an earlier one",
    )


def test_rows_that_are_trained_with_other_numbers_are_counted() -> None:
    def asked(*questions: str) -> list[dict[str, str]]:
        return [{"prompt": question, "completion": "so many"} for question in questions]

    train = asked(
        "Ann has 3 pears and buys 14 more: how many?", "How far is it from here to Rome?", "7 + 5 ="
    )
    other = asked(
        "Ann has 5 pears and buys 2 more: how many?", "How far is it, from here to Rome?", "7 + 6 ="
    )
    found = loaded(train=train, validation=other, test=asked("Bob has 3 pears, and how many caps?"))
    assert found.notes == (
        "validation: 1 of 3 rows asks what trained rows ask with other numbers, so its scores say "
        "less of unseen rows",
    )
    form = asked(*(f"Which number comes after {number}?" for number in range(22)))
    assert loaded(train=form[:21], validation=form[21:]).notes == ()
    assert len(loaded(train=form[:20], validation=form[21:]).notes) == 1
    few = asked(*("Who is number " + "i" * count + "?" for count in range(99)))
    assert loaded(train=train, validation=[*few, other[0]]).notes == ()
    more = asked("Ann has 1 pears and buys 1 more: how many?")
    (note,) = loaded(train=train, validation=[*few, other[0], *more]).notes
    assert note.startswith("validation: 2 of 101 rows ask what")


def test_splits_share_a_format() -> None:
    with pytest.raises(DataError, match="validation rows are messages, but train rows are prompt"):
        loaded(train=numbered(2), validation=[{"messages": CHAT}])


@given(st.binary(max_size=200), st.sampled_from([".jsonl", ".json", ".csv"]))
def test_bytes_give_examples_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    message = str(path)
    try:
        read_examples(path, "")
    except DataError as error:
        message = str(error)
    assert message.startswith(str(path))
    assert "\n" not in message
