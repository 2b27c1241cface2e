"""`msft report --watch`: pages that follow a run, from logs that are being written."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from msft.app.watch import watch
from msft.cli import main
from msft.run.folder import RunFolder
from msft.run.log import Log
from msft.testing.simulated import Learner, simulate

REFRESH = '<meta http-equiv="refresh" content="'


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("run")
    learners = {"quick": Learner(limit=0.5), "slow": Learner(limit=2.0)}
    simulate("msft", learners, folder=folder, compute_budget=1, evals_per_epoch=2)
    return (folder / "run.jsonl").read_bytes().splitlines(keepends=True)


class Growth:
    """Adds to a log each time that the watcher sleeps, and remembers the page of that moment."""

    def __init__(self, folder: Path, pieces: list[bytes]) -> None:
        self._files = RunFolder(folder)
        self._pieces = pieces
        self.pages: list[str | None] = []
        self.slept: list[float] = []
        self._held: IO[bytes] | None = None

    def __call__(self, seconds: float) -> None:
        page = self._files.report
        self.pages.append(page.read_text() if page.exists() else None)
        self.slept.append(seconds)
        piece = self._pieces.pop(0)
        self._files.path.mkdir(exist_ok=True)
        if not self._held:
            self._held = self._files.log.open("ab", buffering=0)
            fcntl.flock(self._held, fcntl.LOCK_EX)  # as a run that is alive
        self._held.write(piece)
        if not self._pieces:
            self._held.close()


def test_the_page_follows_the_run_and_refreshes_until_it_has_ended(
    lines: list[bytes], tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", list[str]()
    half = lines[5][: len(lines[5]) // 2]
    rest = lines[5][len(half) :]
    pieces = [b"", lines[0][:20], lines[0][20:], b"".join(lines[1:5]) + half, rest, b""]
    growth = Growth(folder, [*pieces, b"".join(lines[6:])])
    watch([folder], 5, said.append, growth)
    assert growth.pages[:3] == [None, None, None], "nothing to show before the first event"
    assert said[0] == f"{folder} has no events in a run.jsonl yet; waiting for the run to start"
    assert "reloads" in said[1]
    assert "has ended" in said[2]
    assert len(said) == 3
    shown = [page for page in growth.pages if page is not None]
    assert all(f'{REFRESH}5">' in page for page in shown)
    assert all("<script" not in page for page in shown)
    assert shown[0] != shown[1], "three events more"
    final = RunFolder(folder).report.read_text()
    assert "refresh" not in final
    assert set(growth.slept) == {5}


def test_a_log_that_has_not_grown_is_not_read_again(lines: list[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = RunFolder(folder)
    files.log.write_bytes(b"".join(lines[:5]))
    times: list[int] = []

    def sleep(seconds: float) -> None:
        times.append(files.report.stat().st_mtime_ns)
        if len(times) == 3:
            files.log.write_bytes(b"".join(lines))

    watch([folder], 1, lambda text: None, sleep)
    assert len(set(times)) == 1
    assert files.report.stat().st_mtime_ns != times[0]


def test_a_run_that_was_killed_is_said_once_and_waited_for(
    lines: list[bytes], tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", list[str]()
    folder.mkdir()
    log = RunFolder(folder).log
    log.write_bytes(b"".join(lines[:5]))
    alive: list[IO[bytes]] = []
    pages: list[str] = []

    def run() -> None:
        alive.append(log.open("ab", buffering=0))
        fcntl.flock(alive[-1], fcntl.LOCK_EX)

    def sleep(seconds: float) -> None:
        pages.append(RunFolder(folder).report.read_text())
        match len(pages):
            case 2:
                alive.pop().close()  # killed
            case 5:
                run()
            case 6:
                alive[-1].write(b"".join(lines[5:]))
                alive.pop().close()

    run()
    watch([folder], 1, said.append, sleep)
    told = [text for text in said if "no process works on" in text]
    assert len(told) == 1
    assert f"`msft train {folder / 'recipe.yaml'} --out {folder}` goes on" in told[0]
    assert said.index(told[0]) == 1
    assert "has ended" in said[2]
    stopped = ["was stopped" in page for page in pages]
    assert stopped == [False, False, True, True, True, False]


def test_several_runs_have_a_comparison_too(lines: list[bytes], tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        RunFolder(folder).log.write_bytes(b"".join(lines))
    said: list[str] = []
    watch(folders, 1, said.append, lambda seconds: pytest.fail("both have ended"))
    assert said[-1] == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()


def test_a_report_that_is_not_watched_does_not_refresh(lines: list[bytes], tmp_path: Path) -> None:
    RunFolder(tmp_path).log.write_bytes(b"".join(lines[:5]))
    assert main(["report", str(tmp_path)]) == 0
    assert "refresh" not in RunFolder(tmp_path).report.read_text()


def test_a_finished_run_is_built_once(
    lines: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder(tmp_path).log.write_bytes(b"".join(lines))
    assert main(["report", str(tmp_path), "--watch"]) == 0
    assert "has ended" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan", "1e9"])
def test_a_wrong_time_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["report", str(tmp_path), f"--watch={wrong}"])
    assert refused.value.code == 2


def test_a_signal_ends_the_watching_with_the_code_of_a_stop(
    lines: list[bytes], tmp_path: Path
) -> None:
    """Of a real process, beside a run that holds its log."""
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines[:5]))
    log = Log(tmp_path / "run.jsonl")
    command = [sys.executable, "-m", "msft", "report", str(tmp_path), "--watch", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        page = RunFolder(tmp_path).report
        until = time.monotonic() + 60
        while not page.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(watching.pid, signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
    log.close()
    assert watching.returncode == 4
    assert b"stopped by SIGINT" in errors
    assert REFRESH in page.read_text()


def test_nothing_is_written_if_one_of_the_folders_cannot_be_used(
    lines: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "file").touch()
    for other, said in (
        (tmp_path / "gone", "is not a run folder"),
        (tmp_path / "run" / ".." / "run", "is named twice"),
        (tmp_path / "file", "is a file"),
    ):
        assert main(["report", str(run), str(other)]) == 2
        assert said in capsys.readouterr().err
    assert not (run / "report.html").exists()
