"""Figures of peaks: where sub-datasets peak (Fig. 2), and how far peaks move (Fig. 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

from msft.report.branches import Polyline, deciding_curve
from msft.report.compare.paper import mean_shift
from msft.report.figures.chart import (
    BEST,
    INK,
    LEFT,
    NARROW,
    PAPER,
    WENT_ON,
    Entry,
    Series,
    add_axes,
    beside,
    draw_legend,
    horizontal_bars,
    hover,
    legend_height,
    name_bars,
    name_margin,
    name_panel,
    new_figure,
    rows_of,
)
from msft.report.wording import points, score_unit
from msft.run.history import History
from msft.search.curves import mean_gain
from msft.search.rollout import BASE
from msft.text import epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NUMBERED = 12
"""Curves up to which a peak carries the number of its sub-dataset."""

PEAK_ENTRIES = (
    Entry("peaks before the mean", LEFT),
    Entry("after it", BEST),
    Entry("with it", WENT_ON),
    Entry("the mean", INK, "line"),
)


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of the sub-datasets and of their mean in the first roll-out, in epochs."""

    peaks: Mapping[str, float]
    mean: float

    def distance(self, name: str) -> float:
        """|peak_i - peak of the mean|"""
        return abs(self.peaks[name] - self.mean)

    @property
    def ordered(self) -> list[str]:
        """The earliest peak first."""
        return sorted(self.peaks, key=lambda name: self.peaks[name])


def peaks_of(history: History) -> Peaks | None:
    """Peaks of the first roll-out, by the run's own rule; None unless it trained everybody."""
    if not history.stages or not history.stages[0].points:
        return None
    stage, names = history.stages[0], list(history.start.datasets)
    if set(stage.asked.active) != set(names):
        return None
    rule, per_epoch = history.rule, history.evals_per_epoch
    checkpoints = [stage.asked.start, *(point.checkpoint for point in stage.points)]
    sign = -1 if history.mean_unit == "nll" else 1
    means = [sign * history.mean(checkpoint) for checkpoint in checkpoints]
    return Peaks(
        {name: rule.peak(history.curve(0, name)) / per_epoch for name in names},
        rule.peak(means) / per_epoch,
    )


def peaks(history: History, width: float) -> "Figure":
    """Fig. 2: the curves of the first roll-out with their peaks, and how far each peak is from
    the peak of the mean."""
    return peak_rows([("", history)], width, title=0, panel=256)


def peak_rows(
    panels: Sequence[tuple[str, History]], width: float, title: float, panel: float
) -> "Figure":
    """Fig. 2 of several runs below each other, each under its title.

    title, panel: pixels of the title above each and of the curves.
    """
    narrow, foot = width <= NARROW, 48
    top = legend_height(PEAK_ENTRIES, width) + 6
    found: list[tuple[str, History, Peaks, float, float]] = []
    for text, history in panels:
        peaked = peaks_of(history)
        if peaked is None:
            raise ValueError("peaks need a first roll-out that trained every sub-dataset")
        bars: float = 22 * rows_of(len(peaked.peaks)).count
        high, tall = (panel, bars) if narrow else (max(panel, bars),) * 2
        found.append((text, history, peaked, high, tall))
    rows = [title + foot + (high + tall + foot if narrow else high) for *_, high, tall in found]
    whole = top + sum(rows)
    figure = new_figure(width, whole)
    begin = top
    for (text, history, peaked, high, tall), row in zip(found, rows, strict=True):
        labels = rows_of(len(peaked.peaks)).labels(_numbered(peaked), 15 if narrow else 24)
        margin, above = name_margin(labels), begin + title
        under = whole - above - high
        if narrow:
            curves = add_axes(figure, 48, 8, above, under)
            below = add_axes(figure, margin, 8, above + high + foot, under - foot - tall)
        else:
            curves = add_axes(figure, 48, 0.52 * width, above, under)
            below = add_axes(figure, 0.52 * width + margin, 10, above, under)
        _draw_curves(curves, history, peaked)
        _draw_distances(below, peaked, labels)
        if text:
            name_panel(curves, text, 0.48 * width)
        begin += row
    draw_legend(figure, PEAK_ENTRIES)
    return figure


def _numbered(found: Peaks) -> list[str]:
    """Names with the numbers that their peaks carry in the curves."""
    if len(found.peaks) > NUMBERED:
        return found.ordered
    return [f"{number} {name}" for number, name in enumerate(found.ordered, start=1)]


def _by_colour(found: Peaks, names: Sequence[str]) -> dict[str, list[str]]:
    """Names by what their peaks are: before the mean's, after it, or with it."""
    sorted_out: dict[str, list[str]] = {}
    for name in names:
        late = found.peaks[name] - found.mean
        sorted_out.setdefault(LEFT if late < 0 else BEST if late > 0 else WENT_ON, []).append(name)
    return sorted_out


def _draw_curves(axes: "Axes", history: History, found: Peaks) -> None:
    stage, per_epoch, unit = history.stages[0], history.evals_per_epoch, history.mean_unit
    checkpoints = [stage.asked.start, *(point.checkpoint for point in stage.points)]
    at = [tick / per_epoch for tick in range(len(checkpoints))]
    rule, base = history.rule, history.known(BASE)

    def shown(name: str) -> list[float]:
        """The curve that decided; where metrics differ, as gains over the base model."""
        if unit is not None:
            curve = deciding_curve(history, 0, name)
            return [nan if value is None else points(value, unit) for value in curve]
        gains = [mean_gain({name: history.known(each)[name]}, base) for each in checkpoints]
        return [points(rule.smoothed(gains, tick), unit) for tick in range(len(gains))]

    many = len(found.peaks) > NUMBERED
    for colour, names in _by_colour(found, found.ordered).items():
        curves = [shown(name) for name in names]
        joined: Polyline = ([], [])
        for curve in curves:
            joined[0].extend([*at, nan])
            joined[1].extend([*curve, nan])
        ticks = [round(found.peaks[name] * per_epoch) for name in names]
        xs = [at[tick] for tick in ticks]
        ys = [curve[tick] for curve, tick in zip(curves, ticks, strict=True)]
        axes.plot(*joined, color=colour, linewidth=1.1 if many else 1.6, alpha=0.75)
        size = 6 if many else 15
        axes.plot(xs, ys, "o", markersize=size, color=colour, markeredgecolor=PAPER, zorder=3)
        for name, x, y in zip(names, xs, ys, strict=True) if not many else ():
            number = str(found.ordered.index(name) + 1)
            axes.annotate(
                number, (x, y), ha="center", va="center_baseline", color=PAPER, fontsize=9.5
            )
    means = [history.mean(checkpoint) for checkpoint in checkpoints]
    smoothed = [points(rule.smoothed(means, tick), unit) for tick in range(len(means))]
    axes.plot(at, smoothed, color=INK, linewidth=2.4)
    axes.axvline(found.mean, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.set_ylabel(score_unit(unit))
    axes.set_xlabel("epochs")
    axes.margins(x=0.02, y=0.09)


def _draw_distances(axes: "Axes", found: Peaks, labels: Sequence[str]) -> None:
    """A bar from the peak of the mean to each peak, and its length in epochs."""
    rows = rows_of(len(found.peaks))
    name_bars(axes, labels)
    shown = {found.ordered[place]: row for row, place in rows.places}
    for colour, names in _by_colour(found, [*shown]).items():
        ends, at = [found.peaks[name] for name in names], [shown[name] for name in names]
        axes.hlines(at, found.mean, ends, color=colour, linewidth=8)
        axes.plot(ends, at, "o", markersize=7, color=colour, markeredgecolor=PAPER)
        mean = f"; the mean peaks at epoch {epochs(found.mean)}"
        hover(axes, ends, at, [f"{n} peaks at epoch {epochs(found.peaks[n])}{mean}" for n in names])
    for name, row in shown.items():
        peak = found.peaks[name]
        beside(axes, (peak, row), epochs(found.distance(name)), peak >= found.mean, gap=8)
    low, high = min(found.mean, *found.peaks.values()), max(found.mean, *found.peaks.values())
    space = 0.16 * (high - low or 1.0)
    axes.set_xlim(low - space, high + space)
    axes.axvline(found.mean, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.set_xlabel("peak, in epochs; number: distance")
    axes.locator_params(axis="x", nbins=6)


def divergence(moved: Mapping[str, float], width: float) -> "Figure":
    """Fig. 3a: by how many epochs each survivor's peak moved, the earliest first."""
    names = sorted(moved, key=lambda name: moved[name])
    values = [moved[name] for name in names]
    return horizontal_bars(
        width,
        names,
        [Series("", BEST, values)],
        "change of optimal compute, epochs",
        lambda value: f"{value:+.2f}".replace("-", "−") if value else "0",
    )


def mean_shifts(moved: Mapping[str, Mapping[str, float]], width: float) -> "Figure":
    """Fig. 3b: the mean absolute change of several analyses, by their names."""
    return horizontal_bars(
        width,
        list(moved),
        [Series("", BEST, [mean_shift(changes) for changes in moved.values()])],
        "mean |change| of optimal compute, epochs",
        lambda value: f"{value:.2f}",
    )
