"""Watching: reports that are built anew while their runs go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msft.app.terminal.screen import show
from msft.files import kind_of
from msft.report import write_comparison, write_report
from msft.run.folder import RunFolder
from msft.run.log import is_being_written

SECONDS = 5


def watch(
    folders: Sequence[Path],
    seconds: float = SECONDS,
    say: Callable[[str], None] = show,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Build each report whenever its log has grown, until all runs have ended.

    A page of a run that goes on reloads itself every so many seconds. A run that was stopped has
    not ended: it can go on, and is waited for.
    """
    watched = [_Watched(folder) for folder in folders]
    while True:
        news = [each.refresh(seconds, say) for each in watched]
        if any(news) and len(watched) > 1 and all(each.begun for each in watched):
            place = folders[0].parent / "report.html"
            page = write_comparison(folders, place)
            if all(each.ended for each in watched):
                say(str(page))
        if all(each.ended for each in watched):
            return
        sleep(seconds)


class _Watched:
    """One run folder, and what its report shows: how much of its log, and whether an audit has its
    result."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = -1
        self._result = False
        self._waiting = False
        self._held = False
        self._told = False
        self.begun = False
        self.ended = False

    def refresh(self, seconds: float, say: Callable[[str], None]) -> bool:
        """Build the report if there is something new; whether there was."""
        log = RunFolder(self._folder).log
        size = log.stat().st_size if log.is_file() else -1
        held, result = is_being_written(log), kind_of(RunFolder(self._folder).audit) is not None
        self._tell(held or self.ended or size != self._size, say)
        if self.ended or (size, held, result) == (self._size, self._held, self._result):
            return self._wait(say)
        self._held, self._result = held, result
        self._size = size
        if not RunFolder(self._folder).events():
            return self._wait(say)
        files = RunFolder(self._folder)
        self.ended = files.is_finished() and (result or not files.is_audit())
        page = write_report(self._folder, None if self.ended else max(1, round(seconds)))
        if not self.begun or self.ended:
            state = "the run has ended" if self.ended else "reloads while the run goes on"
            say(f"{state}:\n{page}")
        self.begun = True
        return True

    def _tell(self, alive: bool, say: Callable[[str], None]) -> None:
        """Say once that a run was stopped or killed. It may go on, so it is still watched."""
        if self.begun and not alive and not self._told:
            files = RunFolder(self._folder)
            command = "audit" if files.is_audit() else "train"
            say(
                f"no process works on {self._folder}, and its run has not ended: it was stopped or "
                f"killed. `msft {command} {files.recipe} --out {self._folder}` goes on with it; "
                "waiting for that"
            )
        self._told = not alive

    def _wait(self, say: Callable[[str], None]) -> bool:
        if not self.begun and not self._waiting:
            say(f"{self._folder} has no events in a run.jsonl yet; waiting for the run to start")
            self._waiting = True
        return False
