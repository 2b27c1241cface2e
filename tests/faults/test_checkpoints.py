"""Damaged checkpoints and results: noticed, named, trained again; never handed out."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Ended, run
from toy_runs import best_of, flip, left_by, weights_of, write_recipe

from msft.store.store import Hashes, Manifest

pytestmark = pytest.mark.usefixtures("no_reports")

STOPPED_AFTER = 5
"""Events: both ticks are trained, and the second one is the best."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run in `out`, which no test changes."""
    return made(tmp_path_factory.mktemp("finished"), None, 0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a run that was stopped before its end."""
    return made(tmp_path_factory.mktemp("stopped"), STOPPED_AFTER, 4)


def made(folder: Path, stop_after: int | None, code: int) -> Path:
    write_recipe(folder)
    assert train(folder, stop_after).code == code
    return folder


def train(folder: Path, stop_after: int | None = None, before: str = "") -> Ended:
    return run(
        "train", "recipe.yaml", "--out", "out", cwd=folder, before=before, stop_after=stop_after
    )


def copied(folder: Path, target: Path) -> Path:
    """A copy of a run in which files with two names still have two."""
    parts = [str(folder / name) for name in ("recipe.yaml", "out")]
    subprocess.run(["cp", "-a", *parts, str(target)], check=True)  # noqa: S607
    return target / "out"


def is_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def is_a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def is_a_link_to_itself_elsewhere(path: Path) -> None:
    other = path.parent.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def is_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def is_another_one(path: Path) -> None:
    """A whole checkpoint, but that of another tick."""
    flip(path)
    manifest = Manifest({path.name: Hashes().fresh(path)}, "r0-t1.weights")
    path.with_name("manifest.json").write_bytes(manifest.to_bytes())


def folder_is_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("not a folder")


def folder_is_a_link(path: Path) -> None:
    other = path.parents[2] / "elsewhere"
    path.parent.rename(other)
    path.parent.symlink_to(other)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (flip, "is not what was written"),
    "truncated": (lambda path: os.truncate(path, 1000), "is not what was written"),
    "a folder": (is_a_folder, "model.safetensors is a folder"),
    "a dangling link": (is_a_dangling_link, "model.safetensors is a symbolic link"),
    "a link": (is_a_link_to_itself_elsewhere, "model.safetensors is a symbolic link"),
    "a pipe": (is_a_pipe, "model.safetensors is a pipe"),
    "another checkpoint": (is_another_one, "it is that of r0-t1.weights"),
    "folder is a file": (folder_is_a_file, "it is a file, not a folder"),
    "folder is a link": (folder_is_a_link, "it is a symbolic link, not a folder"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_best_checkpoint_is_trained_again_and_never_becomes_the_result(
    damage: str, stopped: Path, finished: Path, tmp_path: Path
) -> None:
    run = copied(stopped, tmp_path)
    path = weights_of(run)
    assert path.samefile(run / "best/model.safetensors")
    change, said = DAMAGE[damage]
    change(path)
    done = train(tmp_path)
    assert done.code == 0, done.err
    assert f"checkpoint {best_of(run)}.weights is damaged" in done.err
    assert said in done.err
    assert left_by(run) == left_by(finished / "out")
    aside = run / "checkpoints" / f"{best_of(run)}.weights.bad"
    assert aside.is_symlink() or aside.exists(), "what was damaged is kept for whoever asks why"


EIO = """
import errno, os
opened = os.open
def broken(path, *rest, **named):
    if str(path).endswith("{name}/model.safetensors"):
        raise OSError(errno.{code}, os.strerror(errno.{code}), str(path))
    return opened(path, *rest, **named)
os.open = broken
"""


@pytest.mark.parametrize("code", ["EIO", "EACCES"])
def test_a_checkpoint_that_the_disk_does_not_give_is_trained_again(
    code: str, stopped: Path, finished: Path, tmp_path: Path
) -> None:
    run = copied(stopped, tmp_path)
    broken = EIO.format(name=f"checkpoints/{best_of(run)}.weights", code=code)
    done = train(tmp_path, before=broken)
    said = {"EIO": "it cannot be read: Input/output error", "EACCES": "Permission denied"}[code]
    assert said in done.err
    assert done.code == 1, "what is written anew lies on the same broken place"
    assert f"does not give checkpoint {best_of(run)} back as it was written" in done.err
    assert train(tmp_path).code == 0
    assert left_by(run) == left_by(finished / "out")


def test_damaged_moments_are_trained_again(stopped: Path, finished: Path, tmp_path: Path) -> None:
    write_recipe(tmp_path)
    assert train(tmp_path, stop_after=4).code == 4
    flip(tmp_path / "out/checkpoints/r0-t1.training/optimizer.safetensors")
    done = train(tmp_path)
    assert done.code == 0
    assert "checkpoint r0-t1.training is damaged" in done.err
    assert left_by(tmp_path / "out") == left_by(finished / "out")


def test_a_resumed_run_does_not_keep_a_damaged_best_folder_beside_it(
    stopped: Path, tmp_path: Path
) -> None:
    """The checkpoint is lost as well, so nothing can stand in for it before it is trained."""
    run = copied(stopped, tmp_path)
    flip(weights_of(run))
    done = train(tmp_path, before=STOP_AT_THE_FIRST_STEP)
    assert done.code == 4, done.err
    assert not (run / "best").exists()


STOP_AT_THE_FIRST_STEP = """
from msft.errors import Stopped
from msft.run.worker import EngineWorker
def stop(worker, tick):
    raise Stopped("SIGTERM")
EngineWorker.advance = stop
"""


def test_a_finished_run_whose_result_was_damaged_trains_it_again(
    finished: Path, tmp_path: Path
) -> None:
    run = copied(finished, tmp_path)
    flip(run / "best/model.safetensors")
    done = train(tmp_path)
    assert done.code == 0, done.err
    assert "is damaged (model.safetensors is not what was written)" in done.err
    assert left_by(run) == left_by(finished / "out")
    assert train(tmp_path).err.count("damaged") == 0, "mended once and for all"


NO_TRAINING = """
from msft.run.worker import EngineWorker
del EngineWorker.advance
"""


def own_copy(path: Path) -> Path:
    """A file that has one name only."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    return path


MENDED: dict[str, Callable[[Path], object]] = {
    "the copy in best": lambda run: flip(own_copy(run / "best/model.safetensors")),
    "no weights in best": lambda run: (run / "best/model.safetensors").unlink(),
    "no best": lambda run: shutil.rmtree(run / "best"),
    "config of best": lambda run: (run / "best/config.json").write_text("{}"),
    "manifest of best": lambda run: (run / "best/manifest.json").write_text("{"),
    "best is a link": lambda run: is_a_link_to_itself_elsewhere(run / "best/model.safetensors"),
    "no checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
}


@pytest.mark.parametrize("damage", MENDED)
def test_a_finished_folder_is_mended_from_what_is_whole_without_training(
    damage: str, finished: Path, tmp_path: Path
) -> None:
    run = copied(finished, tmp_path)
    MENDED[damage](run)
    done = train(tmp_path, before=NO_TRAINING)
    assert done.code == 0, done.err
    assert left_by(run) == left_by(finished / "out")
    assert not (run / "best/model.safetensors").is_symlink()
    assert json.loads((run / "best/config.json").read_text())["model_type"] == "llama"


def test_a_result_that_can_neither_be_found_nor_checked_is_trained_again(
    finished: Path, tmp_path: Path
) -> None:
    run = copied(finished, tmp_path)
    flip(run / "best/model.safetensors")
    shutil.rmtree(run / "checkpoints")
    assert train(tmp_path, before=NO_TRAINING).code == 1
    assert train(tmp_path).code == 0
    assert left_by(run) == left_by(finished / "out")


def test_folders_of_earlier_versions_resume_and_stay(stopped: Path, tmp_path: Path) -> None:
    """Their manifests name no checkpoint, and `best/` has none."""
    run = copied(stopped, tmp_path)
    (run / "best/manifest.json").unlink()
    for path in run.glob("checkpoints/*/manifest.json"):
        files = Manifest.from_bytes(path.read_bytes()).files
        path.write_text(json.dumps(files))
    done = train(tmp_path, before=NO_TRAINING)
    assert done.code == 0, done.err
    assert "damaged" not in done.err
    (run / "best/manifest.json").unlink()
    shutil.rmtree(run / "checkpoints")
    again = train(tmp_path, before=NO_TRAINING)
    assert again.code == 0
    assert "cannot be checked" in again.err
