"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere.

Both read the same `Board`, which follows the events of the log and the steps of the engine.
"""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from msft.app.terminal.board import Board
from msft.app.terminal.guard import unguarded
from msft.app.terminal.result_text import ENDINGS, checkpoint_in_words
from msft.layout import WIDTH, columns_of, cut, fitted, flowed, screen_width
from msft.run.history import History
from msft.run.log import (
    AverageEvent,
    DecisionEvent,
    EndEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
)
from msft.run.worker import Step
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import TEST, Scores
from msft.text import SELECTED_ON_TEST, counted, safe

MOST_SCORES = 12
"""Sub-datasets that a plain line names; with more of them it says how many are left out."""
LONGEST = 40
"""Characters of a name before a score."""
STILL_RISING = "all were still at their highest"


class Progress(Protocol):
    """Something that is told of events and steps."""

    def event(self, event: Event, live: bool) -> None: ...

    def step(self, step: Step) -> None: ...


class PlainLines:
    """A line or a few per tick and per decision, for files and pipes.

    A reader who goes away (`| head`) does not stop a run: it goes on in silence.
    """

    def __init__(self, out: IO[str] | None = None, folder: Path | None = None) -> None:
        self._board = Board(folder=folder)
        self._out: IO[str] | None = out or sys.stdout
        self._width = screen_width(self._out) or WIDTH
        self._known: CheckpointId | None = None

    def event(self, event: Event, live: bool) -> None:
        self._board.event(event, live)
        if not live:
            self._known = event.checkpoint if isinstance(event, PointEvent) else self._known
            return
        if self._known is not None:
            self._say(f"going on after {checkpoint_in_words(self._known)}")
            self._known = None
        line = event_text(event, self._board, self._width)
        for each in ([line] if line else []) + self._board.remarks.after(event):
            self._say(fitted(each, self._width))

    def _say(self, line: str) -> None:
        try:
            if self._out is not None:
                print(line, file=self._out, flush=True)
        except BrokenPipeError:
            self._out = None

    def step(self, step: Step) -> None:
        self._board.step(step)


def event_text(event: Event, board: Board, width: int = WIDTH) -> str | None:
    """An event in words; None where there is nothing to say. Scores are laid out for the width."""
    history = board.history
    match event:
        case RunEvent() if history.selected_on_test:
            return SELECTED_ON_TEST
        case RolloutEvent():
            epochs = counted(event.ticks / history.evals_per_epoch, "epoch")
            start, names = checkpoint_in_words(event.start), _some(list(event.active))
            return f"stage {event.rollout}: {epochs} from {start} on {', '.join(names)}"
        case PointEvent():
            loss = f", loss {event.loss[0] / event.loss[1]:.3f}" if event.loss[1] else ""
            full = history.has_mean(event.checkpoint)
            mean = f", {mean_text(history, event.checkpoint)}" if full else ""
            said = f"  epoch {board.epoch:.2f}, checkpoint {event.checkpoint}{loss}{mean}:"
            return _with_scores(said, event.scores, width)
        case AverageEvent():
            parts = ", ".join(_some([*event.of]))
            return f"  average {event.checkpoint} is of the weights at checkpoints {parts}"
        case ScoresEvent() if event.split != history.selection:
            said = f"  {checkpoint_in_words(event.checkpoint)} on test:"
            if history.has_mean(event.checkpoint, TEST):
                return f"{said} {mean_text(history, event.checkpoint, TEST)}"
            return _with_scores(said, event.scores, width)
        case ScoresEvent() if event.checkpoint == BASE or event.checkpoint in history.averages:
            point, mean = (
                checkpoint_in_words(event.checkpoint),
                mean_text(history, event.checkpoint),
            )
            return _with_scores(f"  {point}, {mean}:", event.scores, width)
        case DecisionEvent(what="exclude"):
            here = history.stages[-1].points[-1:]
            stays = bool(here) and here[0].checkpoint == event.checkpoint
            where = "training goes on from" if stays else "training goes back to"
            gone, there = ", ".join(event.names), checkpoint_in_words(event.checkpoint)
            return f"  → {gone} left; {where} {there}"
        case DecisionEvent(what="go_on"):
            tested = any(stage.falls for stage in history.stages[-1:])
            why = "none surely fell" if tested else STILL_RISING
            from_there = f"training goes on from {checkpoint_in_words(event.checkpoint)}"
            return f"  → no sub-dataset left: {why}; {from_there}"
        case EndEvent():
            best, mean = checkpoint_in_words(event.best), mean_text(history, event.best)
            return f"done: {ENDINGS[event.by]}; the best is {best}, {mean}"
    return None


def _with_scores(said: str, scores: Scores, width: int) -> str:
    """What is said of a point, and its scores: behind it if all fit on the line, else below."""
    pairs = scores.items()
    texts = _some([f"{cut(name, LONGEST)} {float(score.value):.3f}" for name, score in pairs])
    line = "  ".join([said, *texts])
    if columns_of(line) <= width:
        return line
    return "\n".join([said, *flowed(texts, width, "  ", "      ", "      ")])


def mean_text(history: History, checkpoint: CheckpointId, split: str | None = None) -> str:
    """The mean; where metrics are mixed, that of the gains over the base model. It is said of the
    split that selects where that is test."""
    mean = float(history.mean(checkpoint, split))
    text = f"mean gain {mean:+.4f}" if history.mixed else f"mean {mean:.4f}"
    return f"{text} on test, which selects" if history.selected_on_test else text


def _some(texts: list[str]) -> list[str]:
    rest = len(texts) - MOST_SCORES
    return [*texts[:MOST_SCORES], *([f"… {rest} more"] if rest > 0 else [])]


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
