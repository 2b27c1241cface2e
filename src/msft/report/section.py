"""A section: a figure with its title and text, before it is drawn and as a page has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msft.report.figures.chart import drawing
from msft.report.page import Drawn, drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A figure of a page. key: for ids and files. draw: from a width in pixels to a figure."""

    key: str
    title: str
    text: str
    draw: Callable[[float], "Figure"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A section as a page has it."""

    key: str
    title: str
    text: str
    drawn: Drawn


def shown(sections: Sequence[Section]) -> list[Shown]:
    """Sections drawn for a page."""
    with drawing():
        return [
            Shown(each.key, each.title, each.text, drawn(each.key, each.title, each.draw))
            for each in sections
        ]
