"""A chart: a matplotlib figure in the colours of the page, and its way into the page.

Figures are drawn in the light colours below. In the page each colour becomes a CSS variable of
the same name, so one drawing serves light and dark, and PNG or PDF are drawn by the same code.
One unit is one pixel at the width a figure is drawn for.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, FAINT, PAPER = "#1d2127", "#5c6570", "#e3e6ea", "#aeb6bf", "#fefefe"
BEST, WENT_ON, LEFT, OTHER = "#0b63c5", "#6e7883", "#c2410c", "#8b5cf7"
GREEN, GOLD, TEAL, PINK = "#15803e", "#a16208", "#0e7491", "#be185e"

COLOURS = {
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "faint": FAINT,
    "paper": PAPER,
    "best": BEST,
    "went-on": WENT_ON,
    "left": LEFT,
    "other": OTHER,
    "green": GREEN,
    "gold": GOLD,
    "teal": TEAL,
    "pink": PINK,
}
_VARIABLES = {colour: name for name, colour in COLOURS.items()}
_COLOUR = re.compile("|".join(_VARIABLES))
SERIES = (WENT_ON, BEST, LEFT, GREEN, OTHER, GOLD, TEAL, PINK)
"""Colours of the runs of a comparison, in order."""

WIDE, NARROW = 1000, 360
"""Pixels that figures are drawn for: a screen and a phone."""

_RC: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "msft",
    "text.usetex": False,
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
    "axes.unicode_minus": True,
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


def to_svg(figure: "Figure", key: str, description: str) -> str:
    """The figure as an `<svg>` element for the page.

    key: unique in the page; the element's references within itself begin with it.
    """
    buffer = StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for element in (r"<metadata>.*?</metadata>", r"<style[^>]*>.*?</style>", r"<!--.*?-->"):
        svg = re.sub(element, "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg).replace("<g/>", "").replace("<defs></defs>", "")
    used = frozenset(re.findall(r"(?:href=\"|url\()#([^\")]+)", svg))
    svg = re.sub(r"<[^>]*>", lambda found: _tag(found[0], key, used), svg)
    width, height = figure.get_size_inches() * 72
    head = (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape(description)}">'
    )
    return head + svg[svg.index(">") + 1 :].strip()


def _tag(tag: str, key: str, used: frozenset[str]) -> str:
    """A tag as the page wants it; what stands between tags is text, which nobody may touch.

    Ids that are referred to get the figure's key, so that two figures cannot be mixed up.
    """

    def renamed(found: re.Match[str]) -> str:
        return f' id="{key}-{found[1]}"' if found[1] in used else ""

    tag = re.sub(r" id=\"([^\"]*)\"", renamed, tag)
    tag = re.sub(r"(?:xlink:)?(href=\"|url\()#", rf"\g<1>#{key}-", tag)
    tag = _COLOUR.sub(lambda found: f"var(--{_VARIABLES[found[0]]})", tag)
    tag = re.sub(
        r"font: (?:(\d+|bold) )?([\d.]+)px [^;\"]*", r"font-weight: \1; font-size: \2px", tag
    )
    tag = re.sub(r"font-family: [^;\"]*; ", "", tag)  # the page's own
    tag = re.sub(r" transform=\"rotate\(-?0 [^\"]*\"", "", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)  # a hundredth of a pixel is enough
    return " ".join(tag.split()).replace(' "', '"')
