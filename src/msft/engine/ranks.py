"""Several processes of one run, joined by torch.distributed. Besides this file only `sharding.py`
imports torch.distributed.

`Group` is what several processes have in place of `msft.ranks.ALONE`. All ranks run the same
program and come by the same *meetings* in the same order: `gather` (what each rank has to say, as
JSON), `total` (a sum), `exchange` (each rank has something for each) and `spread` (from one to
all). Tensors travel by NCCL where each rank has a GPU of its own, else by gloo, through the host.
Everything else is JSON by gloo: nothing is pickled. What must not depend on the number of ranks is
never summed on the way, but for numbers of which all ranks but one have a zero.

**Every meeting has a name.** If one rank is at "gradients 3" and another at "weights 0", torch
would hang or mix their bytes. So each rank keeps the names of its meetings, `gather` compares a
checksum of them, and a rank that waits longer than a second writes into the store where the
processes have found each other at which meeting it is. Ranks at different meetings end with a
message that names both places. A rank at long work (a checkpoint, compiling) says so there too, and
is waited for longer.

**Signals.** A stop may reach one process and not the others. Each `gather` carries the signal that
a rank was asked to stop by; then all of them stop at the same place.
"""

import atexit
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from msft import process
from msft.engine.kernels import device_here
from msft.errors import FAILED, RankFailed, RanksDisagree, Stopped
from msft.process import asked
from msft.ranks import ALONE, LOST, Patience, Ranks

LOOK = timedelta(seconds=1)
"""How long a rank waits until it looks after the others, and then between two looks."""
SLACK = 60
"""Seconds that gloo itself waits beyond the limits that are kept here."""
BLOCK, COUNT = 256, 8
"""Bytes of the message that every JSON meeting has; those that say how long its text is. What does
not fit in there comes in a second message."""


class Group:
    """This process among several; see `msft.ranks.Ranks`.

    Meetings that wait look at the others once a second, in the store where the processes have found
    each other: there a rank that waits says where it is, and a rank at long work says so.

    device: where the tensors are that travel.
    """

    def __init__(self, device: torch.device, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        direct = device.type == "cuda" and process.local_world() <= torch.cuda.device_count()
        self._host: Any = None  # the group as it is
        until = timedelta(seconds=self._patience.rendezvous)
        try:
            _find_rank0(self._patience.rendezvous)
            dist.init_process_group("nccl" if direct else "gloo", timeout=until)
            if direct:
                self._host = dist.new_group(backend="gloo", timeout=until)
        except (RuntimeError, ConnectionError) as error:
            raise self._not_there() from error
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._direct = direct
        longest = max(self._patience.saving, self._patience.step) + SLACK  # less is seen to here
        _let_wait(self._host or dist.group.WORLD, longest)
        if direct:
            _let_wait(dist.group.WORLD, self._patience.step)
        self._staged = device.type == "cuda" and not direct
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._work: list[str] = []
        """Long work that is under way, the outermost first."""
        self._met: list[str] = []
        """Meetings since the last one at which the ranks found that they agree."""
        self._agreed = 0
        self._stopped = self._excused = False
        atexit.register(self._leave)

    def _leave(self) -> None:
        """End gloo's threads: those that still run when the process ends abort it."""
        dist.destroy_process_group(self._host)

    # Meetings.

    def note(self, what: str) -> None:
        self._met.append(what)

    def gather(self, meeting: str, content: Any) -> list[Any]:
        self._met.append(meeting)
        trace = crc32("\n".join(self._met).encode())
        found = self._laid([trace, asked(), content])
        if any(each[0] != trace for each in found):
            raise self._disagreement(self._laid(self._met))
        self._met.clear()
        self._agreed += 1
        signals = [each[1] for each in found if each[1]]
        told, self._stopped = self._stopped, bool(signals)
        if signals and not told:  # once: what follows is on the way out
            raise Stopped(signals[0])
        return [each[2] for each in found]

    def total(self, meeting: str, numbers: Tensor) -> Tensor:
        held = self._here(numbers)
        self._met.append(meeting)
        self.wait(dist.all_reduce(held, async_op=not self._direct))
        return numbers.copy_(held) if self._staged else held

    def exchange(
        self, meeting: str, given: Tensor, sizes: Sequence[int], wanted: Sequence[int]
    ) -> Tensor:
        held = self._here(given)
        got = held.new_empty(sum(wanted))
        self._met.append(meeting)
        later = not self._direct
        self.wait(dist.all_to_all_single(got, held, [*wanted], [*sizes], async_op=later))
        return got.to(given.device)

    def spread(self, meeting: str, numbers: Tensor, source: int) -> None:
        held = self._here(numbers)
        self._met.append(meeting)
        self.wait(dist.broadcast(held, source, async_op=not self._direct))
        if self._staged:
            numbers.copy_(held)

    def _here(self, numbers: Tensor) -> Tensor:
        """The numbers where the group can send them: in host memory, or on the GPU by NCCL."""
        return numbers.cpu() if self._staged else numbers

    def _laid(self, content: Any) -> list[Any]:
        """What each rank has, as JSON: short texts travel in one message."""
        text = json.dumps(content).encode()
        heads = self._bytes(len(text).to_bytes(COUNT) + text[: BLOCK - COUNT], BLOCK)
        sizes = [int.from_bytes(head[:COUNT]) for head in heads]
        texts = [head[COUNT:] for head in heads]
        if max(sizes) > BLOCK - COUNT:
            rests = self._bytes(text[BLOCK - COUNT :], max(sizes) - BLOCK + COUNT)
            texts = [head + rest for head, rest in zip(texts, rests, strict=True)]
        return [json.loads(each[:size]) for each, size in zip(texts, sizes, strict=True)]

    def _bytes(self, mine: bytes, size: int) -> list[bytes]:
        sent = torch.frombuffer(bytearray(mine.ljust(size)), dtype=torch.uint8)
        got = [torch.empty_like(sent) for _ in range(self.world)]
        self.wait(dist.all_gather(got, sent, group=self._host, async_op=True), host=True)
        return [each.numpy().tobytes() for each in got]

    # Waiting.

    @contextmanager
    def busy(self, work: str) -> Iterator[None]:
        self._begin(work)
        try:
            yield
        finally:
            self._end()

    def _begin(self, work: str) -> None:
        self._work.append(work)
        self._say("busy", work)

    def _end(self) -> None:
        self._work.pop()
        with suppress(RuntimeError):  # an error of its own may be on its way
            self._say("busy", self._work[-1] if self._work else "")

    def excuse_compiling(self) -> None:
        """From now on the others wait longer while layers are compiled here."""
        if not self._excused:
            from torch._dynamo.callback import callback_handler

            self._excused = True
            callback_handler.register_start_callback(lambda trigger: self._begin("compiling"))
            callback_handler.register_end_callback(lambda trigger: self._end())

    def wait(self, work: Any, host: bool = False) -> None:
        """Until a meeting is over. NCCL's go on beside the host, and it has a watchdog of its own.

        work: as torch gives it; None: NCCL has put it behind what the device has to do.
        """
        if self._direct and not host:
            if work is not None:
                work.wait()
            return
        begun = time.monotonic()
        while True:
            try:
                work.wait(LOOK)
                return
            except RuntimeError as error:
                if "Operation timed out" not in str(error):
                    raise self._lost() from error
            self._look(time.monotonic() - begun)

    def _look(self, waited: float) -> None:
        """Refuse to wait where that is in vain: ranks are at different meetings, or too late."""
        try:
            self._say("at", [self._agreed, self._met])
            found = self._others()
        except RuntimeError as error:
            raise self._lost() from error
        self._refuse_apart(found)
        work = {rank: busy for rank, (_, busy) in found.items() if busy}
        limit = self._patience.saving if work else self._patience.step
        if waited < limit:
            return
        key = "saving_timeout" if work else "ddp_timeout"
        there = [rank for rank, (met, _) in found.items() if met and met[-1:] == self._met[-1:]]
        late = [rank for rank in found if rank not in there]
        doing = [f"rank {rank} is at {busy}" for rank, busy in work.items()]
        raise self._ended(
            f"rank {self.rank} has waited {limit} s for {_ranks(late or list(found))} at "
            f"'{self._met[-1]}'{': ' if doing else ''}{', '.join(doing)}; see whether "
            f"{'they hang' if len(late) > 1 else 'it hangs'}, or give {key} more seconds. Nothing "
            "that was saved is lost, and the same command goes on"
        )

    def _refuse_apart(self, found: Mapping[int, tuple[list[str], str]]) -> None:
        """RanksDisagree where another rank waits at another meeting."""
        for rank, (met, _) in found.items():
            if any(here != there for here, there in zip(self._met, met, strict=False)):
                lists = [self._met] * self.world
                lists[rank] = met
                raise self._disagreement(lists)

    def _others(self) -> dict[int, tuple[list[str], str]]:
        """Where each of the others waits, if it does, and what long work it is at."""
        found: dict[int, tuple[list[str], str]] = {}
        for rank in range(self.world):
            if rank != self.rank:
                said = self._said("at", rank)
                met = said[1] if said and said[0] == self._agreed else []
                found[rank] = met, self._said("busy", rank) or ""
        return found

    def _say(self, what: str, content: Any) -> None:
        self._store.set(f"msft/{what}/{self.rank}", json.dumps(content))

    def _said(self, what: str, rank: int) -> Any:
        key = f"msft/{what}/{rank}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    # Endings.

    def _disagreement(self, lists: Sequence[Sequence[str]]) -> Exception:
        """lists: the meetings of each rank since they last agreed."""
        pairs = (
            (lists[0][place : place + 1], rank, each[place : place + 1])
            for place in range(max(map(len, lists)))
            for rank, each in enumerate(lists)
        )
        here, rank, there = next(pair for pair in pairs if pair[0] != pair[2])
        named = [f"'{each[0]}'" if each else "past it" for each in (here, there)]
        message = (
            f"ranks meet at different places: rank 0 is at {named[0]}, rank {rank} is at "
            f"{named[1]}. Nothing was written from it; the same command goes on from the last line "
            "of the log. This is a fault of msft: please report it"
        )
        if self.rank:
            return RankFailed(message, RanksDisagree.exit_code, said=True)
        return RanksDisagree(message)

    def _lost(self) -> Exception:
        """Another process has gone; if ranks were at different meetings, that is why."""
        with suppress(RuntimeError):
            try:
                self._say("at", [self._agreed, self._met])
                self._refuse_apart(self._others())
            except (RanksDisagree, RankFailed) as error:
                return error
        return self._ended(f"{LOST} (rank {self.rank} waited for it at '{self._met[-1]}')")

    def _not_there(self) -> BaseException:
        signal = asked()
        if signal:
            return Stopped(signal)
        return self._ended(
            f"rank {process.rank()} has waited {self._patience.rendezvous} s for the other "
            f"{process.world() - 1} of {process.world()} processes, and not all are there; see "
            "what they say, or give rendezvous_timeout more seconds. Nothing was started"
        )

    def _ended(self, message: str) -> Exception:
        """Everybody who is left says it: rank 0 may be the one that has gone."""
        return RankFailed(message, FAILED, said=False)


def _let_wait(group: Any, seconds: int) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


@cache
def _group() -> list[Group]:
    """The group of this process, once it is there: it is made once."""
    return []


def _find_rank0(seconds: float) -> None:
    """Wait until rank 0 can be reached; ConnectionError after so many seconds. torch would wait
    two or three times as long, and print a trace of its C++ code for each attempt."""
    if process.rank() == 0 or "MASTER_PORT" not in os.environ:  # torch says if it is missing
        return
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError as error:
            if asked() or time.monotonic() >= until:
                raise ConnectionError(f"rank 0 cannot be reached: {error}") from error
            time.sleep(0.1)


def joined(patience: Patience) -> Ranks:
    """The processes of this run, once they have met; alone, if there are no others."""
    if process.world() == 1:
        return ALONE
    if not _group():
        _group().append(Group(device_here(), patience))
    return _group()[0]


def excuse_compiling() -> None:
    """The others of this process's group, if there is one, wait while it compiles."""
    for group in _group():
        group.excuse_compiling()
