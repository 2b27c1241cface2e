"""Memory and time have bounds: an answer comes within seconds, whatever the input asks for."""

import json
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from program import run, toy_recipe

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
    rows = [json.loads(line) for line in (tmp_path / "upper.train.jsonl").read_text().splitlines()]
    more = [{"prompt": f"upper x{number}:", "completion": " X"} for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows + more), tmp_path / "u.parquet")
    recipe.write_text(recipe.read_text().replace("upper.train.jsonl", "u.parquet"))
    ended = run("validate", recipe, "--json", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["datasets"]["upper"]["train_rows"] == 108


def test_a_plan_of_10000_epochs_is_answered(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    ended = run(
        *("plan", recipe, "--no-calibration", "--set", "num_train_epochs=10000"),
        cwd=tmp_path,
        before="import msft.planning.cases as cases; assert cases.SECONDS <= 20; cases.SECONDS = 1",
    )
    assert ended.code == 2
    assert "num_train_epochs is 10000" in ended.err
    assert ended.seconds < 10


def test_methods_that_take_too_long_to_count_are_left_out(tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    slow = (
        "import time, msft.planning.cases as cases\n"
        "count, seen = cases.counted_run, []\n"
        "def counted_run(*given, until):\n"
        "    seen.append(1)\n"
        "    if len(seen) > 1: raise TimeoutError\n"
        "    return count(*given, until=until)\n"
        "cases.counted_run = counted_run\n"
    )
    ended = run("plan", recipe, "--no-calibration", "--json", cwd=tmp_path, before=slow)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert list(found["methods"]) == ["sft"]
    assert len(found["not_counted"]) == 7


FULL = """
import torch
import torch.nn.functional as F
from msft.engine.train.engine import FastEngine
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
