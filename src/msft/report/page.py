"""A page: its sections with their figures, its folded lists, and a template of this folder, filled
in and written as one self-contained file."""

from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msft.report.figures.chart import NARROW, WIDE, drawing, to_svg, with_mark
from msft.run.environment import version_of
from msft.run.folder import write_text
from msft.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Section:
    """A figure of a page. key: for ids and files. draw: from a width in pixels to a figure."""

    key: str
    title: str
    text: str
    draw: Callable[[float], "Figure"]


def marked(sections: Sequence[Section], mark: str, but_for: Collection[str] = ()) -> list[Section]:
    """Sections whose texts and figures begin with a mark; of no mark, as they are.

    but_for: beginnings of the keys of those that show no scores.
    """
    if not mark:
        return [*sections]

    def drawn(section: Section, width: float) -> "Figure":
        return with_mark(section.draw(width), mark)

    return [
        each
        if each.key.startswith((*but_for,))
        else replace(each, text=f"{mark} {each.text}".strip(), draw=partial(drawn, each))
        for each in sections
    ]


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section with its figure drawn for a screen and for a phone; the page shows one of them."""

    key: str
    title: str
    text: str
    wide: "Markup"
    narrow: "Markup"


def page_sections(sections: Sequence[Section]) -> list[PageSection]:
    """Sections drawn for a page."""
    with drawing():
        return [
            PageSection(
                each.key,
                each.title,
                each.text,
                embedded(each.draw(WIDE), f"{each.key}-w", each.title),
                embedded(each.draw(NARROW), f"{each.key}-n", each.title),
            )
            for each in sections
        ]


def embedded(drawing: "Figure | str", key: str, description: str) -> "Markup":
    """A figure, or an SVG element, as part of the page; the one place where text is taken for
    markup."""
    from markupsafe import Markup

    svg = drawing if isinstance(drawing, str) else to_svg(drawing, key, description)
    return Markup(svg)  # noqa: S704  matplotlib escapes, and so does `svg_element`


@dataclass(frozen=True, slots=True)
class Folded(Generic[Item]):
    """A list in three parts; of a short one all is in `first`."""

    first: Sequence[Item]
    rest: Sequence[Item] = ()
    last: Sequence[Item] = ()


def folded(items: Sequence[Item], ends: int) -> Folded[Item]:
    """`ends` items from each end, and the rest if there is enough of it to be in the way."""
    if len(items) <= 3 * ends:
        return Folded(items)
    return Folded(items[:ends], items[ends:-ends], items[-ends:])


def write_page(path: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill in a template; every text in `content` is escaped."""
    page = _environment().get_template(template).render(content, version=version_of("msft"))
    write_text(path, page)
    return path


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_readable,
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    environment.globals["style"] = Markup(style)  # noqa: S704  our own
    digest = b64encode(sha256(style.encode()).digest()).decode()
    environment.globals["style_hash"] = f"sha256-{digest}"
    return environment


def _readable(value: object) -> object:
    from markupsafe import Markup

    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
