"""The legend of a figure: above its axes, in as many rows as its width needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from unicodedata import east_asian_width

from msft.report.figures.chart import add_axes
from msft.report.figures.colours import MUTED
from msft.text import label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW, KEY, GAP, SIZE = 20, 24, 16, 12
"""Pixels: a row, a key with its space, the space between entries, the letters."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A colour and what it stands for."""

    label: str
    colour: str
    kind: Literal["box", "line", "dash", "dot"] = "box"


def text_width(text: str, size: float = SIZE) -> float:
    """About how wide a text is drawn, rather too wide than too narrow."""
    return sum(size * (1.05 if east_asian_width(char) in "WF" else 0.62) for char in text)


def legend_height(entries: Sequence[Entry], width: float) -> float:
    """Pixels that the legend takes at the top of a figure."""
    rows = _placed(entries, width)
    return (1 + max(row for _, row, _ in rows)) * ROW + 6 if rows else 0.0


def draw_legend(figure: "Figure", entries: Sequence[Entry]) -> None:
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches() * 72
    if not entries:
        return
    axes = add_axes(figure, 0, 0, 0, 0)
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    for (x, row, text), entry in zip(_placed(entries, width), entries, strict=True):
        y = (row + 0.5) * ROW
        if entry.kind == "box":
            axes.add_patch(Rectangle((x, y - 6), 12, 12, facecolor=entry.colour, linewidth=0))
        elif entry.kind == "dot":
            axes.plot([x + 8], [y], "o", markersize=7, color=entry.colour)
        else:
            style = (0, (3, 3)) if entry.kind == "dash" else "-"
            axes.plot([x, x + 17], [y, y], color=entry.colour, linewidth=2, linestyle=style)
        axes.text(x + KEY, y, text, va="center", color=MUTED, fontsize=SIZE)


def _placed(entries: Sequence[Entry], width: float) -> list[tuple[float, int, str]]:
    """Where each entry begins, its row, and its text cut to fit."""
    longest = max(4, int((width - KEY) / (0.62 * SIZE)))
    x, row = 0.0, 0
    places: list[tuple[float, int, str]] = []
    for entry in entries:
        text = label(entry.label, min(longest, 44))
        needed = KEY + text_width(text)
        if x and x + needed > width:
            x, row = 0.0, row + 1
        places.append((x, row, text))
        x += needed + GAP
    return places
