"""Going on with other versions or another device: said, or refused where bits were promised."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from program import run, toy_recipe

pytestmark = pytest.mark.usefixtures("no_reports")

STOP = """
import os, signal
from msft.run.log import Log
append = Log.append
def stopping(log, event):
    if len(log.events) == 4: os.kill(os.getpid(), signal.SIGTERM)
    append(log, event)
Log.append = stopping
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Callable[..., Path]:
    """A run that was stopped, with another environment in its folder."""

    def made(deterministic: bool, **before: str) -> Path:
        recipe = toy_recipe(tmp_path, deterministic=deterministic)
        assert run("train", recipe, "--out", "out", cwd=tmp_path, before=STOP).code == 4
        path = tmp_path / "out/environment.json"
        environments = json.loads(path.read_text())
        environments[-1] |= before
        path.write_text(json.dumps(environments))
        return recipe

    return made


OTHERS = {
    "torch": ({"torch": "1.0"}, "torch was 1.0, now it is "),
    "transformers": ({"transformers": "4.0"}, "transformers was 4.0, now it is "),
    "device": ({"device": "NVIDIA H200"}, "device was NVIDIA H200, now it is cpu"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_version_or_device_is_said_and_recorded(
    what: str, stopped: Callable[..., Path], tmp_path: Path
) -> None:
    before, said = OTHERS[what]
    recipe = stopped(False, **before)
    ended = run("train", recipe, "--out", "out", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert f"note: {said}" in ended.err
    assert "the bits may differ" in ended.err
    recorded = json.loads((tmp_path / "out/environment.json").read_text())
    assert recorded[0][what] == before[what]
    assert recorded[-1][what] != before[what]
    assert "bits may differ" not in run("train", recipe, "--out", "out", cwd=tmp_path).err


@pytest.mark.parametrize("what", OTHERS)
def test_deterministic_runs_refuse_it(
    what: str, stopped: Callable[..., Path], tmp_path: Path
) -> None:
    before, said = OTHERS[what]
    recipe = stopped(True, **before)
    log = (tmp_path / "out/run.jsonl").read_bytes()
    ended = run("train", recipe, "--out", "out", cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.err
    assert "deterministic: true" in ended.err
    assert (tmp_path / "out/run.jsonl").read_bytes() == log


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_number_of_threads_is_no_device(
    deterministic: bool, stopped: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = stopped(deterministic, device="cpu, threads: 64")
    ended = run("train", recipe, "--out", "out", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "bits may differ" not in ended.err
