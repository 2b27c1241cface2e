"""The live table: one row per sub-dataset on a terminal, redrawn as a run goes on (rich)."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msft.app.terminal.progress import Board, event_text, mean_text
from msft.run.log import Decided, Ended, Event
from msft.run.worker import Step

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
MOST_ROWS = 20
"""Sub-datasets that are shown one by one; the others are one line together."""
AROUND = 8
"""Lines of a terminal that are not rows of the table."""
REDRAWN = 0.5
"""Seconds between two drawings while steps come in."""


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
        stays = isinstance(event, Ended) or (isinstance(event, Decided) and event.what == "exclude")
        if live and stays:
            stage = len(self._board.history.stages) - 1
            line = Text(f"stage {stage} {event_text(event, self._board)}", style="bold")
            self._live.console.print(line, soft_wrap=True)
        for remark in self._board.remarks.after(event) if live else []:
            self._live.console.print(Text(remark), soft_wrap=True)
        self._draw()

    def step(self, step: Step) -> None:
        self._board.step(step)
        if time.monotonic() - self._drawn > REDRAWN:
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
    shown = visible_names(board, names, min(MOST_ROWS, max(3, height - AROUND)))
    parts: list[RenderableType] = [Text(_headline(board, title, len(names)), style="bold")]
    if board.history.stages:
        parts.append(_stage(board, width))
    parts += [Text(), _table(board, shown, width)]
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


def cut(name: str, longest: int) -> str:
    """A long name without its middle: names of one family often differ at the end."""
    if len(name) <= longest:
        return name
    end = (longest - 1) // 2
    return f"{name[: longest - 1 - end]}…{name[-end:]}"


def _headline(board: Board, title: str, names: int) -> str:
    parts = [title]
    if board.history.stages:
        parts.append(f"{len(board.history.stages[-1].asked.active)} of {names} active")
    best = board.history.best
    if best is not None:
        parts.append(f"best {mean_text(board.history, best)} at {best}")
    return " · ".join(parts)


def _stage(board: Board, width: int) -> "Table":
    """How far the present roll-out is."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    stage = board.history.stages[-1]
    whole = stage.asked.ticks / board.history.evals_per_epoch
    said = [f"epoch {board.epoch:.2f}/{whole:g}"]
    if board.loss is not None:
        said.append(f"loss {board.loss:.3f}")
        said += [f"{board.tokens_per_second:,.0f} tok/s"] if width >= 80 else []
    if board.seconds_left is not None:
        minutes, seconds = divmod(round(board.seconds_left), 60)
        said.append(f"{minutes}:{seconds:02} left")
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(stage.asked.ticks, stage.ticks, width=10 if width < 96 else 24)
    line.add_row(f"stage {stage.asked.rollout}", bar, " · ".join(said))
    return line


def _table(board: Board, names: list[str], width: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    roomy, trend = width >= 96, 16 if width >= 96 else 10 if width >= 80 else 6
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    longest = 32 if roomy else 24 if width >= 80 else 14
    table.add_column("sub-dataset", no_wrap=True)
    for column in ("score", "best"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("at", "trend", "state"):
        table.add_column(column, no_wrap=True)
    for name in names:
        scores, best = board.scores(name), board.best(name)
        left, unsure = board.left(name), board.remarks.is_unsure(name)
        short = board.state(name) if left is None else f"left {left[1]:g} s{left[0]}"
        short += (" unsure" if width >= 80 else "?") if unsure else ""
        table.add_row(
            Text(cut(name, longest)),
            f"{float(scores[-1][1].value):.3f}" if scores else "",
            f"{float(best[1].value):.3f}" if best else "",
            best[0] if best else "",
            sparkline([float(score.value) for _, score in scores[-trend:]], trend),
            board.state(name) + (", not sure" if unsure else "") if roomy else short,
            style="" if board.active(name) else "dim",
        )
    return table
