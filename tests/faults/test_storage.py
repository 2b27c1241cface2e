"""What lies in a run folder that msft did not put there, and disks that are full."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import HUNG, Ended, run
from toy_runs import left_by, write_recipe

from msft.observers.files import Lines

FILES = (
    "run.jsonl",
    "run.lock",
    "verdicts.jsonl",
    "samples.jsonl",
    "steps.jsonl",
    "losses.jsonl",
    "summary.json",
    "schedule.json",
    "report.html",
    "recipe.yaml",
    "environment.json",
    "hub.json",
)
FOLDERS = ("best", "base", "checkpoints")
PRECIOUS = "years of work\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run in `out`, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    write_recipe(folder)
    assert train(folder).code == 0
    return folder


def train(folder: Path, before: str = "", stop_after: int | None = None) -> Ended:
    call = ("train", "recipe.yaml", "--out", "out")
    return run(*call, cwd=folder, before=before, stop_after=stop_after, limit=30)


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A recipe, and an empty folder for its run."""
    shutil.copy(finished / "recipe.yaml", tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis").write_text(PRECIOUS)
    return tmp_path


def link(path: Path) -> None:
    target = path.parents[1] / "precious"
    path.symlink_to(target if path.name in FOLDERS else target / "thesis")


def dangling(path: Path) -> None:
    path.symlink_to(path.parents[1] / "precious/made-by-msft")


PLANTED: dict[str, Callable[[Path], object]] = {
    "a symbolic link": link,
    "a dangling link": dangling,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_what_is_planted_under_our_names_is_refused_not_followed_not_waited_for(
    name: str, folder: Path
) -> None:
    path = folder / "out" / name
    for kind, plant in PLANTED.items():
        plant(path)
        done = train(folder)
        assert done.code == 2, (kind, done.err)
        assert f"out/{name} is a {'pipe' if kind == 'a pipe' else 'symbolic link'}" in done.err
        assert [entry.name for entry in (folder / "out").iterdir()] == [name]
        assert [entry.name for entry in (folder / "precious").iterdir()] == ["thesis"]
        assert (folder / "precious/thesis").read_text() == PRECIOUS
        path.unlink()


TEMPORARY = (
    ".best.tmp",
    ".best.old",
    ".run.lock.tmp",
    ".summary.json.tmp",
    ".recipe.yaml.tmp",
    "checkpoints/.r0-t1.weights.tmp",
    "checkpoints/r0-t2.weights",
)


@pytest.mark.parametrize("kind", [*PLANTED, "a file"])
def test_what_is_planted_under_the_names_of_temporary_files_is_replaced(
    kind: str, folder: Path, finished: Path
) -> None:
    assert train(folder, stop_after=3).code == 4
    for name in TEMPORARY:
        path = folder / "out" / name
        if kind == "a file":
            path.write_text("not a folder")
        elif kind == "a symbolic link":
            path.symlink_to(folder / "precious")
        else:
            PLANTED[kind](path) if path.parent.name == "out" else os.mkfifo(path)
    done = train(folder)
    assert done.code == 0, done.err
    assert left_by(folder / "out") == left_by(finished / "out")
    assert [entry.name for entry in (folder / "precious").iterdir()] == ["thesis"]
    assert (folder / "precious/thesis").read_text() == PRECIOUS
    assert sorted(p.name for p in (folder / "out").iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("name", ["run.jsonl", "verdicts.jsonl", "steps.jsonl", "recipe.yaml"])
def test_a_report_waits_for_no_pipe(name: str, folder: Path, finished: Path) -> None:
    for part in ("run.jsonl", "verdicts.jsonl", "steps.jsonl", "recipe.yaml"):
        shutil.copy(finished / "out" / part, folder / "out")
    (folder / "out" / name).unlink()
    os.mkfifo(folder / "out" / name)
    done = run("report", "out", cwd=folder, limit=30)
    assert done.code != HUNG
    assert done.code == (2 if name == "run.jsonl" else 0), done.err


SMALL = 2**21 + 2**20
"""Bytes of a disk that holds a checkpoint, but not two with their moments."""

SMALL_DISK = f"""
mount -t tmpfs -o size={SMALL} tmpfs out && {sys.executable} -m msft train recipe.yaml --out out
code=$?
df -k out >&2
rm -rf kept; cp -a out kept
exit $code
"""


def has_small_disks() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and not subprocess.run(command).returncode


@pytest.mark.skipif(not has_small_disks(), reason="no right to mount a small disk")
def test_a_full_disk_says_which_file_how_much_and_what_to_do(folder: Path, finished: Path) -> None:
    """The check before the start is told that there is room: others fill a disk meanwhile."""
    (folder / "sitecustomize.py").write_text(ROOM)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", SMALL_DISK],  # noqa: S607
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "msft: No space left on device: out/checkpoints/r0-t" in done.stderr
    assert "needs 3.3 MB, and the disk has " in done.stderr
    assert "make room, then run the same command again to go on" in done.stderr
    assert not [*(folder / "kept").glob("checkpoints/.*.tmp")], "no half of a file is left"
    shutil.rmtree(folder / "out")
    (folder / "kept").rename(folder / "out")
    assert train(folder).code == 0
    assert left_by(folder / "out") == left_by(finished / "out")


ROOM = """
import shutil
usage = shutil.disk_usage
shutil.disk_usage = lambda path: usage("/")
"""

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
"""


def test_a_limit_on_files_is_met_like_a_full_disk(folder: Path, finished: Path) -> None:
    done = train(folder, before=LIMITED.format(2**20))
    assert done.code == 1
    assert "msft: File too large (a limit on the size of files, see `ulimit -f`): " in done.err
    assert "out/checkpoints/r0-t1." in done.err
    assert not [*(folder / "out").glob("checkpoints/.*.tmp")]
    assert train(folder).code == 0
    assert left_by(folder / "out") == left_by(finished / "out")


def test_a_log_that_cannot_be_written_keeps_whole_lines(folder: Path, finished: Path) -> None:
    whole = (finished / "out/run.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    limit = sum(map(len, lines[:3])) + 20
    done = train(folder, before=LOG_LIMITED.format(limit))
    assert done.code == 1
    assert "out/run.jsonl needs" in done.err
    assert (folder / "out/run.jsonl").read_bytes() == b"".join(lines[:3])
    assert train(folder).code == 0
    assert left_by(folder / "out") == left_by(finished / "out")


LOG_LIMITED = """
import resource
import msft.run.log as log
append = log.append_bytes
def limited(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, resource.RLIM_INFINITY))
    try:
        append(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
log.append_bytes = limited
"""


def test_steps_that_find_no_room_leave_whole_lines(tmp_path: Path) -> None:
    """A resumed run adds to the file, and readers end at the first line that is none."""
    file, notices = tmp_path / "steps.jsonl", list[str]()
    lines = Lines(file, notices.append)
    lines.add({"tick": 1})
    lines.flush()
    lines.add({"tick": 2})
    no_limit = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, no_limit))
    try:
        lines.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (no_limit, no_limit))
    assert file.read_text() == '{"tick": 1}\n'
    assert notices == [f"{file} is not written any more (File too large); the run goes on"]
