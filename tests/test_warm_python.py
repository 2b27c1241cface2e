"""The Python of tests that has imported already ends, prints and dies as the real one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def done(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **more})


def test_output_exit_code_and_environment_are_those_of_the_call(
    warm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = done("-m", "msft", "validate", "nothing.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nothing.yaml" in wrong.stderr
    assert done("-m", "msft", "--version").stdout.startswith("msft ")
    script = tmp_path / "said.py"
    script.write_text(
        "import os, sys; print(os.environ['WORD'], sys.argv[1:], 'torch' in sys.modules)"
    )
    assert done(str(script), "a", WORD="here").stdout == "here ['a'] True\n"
    assert done(str(script), WORD="x", HF_HOME="/elsewhere").stdout == "x [] False\n"
    assert done("-c", "raise SystemExit(7)").returncode == 7
    script.write_text("1 / 0")
    assert (done(str(script)).returncode, "ZeroDivisionError" in done(str(script)).stderr) == (
        1,
        True,
    )


def test_what_a_run_in_this_process_has_set_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("_warm")
    monkeypatch.setenv("HF_HUB_OFFLINE", "as hub.py sets it")
    request.getfixturevalue("warm")
    script = tmp_path / "said.py"
    script.write_text("import sys; print('torch' in sys.modules)")
    assert done(str(script)).stdout == "True\n"


def test_signals_reach_it_and_it_dies_with_who_called(warm: str, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )

    def start() -> tuple[subprocess.Popen[str], int]:
        run = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        return run, int(run.stdout.readline())

    run, child = start()
    with run:
        run.terminate()
    assert run.returncode == 9
    run, child = start()
    with run:
        os.kill(child, signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    run, child = start()
    with run:
        run.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()
