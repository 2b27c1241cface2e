"""The real program, many times: forked from one process that has torch loaded already.

    done = ran("train", "recipe.yaml", "--out", "out", cwd=folder, stop_after=5)

Started as a script it is that process: it reads a command per line and forks a run for each.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

HUNG = -1000
"""The exit code of a command that did not end by itself."""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Order:
    """A command. prelude: Python that its process runs before, such as a fault of the system.
    stop_after: events in the log after which a signal asks it to stop."""

    arguments: list[str]
    cwd: str
    out: str
    err: str
    prelude: str
    stop_after: int | None
    seconds: float
    report: bool


def ran(
    *arguments: str,
    cwd: Path,
    prelude: str = "",
    stop_after: int | None = None,
    seconds: float = 60,
    report: bool = False,
) -> Done:
    """Run `msft` with these arguments in a folder, in a process of its own.

    report: write `report.html` too, which takes longer than all the rest of a small run.
    """
    out, err = cwd / ".out", cwd / ".err"
    order = Order([*arguments], str(cwd), str(out), str(err), prelude, stop_after, seconds, report)
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asdict(order)) + "\n")
    server.stdin.flush()
    code = int(server.stdout.readline())
    return Done(code, out.read_text(), err.read_text())


@cache
def _server() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def serve() -> None:
    import torch
    from transformers import LlamaForCausalLM  # noqa: F401

    import msft.app.commands
    import msft.app.session
    import msft.engine.build
    import msft.planning.forecast  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        print(_carried_out(Order(**json.loads(line))), flush=True)


def _carried_out(order: Order) -> int:
    child = os.fork()
    if child == 0:
        _run(order)
    end = time.monotonic() + order.seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return HUNG


def _run(order: Order) -> None:
    import msft.app.session
    from msft.cli import main

    code = 70
    try:
        for number, path in ((0, os.devnull), (1, order.out), (2, order.err)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags), number)
        os.chdir(order.cwd)
        if not order.report:
            vars(msft.app.session)["write_report"] = lambda folder: folder
        exec(order.prelude, {})  # noqa: S102
        if order.stop_after is not None:
            _stop_after(order.stop_after)
        code = main(order.arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stop_after(events: int) -> None:
    """Send a signal when so many events are written and taken in, and another one comes."""
    import signal

    from msft.run.log import Event, Log

    append = Log.append

    def stopping(log: Log, event: Event) -> None:
        if len(log.events) == events:
            os.kill(os.getpid(), signal.SIGTERM)
        append(log, event)

    setattr(Log, "append", stopping)  # noqa: B010


if __name__ == "__main__":
    serve()
