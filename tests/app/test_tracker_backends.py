"""Real runs and a real TensorBoard file: what it holds after a kill and a resume."""

import importlib.util
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys import recipe_of, write_data

import msft
from msft.errors import RecipeError, UsageError
from msft.observers import trackers as tracker_backends
from msft.observers.trackers import read_told
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import read_log

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.usefixtures("no_reports")
CLASSES = import_module("accelerate.tracking").LOGGER_TYPE_TO_CLASS
OPTIONS = {"method": "msft", "report_to": "tensorboard", "peaks": {"include_start": False}}


def events_in(file: Path) -> Iterator[Any]:
    loader = import_module("tensorboard.backend.event_processing.event_file_loader")
    yield from loader.LegacyEventFileLoader(str(file)).Load()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of all event files of a run, in the order in which they were written."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((folder / "tensorboard").glob("events.*"), key=lambda f: f.stat().st_mtime):
        for event in events_in(file):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def texts(folder: Path) -> list[str]:
    return [
        value.tensor.string_val[0].decode()
        for file in (folder / "tensorboard").glob("events.*")
        for event in events_in(file)
        for value in event.summary.value
        if value.tag.startswith("rollback_text")
    ]


def check(folder: Path) -> None:
    """The event files against the log."""
    history = History(read_log(RunFolder(folder).log))
    found = scalars(folder)
    points = [point for stage in history.stages for point in stage.points]
    steps = [sum(p.steps for p in points[: n + 1]) for n in range(len(points))]
    for name in history.start.datasets:
        series = found[f"eval/{name}/nll"]
        assert [step for step, _ in series] == [0, *steps]
        assert [v for _, v in series[1:]] == pytest.approx(
            [float(point.scores[name].value) for point in points]
        )
    assert [step for step, _ in found["train/loss"]] == sorted({s for s, _ in found["train/loss"]})
    assert found["train/loss"][-1][0] == steps[-1]
    assert [value for _, value in found["active"]] == [
        len(stage.asked.active) for stage in history.stages for _ in stage.points
    ]
    back = [
        (sum(p.steps for s in history.stages[: n + 1] for p in s.points), float(n))
        for n, stage in enumerate(history.stages)
        for decision in stage.decisions
        if decision.checkpoint != stage.points[-1].checkpoint
    ]
    assert back, "a run without a roll-back shows nothing"
    assert found["rollback"] == back
    assert len(texts(folder)) == len(back)


@pytest.mark.usefixtures("warm")
def test_a_killed_and_resumed_run_is_told_once(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, **OPTIONS)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    out = tmp_path / "out"
    command = [sys.executable, "-m", "msft", "train", str(tmp_path / "recipe.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--out", str(out), "--quiet"], env=environment) as run:
        until = time.monotonic() + 120
        while time.monotonic() < until and run.poll() is None:
            told = read_told(out / "trackers.json").get("tensorboard")
            if told is not None and told.events >= 6:  # and so not while it is being told
                break
            time.sleep(0.005)
        os.kill(int((out / "run.lock").read_text().split()[1]), signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL, "it had ended before it was killed"
    msft.train(recipe, out)
    check(out)
    files = sorted((out / "tensorboard").iterdir())
    msft.train(recipe, out)
    assert sorted((out / "tensorboard").iterdir()) == files, "a finished run tells nothing more"


def test_a_run_may_get_a_tracker_later(tmp_path: Path) -> None:
    write_data(tmp_path)
    out = tmp_path / "out"
    msft.train(recipe_of(tmp_path, **{**OPTIONS, "report_to": "none"}), out)
    assert not (out / "tensorboard").exists()
    msft.train(recipe_of(tmp_path, **OPTIONS), out)
    check(out)


class Unreachable:
    def __init__(self, **options: Any) -> None:
        self.options = options

    def start(self) -> None:
        raise ConnectionError("api.wandb.ai cannot be reached")


def test_a_tracker_that_cannot_start_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLASSES, "wandb", Unreachable)
    with pytest.raises(UsageError, match=r"wandb cannot be started: api.*WANDB_MODE=offline"):
        tracker_backends.open_trackers("wandb", tmp_path, {}, 0, print)


class Started:
    """Stands for Accelerate's class of a tracker that is not installed here."""

    started: list[dict[str, Any]]

    def __init__(self, **options: Any) -> None:
        self.started.append(options)
        self.tracker = type("Run", (), {"id": "a1b2c3"})()

    def start(self) -> None:
        pass

    def finish(self) -> None:
        pass


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_resume_goes_on_with_the_run_of_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Started, "started", [], raising=False)
    monkeypatch.setitem(CLASSES, name, Started)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for _ in range(2):
        tracker_backends.open_trackers([name], tmp_path, {"seed": 1}, 0, print).close()
    first, second = Started.started
    assert first["config"] == {"seed": 1}
    if name == "wandb":
        assert (first["id"], second["id"]) == (None, "a1b2c3")
        assert first["run_name"] == "mine"
        assert first["dir"] == str(tmp_path)
    else:
        assert first["name"] == second["name"]
        assert (first["resume"], second["resume"]) == ("never", "allow")


class Mlflow:
    """Stands for the package: it keeps what Accelerate's class and ours hand to it."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.metrics: list[tuple[dict[str, float], int]] = []
        self.tags: dict[str, str] = {}
        self.params: dict[str, Any] = {}
        self.ended = 0
        limits = SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)
        self.utils = SimpleNamespace(validation=limits)

    def search_experiments(self, filter_string: str) -> list[Any]:
        assert filter_string == "name = 'msft'"
        return [SimpleNamespace(experiment_id="7")]

    def start_run(self, **options: Any) -> Any:
        self.runs.append(options)
        return SimpleNamespace(info=SimpleNamespace(run_id="f00"))

    def log_params(self, values: dict[str, Any]) -> None:
        self.params |= values

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.metrics.append((values, step))

    def set_tag(self, key: str, value: str) -> None:
        self.tags[key] = value

    def end_run(self) -> None:
        self.ended += 1


def test_mlflow_is_told_numbers_and_texts_and_a_resume_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for _ in range(2):
        trackers = tracker_backends.open_trackers("mlflow", tmp_path, {"seed": 1}, 0, print)
        trackers._trackers["mlflow"].log({"eval/mean": 0.5, "rollback_text": "back to r0"}, 12)
        trackers.close()
    assert [run["run_id"] for run in fake.runs] == [None, "f00"]
    assert {(run["run_name"], run["experiment_id"]) for run in fake.runs} == {(tmp_path.name, "7")}
    assert fake.params == {"seed": 1}
    assert fake.metrics == [({"eval/mean": 0.5}, 12)] * 2
    assert fake.tags == {"rollback_text at step 12": "back to r0"}
    assert fake.ended == 2


TOLD_TWICE = """
import sys
from pathlib import Path
from msft.observers.trackers import open_trackers
name, folder = sys.argv[1], Path(sys.argv[2])
for value in (0.25, 0.5):
    trackers = open_trackers(name, folder, {"seed": 1}, 0, print)
    trackers._trackers[name].log({"eval/mean": value}, step=int(8 * value))
    trackers.close()
"""


def numbers_of_mlflow(folder: Path) -> list[float]:
    client = import_module("mlflow").MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "msft"]
    (run,) = client.search_runs([experiment.experiment_id])
    return [each.value for each in client.get_metric_history(run.info.run_id, "eval/mean")]


def numbers_of_trackio(folder: Path) -> list[float]:
    with closing(sqlite3.connect(folder / "trackio" / "msft.db")) as database:
        rows = database.execute("select metrics from metrics order by step").fetchall()
    return [json.loads(text)["eval/mean"] for (text,) in rows]


def numbers_of_wandb(folder: Path) -> list[float]:
    """Its files hold records one after the other, each with the name and the value as texts."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    found = [re.search(rb"eval/mean.*?(0\.\d+)", file.read_bytes(), re.DOTALL) for file in files]
    return [float(each[1]) for each in found if each]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("mlflow", numbers_of_mlflow),
        ("trackio", numbers_of_trackio),
        ("wandb", numbers_of_wandb),
    ],
)
def test_a_real_tracker_has_what_it_was_told_before_and_after_a_resume(
    name: str, numbers: Callable[[Path], list[float]], tmp_path: Path
) -> None:
    """`make test-newest` and `make test-lowest` have these packages."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    own = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
    }
    command = [sys.executable, "-c", TOLD_TWICE, name, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(tmp_path) == [0.25, 0.5]


def test_a_missing_tracker_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    write_data(tmp_path)
    with pytest.raises(RecipeError, match="pip install accelerate tensorboard"):
        msft.train(recipe_of(tmp_path, **OPTIONS), tmp_path / "out")
    assert not (tmp_path / "out").exists()
