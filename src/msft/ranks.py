"""Ranks: the processes of one run, and how they meet.

A run under `torchrun` is the same program in every process, and each comes to the same meetings in
the same order. Every meeting has a name, with the key of what it is about, such as "parts of
r0-t3.weights". Ranks that come to different ones fail, and say which. One process alone meets
nobody: `Alone` is the identity. Several are a `Group`, in `engine/ranks.py`, which has torch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msft import process
from msft.errors import FAILED, RankFailed, worded

Made = TypeVar("Made")
LOST = (
    "another process of this run has ended or cannot be reached, so this one ends too; nothing "
    "that was saved is lost, and the same command goes on"
)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a rank waits for the others: until all are there, in a step, and where another
    one is at long work, such as loading and saving."""

    rendezvous: int = 60
    step: int = 600
    saving: int = 7200


class Ranks(Protocol):
    """The processes of a run, as one of them sees them.

    meeting: the name of what is done together, the same in all ranks. `gather` compares the names
        since the last `gather`: those of tensors cost no message of their own.
    """

    rank: int
    world: int

    def note(self, what: str) -> None:
        """Something that all ranks do at this place, without a meeting; the next one compares."""

    def busy(self, work: str) -> AbstractContextManager[None]:
        """Inside, the others wait longer for this rank."""

    def gather(self, meeting: str, content: Any) -> list[Any]:
        """What each rank has, as JSON gives it back, by rank. Stopped in all, once, if a signal
        came to one."""

    def total(self, meeting: str, numbers: Any) -> Any:
        """The sum over ranks, in place; of numbers that one rank has, and the others have zeros."""

    def exchange(
        self, meeting: str, given: Any, sizes: Sequence[int], wanted: Sequence[int]
    ) -> Any:
        """Hand the first `sizes[0]` numbers to rank 0, the next ones to rank 1, and so on; get
        `wanted[r]` numbers from rank r, in the order of ranks."""

    def spread(self, meeting: str, numbers: Any, source: int) -> None:
        """Let every rank have what rank `source` has, in place."""


class Alone:
    """One process: it has everything, and nothing travels."""

    rank, world = 0, 1

    def note(self, what: str) -> None: ...

    def busy(self, work: str) -> AbstractContextManager[None]:
        return nullcontext()

    def gather(self, meeting: str, content: Any) -> list[Any]:
        return [content]

    def total(self, meeting: str, numbers: Any) -> Any:
        return numbers

    def exchange(
        self, meeting: str, given: Any, sizes: Sequence[int], wanted: Sequence[int]
    ) -> Any:
        return given

    def spread(self, meeting: str, numbers: Any, source: int) -> None: ...


ALONE = Alone()


def all_or_fail(ranks: Ranks, meeting: str, work: Callable[[], Made]) -> Made:
    """Do something in every rank; where it fails in one, all fail, and rank 0 says why."""
    if ranks.world == 1:
        return work()
    with ranks.busy(meeting):
        tried = attempt(work)
    return settled(ranks, meeting, tried)


def settled(ranks: Ranks, meeting: str, tried: "Tried[Made]") -> Made:
    """What this rank has made, if all have; see `all_or_fail`."""
    made, error = tried
    _refuse(ranks, ranks.gather(meeting, _said(error)), error)
    return made[0]


def from_rank0(ranks: Ranks, meeting: str, work: Callable[[], Made]) -> Made:
    """What rank 0 makes, as JSON has it, in every rank; where that fails, it fails in all."""
    if ranks.world == 1:
        return work()
    made: list[Made] = []
    error = None
    if ranks.rank == 0:
        with ranks.busy(meeting):
            made, error = attempt(work)
    found = ranks.gather(meeting, [_said(error), *made])
    _refuse(ranks, [each[0] for each in found], error)
    first: Made = made[0] if made else found[0][1]
    return first


@contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Inside, RankFailed where another process has gone; gloo and NCCL have words of their own."""
    try:
        yield
    except RuntimeError as error:
        of_torch = "gloo" in str(error) or type(error).__name__.startswith("Dist")
        if process.world() == 1 or not of_torch:
            raise
        raise RankFailed(LOST, FAILED, said=False) from error


def least(ranks: Ranks, meeting: str, number: int) -> int:
    """The smallest of what the ranks have."""
    return int(min(ranks.gather(meeting, number)))


Tried = tuple[list[Made], Exception | None]
"""What was made, or why it was not."""


def attempt(work: Callable[[], Made]) -> Tried[Made]:
    try:
        return [work()], None
    except Exception as error:
        return [], worded(error)


def _said(error: Exception | None) -> list[Any] | None:
    return None if error is None else [str(error), getattr(error, "exit_code", FAILED)]


def _refuse(ranks: Ranks, said: list[Any], error: Exception | None) -> None:
    """Rank 0's own error, or else the first of the others'."""
    failed = [(rank, *each) for rank, each in enumerate(said) if each is not None]
    if not failed:
        return
    rank, message, code = failed[0]
    if ranks.rank == 0 and error is not None:
        raise error
    raise RankFailed(f"rank {rank}: {message}", code, said=ranks.rank > 0)
