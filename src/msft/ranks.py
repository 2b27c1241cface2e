"""Ranks: the processes of one run, and how they meet.

A run under `torchrun` is the same program in every process, and each comes to the same meetings in
the same order. One process alone meets nobody: `Alone` is the identity. Several are a `Group`, in
`engine/ranks.py`, which has torch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from msft import launch
from msft.errors import FAILED, RankFailed
from msft.system_errors import worded

Made = TypeVar("Made")


class Ranks(Protocol):
    """The processes of a run, as one of them sees them."""

    rank: int
    world: int

    def gather(self, content: Any) -> list[Any]:
        """What each rank has, as JSON gives it back, by rank."""

    def total(self, numbers: Any) -> Any:
        """The sum over ranks, in place; of numbers that one rank has, and the others have zeros."""

    def exchange(self, given: Any, sizes: Sequence[int], wanted: Sequence[int]) -> Any:
        """Hand the first `sizes[0]` numbers to rank 0, the next ones to rank 1, and so on; get
        `wanted[r]` numbers from rank r, in the order of ranks."""

    def spread(self, numbers: Any, source: int) -> None:
        """Let every rank have what rank `source` has, in place."""


class Alone:
    """One process: it has everything, and nothing travels."""

    rank, world = 0, 1

    def gather(self, content: Any) -> list[Any]:
        return [content]

    def total(self, numbers: Any) -> Any:
        return numbers

    def exchange(self, given: Any, sizes: Sequence[int], wanted: Sequence[int]) -> Any:
        return given

    def spread(self, numbers: Any, source: int) -> None: ...


ALONE = Alone()


def together(ranks: Ranks, work: Callable[[], Made]) -> Made:
    """Do something in every rank; where it fails in one, all fail, and rank 0 says why."""
    made, error = _tried(work)
    _refuse(ranks, ranks.gather(_said(error)), error)
    return made[0]


def from_first(ranks: Ranks, work: Callable[[], Made]) -> Made:
    """What rank 0 makes, as JSON has it, in every rank; where that fails, it fails in all."""
    made, error = _tried(work) if ranks.rank == 0 else ([], None)
    found = ranks.gather([_said(error), *made])
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
        if launch.world() == 1 or not of_torch:
            raise
        raise RankFailed(
            "another process of this run has ended or cannot be reached, so this one ends too; "
            "nothing that was saved is lost, and the same command goes on",
            FAILED,
            said=launch.rank() > 0,
        ) from error


def least(ranks: Ranks, number: int) -> int:
    """The smallest of what the ranks have."""
    return int(min(ranks.gather(number)))


def _tried(work: Callable[[], Made]) -> tuple[list[Made], Exception | None]:
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
