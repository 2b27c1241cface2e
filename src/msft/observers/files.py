"""The files beside the log: `steps.jsonl`, `losses.jsonl` and `summary.json`.

Nothing is decided by steps and losses, so where the disk has no room for them the run goes on.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msft.files import DAMAGED, kind_of, open_to_append, read_text
from msft.observers.observer import Losses, Observer, Watched
from msft.run.folder import write_json
from msft.run.history import History, summary_of
from msft.run.log import Event, PointEvent, ScoresEvent
from msft.run.worker import Step
from msft.search.curves import SELECTION


class Lines:
    """Gathers lines and adds them to a file at each `flush`."""

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self._path = path
        self._notice = notice
        self._lines: list[str] = []
        self._file: IO[bytes] | None = open_to_append(path)

    def add(self, line: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(line) + "\n")

    def flush(self) -> None:
        text, self._lines = "".join(self._lines), []
        if self._file is None or not text:
            return
        rest, end = memoryview(text.encode()), os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            os.ftruncate(self._file.fileno(), end)  # half a line would hide all that come later
            self._notice(
                f"{self._path} is not written any more ({error.strerror}); the run goes on"
            )
            self._stop()

    def close(self) -> None:
        self.flush()
        self._stop()

    def _stop(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None


class StepsFile(Observer):
    """`steps.jsonl`: loss, tokens and seconds of every optimizer step."""

    _lines: Lines | None = None

    def begin(self, run: Watched) -> None:
        self._lines = Lines(run.folder.steps, run.notice)
        self._begun = time.monotonic()

    def step(self, step: Step) -> None:
        if self._lines is not None:
            self._lines.add(step.line(time.monotonic() - self._begun))

    def event(self, history: History, event: Event, live: bool) -> None:
        if live and self._lines is not None:
            self._lines.flush()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


class LossesFile(Observer):
    """`losses.jsonl`: the losses of references, where a recipe asks for `validation_loss`. Those of
    an evaluation are written when the log has its event.

    latest: those that belong to the latest event.
    """

    _lines: Lines | None = None
    latest: Losses = {}  # noqa: RUF012  never changed, only replaced

    def begin(self, run: Watched) -> None:
        self._known = read_losses(run.folder.losses)
        self._gathered: dict[str, float] = {}
        self._lines = Lines(run.folder.losses, run.notice)

    def gather(self, losses: Losses) -> None:
        """An evaluation has ended; the event that belongs to it comes next."""
        if self._lines is not None:
            self._gathered |= losses

    def event(self, history: History, event: Event, live: bool) -> None:
        if self._lines is None:
            return
        self.latest = {}
        if not isinstance(event, PointEvent | ScoresEvent):
            return
        if isinstance(event, ScoresEvent) and event.split != SELECTION:
            return
        if not live:
            self.latest = self._known.get(event.checkpoint, {})
            return
        self.latest, self._gathered = self._gathered, {}
        if self.latest:
            self._lines.add({"checkpoint": event.checkpoint, "losses": self.latest})
            self._lines.flush()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def read_losses(path: Path) -> dict[str, Losses]:
    """Losses by checkpoint; a line that cannot be read is left out."""
    found: dict[str, Losses] = {}
    try:
        lines = read_text(path).splitlines() if kind_of(path) else []
    except DAMAGED:
        return found
    for line in lines:
        try:
            content = json.loads(line)
            losses = {str(name): float(loss) for name, loss in content["losses"].items()}
            found[str(content["checkpoint"])] = losses
        except DAMAGED:
            continue
    return found


class SummaryFile(Observer):
    """`summary.json`, as each roll-out begins and after each decision."""

    def begin(self, run: Watched) -> None:
        self._path = run.folder.summary

    def event(self, history: History, event: Event, live: bool) -> None:
        if live and event.event in ("rollout", "decision"):
            write_json(self._path, summary_of(history))
