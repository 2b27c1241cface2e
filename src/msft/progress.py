"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere.

Both read the same `Board`, which follows the events of the log and the steps of the engine.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

from msft.history import TEST, History
from msft.log import Asked, Decided, Ended, Event, Measured, Reached
from msft.rollout import BASE, CheckpointId
from msft.worker import Step

BARS = "▁▂▃▄▅▆▇█"


class Progress(Protocol):
    """Something that is told of events and steps."""

    def event(self, event: Event, live: bool) -> None: ...

    def step(self, step: Step) -> None: ...


class Board:
    """Where a run stands, for showing."""

    def __init__(self) -> None:
        self.history = History()
        self.loss: float | None = None
        self.tokens = 0
        self._begun = time.monotonic()
        self._tick_begun = time.monotonic()
        self._tick_seconds: list[float] = []

    def event(self, event: Event, live: bool) -> None:
        self.history.add(event)
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
        return (stage.asked.ticks - stage.ticks) * sum(recent) / len(recent)

    @property
    def epoch(self) -> float:
        return self.history.stages[-1].ticks / self.history.evals_per_epoch

    def state(self, name: str) -> str:
        """active, rehearsed, excluded (with where), or waiting."""
        for number, stage in enumerate(self.history.stages):
            for left, tick in stage.excluded:
                if left == name:
                    return f"left in stage {number} at {tick / self.history.evals_per_epoch:g}"
        active = self.history.stages and name in self.history.stages[-1].asked.active
        return "active" if active else "waiting"

    def scores(self, name: str) -> list[tuple[CheckpointId, float]]:
        """A sub-dataset's scores in the order in which they were measured."""
        known = self.history.scores["validation"]
        return [(c, float(s[name].value)) for c, s in known.items() if name in s]

    def best(self, name: str) -> tuple[CheckpointId, float] | None:
        known = self.history.scores["validation"]
        heights = [(c, s[name]) for c, s in known.items() if name in s]
        if not heights:
            return None
        checkpoint, score = max(heights, key=lambda pair: pair[1].height)
        return checkpoint, float(score.value)


def sparkline(numbers: list[float], width: int = 16) -> str:
    """The last `width` numbers as bars."""
    recent = numbers[-width:]
    if not recent:
        return ""
    low, high = min(recent), max(recent)
    span = (high - low) or 1.0
    return "".join(BARS[round((number - low) / span * (len(BARS) - 1))] for number in recent)


class Silent:
    """Says nothing."""

    def event(self, event: Event, live: bool) -> None:
        pass

    def step(self, step: Step) -> None:
        pass


class PlainLines:
    """One line per tick and per decision, for files and pipes."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._board = Board()
        self._out = out or sys.stdout

    def event(self, event: Event, live: bool) -> None:
        self._board.event(event, live)
        line = described(event, self._board)
        if line and live:
            print(line, file=self._out, flush=True)

    def step(self, step: Step) -> None:
        self._board.step(step)


def described(event: Event, board: Board) -> str | None:
    """An event in words; None where there is nothing to say."""
    history = board.history
    match event:
        case Asked():
            names = ", ".join(event.active)
            epochs = event.ticks / history.evals_per_epoch
            return f"stage {event.rollout}: {epochs:g} epochs from {event.start} on {names}"
        case Reached():
            scores = " ".join(f"{n} {float(s.value):.3f}" for n, s in event.scores.items())
            loss = f"loss {event.loss[0] / event.loss[1]:.3f} " if event.loss[1] else ""
            return f"  {event.checkpoint:9} epoch {board.epoch:5.2f} {loss}| {scores}"
        case Measured() if event.split == TEST:
            mean = float(history.mean(event.checkpoint, TEST))
            return f"  {event.checkpoint} on test: mean {mean:.4f}"
        case Measured() if event.checkpoint == BASE:
            return f"  base      mean {float(history.mean(BASE)):.4f}"
        case Decided(what="exclude"):
            names = ", ".join(event.names)
            return f"  -> {names} left; back to {event.checkpoint}"
        case Ended():
            return f"done ({event.by}); best is {event.best}, {float(history.mean(event.best)):.4f}"
    return None


class LiveTable:
    """One row per sub-dataset, redrawn as the run goes on (rich)."""

    def __init__(self, live: Any, title: str) -> None:
        self._board = Board()
        self._live = live
        self._title = title
        self._drawn = 0.0

    def event(self, event: Event, live: bool) -> None:
        self._board.event(event, live)
        if isinstance(event, Decided) and event.what == "exclude" and live:
            self._live.console.print(f"[bold]{described(event, self._board)}[/]", highlight=False)
        self._draw()

    def step(self, step: Step) -> None:
        self._board.step(step)
        if time.monotonic() - self._drawn > 0.25:
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._drawn = time.monotonic()
        board, history = self._board, self._board.history
        if history.opened is None:
            return
        table = Table()
        for column in ("sub-dataset", "score", "best", "at", "trend", "state"):
            table.add_column(column, justify="right" if column in ("score", "best") else "left")
        for name in history.opened.datasets:
            scores, best = board.scores(name), board.best(name)
            state = board.state(name)
            table.add_row(
                Text(name),
                f"{scores[-1][1]:.3f}" if scores else "",
                f"{best[1]:.3f}" if best else "",
                best[0] if best else "",
                sparkline([score for _, score in scores]),
                state,
                style="" if state == "active" else "dim",
            )
        self._live.update(Group(Text(self._caption(), style="bold"), table))

    def _caption(self) -> str:
        board, parts = self._board, [self._title]
        if board.history.stages:
            stage = board.history.stages[-1]
            whole = stage.asked.ticks / board.history.evals_per_epoch
            parts.append(f"stage {stage.asked.rollout}")
            parts.append(f"epoch {board.epoch:.2f}/{whole:g}")
        if board.loss is not None:
            parts += [f"loss {board.loss:.3f}", f"{board.tokens_per_second:,.0f} tok/s"]
        if board.seconds_left is not None:
            parts.append(f"{board.seconds_left:.0f} s left in this stage")
        if board.history.best is not None:
            mean = float(board.history.mean(board.history.best))
            parts.append(f"best {mean:.4f} at {board.history.best}")
        return " · ".join(parts)


@contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Progress]:
    """The right one for where the output goes."""
    if quiet:
        yield Silent()
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=8, transient=False) as live:
            yield LiveTable(live, title)
    else:
        yield PlainLines()
