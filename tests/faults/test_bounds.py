"""Memory and time have bounds: an answer comes within seconds, whatever the input asks for."""

import gzip
import json
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from program import run, toy_recipe
from toys import read_lines

from msft.data.readers import BYTES_A_ROW, read_rows
from msft.errors import DataError

pytestmark = pytest.mark.usefixtures("no_reports")


def test_a_small_parquet_file_that_unpacks_to_8_gb_is_refused(tmp_path: Path) -> None:
    one = pyarrow.array(["x" * 8_000_000])
    same = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), one)
    table = pyarrow.table({"prompt": same, "completion": pyarrow.array(["y"] * 1000)})
    pyarrow.parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    size = (tmp_path / "bomb.parquet").stat().st_size
    assert size < 10_000
    recipe = toy_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("upper.train.jsonl", "bomb.parquet"))
    ended = run("validate", recipe, cwd=tmp_path, memory=4_000_000_000)
    assert ended.code == 2, ended.err
    assert (
        f"bomb.parquet: a file of {size:,} bytes that unpacks to more than 100,000,000" in ended.err
    )
    assert ended.seconds < 20


def test_parquet_rows_come_in_order_over_many_batches(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    rows = read_lines(tmp_path / "upper.train.jsonl")
    more = [{"prompt": f"upper x{number}:", "completion": " X"} for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows + more), tmp_path / "u.parquet")
    recipe.write_text(recipe.read_text().replace("upper.train.jsonl", "u.parquet"))
    ended = run("validate", recipe, "--json", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["datasets"]["upper"]["train_rows"] == 108


def test_a_plan_of_10000_epochs_is_answered(tmp_path: Path) -> None:
    """Who would take too long is known before it is counted, and named; the rest is said."""
    recipe = toy_recipe(tmp_path)
    command = ("plan", recipe, "--no-calibration", "--set", "num_train_epochs=10000")
    ended = run(*command, "--json", cwd=tmp_path)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [*found["methods"]] == ["continual", "msft"]
    assert [*found["not_counted"]] == ["sft", "dynamix", "ies", "sro", "soft_sro", "soup"]
    assert found["memory"]["fits"]
    assert ended.seconds < 20
    ended = run(*command, "--devices", "2", cwd=tmp_path)
    assert ended.code == 2
    assert "sft is not counted: counting it takes more than 1,000,000 looks" in ended.err


FULL = """
import torch
import torch.nn.functional as F
from msft.engine.fast import FastEngine
backward, failed = FastEngine._backward, []
def full(engine, line, targets):
    if len(line.tokens) > {most}:
        failed.append(1)
        torch.empty(10**15)
    return backward(engine, line, targets)
FastEngine._backward = full
"""


def test_memory_that_runs_out_on_the_cpu_splits_the_batch(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    ended = run("train", recipe, "--out", "out", cwd=tmp_path, before=FULL.format(most=100))
    assert ended.code == 0, ended.err
    assert run("train", recipe, "--out", "whole", cwd=tmp_path).code == 0
    assert losses(tmp_path / "out") == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)


def losses(folder: Path) -> list[float]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_memory_that_does_not_hold_a_row_says_what_to_set(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    ended = run("train", recipe, "--out", "out", cwd=tmp_path, before=FULL.format(most=0))
    assert ended.code == 1
    assert "memory ran out; set micro_batch_tokens lower" in ended.err
    assert run("train", recipe, "--out", "out", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [("x" * 300, "cannot be read: File name too long"), ("[" * 50_000, "a path of 50,")],
    ids=["a name", "a path"],
)
def test_a_path_that_is_too_long_is_refused_in_a_few_words(
    name: str, said: str, tmp_path: Path
) -> None:
    recipe = toy_recipe(tmp_path)
    file = str(tmp_path / "upper.train.jsonl")
    recipe.write_text(recipe.read_text().replace(file, f'"{name}.jsonl"'))
    ended = run("validate", recipe, cwd=tmp_path)
    assert ended.code == 2, ended.err[:500]
    assert said in ended.err
    assert len(ended.err) < 1000


MEGABYTE = 2**20
ROW = b'{"prompt":"a","completion":"b"}\n'
BOMBS: dict[str, tuple[bytes, int, bytes, str]] = {
    "blank.jsonl.gz": (b"\n" * MEGABYTE, 50, b"", "more than 250,000 rows"),
    "rows.jsonl.gz": (ROW * (MEGABYTE // len(ROW)), 90, b"", "more than 250,000 rows"),
    "long.jsonl.gz": (b"x" * MEGABYTE, 100, b"", "more than 100,000,000 bytes"),
    "rows.csv.gz": (b"a,b\n" * (MEGABYTE // 4), 50, b"prompt,completion\n", "4,000,000 lines"),
    "list.json.gz": (b"{}," * (MEGABYTE // 3), 50, b"[", "more than 4,000,000 lines or items"),
    "list.jsonl.gz": (b'"a",' * (MEGABYTE // 4), 50, b"[", "more than 4,000,000 lines or items"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_gzip_file_that_unpacks_without_end_is_refused(name: str, tmp_path: Path) -> None:
    piece, times, head, said = BOMBS[name]
    with gzip.open(tmp_path / name, "wb") as file:
        file.write(head)
        for _ in range(times):
            file.write(piece)
    recipe = toy_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("upper.train.jsonl", name))
    ended = run("validate", recipe, cwd=tmp_path, memory=1_000_000_000)
    assert ended.code == 2, ended.err
    size = (tmp_path / name).stat().st_size
    assert f"{name}: a file of {size:,} bytes that unpacks to " in ended.err
    assert said in " ".join(ended.err.split())
    assert ended.seconds < 20


def test_a_large_gzip_file_of_real_rows_is_read(tmp_path: Path) -> None:
    """More rows than a small file may hold, short ones, and each row twice."""
    path, rows = tmp_path / "rows.jsonl.gz", range(260_000)
    with gzip.open(path, "wt") as file:
        file.writelines(f'{{"prompt": "{n // 2 * 7919}?", "completion": " {n}"}}\n' for n in rows)
    found = sum(1 for _ in read_rows(path, bad=print))
    assert found == len(rows) > 1_000_000 // BYTES_A_ROW
    with gzip.open(tmp_path / "cells.csv.gz", "wt") as file:
        file.write("prompt,completion\n")
        file.writelines(f'"def f{n}():\n  return\n",{n}\n' for n in range(1000))
    assert sum(1 for _ in read_rows(tmp_path / "cells.csv.gz", bad=print)) == 1000


def test_rows_of_parquet_are_bounded_too(tmp_path: Path) -> None:
    same = pyarrow.array(["a"] * 2_000_000)
    table = pyarrow.table({"prompt": same, "completion": same})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="unpacks to more than 250,000 rows"):
        next(read_rows(tmp_path / "rows.parquet", bad=print))


NANOSECONDS = 1704164645123456789
ARROW = [
    (pyarrow.array([NANOSECONDS], pyarrow.timestamp("ns")), "2024-01-02 03:04:05.123456789"),
    (pyarrow.array([0], pyarrow.timestamp("s")), "1970-01-01 00:00:00"),
    (pyarrow.array([1001], pyarrow.duration("ns")), "1001"),
    (pyarrow.array(["x"]).dictionary_encode(), "x"),
    (pyarrow.array(["x"], pyarrow.large_string()), "x"),
]
"""Columns of one value, and how the text begins that is read from it."""


def test_dates_and_times_of_parquet_are_text(tmp_path: Path) -> None:
    for number, (column, text) in enumerate(ARROW):
        path = tmp_path / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"prompt": column}), path)
        [(_, row)] = read_rows(path, bad=print)
        assert row["prompt"].startswith(text), row


def test_a_value_of_parquet_that_cannot_be_read_is_refused_with_its_row(tmp_path: Path) -> None:
    days = pyarrow.array([1, 2**30], pyarrow.date32())
    prompts = pyarrow.array(["a", "b"])
    table = pyarrow.table({"prompt": prompts, "completion": prompts, "when": days})
    recipe = toy_recipe(tmp_path)
    pyarrow.parquet.write_table(table, tmp_path / "far.parquet")
    recipe.write_text(recipe.read_text().replace("upper.train.jsonl", "far.parquet"))
    ended = run("validate", recipe, cwd=tmp_path)
    assert ended.code == 2, ended.err
    assert "far.parquet, row 2: a value of the column 'when', date32" in ended.err
    assert "traceback" not in ended.err
