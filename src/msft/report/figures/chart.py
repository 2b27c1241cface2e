"""A chart: a matplotlib figure in the colours of the page, and its way into the page.

Figures are drawn in the light colours below. In the page each colour becomes a CSS variable of
the same name, so one drawing serves light and dark, and PNG or PDF are drawn by the same code.
One unit is one pixel at the width a figure is drawn for.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from msft.report.figures.colours import FAINT, GRID, INK, LEFT, MUTED, VARIABLES, variable
from msft.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

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
"""What the page wants otherwise in attributes."""
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
    """Within it, figures look as they should, whatever the user's matplotlibrc says."""
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


def to_svg(figure: "Figure", key: str, description: str) -> str:
    """The figure as an `<svg>` element for the page.

    key: unique in the page; the element's references within itself begin with it.
    """
    buffer = StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314  matplotlib's own
    texts = (text for element in root.iter() for text in element.attrib.values())
    targets = {target for text in texts for target in _REFERENCE.findall(text)}
    for element in reversed([*root.iter()]):  # what is within comes before what it is in
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
    body = "".join(ElementTree.tostring(child, "unicode") for child in root)
    width, height = figure.get_size_inches() * 72
    return svg_element(width, height, description, body.replace(" />", "/>"))


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
