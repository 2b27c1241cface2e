"""Horizontal bars and dots: one row per name, one mark per series, for any number of names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from msft.report.figures.chart import NARROW, add_axes, beside, name_rows, new_figure
from msft.report.figures.colours import GRID, MUTED, PAPER
from msft.report.figures.legend import Entry, draw_legend, legend_height, text_width
from msft.report.wording import NOTHING
from msft.text import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 40
"""Rows that a figure shows; of more, the first and the last."""


@dataclass(frozen=True, slots=True)
class Series:
    """One bar or dot per name; None where there is no value. intervals: around dots."""

    label: str
    colour: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Names that share an axis, and the series over them. axis: its label."""

    names: Sequence[str]
    series: Sequence[Series]
    axis: str


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The rows of a figure: places of the names that it shows, and a row for those left out."""

    shown: tuple[int, ...]
    gap: int | None
    left_out: int

    @property
    def count(self) -> int:
        return len(self.shown) + (self.gap is not None)

    def labels(self, names: Sequence[str], longest: int) -> list[str]:
        texts = [label(names[place], longest) for place in self.shown]
        if self.gap is not None:
            texts.insert(self.gap, f"… {self.left_out} between")
        return texts

    @property
    def places(self) -> list[tuple[int, int]]:
        """Row and place of each name shown."""
        return [
            (row + (self.gap is not None and row >= self.gap), place)
            for row, place in enumerate(self.shown)
        ]


def rows_of(count: int, most: int = MOST) -> RowLayout:
    """All names, or the first and the last ones where there are too many."""
    if count <= most:
        return RowLayout(tuple(range(count)), None, 0)
    head, tail = (most + 1) // 2, most // 2
    shown = (*range(head), *range(count - tail, count))
    return RowLayout(shown, head, count - most)


def name_margin(labels: Sequence[str]) -> float:
    """Pixels left of the axes that the names need."""
    return 14 + max((text_width(text, 11.5) for text in labels), default=0)


def horizontal_axes(
    width: float, names: Sequence[str], rows: RowLayout, row: float, entries: Sequence[Entry]
) -> tuple["Figure", "Axes"]:
    """A figure with a legend and one row of `row` pixels per name, the first on top."""
    figure, (axes,) = stacked_axes(width, [(names, rows)], row, entries)
    return figure, axes


def stacked_axes(
    width: float,
    parts: Sequence[tuple[Sequence[str], RowLayout]],
    row: float,
    entries: Sequence[Entry],
) -> tuple["Figure", list["Axes"]]:
    """The same with several axes below each other, each with names of its own."""
    longest = 15 if width <= NARROW else 24
    labels = [rows.labels(names, longest) for names, rows in parts]
    margin = name_margin([text for texts in labels for text in texts])
    heights = [rows.count * row + 50 for _, rows in parts]
    top = legend_height(entries, width)
    figure = new_figure(width, top + sum(heights))
    found: list[Axes] = []
    for number, texts in enumerate(labels):
        above, below = sum(heights[:number]), sum(heights[number + 1 :])
        found.append(add_axes(figure, margin, 8, top + above + 4, below + 44))
        name_bars(found[-1], texts)
    draw_legend(figure, entries)
    return figure, found


def name_bars(axes: "Axes", labels: Sequence[str]) -> None:
    """One row for each name, the first on top, and lines along the other axis."""
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    name_rows(axes, dict(enumerate(labels)))


def horizontal_bars(
    width: float,
    names: Sequence[str],
    series: Sequence[Series],
    axis: str,
    written: Callable[[float], str],
) -> "Figure":
    """Names from top to bottom, the series of each below each other.

    written: the text at the end of a bar.
    """
    rows = rows_of(len(names))
    thick = 0.82 / len(series)
    row = max(24.0, 14.0 * len(series) + 6)
    entries = [Entry(one.label, one.colour) for one in series] if len(series) > 1 else []
    figure, axes = horizontal_axes(width, names, rows, row, entries)
    for number, one in enumerate(series):
        for y, place in rows.places:
            at = y - 0.41 + (number + 0.5) * thick
            value = one.values[place]
            if value is None or not isfinite(value):
                beside(axes, (0, at), NOTHING, colour=MUTED)
                continue
            axes.barh([at], [value], height=thick * 0.9, color=one.colour, linewidth=0)
            beside(axes, (value, at), written(value), right=value >= 0)
    known = [
        value
        for one in series
        for place in rows.shown
        if (value := one.values[place]) is not None and isfinite(value)
    ]
    room(axes, known, width, max((len(written(value)) for value in known), default=1))
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_xlabel(axis)
    axes.locator_params(axis="x", nbins=4 if width <= NARROW else 8)
    return figure


def horizontal_dots(width: float, panels: Sequence[Panel], zero: bool = True) -> "Figure":
    """Names from top to bottom, one dot per series: for more series than bars can show.

    panels: below each other; all have the same series.
    zero: with a line there.
    """
    series = panels[0].series
    entries = [Entry(one.label, one.colour, "dot") for one in series]
    parts = [(panel.names, rows_of(len(panel.names))) for panel in panels]
    figure, every = stacked_axes(width, parts, max(34, 9 * len(series)), entries)
    for axes, panel, (_, rows) in zip(every, panels, parts, strict=True):
        _dots(axes, panel.series, rows)
        if zero:
            axes.axvline(0, color=MUTED, linewidth=1, zorder=0.9)
        axes.margins(x=0.04)
        axes.set_xlabel(panel.axis)
        axes.locator_params(axis="x", nbins=4 if width <= NARROW else 8)
    return figure


def _dots(axes: "Axes", series: Sequence[Series], rows: RowLayout) -> None:
    step = 0.7 / max(len(series), 3)
    for number, one in enumerate(series):
        known = [
            (value, y + (number - (len(series) - 1) / 2) * step)
            for y, place in rows.places
            if (value := one.values[place]) is not None and isfinite(value)
        ]
        xs, ys = [x for x, _ in known], [y for _, y in known]
        axes.plot(xs, ys, "o", markersize=7, color=one.colour, markeredgecolor=PAPER)
        spans = [
            (*span, y + (number - (len(series) - 1) / 2) * step)
            for y, place in rows.places
            if one.intervals and (span := one.intervals[place]) is not None
        ]
        lows, highs, heights = ([span[part] for span in spans] for part in range(3))
        axes.hlines(heights, lows, highs, color=one.colour, linewidth=1.2, alpha=0.6)
    axes.hlines(
        [row + 0.5 for row in range(rows.count - 1)],
        0,
        1,
        transform=axes.get_yaxis_transform(),
        color=GRID,
        linewidth=1,
    )


def room(
    axes: "Axes", values: Sequence[float], width: float, right: int, left: int | None = None
) -> None:
    """Limits that leave room for texts of so many letters at both ends, or right of all bars."""
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    if low == high:
        high = 1.0
    box = max(axes.get_position().width * width, 1.0)
    before = right if left is None else left
    shares = (
        min(0.4, (before * 6.6 + 12) / box) if low < 0 else 0.0,
        min(0.55, (right * 6.6 + 12) / box),
    )
    span = (high - low) / (1 - sum(shares))
    axes.set_xlim(low - shares[0] * span, high + shares[1] * span)
