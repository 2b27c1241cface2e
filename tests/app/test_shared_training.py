"""`msft compare` on the tiny model: runs that ask the same roll-out train it once."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from toys import write_lines

from msft.app.compare import has_rollout
from msft.app.jobs import DeviceSlot, Job, carry_out
from msft.cli import main
from msft.run.environment import rollout_from
from msft.run.folder import read_history
from msft.run.history import first_rollout_flops
from msft.text import si

pytestmark = pytest.mark.usefixtures("no_reports")

RECIPE = """
model_name_or_path: tiny
method: sft
learning_rate: 0.003
train_batch_size: 16
num_train_epochs: 2
evals_per_epoch: 2
seed: 1
datasets:
  - {name: teams, benchmark: demo_teams, train_rows: 48, validation_rows: 12, test_rows: 12}
  - {name: words, train: words.jsonl, validation: held.jsonl, test: test.jsonl, metric: nll}
"""
METHODS = "sft,soup,soup[of=peaks]"
NAMES = ("sft-s1", "soup-s1", "soup+of=peaks-s1")


def written(folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(RECIPE)
    for name, numbers in {"words": range(48), "held": range(48, 60), "test": range(60, 72)}.items():
        rows = [{"prompt": f"say {n}:", "completion": f" {n % 7}"} for n in numbers]
        write_lines(folder / f"{name}.jsonl", rows)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each run by itself: the commands of `--list`, one after the other."""
    folder = tmp_path_factory.mktemp("alone")
    listing = ["compare", str(written(folder)), "--out", str(folder), "--methods", METHODS]
    for number, name in enumerate(NAMES):
        with redirect_stdout(StringIO()) as shown:
            assert main([*listing, "--list"]) == 0
        lines = shown.getvalue().splitlines()
        assert len(lines) == len(NAMES) - number  # what is done is not listed
        *_, program, command, recipe, out, place = shlex.split(lines[0])[:-8]
        assert (program, command, out, place) == ("msft", "train", "--out", str(folder / name))
        sets = shlex.split(lines[0])[-8:]
        assert main(["train", recipe, "--quiet", "--out", place, *sets]) == 0
    with redirect_stdout(StringIO()) as shown:
        assert main([*listing, "--list"]) == 0
    assert shown.getvalue() == ""
    return folder


def facts(folder: Path) -> dict[str, bytes | list[str]]:
    """What a run leaves that has no clock in it."""
    files = ("run.jsonl", "verdicts.jsonl", "samples.jsonl", "summary.json", "schedule.json")
    found: dict[str, bytes | list[str]] = {name: (folder / name).read_bytes() for name in files}
    found["best"] = (folder / "best" / "model.safetensors").read_bytes()
    found["checkpoints"] = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return found


def compare(*arguments: str) -> list[str]:
    return ["compare", "recipe.yaml", "--out", "out", "--methods", METHODS, *arguments]


@pytest.fixture
def here(tmp_path: Path, warm: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    written(tmp_path)
    return tmp_path


def test_three_runs_train_once_and_are_as_if_each_had_trained(here: Path, alone: Path) -> None:
    assert main(compare("--quiet", "--devices", "cpu,cpu")) == 0
    for name in NAMES:
        assert facts(here / "out" / name) == facts(alone / name), name
    sources = [rollout_from(here / "out" / name / "environment.json") for name in NAMES]
    assert sources == [None, "sft-s1", "sft-s1"]
    clocks = {(here / "out" / name / "steps.jsonl").read_bytes() for name in NAMES}
    assert len(clocks) == 1  # with the seconds of the one that trained: no step was taken again
    assert not (here / "out" / ".shared").exists()
    total, once = (
        sum(
            json.loads((here / "out" / name / "summary.json").read_text())["flops"]["total"]
            for name in NAMES
        ),
        first_rollout_flops(read_history(here / "out" / "soup-s1")),
    )
    page = (here / "out" / "compare.md").read_text()
    assert r"Soup and Soup\[of=peaks\] took the first roll-out over" in page
    assert f"of {si(total)} FLOPs of all runs {si(total - 2 * once)} were really computed." in page

    assert main(compare("--no-run")) == 0  # and later, without one that was not asked for
    shutil.rmtree(here / "out" / "soup+of=peaks-s1")
    assert main([*compare("--quiet")[:-2], "sft,soup[of=peaks]", "--quiet"]) == 0
    again = here / "out" / "soup+of=peaks-s1"
    assert facts(again) == facts(alone / "soup+of=peaks-s1")  # nobody had left anything: by itself
    assert rollout_from(again / "environment.json") is None


def killed(when: Callable[[], bool]) -> int:
    """Start the comparison, and kill it with all of its jobs when it is time."""
    with subprocess.Popen(
        [sys.executable, "-m", "msft", *compare()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ},
    ) as started:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and started.poll() is None and not when():
            time.sleep(0.01)
        for lock in Path("out").glob("*/run.lock"):
            child = int(lock.read_text().split()[1])
            if Path(f"/proc/{child}").exists():
                os.kill(child, signal.SIGKILL)
        started.kill()
        return started.wait()


def points_in(name: str) -> int:
    log = Path("out", name, "run.jsonl")
    return log.read_bytes().count(b'"point"') if log.exists() else 0


def test_killed_in_the_lender_and_in_a_taker_it_ends_the_same(here: Path, alone: Path) -> None:
    assert killed(lambda: points_in("sft-s1") >= 2) == -signal.SIGKILL
    assert not (here / "out" / "soup-s1").exists()
    (place,) = (here / "out" / ".shared").iterdir()
    assert not has_rollout(place)
    assert killed(lambda: points_in("soup-s1") >= 1) == -signal.SIGKILL
    assert has_rollout(place)
    assert main(compare("--quiet")) == 0
    for name in NAMES:
        expected, found = facts(alone / name), facts(here / "out" / name)
        for what in ("run.jsonl", "summary.json", "schedule.json", "best", "checkpoints"):
            assert found[what] == expected[what], (name, what)
    assert rollout_from(here / "out" / "soup-s1" / "environment.json") == "sft-s1"
    assert not (here / "out" / ".shared").exists()


@pytest.mark.parametrize("made", [False, True])
def test_jobs_that_share_wait_for_what_they_share_and_others_do_not(
    tmp_path: Path, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msft.app.jobs._LOOK", 0.1)

    def job(name: str, shared: str | None) -> Job:
        code = f"import time; time.sleep({1.5 if name == 'a' else 0.1})"
        place = tmp_path / shared if shared else None
        return Job(name, (sys.executable, "-S", "-c", code), tmp_path / f"{name}.log", place)

    said, ended, asked = StringIO(), list[int](), list[Path]()

    def is_made(shared: Path) -> bool:
        asked.append(shared)
        return made and len(asked) > 1

    jobs = [job("a", "x"), job("b", "x"), job("c", None), job("d", "y")]
    failed = carry_out(
        jobs,
        [DeviceSlot("device 0", "0"), DeviceSlot("device 1", "1")],
        lambda text: print(text, file=said),
        after_each=lambda: ended.append(1),
        is_made=is_made,
    )
    assert failed == {}
    told = [line.split(" on ")[0] for line in said.getvalue().splitlines()]
    assert told[:2] == ["a: started", "c: started"]
    assert (told.index("b: started") < told.index("a: finished")) == made
    assert {*asked} == {tmp_path / "x"}
    assert len(ended) == 4
