"""Schedules that cannot be trained: `msft replay` says what is wrong with them, and where."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from program import run, toy_recipe
from toys import RULES

STAGE = {
    "active": dict.fromkeys(RULES, 8),
    "rehearsed": {},
    "epochs": 1,
    "optimizer": "fresh",
    "feed": {"name": "shuffled"},
}
SCHEDULE: dict[str, Any] = {
    "method": "msft",
    "evals_per_epoch": 2,
    "rows": dict.fromkeys(RULES, 8),
    "stages": [STAGE],
}


def stage(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda schedule: schedule["stages"][0].update(keys)


def top(**keys: Any) -> Callable[[dict[str, Any]], object]:
    return lambda schedule: schedule.update(keys)


def rows(count: Any) -> Callable[[dict[str, Any]], object]:
    return stage(active={**STAGE["active"], "upper": count})  # type: ignore[dict-item]


def sizes(count: Any) -> Callable[[dict[str, Any]], object]:
    return top(rows={**SCHEDULE["rows"], "upper": count})


EPOCHS = "stages[0].epochs is "
WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no stages": (top(stages=[]), "it has no stages"),
    "stages are an object": (top(stages={}), "its stages are no list"),
    "unknown name": (stage(active={"quux": 3}), "stages[0].active has 'quux'"),
    "unknown rehearsed name": (stage(rehearsed={"quux": 3}), "stages[0].rehearsed has 'quux'"),
    "negative rows": (rows(-3), "stages[0].active.upper is -3; expected 1 to 8000 rows"),
    "no rows": (rows(0), "stages[0].active.upper is 0"),
    "half a row": (rows(1.5), "stages[0].active.upper is 1.5"),
    "rows are text": (rows("x"), "stages[0].active.upper is 'x'"),
    "rows without end": (rows(10**12), "stages[0].active.upper is 1000000000000"),
    "negative sizes": (sizes(-1), "rows.upper is -1"),
    "sizes of 0": (sizes(0), "rows.upper is 0"),
    "nobody": (stage(active={}), "stages[0].active is empty"),
    "active is a list": (stage(active=["upper"]), "stages[0].active is ['upper']"),
    "negative epochs": (stage(epochs=-1), EPOCHS + "-1"),
    "no epochs": (stage(epochs=0), EPOCHS + "0"),
    "odd epochs": (stage(epochs=0.3), EPOCHS + "0.3"),
    "endless epochs": (stage(epochs=10**9), EPOCHS + "1000000000"),
    "infinite epochs": (stage(epochs=float("inf")), EPOCHS + "inf"),
    "epochs are no number": (stage(epochs=float("nan")), EPOCHS + "nan"),
    "epochs are text": (stage(epochs="x"), EPOCHS + "'x'"),
    "unknown optimizer": (
        stage(optimizer="x"),
        "stages[0].optimizer is 'x'; expected fresh or kept",
    ),
    "average beyond the end": (top(average_of=[99]), "average_of has 99"),
    "average is text": (top(average_of=["x"]), "average_of has 'x'"),
    "average is negative": (top(average_of=[-1]), "average_of has -1"),
    "average is no list": (top(average_of="abc"), "average_of is 'abc'"),
}
NO_SCHEDULE = {"nothing": "", "a list": "[]", "a number": "3", "nested": "[" * 100_000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("schedules")
    toy_recipe(place)
    return place


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_schedule_is_refused_with_its_place(kind: str, folder: Path) -> None:
    change, said = WRONG[kind]
    schedule = deepcopy(SCHEDULE)
    change(schedule)
    (folder / "wrong.json").write_text(json.dumps(schedule))
    ended = run("replay", "wrong.json", "recipe.yaml", "--out", "out", cwd=folder, limit=20)
    assert ended.code == 2, ended.err
    assert f"msft: wrong.json: {said}" in ended.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("kind", NO_SCHEDULE)
def test_what_is_no_schedule_is_refused(kind: str, folder: Path) -> None:
    (folder / "none.json").write_text(NO_SCHEDULE[kind])
    ended = run("replay", "none.json", "recipe.yaml", "--out", "out", cwd=folder, limit=20)
    assert ended.code == 2
    assert "none.json is not a schedule" in ended.err


def test_the_right_schedule_is_trained(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "right.json").write_text(json.dumps(SCHEDULE))
    ended = run(
        "replay", tmp_path / "right.json", "recipe.yaml", "--out", tmp_path / "out", cwd=folder
    )
    assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "out/summary.json").read_text())["status"] == "finished"
