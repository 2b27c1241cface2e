"""Where the ranks of a run meet outside of training: at each line of the log, and at each step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path

from msft.errors import RankFailed, RanksDisagree, Stopped
from msft.ranks import Ranks, from_first
from msft.run.log import Event, Log, from_line, to_line
from msft.stopping import asked, check, held


class Meetings:
    """One process meets nobody: then nothing is compared, and a signal stops it where it is.

    settle: what else is due when all ranks are at the same line.
    """

    def __init__(self, ranks: Ranks, settle: Callable[[], None]) -> None:
        self._ranks = ranks
        self._settle = settle

    def log(self, path: Path) -> Log:
        """The log, which rank 0 reads and writes; the others have its events."""
        if self._ranks.world == 1:
            return Log(path, agree=lambda event, line: self._settle())
        mine: list[Log] = []

        def lines() -> list[str]:
            mine.append(Log(path, agree=self._agree))
            return [to_line(event).decode() for event in mine[0].events]

        found = from_first(self._ranks, lines)
        events = [from_line(line.encode()) for line in found]
        return mine[0] if mine else Log(events=events, agree=self._agree)

    def waiting(self) -> AbstractContextManager[None]:
        """Inside, a signal waits until all ranks know of it."""
        return nullcontext() if self._ranks.world == 1 else held()

    def stop_if_asked(self) -> None:
        """Stopped, in every rank, if a signal came to one."""
        if self._ranks.world == 1:
            check()
            return
        signals = [name for name in self._ranks.gather(asked()) if name]
        if signals:
            raise Stopped(signals[0])

    def _agree(self, event: Event, line: bytes) -> None:
        digests = self._ranks.gather(sha256(line).hexdigest())
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:
            where = getattr(event, "checkpoint", None) or f"the event {event.event!r}"
            message = (
                f"ranks disagree at {where}: rank {odd[0]} came to another line of the log than "
                "rank 0, so nothing was written; the same command goes on from the line before. If "
                "it happens again, set deterministic: true"
            )
            if self._ranks.rank:
                raise RankFailed(message, RanksDisagree.exit_code, said=True)
            raise RanksDisagree(message)
        self._settle()
