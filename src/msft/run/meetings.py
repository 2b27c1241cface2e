"""Where the ranks of a run meet outside of training: at each line of the log, and at each step."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from msft.errors import RankFailed, RanksDisagree
from msft.process import check
from msft.ranks import Ranks, from_first
from msft.run.log import Event, Log, from_line, to_line


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

        found = from_first(self._ranks, "lines of the log", lines)
        events = [from_line(line.encode()) for line in found]
        return mine[0] if mine else Log(events=events, agree=self._agree)

    def stop_if_asked(self, step: str) -> None:
        """Stopped, in every rank, if a signal came to one."""
        if self._ranks.world == 1:
            check()
        else:
            self._ranks.gather(step, None)

    def _agree(self, event: Event, line: bytes) -> None:
        where = getattr(event, "checkpoint", None) or f"the event {event.event!r}"
        digests = self._ranks.gather("a line of the log", sha256(line).hexdigest())
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:
            message = (
                f"ranks disagree at {where}: rank {odd[0]} came to another line of the log than "
                "rank 0, so nothing was written; the same command goes on from the line before. If "
                "it happens again, set deterministic: true"
            )
            if self._ranks.rank:
                raise RankFailed(message, RanksDisagree.exit_code, said=True)
            raise RanksDisagree(message)
        self._settle()
