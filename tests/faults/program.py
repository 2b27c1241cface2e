"""The real program, many times over: a fork of the warm Python (`warm_python.py`) forks itself for
each command, so that one takes tenths of a second instead of the seconds that torch takes to load.
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # a process of its own knows no pytest
sys.path.append(str(Path(__file__).parents[1] / "app"))
import torch
from toys import recipe_of, write_data

from msft import training
from msft.__main__ import main
from msft.app.terminal.screen import guard_streams
from msft.run.log import Event, Log
from warm_python import PINNED, warmed

HUNG = -signal.SIGKILL
"""The exit code of a command that did not end by itself."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str
    seconds: float


def run(
    *arguments: object,
    cwd: Path,
    signals: Sequence[tuple[float, signal.Signals]] = (),
    memory: int | None = None,
    env: Mapping[str, str] | None = None,
    before: str = "",
    stop_after: int | None = None,
    report: bool = False,
    limit: float = 60,
) -> Ended:
    """One command of `msft`, in a process of its own.

    signals: what is sent to it, and how many seconds after the one before.
    memory: bytes it may take on top of what it has.
    before: Python that it does first, for what cannot be made with files.
    stop_after: events in the log after which a signal asks it to stop.
    report: write `report.html` too, which takes longer than the rest of a small run.
    limit: seconds after which it is killed; then its code is HUNG.
    """
    server, folder = _server()
    order = {
        "arguments": [str(each) for each in arguments],
        "cwd": str(cwd),
        "signals": [(seconds, int(each)) for seconds, each in signals],
        "memory": memory,
        "env": dict(env or {}),
        "before": before,
        "stop_after": stop_after,
        "report": report,
        "limit": limit,
        "out": str(folder / "stdout.txt"),
        "err": str(folder / "stderr.txt"),
    }
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(order) + "\n")
    server.stdin.flush()
    code, seconds = json.loads(server.stdout.readline())
    out, err = ((folder / f"std{each}.txt").read_bytes().decode() for each in ("out", "err"))
    return Ended(code, out, err, seconds)


def toy_recipe(folder: Path, **keys: Any) -> Path:
    """The toy recipe with few rows, written to a folder with its data."""
    write_data(folder, train=8, held_out=4)
    path = folder / "recipe.yaml"
    path.write_text(recipe_of(folder, **{"method": "sft", **keys}).to_yaml())
    return path


@cache
def _server() -> tuple["subprocess.Popen[str]", Path]:
    python, known = warmed()
    others = {key: value for key, value in os.environ.items() if key not in PINNED}
    server = subprocess.Popen(
        [python, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**others, **known},
    )
    folder = Path(mkdtemp(prefix="msft-faults-"))
    atexit.register(_close, server, folder)
    return server, folder


def _close(server: "subprocess.Popen[str]", folder: Path) -> None:
    server.communicate()
    rmtree(folder)


def serve() -> None:
    """Carry out the orders of stdin."""
    guard_streams()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _be_the_program(order)
        for seconds, number in order["signals"]:
            time.sleep(seconds)
            os.kill(child, number)
        code = _waited(child, begun + order["limit"])
        print(json.dumps([code, time.monotonic() - begun]), file=answers, flush=True)


def _waited(child: int, until: float) -> int:
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_the_program(order: dict[str, Any]) -> None:
    code = 1
    try:
        os.chdir(order["cwd"])
        os.environ.update(order["env"])
        for number, place in enumerate((os.devnull, order["out"], order["err"])):
            handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
        if order["memory"]:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + order["memory"],) * 2)
        if not order["report"]:
            vars(training)["write_report"] = lambda folder: folder
        sys.argv = ["msft", *order["arguments"]]
        exec(order["before"], {})  # noqa: S102  of a test
        if order["stop_after"] is not None:
            _stop_after(order["stop_after"])
        code = main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stop_after(events: int) -> None:
    """Send a signal when so many events are written and taken in, and another one comes."""
    append = Log.append

    def stopping(log: Log, event: Event) -> None:
        if len(log.events) == events:
            os.kill(os.getpid(), signal.SIGTERM)
        append(log, event)

    setattr(Log, "append", stopping)  # noqa: B010


if __name__ == "__main__":
    serve()
