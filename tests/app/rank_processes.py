"""Processes of one run, forked from this one, so that torch is loaded once: as torchrun has them,
with gloo between them."""

import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

Commands = Sequence[Sequence[str]]
LONGEST = 120
"""Seconds after which processes that wait for each other are ended."""


@dataclass(frozen=True)
class Ended:
    """Exit codes of each command in each rank, and what each rank printed."""

    codes: list[list[int]]
    said: list[str]


def in_processes(
    world: int,
    commands: Commands | Callable[[int], Commands],
    prepare: Callable[[int], None] = lambda rank: None,
) -> Ended:
    """Carry out commands in so many processes.

    commands: the same for all, or by rank.
    prepare: is called in each process with its rank, before the first command.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = commands if callable(commands) else lambda rank: commands
    with TemporaryDirectory() as folder:
        place = Path(folder)
        children = [
            _forked(rank, world, port, given(rank), prepare, place) for rank in range(world)
        ]
        _wait(children)
        codes, said = [], []
        for rank in range(world):
            found = place / f"{rank}.json"
            codes.append(json.loads(found.read_text()) if found.exists() else [])
            said.append((place / f"{rank}.txt").read_text())
    return Ended(codes, said)


def _wait(children: list[int]) -> None:
    """Until all have ended; once one was killed, the others must end by themselves."""
    deadline = time.monotonic() + LONGEST
    left = set(children)
    while left:
        for child in list(left):
            if os.waitpid(child, os.WNOHANG)[0]:
                left.discard(child)
        if time.monotonic() > deadline:
            for child in left:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise AssertionError(f"{len(left)} of {len(children)} ranks wait for each other")
        time.sleep(0.02)


def _forked(
    rank: int,
    world: int,
    port: int,
    commands: Commands,
    prepare: Callable[[int], None],
    place: Path,
) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which wait meanwhile
        child = os.fork()
    if child:
        return child
    with (place / f"{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(number) for name, number in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    codes: list[int] = []
    try:
        from msft.cli import main

        prepare(rank)
        for command in commands:
            codes.append(_code(main, command))
            (place / f"{rank}.json").write_text(json.dumps(codes))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _code(main: Callable[[Sequence[str]], int], command: Sequence[str]) -> int:
    try:
        return main(list(command))
    except SystemExit as ending:
        return int(ending.code or 0)
