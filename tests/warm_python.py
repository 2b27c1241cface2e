"""A Python that has imported already: `python -m msft …` in a process of its own, without the ten
seconds of CPU time in which torch and transformers are loaded.

A process imports everything once and forks for each call. An executable stands for Python: it hands
its arguments, folder, environment and streams over, passes signals on, and ends as the fork ends.
The fork has a session of its own and dies with the executable. Calls other than `-m msft` and
scripts, and those with other settings of libraries, get the real Python.
"""

import atexit
import fcntl
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from shutil import rmtree
from tempfile import gettempdir

GUARDING = "msft.app.terminal.screen"
LIBRARIES = (
    "msft.__main__",  # catches signals and counts threads before torch is there
    GUARDING,
    *("msft.training", "msft.engine.build", "msft.report.run_page"),
    *("transformers.models.llama.modeling_llama", "msft.report.figures.chart", "tokenizers"),
    *("matplotlib.backends.backend_svg", "matplotlib.figure", "msft.app.compare"),
    *("msft.planning.forecast", "msft.app.audit", "peft"),
)
PINNED = ("OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "TRITON_INTERPRET", "PYTHONPATH")
"""Variables that are read when libraries are loaded."""
NO_REPORTS = "TESTS_WANT_NO_REPORTS"
"""A variable; where it is set, reports of runs are empty."""
WRITERS = ("msft.training", "msft.app.audit")
"""Who writes them."""
LENGTH = struct.Struct("!i")
PLACE = "calls"
"""The socket, in the folder of the executable."""

CLIENT = """#!{python} -SE
import os, sys
arguments = sys.argv[1:]
pinned = {{key: os.environ[key] for key in {names!r} if key in os.environ}}
known = arguments[:2] == ["-m", "msft"] or arguments[:1] and arguments[0].endswith(".py")
if not known or pinned != {pinned!r}:
    os.execv({python!r}, [{python!r}, *arguments])
import json, signal, socket, struct
passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # until the child is known, which may be first
told = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
server = socket.socket(socket.AF_UNIX)
os.chdir({folder!r})  # the path of a socket has a hundred characters at most
server.connect({place!r})
socket.send_fds(server, [struct.pack("!i", len(told))], [0, 1, 2])
server.sendall(told)
child = struct.unpack("!i", server.recv(4, socket.MSG_WAITALL))[0]
for each in passed_on:
    signal.signal(each, lambda number, frame: os.kill(child, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
code = struct.unpack("!i", server.recv(4, socket.MSG_WAITALL))[0]
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def empty_report(folder: Path) -> Path:
    """Instead of `write_report`, which takes as long as a short training. A run without the file
    would not count as finished."""
    path = folder / "report.html"
    path.touch()
    return path


def pinned() -> dict[str, str]:
    """The variables that the forks of a warm Python which starts now have."""
    return {key: os.environ[key] for key in PINNED if key in os.environ}


@cache
def warmed(number: int = 0) -> tuple[str, dict[str, str]]:
    """The executable of a warm Python with a hash seed of its own, and the variables that its forks
    have. The workers of one run of pytest share it: the first who asks starts it, and it ends soon
    after the last who asked."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(gettempdir()) / f"warm-python-{run}-{number}"
    while True:
        user = os.open(_lock_of(folder), os.O_CREAT | os.O_RDWR)
        fcntl.flock(user, fcntl.LOCK_SH)  # as long as this process lives
        with suppress(FileNotFoundError):  # or another: a warm Python has just ended with its own
            if os.path.samestat(_lock_of(folder).stat(), os.fstat(user)):
                break
    try:
        folder.mkdir()
    except FileExistsError:
        until = time.monotonic() + 120
        while not (folder / PLACE).exists():
            assert time.monotonic() < until, "nobody starts the warm Python"
            time.sleep(0.05)
    else:
        _start(folder)
    return str(folder / "python"), json.loads((folder / "pinned.json").read_text())


def _lock_of(folder: Path) -> Path:
    """A file that everybody who may call holds a lock of."""
    return folder.with_name(f"{folder.name}.lock")


def _start(folder: Path) -> None:
    """Make a warm Python, in whose folder `python` is for `sys.executable`. Its hash seed is drawn,
    and is in the file `hash_seed`."""
    client = folder / "python"
    client.write_text(
        CLIENT.format(
            python=sys.executable, names=PINNED, pinned=pinned(), folder=str(folder), place=PLACE
        )
    )
    client.chmod(0o755)
    short = client.with_name("msft")
    short.write_text(f'#!/bin/sh\nexec {client} -m msft "$@"\n')
    short.chmod(0o755)
    (folder / "pinned.json").write_text(json.dumps(pinned()))
    seed = str(SystemRandom().randrange(2**32))
    (folder / "hash_seed").write_text(seed)
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONHASHSEED": seed},
        start_new_session=True,
    )
    while not (folder / PLACE).exists() and server.poll() is None:
        time.sleep(0.05)
    assert server.poll() is None, "the warm Python did not start"
    server.returncode = 0  # it ends by itself, and nobody waits for it


def _serve(folder: Path) -> None:
    lock = _lock_of(folder)
    users = lock.open("a")
    for library in LIBRARIES:
        import_module(library)
        if library == GUARDING:  # as the program does, before others keep stderr for their messages
            sys.modules[GUARDING].guard_streams()
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    sys.executable = str(folder / "python")  # processes of forks are forks too
    vars(os)["fsync"] = lambda handle: None  # as in conftest.py
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(folder)
    listener.bind("new")
    listener.listen()
    Path("new").rename(PLACE)
    calls: dict[int, socket.socket] = {}
    looked = time.monotonic()
    while True:
        ready, _, _ = select.select([listener, *calls.values()], [], [], 0.02 if calls else 0.5)
        if listener in ready:
            call, _ = listener.accept()
            with suppress(OSError, EOFError):  # whoever called was killed before it said what
                child = _forked(call, [listener, *calls.values()])
                calls[child] = call
                call.sendall(LENGTH.pack(child))
        if time.monotonic() > looked + 0.5:
            looked = time.monotonic()
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        for child, call in calls.items():
            if call in ready:  # whoever called is gone
                os.kill(child, signal.SIGKILL)
        for child in [*calls]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                call = calls.pop(child)
                _tell(call, os.waitstatus_to_exitcode(status))
                call.close()
    for child in calls:
        os.kill(child, signal.SIGKILL)
    rmtree(folder)
    lock.unlink()


def _tell(call: socket.socket, code: int) -> None:
    with suppress(OSError):  # nobody waits
        call.sendall(LENGTH.pack(code))


def _forked(call: socket.socket, others: list[socket.socket]) -> int:
    head, streams, _, _ = socket.recv_fds(call, LENGTH.size, 3)
    told = bytearray()
    (length,) = LENGTH.unpack(head) if len(head) == LENGTH.size else (1,)
    while len(told) < length:
        part = call.recv(length - len(told))
        if not part:
            raise EOFError
        told += part
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        return child
    code = 1
    try:
        os.setsid()
        for each in (call, *others):
            each.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        code = _carried_out(*json.loads(told))
    finally:
        os._exit(code)


def _carried_out(arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """As Python does it, from the arguments to the end of its threads and what is to be done at
    its end."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if NO_REPORTS in environment:
        for writer in WRITERS:
            vars(sys.modules[writer])["write_report"] = empty_report
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode), line_buffering=number == 2)
        for number, mode in enumerate(("rb", "wb", "wb"))
    )
    code: object = 0
    try:
        if arguments[0] == "-m":
            sys.argv = ["msft", *arguments[2:]]
            sys.path[0] = folder
            code = sys.modules["msft.__main__"].main()
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ending:
        code = ending.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    return code if isinstance(code, int) else 1 if code else 0


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
