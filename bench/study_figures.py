"""Figures of the study from its logs, as SVG; no torch.

What a figure shows is also in its <desc>, line by line, so that a test can compare it without
drawing, whatever version of matplotlib drew it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

from study_costs import entries_of, logs_of
from study_logs import history_of
from study_methods import CONSTANT, METHODS, REFERENCE
from study_tables import Interval, Study, over_rows, over_seeds

from msft.report.branches import deciding_curve
from msft.report.figures.chart import (
    BEST,
    FAINT,
    INK,
    LEFT,
    add_axes,
    beside,
    draw_legend,
    legend_height,
    name_rows,
    new_figure,
)
from msft.report.figures.chart import Entry as Key
from msft.report.figures.peaks import peaks, peaks_of
from msft.report.page import Section, write_figures
from msft.run.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH = 800
CURVES_SEED = 70
LOWEST = -3.7
"""Points at which the axis of differences ends; what is below is told in words."""
DESCRIBED = re.compile(r"<desc>(.*?)</desc>", re.DOTALL)


@dataclass(frozen=True)
class Difference:
    """A method's difference to cosine SFT on test in points, over seeds and over rows."""

    name: str
    seeds: Interval
    rows: Interval

    def __str__(self) -> str:
        over = [f"{i.low:+.2f} to {i.high:+.2f}" for i in (self.seeds, self.rows)]
        return f"{self.name}: {self.seeds.difference:+.2f}, seeds {over[0]}, rows {over[1]}"


def differences_of(study: Study) -> list[Difference]:
    """In the order of the tables."""
    found = []
    for label, (name, _) in METHODS.items():
        seeds = sorted(set(study.get(label, {})) & set(study[REFERENCE]))
        pairs = [(study[label][seed], study[REFERENCE][seed]) for seed in seeds]
        by_seed = over_seeds([one.mean - two.mean for one, two in pairs]) if pairs else None
        if label != REFERENCE and by_seed is not None:
            found.append(Difference(name.replace("`", ""), by_seed, over_rows(pairs)))
    return found


def differences(studies: Mapping[str, Sequence[Difference]], width: float) -> "Figure":
    """A panel for each mixture: a dot, a line over seeds and a band over test rows."""
    entries = [
        Key("above cosine SFT", BEST),
        Key("below", LEFT),
        Key("95 % interval over seeds", INK, "line"),
        Key("over test rows", FAINT),
    ]
    top = legend_height(entries, width) + 8
    row, head, foot = 21.0, 26.0, 40.0
    heights = [head + row * len(found) for found in studies.values()]
    figure = new_figure(width, top + sum(heights) + foot * len(heights))
    for place, (mixture, found) in enumerate(studies.items()):
        above = top + sum(heights[:place]) + foot * place + head
        below = sum(heights[place + 1 :]) + foot * (len(heights) - place)
        axes = add_axes(figure, 270, 58, above, below)
        _panel(axes, found)
        axes.set_title(f"{mixture} labels", loc="left", fontsize=12.5, color=INK)
    draw_legend(figure, entries)
    return figure


def _panel(axes: "Axes", found: Sequence[Difference]) -> None:
    rows = range(len(found) - 1, -1, -1)
    for y, each in zip(rows, found, strict=True):
        middle = each.seeds.difference
        colour = BEST if middle > 0 else LEFT
        if middle < LOWEST:
            beside(axes, (LOWEST, y), f"◂ {middle:+.2f}".replace("-", "−"), gap=2, colour=colour)
            continue
        low, high = max(each.seeds.low, LOWEST), each.seeds.high
        axes.hlines(y, each.rows.low, each.rows.high, color=FAINT, linewidth=9)
        axes.hlines(y, low, high, color=INK, linewidth=1.4)
        axes.plot([middle], [y], "o", markersize=8, color=colour, markeredgecolor="white")
        edge = axes.get_yaxis_transform()
        beside(axes, (1, y), f"{middle:+.2f}".replace("-", "−"), gap=6, within=edge)
    axes.axvline(0, color=INK, linewidth=1)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlim(LOWEST, 1.5)
    axes.set_ylim(-0.7, len(found) - 0.3)
    axes.set_xlabel("points over cosine SFT on test")
    name_rows(axes, {y: each.name for y, each in zip(rows, found, strict=True)}, size=11)


def told_of_curves(history: History) -> list[str]:
    """Each sub-dataset's peak and its curve, in epochs and per cent."""
    found = peaks_of(history)
    assert found is not None
    lines = [f"peak of the mean: {found.mean:g} epochs"]
    for name in found.ordered:
        curve = deciding_curve(history, 0, name)
        shown = " ".join("-" if value is None else f"{100 * float(value):.1f}" for value in curve)
        lines.append(f"{name}: peak at {found.peaks[name]:g} epochs; {shown}")
    return lines


@dataclass(frozen=True)
class Drawn:
    """A figure: its file's name, what it shows, and how it is drawn."""

    key: str
    told: str
    draw: Callable[[float], "Figure"]


def figures_of(studies: Mapping[str, Study], runs: Path) -> list[Drawn]:
    """All figures of docs/study.md."""
    found = {mixture: differences_of(studies[mixture]) for mixture in ("clean", "noisy")}
    told = [f"{mixture}; {each}" for mixture, several in found.items() for each in several]
    shown = {"Clean": found["clean"], "Four tasks with 40 % wrong": found["noisy"]}
    seeds = {entry.seed: entry for entry in entries_of(studies["clean"], CONSTANT)}
    history = history_of(logs_of(runs, seeds[CURVES_SEED]))
    return [
        Drawn("study-differences", "\n".join(told), partial(differences, shown)),
        Drawn("study-peaks", "\n".join(told_of_curves(history)), partial(peaks, history)),
    ]


def write(drawn: Drawn, folder: Path = IMAGES) -> Path:
    """The figure as an SVG file with what it shows in words."""
    section = Section(drawn.key, drawn.key, "", drawn.draw)
    (path,) = write_figures([section], folder, ("svg",), WIDTH)
    text = path.read_text()
    start = text.index(">", text.index("<svg ")) + 1
    path.write_text(f"{text[:start]}\n <desc>{escape(drawn.told)}</desc>{text[start:]}")
    return path


def told_in(path: Path) -> str | None:
    """What a figure's file shows."""
    found = DESCRIBED.search(path.read_text()) if path.exists() else None
    return unescape(found[1]) if found else None
