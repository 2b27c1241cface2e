"""Figures of the search: its timeline, and each sub-dataset's curve."""

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Any

from msft.history import History
from msft.report.branches import Branch, Leaving, Line, epochs_to, leavings_of, rolled_back
from msft.report.chart import (
    BEST,
    FAINT,
    INK,
    LEFT,
    MUTED,
    NARROW,
    PAPER,
    WENT_ON,
    add_axes,
    new_figure,
)
from msft.report.evidence import wilson
from msft.report.wording import label
from msft.rollout import BASE, CheckpointId

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 34
"""Pixels from one branch of the timeline to the next."""


def timeline(history: History, branches: Sequence[Branch], width: float) -> "Figure":
    """Roll-outs as branches over the epochs on the path; jumps back are dashed."""
    narrow = width <= NARROW
    rows = len(branches)
    figure = new_figure(width, 58 + ROW * rows)
    axes = add_axes(figure, 26 if narrow else 130, 118 if narrow else 230, 12, 46)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    end = max((branch.end for branch in branches), default=1.0) or 1.0
    axes.set_xlim(-0.015 * end, 1.015 * end)
    axes.set_ylim(rows - 0.35, -0.65)
    axes.set_xlabel("epochs on the path" if narrow else "epochs on the path from the base model")
    names = [_row_name(history, branch, narrow) for branch in branches]
    axes.set_yticks(range(rows), names)
    _parts(axes, branches)
    _jumps(axes, history, branches)
    for branch in branches:
        _leavers(axes, history, branch, narrow)
    if history.best:
        _star(axes, history, branches)
    return figure


def _row_name(history: History, branch: Branch, narrow: bool) -> str:
    active = len(history.stages[branch.number].asked.active)
    return f"{branch.number}" if narrow else f"stage {branch.number} · {active} active"


def _parts(axes: "Axes", branches: Sequence[Branch]) -> None:
    """The branches themselves, and a short stroke at each peak."""
    lines: dict[str, Line] = {colour: ([], []) for colour in (FAINT, WENT_ON, BEST)}
    peaks: Line = ([], [])
    for branch in branches:
        for first, last, colour in branch.parts:
            lines[colour][0].extend([branch.at(first), branch.at(last), nan])
            lines[colour][1].extend([branch.number, branch.number, nan])
        peaks[0].extend(branch.at(tick) for tick in branch.peaks.values())
        peaks[1].extend(branch.number for _ in branch.peaks)
    for colour, line in lines.items():
        axes.plot(*line, color=colour, linewidth=2 if colour == FAINT else 3.5)
    axes.plot(*peaks, "|", markersize=9, markeredgewidth=1.2, color=MUTED)


def _jumps(axes: "Axes", history: History, branches: Sequence[Branch]) -> None:
    """From each roll-out to the next one: down from where it begins, dashed if that is back."""
    for branch, following in pairwise(branches):
        x, y = following.start, branch.number
        colour = BEST if following.to_best else WENT_ON if following.went_on else FAINT
        axes.plot([x, x], [y, y + 1], color=colour, linewidth=1.2, zorder=1.5)
        if rolled_back(history, branch.number) and branch.end > x:
            axes.annotate(
                "",
                (x, y + 0.93),
                (branch.end, y + 0.07),
                arrowprops={
                    "arrowstyle": "->",
                    "color": LEFT,
                    "linewidth": 1.0,
                    "linestyle": (0, (3, 3)),
                    "shrinkA": 0,
                    "shrinkB": 2,
                },
            )


def _leavers(axes: "Axes", history: History, branch: Branch, narrow: bool) -> None:
    """A dot where they left, and their names right of the branch, where no line passes."""
    leaving = [item for item in leavings_of(history) if item.stage == branch.number]
    if not leaving:
        return
    x, y = epochs_to(history, leaving[-1].checkpoint), branch.number
    axes.plot([x], [y], marker="o", markersize=8, color=LEFT, markeredgecolor=PAPER)
    names = ", ".join(item.name for item in leaving)
    axes.annotate(
        f"{label(names, 12 if narrow else 28)} left",
        (max(branch.end, x), y),
        (8, 0),
        textcoords="offset points",
        va="center",
        color=LEFT,
        fontsize=11 if narrow else 12,
    )


def _star(axes: "Axes", history: History, branches: Sequence[Branch]) -> None:
    assert history.best is not None
    path = history.path(history.best)
    row = path[-1][0] if path else 0
    if row < len(branches):
        x = epochs_to(history, history.best)
        axes.plot([x], [row], marker="*", markersize=17, color=BEST, markeredgecolor=PAPER)


def curve(
    history: History, branches: Sequence[Branch], name: str, leaving: Leaving | None
) -> "Figure":
    """One sub-dataset's scores over the epochs on the path."""
    figure = new_figure(320, 190)
    axes = add_axes(figure, 42, 10, 10, 40)
    base = history.known(BASE).get(name)
    percent = 100.0 if base is not None and base.metric == "accuracy" else 1.0

    def height(checkpoint: CheckpointId) -> float:
        score = history.known(checkpoint).get(name)
        return percent * float(score.value) if score else nan

    if base is not None:
        axes.axhline(percent * float(base.value), color=FAINT, linewidth=1, linestyle=(0, (2, 3)))
    _band(axes, history, branches, name)
    styles: dict[tuple[str, bool], dict[str, Any]] = {
        (FAINT, False): {"linewidth": 1.1},
        (WENT_ON, False): {"linewidth": 1.3, "linestyle": (0, (1, 2))},
        (WENT_ON, True): {},
        (BEST, True): {},
    }
    lines: dict[tuple[str, bool], Line] = {style: ([], []) for style in styles}
    for branch in branches:
        active = name in history.stages[branch.number].asked.active
        for first, last, colour in branch.parts:
            if colour == BEST and not active:
                colour = WENT_ON  # it is on the path, but learns nothing there
            xs, ys = lines[colour, active and colour != FAINT]
            ticks = range(first, last + 1)
            xs.extend([*(branch.at(tick) for tick in ticks), nan])
            ys.extend([*(height(branch.checkpoints[tick]) for tick in ticks), nan])
    for style, line in lines.items():
        axes.plot(*line, color=style[0], **styles[style])
    _marks(axes, history, branches, name, leaving, percent)
    axes.set_xlabel("epochs on the path")
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.03)
    return figure


def _marks(
    axes: "Axes",
    history: History,
    branches: Sequence[Branch],
    name: str,
    leaving: Leaving | None,
    percent: float,
) -> None:
    """Peaks hollow, the one at which it left full, the best checkpoint as a line."""
    xs, ys = list[float](), list[float]()
    for branch in branches:
        tick = branch.peaks.get(name)
        if tick is not None:
            xs.append(branch.at(tick))
            ys.append(percent * float(history.known(branch.checkpoints[tick])[name].value))
    axes.plot(xs, ys, "o", markersize=4.5, markerfacecolor=PAPER, markeredgecolor=MUTED)
    if leaving is not None and (score := history.known(leaving.checkpoint).get(name)):
        x, y = epochs_to(history, leaving.checkpoint), percent * float(score.value)
        axes.plot([x], [y], "o", markersize=7.5, color=LEFT, markeredgecolor=PAPER)
    if history.best:
        x = epochs_to(history, history.best)
        axes.axvline(x, color=BEST, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)


def _band(axes: "Axes", history: History, branches: Sequence[Branch], name: str) -> None:
    """Wilson's 95 % interval along what was not rolled back, where scores are counts."""
    xs, low, high = list[float](), list[float](), list[float]()
    for branch in branches:
        for tick in range(branch.used + 1):
            score = history.known(branch.checkpoints[tick]).get(name)
            if score is not None and score.metric == "accuracy" and branch.used:
                bottom, top = wilson(int(score.total), score.count)
                xs.append(branch.at(tick))
                low.append(100 * bottom)
                high.append(100 * top)
        xs.append(nan)
        low.append(nan)
        high.append(nan)
    if len(xs) > len(branches):
        axes.fill_between(xs, low, high, color=INK, alpha=0.09, linewidth=0)
