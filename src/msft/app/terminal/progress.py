"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere.

Both read the same `Board`, which follows the events of the log and the steps of the engine.
"""

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from msft.app.terminal.guard import unguarded
from msft.app.terminal.remarks import Remarks
from msft.run.history import History
from msft.run.log import Asked, Averaged, Decided, Ended, Event, Measured, Reached
from msft.run.worker import Step
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import SELECTION, TEST, Score, Scores
from msft.text import counted, safe

MOST_SCORES = 12
"""Sub-datasets that a plain line names; with more of them it says how many are left out."""


STILL_RISING = "all were still at their highest"

Placed = tuple[CheckpointId, Score]
"""A score and where it was measured."""


class Progress(Protocol):
    """Something that is told of events and steps."""

    def event(self, event: Event, live: bool) -> None: ...

    def step(self, step: Step) -> None: ...


class Board:
    """Where a run stands, for showing.

    kept: sub-datasets that may never be excluded.
    folder: of the run, whose rows say how sure an exclusion is.
    """

    def __init__(self, kept: Collection[str] = (), folder: Path | None = None) -> None:
        self.history = History()
        self.remarks = Remarks(self.history, folder)
        self.kept = kept
        self.loss: float | None = None
        self.tokens = 0
        self._begun = time.monotonic()
        self._tick_begun = time.monotonic()
        self._tick_seconds: list[float] = []
        self._scores: dict[str, list[Placed]] = {}
        self._best: dict[str, Placed] = {}

    def event(self, event: Event, live: bool) -> None:
        self.history.add(event)
        if isinstance(event, Reached) or (isinstance(event, Measured) and event.split == SELECTION):
            for name, score in event.scores.items():
                placed = (event.checkpoint, score)
                self._scores.setdefault(name, []).append(placed)
                if score.height > self._best.setdefault(name, placed)[1].height:
                    self._best[name] = placed
        if isinstance(event, Reached) and live:
            self._tick_seconds.append(time.monotonic() - self._tick_begun)
        self._tick_begun = time.monotonic()

    def step(self, step: Step) -> None:
        self.loss = step.loss
        self.tokens += step.tokens

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(1e-9, time.monotonic() - self._begun)

    @property
    def seconds_left(self) -> float | None:
        """Of the present roll-out; how many will follow is what the search finds out."""
        if not self.history.stages or not self._tick_seconds:
            return None
        stage = self.history.stages[-1]
        recent = self._tick_seconds[-4:]
        each = sum(recent) / len(recent)
        begun = min(each, time.monotonic() - self._tick_begun)
        return max(0.0, (stage.asked.ticks - stage.ticks) * each - begun)

    @property
    def epoch(self) -> float:
        return self.history.stages[-1].ticks / self.history.evals_per_epoch

    def left(self, name: str) -> tuple[int, float] | None:
        """The stage after which a sub-dataset left, and at which epoch of it."""
        for number, stage in enumerate(self.history.stages):
            for gone, tick in stage.excluded:
                if gone == name:
                    return number, tick / self.history.evals_per_epoch
        return None

    def active(self, name: str) -> bool:
        return bool(self.history.stages) and name in self.history.stages[-1].asked.active

    def state(self, name: str) -> str:
        """kept, active, left (with where), or waiting."""
        left = self.left(name)
        if left is not None:
            return f"left at epoch {left[1]:g} of stage {left[0]}"
        if self.active(name):
            return "kept" if name in self.kept else "active"
        return "waiting"

    def scores(self, name: str) -> list[Placed]:
        """A sub-dataset's scores in the order in which they were measured."""
        return self._scores.get(name, [])

    def best(self, name: str) -> Placed | None:
        """The earliest of its highest scores, and where it was."""
        return self._best.get(name)


class PlainLines:
    """One line per tick and per decision, for files and pipes.

    A reader who goes away (`| head`) does not stop a run: it goes on in silence.
    """

    def __init__(self, out: IO[str] | None = None, folder: Path | None = None) -> None:
        self._board = Board(folder=folder)
        self._out: IO[str] | None = out or sys.stdout
        self._known: CheckpointId | None = None

    def event(self, event: Event, live: bool) -> None:
        self._board.event(event, live)
        if not live:
            self._known = event.checkpoint if isinstance(event, Reached) else self._known
            return
        if self._known is not None:
            self._say(f"going on after {self._known}")
            self._known = None
        line = event_text(event, self._board)
        for each in ([line] if line else []) + self._board.remarks.after(event):
            self._say(each)

    def _say(self, line: str) -> None:
        try:
            if self._out is not None:
                print(line, file=self._out, flush=True)
        except BrokenPipeError:
            self._out = None

    def step(self, step: Step) -> None:
        self._board.step(step)


def event_text(event: Event, board: Board) -> str | None:
    """An event in words; None where there is nothing to say."""
    history = board.history
    match event:
        case Asked():
            epochs = event.ticks / history.evals_per_epoch
            names = _some(list(event.active), ", ")
            return (
                f"stage {event.rollout}: {counted(epochs, 'epoch')} from {event.start} on {names}"
            )
        case Reached():
            full = history.has_mean(event.checkpoint)
            loss = f"loss {event.loss[0] / event.loss[1]:.3f} " if event.loss[1] else ""
            mean = f"{mean_text(history, event.checkpoint)} " if full else ""
            scores = _scores(event.scores)
            return f"  {event.checkpoint:9} epoch {board.epoch:5.2f} {loss}{mean}| {scores}"
        case Averaged():
            return f"  {event.checkpoint} is the mean of the weights at {_some([*event.of], ', ')}"
        case Measured() if event.split == TEST:
            if not history.has_mean(event.checkpoint, TEST):
                return f"  {event.checkpoint} on test: scored"
            return f"  {event.checkpoint} on test: {mean_text(history, event.checkpoint, TEST)}"
        case Measured() if event.checkpoint == BASE or event.checkpoint in history.averages:
            scores = _scores(event.scores)
            return f"  {event.checkpoint:9} {mean_text(history, event.checkpoint)} | {scores}"
        case Decided(what="exclude"):
            here = history.stages[-1].points[-1:]
            stays = bool(here) and here[0].checkpoint == event.checkpoint
            where = "; on from" if stays else "; back to"
            return f"  -> {', '.join(event.names)} left{where} {event.checkpoint}"
        case Decided(what="go_on"):
            tested = any(stage.falls for stage in history.stages[-1:])
            why = "nobody fell for sure" if tested else STILL_RISING
            return f"  -> nobody left: {why}; on from {event.checkpoint}"
        case Ended():
            return f"done ({event.by}); best is {event.best}, {mean_text(history, event.best)}"
    return None


def mean_text(history: History, checkpoint: CheckpointId, split: str = SELECTION) -> str:
    """The mean; where metrics are mixed, that of the gains over the base model."""
    mean = float(history.mean(checkpoint, split))
    return f"mean gain {mean:+.4f}" if history.mixed else f"mean {mean:.4f}"


def _scores(scores: Scores) -> str:
    return _some([f"{name} {float(score.value):.3f}" for name, score in scores.items()], " ")


def _some(texts: list[str], between: str) -> str:
    rest = len(texts) - MOST_SCORES
    return between.join(texts[:MOST_SCORES]) + (f"{between}… {rest} more" if rest > 0 else "")


@contextmanager
def progress(
    title: str, quiet: bool = False, kept: Collection[str] = (), folder: Path | None = None
) -> Iterator[Progress | None]:
    """The right one for where the output goes; None says nothing. kept, folder: as of a Board."""
    out = sys.stdout
    if quiet:
        yield None
    elif out.isatty():
        from rich.console import Console
        from rich.live import Live

        from msft.app.terminal.live_table import LiveTable

        live = Live(console=Console(file=unguarded(out)), refresh_per_second=2)
        try:
            yield LiveTable(live, safe(title), Board(kept, folder))
        finally:
            live.stop()
    else:
        yield PlainLines(out, folder)
