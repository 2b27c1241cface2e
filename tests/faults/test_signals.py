"""SIGTERM and SIGINT end the program with exit code 4 from its first line on."""

import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest
from program import Ended, run, toy_recipe

from msft.testing import promised_log, promised_summary

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
BOTH = (signal.SIGTERM, signal.SIGINT)
SCRIPT = "import sys\nfrom msft.__main__ import main\nsys.argv[0] = 'msft'\nsys.exit(main())"
"""What the command `msft` is."""
CODES = (0, 4)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return toy_recipe(tmp_path)


def test_the_command_is_the_program_that_catches_signals_first() -> None:
    assert 'msft = "msft.__main__:main"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("start", [["-m", "msft"], ["-c", SCRIPT]], ids=["python -m", "script"])
def test_signals_are_caught_before_anything_is_loaded(start: list[str]) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-X", "importtime", *start, "--version"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    loaded = [line.rsplit("|", 1)[1].strip() for line in said.splitlines() if "|" in line]
    ours = loaded.index("msft.process")
    for slow in ("typing", "argparse", "pathlib", "msft.cli", "msft.errors"):
        assert loaded.index(slow) > ours


def caught(process: "subprocess.Popen[str]") -> bool:
    """Whether the process has a handler for SIGTERM, as Linux has it."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt"):
            return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.1, 0.4, 1.5])
@pytest.mark.parametrize("start", [["-m", "msft"], ["-c", SCRIPT]], ids=["python -m", "script"])
def test_a_signal_while_libraries_load_gives_4(
    start: list[str], after: float, recipe: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    out = recipe.parent / "out"
    command = [sys.executable, *start, "train", str(recipe), "--out", str(out)]
    number = BOTH[int(after * 100) % 2]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        while not caught(process):
            time.sleep(0.001)
        time.sleep(after)
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == 4, said
    again = f"msft train {recipe} --out {out}"
    assert said in (
        f"stopped by {number.name}; nothing is lost. To go on:\n  {again}\n",
        f"stopped by {number.name}; nothing is lost. To go on:\n  the same command\n",
    )


def test_a_signal_at_any_moment_of_a_run_gives_4_and_the_run_goes_on_to_the_same_end(
    recipe: Path,
) -> None:
    whole = run("train", recipe, "--out", "whole", cwd=recipe.parent)
    assert whole.code == 0, whole.err
    out = recipe.parent / "out"
    stops = 0
    for number in range(16):
        ended = run(
            "train",
            recipe,
            "--out",
            out,
            cwd=out.parent,
            signals=[(0.05 + 0.05 * (number % 11), BOTH[number % 2])],
        )
        assert_clean(ended)
        stops += ended.code == 4
        if ended.code == 0:
            break
    assert stops >= 5
    assert run("train", recipe, "--out", out, cwd=out.parent).code == 0
    assert left_by(out) == left_by(recipe.parent / "whole")


def test_a_second_signal_ends_at_once_with_4_and_leaves_what_can_go_on(recipe: Path) -> None:
    assert run("train", recipe, "--out", "whole", cwd=recipe.parent).code == 0
    out = recipe.parent / "out"
    for number in range(8):
        first, second = BOTH[number % 2], BOTH[number // 2 % 2]
        moments = [(0.2 + 0.045 * number, first), (0.001 + 0.004 * (number % 4), second)]
        assert_clean(run("train", recipe, "--out", out, cwd=out.parent, signals=moments))
    assert run("train", recipe, "--out", out, cwd=out.parent).code == 0
    assert left_by(out) == left_by(recipe.parent / "whole")


AT_LINE = """
import os, signal
from msft.run.log import Log
append = Log.append
def signalled(log, event):
    if {after}: append(log, event)
    if len(log.events) == {line}: os.kill(os.getpid(), signal.SIG{name})
    if not {after}: append(log, event)
Log.append = signalled
"""


@pytest.mark.parametrize(
    ("line", "after", "name"), [(0, False, "TERM"), (0, True, "INT"), (1, False, "INT")]
)
def test_a_signal_at_the_first_lines_of_the_log_gives_4(
    line: int, after: bool, name: str, recipe: Path
) -> None:
    out = recipe.parent / "out"
    at = AT_LINE.format(line=line + after, after=after, name=name)
    ended = run("train", recipe, "--out", out, cwd=out.parent, before=at)
    assert ended.code == 4
    assert_clean(ended)
    lines = (out / "run.jsonl").read_text().splitlines()
    assert len(lines) == line + after
    assert run("train", recipe, "--out", out, cwd=out.parent).code == 0


SLOW_SAVE = """
import hashlib  # a long call that Python cannot interrupt, as a write may be
from msft.store.store import CheckpointStore
CheckpointStore.park = lambda store: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000_000)
"""


def test_a_second_signal_does_not_wait_for_what_the_first_one_saves(recipe: Path) -> None:
    sent = [(1.5, signal.SIGTERM), (0.3, signal.SIGINT)]
    slow = recipe.parent / "slow.yaml"
    slow.write_text(recipe.read_text().replace("num_train_epochs: 2", "num_train_epochs: 500"))
    ended = run("train", slow, "--out", "out", cwd=recipe.parent, signals=sent, before=SLOW_SAVE)
    assert ended.code == 4
    assert ended.seconds < 5
    assert ended.err.count("stopped by SIGTERM; nothing is lost") == 1


LATE = {
    "at its exit": "import atexit\natexit.register(os.kill, os.getpid(), signal.SIGTERM)\n",
    "as modules go": (
        "class Late:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid(), term=signal.SIGTERM):\n"
        "        kill(me, term)\n"
        "sys.late = Late()\n"
    ),
}


@pytest.mark.parametrize("moment", LATE)
def test_a_signal_after_the_end_does_not_change_the_exit_code(moment: str, tmp_path: Path) -> None:
    """Python takes a while to end; then the work is done, so the exit code stays 0."""
    script = (
        "import os, signal, sys\n"
        "from msft.__main__ import main\n"
        f"{LATE[moment]}"
        "sys.argv = ['msft', 'init', 'new.yaml']\n"
        "sys.exit(main())"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def assert_clean(ended: Ended) -> None:
    assert ended.code in CODES, ended.err
    assert "Traceback" not in ended.err
    assert "ignored" not in ended.err
    if ended.code == 4:
        assert "nothing is lost. To go on:\n  msft train " in ended.err


def left_by(folder: Path) -> dict[str, object]:
    weights = (folder / "best" / "model.safetensors").read_bytes()
    return {
        "log": promised_log(folder / "run.jsonl"),
        "verdicts": (folder / "verdicts.jsonl").read_bytes(),
        "summary": promised_summary(folder / "summary.json"),
        "weights": sha256(weights).hexdigest(),
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").iterdir()),
    }
