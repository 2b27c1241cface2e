"""Progress of a run: a live table on a terminal (rich), else plain lines as it goes on."""

import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

from msft.app.terminal.board import Board, Placed, time_left_text
from msft.app.terminal.results import ENDINGS, checkpoint_in_words
from msft.app.terminal.screen import ProgressLine, unguarded
from msft.observers.observer import Observer, Watched
from msft.report.watched import broken_in_words
from msft.report.wording import metric_name
from msft.run.history import History
from msft.run.log import (
    AverageEvent,
    DecisionEvent,
    EndEvent,
    Event,
    FoundEvent,
    JudgedEvent,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
)
from msft.run.worker import Step
from msft.search.curves import TEST, Scores
from msft.search.rollout import BASE, CheckpointId
from msft.text import (
    NARROW_NAMES,
    SELECTED_ON_TEST,
    WIDTH,
    columns_of,
    counted,
    cut,
    fitted,
    flowed,
    safe,
    screen_width,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

MOST_SCORES = 12
"""Sub-datasets that a plain line names; with more of them it says how many are left out."""


@runtime_checkable
class Progress(Protocol):
    """Something that is told of events and steps."""

    def event(self, event: Event, live: bool) -> None: ...

    def step(self, step: Step) -> None: ...


class Called:
    """A function of the user's that is told of every event that happens now."""

    def __init__(self, function: Callable[[Event], Any]) -> None:
        self._function = function

    def event(self, event: Event, live: bool) -> None:
        if live:
            self._function(event)

    def step(self, step: Step) -> None: ...


class ShownRun(Observer):
    """A run on a terminal, in a file or in a pipe; of a finished one nothing is shown.

    kept: as of a Board. progress: what shows the run, where it is not ours.
    """

    def __init__(
        self, title: str = "", kept: Collection[str] = (), progress: Progress | None = None
    ) -> None:
        self._title, self._kept, self.shown = title, kept, progress
        self._live: Live | None = None

    def begin(self, run: Watched) -> None:
        if self.shown is not None or run.told:
            return
        out = sys.stdout
        if not out.isatty():
            self.shown = PlainLines(out, run.folder.path)
            return
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=unguarded(out)), refresh_per_second=2)
        self.shown = LiveTable(self._live, safe(self._title), Board(self._kept, run.folder.path))

    def event(self, history: History, event: Event, live: bool) -> None:
        if self.shown is not None:
            self.shown.event(event, live)

    def step(self, step: Step) -> None:
        if self.shown is not None:
            self.shown.step(step)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


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
                self._out.write(f"{line}\n")  # at once, so that a progress bar stays below it
                self._out.flush()
        except BrokenPipeError:
            self._out = None

    def step(self, step: Step) -> None:
        self._board.step(step)


class ShownAudit(Observer):
    """An audit on a terminal, where the line of a judge moves, or in a file, line by line."""

    def __init__(self) -> None:
        self._out: IO[str] | None = sys.stdout
        self._moving = ProgressLine(sys.stdout, between=0.0) if sys.stdout.isatty() else None

    def event(self, history: History, event: Event, live: bool) -> None:
        if not live:
            return
        number = len(history.stages)
        judge = f"round {(number + 1) // 2}, judge {2 - number % 2} of 2"
        match event:
            case PointEvent():
                done, whole = len(history.stages[-1].points), history.stages[-1].asked.ticks
                epochs = f"{done / history.evals_per_epoch:g}"
                loss = f", loss {event.loss[0] / event.loss[1]:.3f}" if event.loss[1] else ""
                last = done == whole
                if last or done % history.evals_per_epoch == 0:
                    self._say(f"{judge}: epoch {epochs}{loss}", stays=last)
            case JudgedEvent():
                rows = counted(sum(event.judged.values()), "training row")
                self._say(f"{judge} has judged {rows} that it has not seen")
            case FoundEvent():
                spoiled = [n for n, each in event.findings.items() if each.verdict == "spoiled"]
                names = ", ".join(_some(spoiled)) or "no sub-dataset"
                self._say(f"round {event.round}: spoiled: {names}")

    def _say(self, line: str, stays: bool = True) -> None:
        """Print a line; on a terminal, one that does not stay is written over by the next."""
        if self._out is None:
            return
        width = screen_width(self._out) or WIDTH
        try:
            if self._moving is None:
                print(fitted(line, width), file=self._out, flush=True)
                return
            self._moving("" if stays else line)
            if stays:
                print(cut(line, width - 1), file=self._out, flush=True)
        except BrokenPipeError:
            self._out = None

    def close(self) -> None:
        if self._moving is not None and self._out is not None:
            self._moving("")


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
            text = _with_scores(said, event.scores, width, history.watched)
            if broken := broken_in_words(history, event.checkpoint):
                text += (
                    f"\n      no result: {broken}" if history.is_guarded else f"\n      {broken}"
                )
            return text
        case AverageEvent():
            parts = ", ".join(_some([*event.of]))
            return f"  average {event.checkpoint} is of the weights at checkpoints {parts}"
        case ScoresEvent() if event.split != history.selection:
            said = f"  {checkpoint_in_words(event.checkpoint)} on test:"
            if history.has_mean(event.checkpoint, TEST):
                return f"{said} {mean_text(history, event.checkpoint, TEST)}"
            return _with_scores(said, event.scores, width, history.watched)
        case ScoresEvent() if event.checkpoint == BASE or event.checkpoint in history.averages:
            point, mean = (
                checkpoint_in_words(event.checkpoint),
                mean_text(history, event.checkpoint),
            )
            return _with_scores(f"  {point}, {mean}:", event.scores, width, history.watched)
        case DecisionEvent(what="exclude"):  # where training goes on, the next stage says
            here = history.stages[-1].points[-1:]
            stays = bool(here) and here[0].checkpoint == event.checkpoint
            where = " at" if stays else "; back to"
            gone, there = ", ".join(event.names), checkpoint_in_words(event.checkpoint)
            return f"  → {gone} left{where} {there}"
        case DecisionEvent(what="go_on"):
            tested = any(stage.falls for stage in history.stages[-1:])
            why = "none surely fell" if tested else "all were still at their highest"
            return f"  → no sub-dataset left: {why}"
        case EndEvent():
            best, mean = checkpoint_in_words(event.best), mean_text(history, event.best)
            return f"done: {ENDINGS[event.by]}; the best is {best}, {mean}"
    return None


def _with_scores(said: str, scores: Scores, width: int, watched: Collection[str]) -> str:
    """A sentence on a point, and its scores: behind it if all fit on the line, else below.

    watched: names in brackets, since they are in no mean.
    """
    said_of = {n: f"{cut(n, 40)} {float(score.value):.3f}" for n, score in scores.items()}
    apart = [f"[{text}]" for name, text in said_of.items() if name in watched]
    texts = _some([text for name, text in said_of.items() if name not in watched]) + _some(apart)
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


BARS = "▁▂▃▄▅▆▇█"
MOST_ROWS = 20
"""Sub-datasets that are shown one by one; the others are one line together."""
WIDE = 96
"""Columns of a terminal with room for a long bar and long trends."""


def sparkline(numbers: Sequence[float], width: int) -> str:
    """The last `width` numbers as bars."""
    recent = numbers[-width:]
    low, high = min(recent, default=0.0), max(recent, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((number - low) * scale)] for number in recent)


class LiveTable:
    """Follows a run and keeps a rich `Live` up to date; what it prints stays above the table."""

    def __init__(self, live: "Live", title: str, board: Board) -> None:
        self._board = board
        self._live = live
        self._title = title
        self._drawn = 0.0

    def event(self, event: Event, live: bool) -> None:
        from rich.text import Text

        self._live.start()  # at the first event: a run that is refused shows no table
        self._board.event(event, live)
        stays = isinstance(event, EndEvent) or (
            isinstance(event, DecisionEvent) and event.what == "exclude"
        )
        width = self._live.console.width
        if live and stays:
            stage = len(self._board.history.stages) - 1
            said = (event_text(event, self._board) or "").strip()
            line = Text(fitted(f"stage {stage}: {said}", width), style="bold")
            self._live.console.print(line, soft_wrap=True)
        for remark in self._board.remarks.after(event) if live else []:
            self._live.console.print(Text(fitted(remark, width)), soft_wrap=True)
        self._draw()

    def step(self, step: Step) -> None:
        self._board.step(step)
        if time.monotonic() - self._drawn > 0.5:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._board.history.opened is not None:
            width, height = self._live.console.size
            self._live.update(live_view(self._board, self._title, width, height))


def live_view(board: Board, title: str, width: int, height: int) -> "RenderableType":
    """The table for a terminal of this size."""
    from rich.console import Group
    from rich.text import Text

    names = list(board.history.start.datasets)
    watched = [*board.history.watched]
    room = height - 10 - len(watched)  # ten lines of the view are not rows of its table
    shown = visible_names(board, names, min(MOST_ROWS, max(3, room)))
    lines = [Text(cut(title, width), style="bold"), Text(fitted(_standing(board, names), width))]
    if board.history.selected_on_test:
        lines.insert(1, Text(fitted(SELECTED_ON_TEST, width), style="bold red"))
    parts: list[RenderableType] = [*lines]
    if board.history.stages and board.history.ended is None:
        parts += [_stage(board, width), Text(fitted(_time(board), width))]
    parts += [Text(), _table(board, [*shown, *watched], width)]
    rest = [name for name in names if name not in shown]
    if rest:
        active = sum(board.active(name) for name in rest)
        parts.append(Text(f"and {len(rest)} more: {active} active, {len(rest) - active} not"))
    return Group(*parts)


def visible_names(board: Board, names: list[str], most: int) -> list[str]:
    """The sub-datasets to show, in recipe order: who left last, and then who is active."""
    left = {name: place for name in names if (place := board.left(name)) is not None}
    latest = sorted(left, key=lambda name: left[name], reverse=True)
    staying = [name for name in names if name not in left]
    few = latest[: max(most - len(staying), most // 4)]
    picked = {*few, *staying[: most - len(few)]} if len(names) > most else {*names}
    return [name for name in names if name in picked]


def _standing(board: Board, names: list[str]) -> str:
    """The number of active sub-datasets, and the best so far."""
    active = sum(board.active(name) for name in names)
    left = sum(board.left(name) is not None for name in names)
    parts = ["the run has ended"] if board.history.ended else []
    if left == len(names):
        parts.append(f"all {left} sub-datasets have left")
    elif board.history.stages and not parts:
        parts.append(f"{active} of {counted(len(names), 'sub-dataset')} active")
    best = board.history.best
    if best is not None:
        parts.append(f"best {mean_text(board.history, best)} at {checkpoint_in_words(best)}")
    return " · ".join(parts)


def _stage(board: Board, width: int) -> "Table":
    """The progress of the present stage; it moves with every step."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    stage = board.history.stages[-1]
    whole = stage.asked.ticks / board.history.evals_per_epoch
    done, steps = board.steps
    said = [f"step {done:,}" + (f"/{steps:,}" if steps else "")]
    said.append(f"epoch {board.epoch:.2f}/{whole:g}")
    if board.loss is not None:
        said.append(f"loss {board.loss:.3f}")
    if board.is_evaluating:
        said.append("evaluating")
    elif board.loss is not None and width >= 80:
        said.append(f"{board.tokens_per_second:,.0f} tokens/s")
    line = Table.grid(padding=(0, 1))
    size = 8 if width < 80 else 12 if width < WIDE else 24
    bar = ProgressBar(stage.asked.ticks, board.ticks, width=size)
    line.add_row(f"stage {stage.asked.rollout}", bar, " · ".join(said))
    return line


def _time(board: Board) -> str:
    left = board.time_left
    if left is None:
        return "time left: known after the first evaluation"
    text = time_left_text(left, len(board.history.stages) - 1)
    at_most = board.history.early_stopping_patience is not None
    return text.replace("time left: ", "time left: at most ") if at_most else text


def _table(board: Board, names: list[str], width: int) -> "Table":
    """A row for each name; what is less needed is left out where there is no room for it.

    Where metrics differ, each row has its own.
    """
    from rich.table import Table
    from rich.text import Text

    trend, history = 16 if width >= WIDE else 8, board.history
    metrics = [metric_name(history.unit_of(name)) for name in names]
    columns = {
        "sub-dataset": names,
        "score": [_number(board.scores(name)[-1:]) for name in names],
        "best": [_number([best] if (best := board.best(name)) else []) for name in names],
        "checkpoint": [best[0] if (best := board.best(name)) else "" for name in names],
        "trend": [
            sparkline([float(score.value) for _, score in board.scores(name)], trend)
            for name in names
        ],
        **({"metric": metrics} if history.mixed else {}),
        "state": [board.state(name) for name in names],
    }
    sizes = {head: max(len(head), *map(len, cells)) for head, cells in columns.items()}
    spare = width - sum(sizes.values()) - 2 * len(sizes) + 2 + sizes["sub-dataset"]
    for head in ("checkpoint", "trend", "metric"):
        if head in columns and spare < min(sizes["sub-dataset"], NARROW_NAMES):
            del columns[head]
            spare += sizes[head] + 2
    columns["sub-dataset"] = [cut(name, max(8, spare)) for name in names]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for head in columns:
        right = "right" if head in ("score", "best") else "left"
        table.add_column(head, justify=right, no_wrap=True)  # type: ignore[arg-type]
    for name, *cells in zip(names, *columns.values(), strict=True):
        table.add_row(*map(Text, cells), style="" if board.left(name) is None else "dim")
    return table


def _number(placed: Sequence[Placed]) -> str:
    return f"{float(placed[0][1].value):.3f}" if placed else ""
