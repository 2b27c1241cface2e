"""Ranks that are threads of one process: they meet at a barrier, and hand each other tensors.
One works at a time, since the engine has a layout and a generator for the whole process."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Barrier, Lock, Thread
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")


class ThreadRanks:
    """One of several; `table` is where each lays what the others take."""

    def __init__(self, rank: int, barrier: Barrier, turn: Any, table: list[Any]) -> None:
        self.rank, self.world = rank, len(table)
        self._barrier = barrier
        self._turn = turn
        self._table = table
        self._met = ""

    def note(self, what: str) -> None:
        self._met += f"{what}, "

    def busy(self, work: str) -> AbstractContextManager[None]:
        return nullcontext()

    def gather(self, meeting: str, content: Any) -> list[Any]:
        return [json.loads(text) for text in self._laid(meeting, json.dumps(content))]

    def total(self, meeting: str, numbers: Any) -> Any:
        every = self._laid(meeting, numbers.clone())
        return numbers.copy_(torch.stack(every).sum(0))

    def exchange(
        self, meeting: str, given: Any, sizes: Sequence[int], wanted: Sequence[int]
    ) -> Any:
        assert sum(sizes) == len(given)
        every = self._laid(meeting, (given, sizes))
        got = [sent.split([*parts])[self.rank].clone() for sent, parts in every]
        assert [len(part) for part in got] == [*wanted]
        self._meet()
        return torch.cat(got)

    def spread(self, meeting: str, numbers: Any, source: int) -> None:
        numbers.copy_(self._laid(meeting, numbers.clone())[source])

    def _laid(self, meeting: str, content: Any) -> list[Any]:
        self._table[self.rank] = (self._met + meeting, content)
        self._meet()
        every = list(self._table)
        self._meet()
        meetings = {each[0] for each in every}
        assert len(meetings) == 1, f"ranks meet at different places: {sorted(meetings)}"
        self._met = ""
        return [each[1] for each in every]

    def _meet(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()


def in_threads(world: int, work: Callable[[ThreadRanks], Made]) -> list[Made]:
    """What each of so many ranks makes of it; an error of one is raised here."""
    barrier, turn, table = Barrier(world, timeout=30), Lock(), [None] * world
    made: list[Any] = [None] * world
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with turn:
            try:
                made[rank] = work(ThreadRanks(rank, barrier, turn, table))
            except BaseException as error:
                errors.append(error)
                barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return made
