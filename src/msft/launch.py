"""How this process was started: alone, or as one of several by `torchrun` or `accelerate launch`.

Both say so in the environment. Nothing heavy is imported here, since the first line of the program
may ask.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msft.stopping import IS_JOB, graceful, held


def world() -> int:
    """How many processes do this run together; one, unless they know where to meet."""
    return _number("WORLD_SIZE", 1) if {"RANK", "MASTER_ADDR"} <= os.environ.keys() else 1


def rank() -> int:
    """The number of this one, from 0; the first one speaks for all."""
    return _number("RANK", 0) if world() > 1 else 0


def local_rank() -> int:
    """Its number on this machine."""
    return _number("LOCAL_RANK", rank()) if world() > 1 else 0


def local_world() -> int:
    """How many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", world())


def take_rank(command: str, refuse: Callable[[str], object]) -> None:
    """Be silent, unless this is the first process; refuse what only one process does."""
    if world() > 1 and command not in ("train", "replay"):
        refuse(
            f"{world()} processes were started, but `msft {command}` works in one; start it "
            "without torchrun or accelerate launch"
        )
    if rank():
        os.environ[IS_JOB] = "1"


@contextmanager
def signals_wait() -> Iterator[None]:
    """Inside, a signal to one of several processes waits until all know of it, which is at their
    next meeting; alone, nothing changes."""
    if world() == 1:
        yield
        return
    with graceful(), held():
        yield


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default
