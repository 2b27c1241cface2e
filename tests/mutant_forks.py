"""Work in a child process, with limits; what tests of mutants need there is set.

A child has no output and no random examples of hypothesis, and ends with its parent.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings

from mutant_changes import SOURCE

ROOT = SOURCE.parents[1]
MEMORY = 12 * 2**30
"""Bytes of address space; a mutant that grows for ever fails instead of filling the machine."""

PR_SET_PDEATHSIG = 1
"""Of Linux: a child ends with its parent."""

WAIT = 7200
"""Seconds until a child that sleeps is given up; one that works has a limit for each test."""

SURVIVED, NOTICED, BROKEN = 0, 1, 2


def forked(work: Callable[[], tuple[int, str]], folder: Path) -> tuple[int, str]:
    """What the work returns, done in a child; (NOTICED, "") where it ends before it answers."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _alone(work, write, folder)
    os.close(write)
    end = time.monotonic() + WAIT
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):  # with the processes that a test started
            os.killpg(child, signal.SIGKILL)
    os.set_blocking(read, False)
    with suppress(BlockingIOError), os.fdopen(read) as answer:
        code, said = json.loads(answer.read() or f'[{NOTICED}, ""]')
        return code, said
    return NOTICED, ""


def _alone(work: Callable[[], tuple[int, str]], answer: int, folder: Path) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(ROOT)
        tempfile.tempdir = str(folder)
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE.parent)}
        sys.path.insert(0, str(SOURCE.parent))
        # Nothing random, nothing remembered, no search for the smallest example.
        phases: Any = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", derandomize=True, database=None, deadline=None, phases=phases
        )
        settings.load_profile("mutants")
        os.write(answer, json.dumps(work()).encode())
    except BaseException as error:  # not a test that fails, which pytest keeps to itself
        os.write(answer, json.dumps((BROKEN, repr(error))).encode())
    finally:
        os._exit(0)
