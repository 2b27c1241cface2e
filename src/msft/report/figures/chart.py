"""A chart: a matplotlib figure in the colours of the page, its legend, its bars and dots, and its
way into the page.

Figures are drawn in the light colours below. In the page each colour becomes a CSS variable of
the same name, so one drawing serves light and dark, and PNG or PDF are drawn by the same code.
One unit is one pixel at the width a figure is drawn for.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from math import isfinite, isnan
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import east_asian_width
from weakref import WeakKeyDictionary
from xml.etree import ElementTree

from msft.report.wording import NOTHING
from msft.text import label, plain

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform


COLOURS = {
    "ink": "#1d2127",
    "muted": "#5c6570",
    "grid": "#e3e6ea",
    "faint": "#aeb6bf",
    "paper": "#fefefe",
    "best": "#0b63c5",
    "went-on": "#6e7883",
    "left": "#c2410c",
    "other": "#8b5cf7",
    "green": "#15803e",
    "gold": "#a17f04",
    "teal": "#0e7491",
    "pink": "#be185e",
}
INK, MUTED, GRID, FAINT, PAPER, BEST, WENT_ON, LEFT, OTHER, GREEN, GOLD, TEAL, PINK = (
    COLOURS.values()
)
VARIABLES = {colour: name for name, colour in COLOURS.items()}
SERIES = (WENT_ON, BEST, LEFT, GREEN, OTHER, GOLD, TEAL, PINK)
"""Colours of the runs of a comparison, in order."""


def colour_at(place: int) -> str:
    """The colour of the run or method at a place of a comparison."""
    return SERIES[place % len(SERIES)]


def variable(colour: str) -> str:
    """A colour as the page's CSS has it."""
    return f"var(--{VARIABLES[colour]})"


_COLOUR = re.compile("|".join(VARIABLES))
_REFERENCE = re.compile(r"(?:^|url\()#([^)]+)")
_TIDIED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"font: (?:(\d+|bold) )?([\d.]+)px [^;]*", r"font-weight: \1; font-size: \2px"),
        (r"font-family: [^;]*; ", ""),  # the page's own
        (r"(\.\d\d)\d+", r"\1"),  # a hundredth of a pixel is enough
        (r"\s+", " "),
        (r" $", ""),
    )
]
"""Rewrites of matplotlib's attributes: the page sets the font, and needs fewer digits."""
WIDE, NARROW = 1000, 360
"""Pixels that figures are drawn for: a screen and a phone."""

DASHED: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (3, 3))}
"""A line where a search turned back."""

_RC: dict[str, Any] = {
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "msft",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 12,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "lines.dash_capstyle": "round",
}


@contextmanager
def drawing() -> Iterator[None]:
    """A context in which figures use our style, whatever the user's matplotlibrc says."""
    from matplotlib import style

    with style.context(["default", _RC]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that DejaVu does not have
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in pixels; no state of pyplot is touched."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    return figure


def add_axes(
    figure: "Figure", left: float, right: float, top: float, bottom: float, **options: Any
) -> "Axes":
    """Axes within margins in pixels, from the figure's four edges."""
    width, height = figure.get_size_inches() * 72
    box = (left / width, bottom / height, (width - left - right) / width)
    return figure.add_axes((*box, (height - top - bottom) / height), **options)


def beside(
    axes: "Axes",
    place: tuple[float, float],
    text: str,
    right: bool = True,
    gap: float = 4,
    colour: str = INK,
    size: float = 10.5,
    within: "Transform | None" = None,
) -> None:
    """A text right or left of a place, so many pixels away.

    within: what the place is measured in, else data.
    """
    from matplotlib.transforms import ScaledTranslation

    away = ScaledTranslation((gap if right else -gap) / 72, 0, axes.figure.dpi_scale_trans)
    axes.text(
        *place,
        text,
        transform=(within or axes.transData) + away,
        ha="left" if right else "right",
        va="center",
        color=colour,
        fontsize=size,
    )


def above(axes: "Axes", place: tuple[float, float], text: str, gap: float, size: float) -> None:
    """A text so many pixels above a place."""
    axes.annotate(text, place, (0, gap), textcoords="offset points", ha="center", fontsize=size)


def name_rows(axes: "Axes", names: Mapping[float, str], size: float = 11.5) -> None:
    """Names left of the axes at their heights, without an axis there.

    As texts, since matplotlib takes four times as long for the ticks of an axis.
    """
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    edge = axes.get_yaxis_transform()
    for y, name in names.items():
        beside(axes, (0, y), name, False, gap=6, colour=MUTED, size=size, within=edge)


def name_panel(axes: "Axes", title: str, room: float, gap: float = 0) -> None:
    """The title above a panel, cut to the pixels that it has."""
    axes.annotate(
        label(title, max(8, int(room / 7))),
        (0, 1),
        (0, 8 + gap),
        xycoords="axes fraction",
        textcoords="offset points",
        color=INK,
        fontsize=12,
    )


def with_mark(figure: "Figure", text: str) -> "Figure":
    """The figure with a text above all that it has."""
    width, height = figure.get_size_inches() * 72
    lines = wrap(text, max(20, int(width / 7)))
    more = 16 * len(lines) + 6
    boxes = [(axes, axes.get_position(original=True)) for axes in figure.axes]
    figure.set_size_inches(width / 72, (height + more) / 72)
    share = height / (height + more)
    for axes, box in boxes:
        axes.set_position((box.x0, share * box.y0, box.width, share * box.height))
    for number, line in enumerate(lines):
        place = 1 - (16 * number + 12) / (height + more)
        figure.text(0, place, line, color=LEFT, fontsize=11.5, weight="bold")
    return figure


@dataclass(frozen=True, slots=True)
class _InPage:
    """What an artist is in the page besides what is drawn: its CSS class, and texts that a browser
    shows where the pointer is: one for each marker, or a single one for the whole artist."""

    css: str
    texts: Sequence[str]


_IN_PAGE: "WeakKeyDictionary[Artist, _InPage]" = WeakKeyDictionary()


def in_page(artist: "Artist", texts: Sequence[str] = (), css: str = "") -> None:
    """Give an artist texts for the pointer, and a CSS class; files of figures have neither."""
    _IN_PAGE[artist] = _InPage(css, [plain(text, keep="") for text in texts])


def hover(
    axes: "Axes", xs: Sequence[float], ys: Sequence[float], texts: Sequence[str], css: str = ""
) -> None:
    """Unseen discs at places in data, each of which says its text to the pointer."""
    known = [each for each in zip(xs, ys, texts, strict=True) if not isnan(each[1])]
    if known:
        xs, ys, texts = zip(*known, strict=True)
        discs = axes.scatter(xs, ys, s=144, facecolor=(0, 0, 0, 0), edgecolor="face", zorder=9)
        in_page(discs, texts, f"hover {css}".strip())


_FAR = 8
"""Highest over lowest loss from which the axis is logarithmic."""


def log_axis_if_far(axes: "Axes", losses: Iterable[float]) -> None:
    """A logarithmic axis for losses that are far apart."""
    from matplotlib.ticker import LogLocator, NullLocator

    known = [loss for loss in losses if not isnan(loss)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if 0 < _FAR * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")


def to_svg(figure: "Figure", key: str, description: str, pointer: bool = True) -> str:
    """The figure as an `<svg>` element for the page.

    key: unique in the page; the element's references within itself begin with it.
    pointer: with the texts of `hover`; phones have no pointer.
    """
    buffer = StringIO()
    named: dict[str, _InPage] = {}
    within = (artist for axes in figure.axes for artist in axes.get_children())
    for number, artist in enumerate(each for each in within if each in _IN_PAGE):
        named[f"in-page-{number}"] = _IN_PAGE[artist]
        artist.set_gid(f"in-page-{number}")
        artist.set_visible(pointer or not _IN_PAGE[artist].css.startswith("hover"))
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314  matplotlib's own
    texts = (text for element in root.iter() for text in element.attrib.values())
    targets = {target for text in texts for target in _REFERENCE.findall(text)}
    for element in reversed([*root.iter()]):  # what is within comes before what it is in
        here = named.get(element.get("id", ""))
        element.tag = _local(element.tag)
        element.attrib = {
            _local(name): f"{key}-{text}" if name == "id" else _tidied(text, key)
            for name, text in element.items()
            if (name != "id" or text in targets)
            and not text.startswith(("rotate(0 ", "rotate(-0 "))
        }
        element.tail = None
        element.text = element.text if element.tag == "text" else None
        for child in [*element]:
            empty = child.tag in ("g", "defs") and not len(child) and not child.attrib
            if empty or child.tag in ("metadata", "style"):
                element.remove(child)
        if here is not None:
            _put(element, here)
    body = "".join(ElementTree.tostring(child, "unicode") for child in root)
    width, height = figure.get_size_inches() * 72
    return svg_element(width, height, description, body.replace(" />", "/>"))


def _put(element: ElementTree.Element, here: _InPage) -> None:
    """Class and texts into the element of an artist. Where a marker lies outside the figure, nobody
    knows whose text is whose, and so none has one."""
    if here.css:
        element.set("class", here.css)
    markers = [each for each in element.iter() if each.tag == "use"]
    owners = markers if len(here.texts) > 1 else [element] * len(here.texts)
    if len(owners) == len(here.texts):
        for owner, text in zip(owners, here.texts, strict=True):
            ElementTree.SubElement(owner, "title").text = text
    if here.css.startswith("hover"):  # the page's style has what they look like
        for each in element.iter():
            each.attrib.pop("style", None)


def _local(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition("}")[2]


def _tidied(text: str, key: str) -> str:
    """An attribute as the page has it: references begin with the key, colours are variables."""
    text = _REFERENCE.sub(lambda its: its[0].replace("#", f"#{key}-"), text)
    for pattern, replacement in _TIDIED:
        text = pattern.sub(replacement, text)
    return _COLOUR.sub(lambda colour: variable(colour[0]), text)


def svg_element(width: float, height: float, description: str, body: str) -> str:
    """body: what is drawn, as markup."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape(plain(description))}">{body}</svg>'
    )


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
    """For each entry: x, row, and the text cut to fit."""
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
    """A figure with a legend and several axes below each other, each with names of its own."""
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
            bar = axes.barh([at], [value], height=thick * 0.9, color=one.colour, linewidth=0)[0]
            in_page(
                bar, [", ".join(filter(None, (names[place], one.label))) + f": {written(value)}"]
            )
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
        _dots(axes, panel, rows)
        if zero:
            axes.axvline(0, color=MUTED, linewidth=1, zorder=0.9)
        axes.margins(x=0.04)
        axes.set_xlabel(panel.axis)
        axes.locator_params(axis="x", nbins=4 if width <= NARROW else 8)
    return figure


def _dots(axes: "Axes", panel: Panel, rows: RowLayout) -> None:
    series = panel.series
    step = 0.7 / max(len(series), 3)
    for number, one in enumerate(series):
        below = (number - (len(series) - 1) / 2) * step
        intervals = one.intervals or [None] * len(one.values)
        known = [
            (value, y + below, place)
            for y, place in rows.places
            if (value := one.values[place]) is not None and isfinite(value)
        ]
        xs, ys = [x for x, _, _ in known], [y for _, y, _ in known]
        dots = axes.plot(xs, ys, "o", markersize=7, color=one.colour, markeredgecolor=PAPER)[0]
        texts = [f"{panel.names[at]}, {one.label}: {x:.4g}" for x, _, at in known]
        ends = [intervals[at] for _, _, at in known]
        more = [f" ({end[0]:.4g} to {end[1]:.4g})" if end else "" for end in ends]
        in_page(dots, [text + end for text, end in zip(texts, more, strict=True)])
        spans = [
            (*span, y + below) for y, place in rows.places if (span := intervals[place]) is not None
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
