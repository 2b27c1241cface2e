"""Processes of one run, as torchrun starts them, with gloo between them: each is the real program
in a process of its own, and neighbours have different hash seeds (`PYTHONHASHSEED`), so that sets
have different orders.

They are forks of warm Pythons (`warm_python.py`), one for each hash seed.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from warm_python import PINNED, warmed

PROGRAM = Path(__file__).with_name("rank_program.py")
Commands = Sequence[Sequence[str]]
LONGEST = 120
"""Seconds after which processes that wait for each other are ended."""
SEEDS = 2
"""Hash seeds; a warm Python for each takes ten seconds of CPU time to start."""


@dataclass(frozen=True)
class Ended:
    """Exit codes of each command in each rank, and what each rank printed."""

    codes: list[list[int]]
    said: list[str]


class Running:
    """The ranks of one command.

    command: of all ranks, or by rank.
    before: Python that each rank does first; `rank` is its number.
    folders: where each rank is, if not here.
    """

    def __init__(
        self,
        world: int,
        command: Sequence[str] | Callable[[int], Sequence[str]],
        before: str = "",
        folders: Sequence[Path] = (),
        seeds: Sequence[int] = (),
    ) -> None:
        self._place = TemporaryDirectory()
        pythons = [warmed(seeds[rank] if seeds else rank % SEEDS) for rank in range(world)]
        self.begun = time.monotonic()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._ranks = []
        for rank, (python, pinned) in enumerate(pythons):
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
            places |= {"LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
            others = {key: value for key, value in os.environ.items() if key not in PINNED}
            environment = {**others, **pinned, "MASTER_ADDR": "127.0.0.1"}
            with self._file(rank).open("w") as output:
                rank_process = subprocess.Popen(
                    [
                        python,
                        str(PROGRAM),
                        before,
                        *(command(rank) if callable(command) else command),
                    ],
                    cwd=folders[rank] if folders else None,
                    env=environment | {key: str(number) for key, number in places.items()},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._ranks.append(rank_process)

    def is_over(self) -> bool:
        return all(each.poll() is not None for each in self._ranks)

    def signal(self, rank: int, number: signal.Signals) -> None:
        """To the rank's process; one that is killed has no time for anything."""
        self._ranks[rank].send_signal(number)

    def ended(self, longest: float = LONGEST) -> tuple[list[int], list[str]]:
        """Exit codes and what was said, once all have ended by themselves."""
        until = self.begun + longest
        late = 0
        for each in self._ranks:
            try:
                each.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                late += 1
                each.kill()
                each.wait()
        said = [self._file(rank).read_text() for rank in range(len(self._ranks))]
        self._place.cleanup()
        assert not late, f"{late} of {len(said)} ranks wait for each other: {said}"
        return [each.returncode for each in self._ranks], said

    def _file(self, rank: int) -> Path:
        return Path(self._place.name) / f"{rank}.txt"


def in_processes(
    world: int,
    commands: Commands | Callable[[int], Commands],
    before: str = "",
    folders: Sequence[Path] = (),
) -> Ended:
    """Carry out commands in so many processes, one after the other; see `Running`."""
    given = commands if callable(commands) else lambda rank: commands
    codes: list[list[int]] = [[] for _ in range(world)]
    said = [""] * world
    for number in range(len(given(0))):
        each = [given(rank)[number] for rank in range(world)]
        running = Running(world, each.__getitem__, before, folders)
        for rank, (code, text) in enumerate(zip(*running.ended(), strict=True)):
            codes[rank].append(code)
            said[rank] += text
    return Ended(codes, said)
