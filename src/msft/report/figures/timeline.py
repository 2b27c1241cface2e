"""The timeline of a search: roll-outs as branches, roll-backs as jumps back, who left where."""

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING

from msft.report.figures.branches import Branch, Polyline, epochs_to, rolled_back
from msft.report.figures.chart import NARROW, add_axes, beside, name_rows, new_figure
from msft.report.figures.colours import BEST, FAINT, LEFT, MUTED, PAPER, WENT_ON
from msft.run.history import Exclusion, History
from msft.search.rollout import BASE, CheckpointId, place_of
from msft.text import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY = 30
"""Roll-outs that get a row with a name each; of more, the ones between the ends are pressed."""

_ROW, _PRESSED, _ENDS = 34, 5, 8
"""Pixels of a row, pixels of a pressed one, and rows that stay as they are at each end."""


class _StageRows:
    """Where each roll-out stands, in pixels from the top."""

    def __init__(self, count: int) -> None:
        pressed = range(_ENDS, count - _ENDS) if count > MANY else range(0)
        self.pressed = pressed
        self.at: list[float] = []
        y = 0.65 * _ROW
        for number in range(count):
            self.at.append(y)
            y += _PRESSED if number in pressed and number + 1 in pressed else _ROW
        self.height = (self.at[-1] if self.at else 0.0) + 0.35 * _ROW

    @property
    def middle(self) -> float:
        """Of the pressed rows."""
        return (self.at[self.pressed[0]] + self.at[self.pressed[-1]]) / 2


def timeline(history: History, branches: Sequence[Branch], width: float) -> "Figure":
    """Roll-outs as branches over the epochs on the path; jumps back are dashed."""
    narrow = width <= NARROW
    rows = _StageRows(len(branches))
    figure = new_figure(width, 58 + rows.height)
    left = 130 if not narrow else 44 if rows.pressed else 26
    axes = add_axes(figure, left, 118 if narrow else 230, 12, 46)
    axes.grid(visible=False)
    end = max((branch.end for branch in branches), default=1.0) or 1.0
    axes.set_xlim(-0.015 * end, 1.015 * end)
    axes.set_ylim(rows.height, 0)
    axes.set_xlabel("epochs on the path" if narrow else "epochs on the path from the base model")
    axes.locator_params(axis="x", nbins=5 if narrow else 8)
    named = [branch for branch in branches if branch.number not in rows.pressed]
    places = [rows.at[branch.number] for branch in named]
    names = [_row_name(history, branch, narrow) for branch in named]
    if rows.pressed:
        first, last = rows.pressed[0], rows.pressed[-1]
        places.append(rows.middle)
        names.append(f"{first}–{last}" if narrow else f"stages {first} to {last}")
    name_rows(axes, dict(zip(places, names, strict=True)), size=11)
    _parts(axes, branches, rows)
    _jumps(axes, history, branches, rows)
    _leavers(axes, history, branches, rows, narrow)
    if history.best:
        _star(axes, history, rows)
    return figure


def _row_name(history: History, branch: Branch, narrow: bool) -> str:
    active = len(history.stages[branch.number].asked.active)
    return f"{branch.number}" if narrow else f"stage {branch.number} · {active} active"


def _parts(axes: "Axes", branches: Sequence[Branch], rows: _StageRows) -> None:
    """The branches themselves, and a short stroke at each peak."""
    lines: dict[tuple[str, bool], Polyline] = {
        (colour, pressed): ([], [])
        for colour in (FAINT, WENT_ON, BEST)
        for pressed in (False, True)
    }
    peaks: Polyline = ([], [])
    for branch in branches:
        y, pressed = rows.at[branch.number], branch.number in rows.pressed
        for first, last, colour in branch.parts:
            lines[colour, pressed][0].extend([branch.at(first), branch.at(last), nan])
            lines[colour, pressed][1].extend([y, y, nan])
        if not pressed:
            ticks = sorted({*branch.peaks.values()})
            peaks[0].extend(branch.at(tick) for tick in ticks)
            peaks[1].extend(y for _ in ticks)
    for (colour, pressed), line in lines.items():
        thick = 1.6 if pressed else 3.5
        axes.plot(*line, color=colour, linewidth=thick * (0.57 if colour == FAINT else 1))
    axes.plot(*peaks, "|", markersize=9, markeredgewidth=1.2, color=MUTED)


def _jumps(axes: "Axes", history: History, branches: Sequence[Branch], rows: _StageRows) -> None:
    """From each roll-out to the next one: down from where it begins, dashed if that is back."""
    down: dict[str, Polyline] = {colour: ([], []) for colour in (FAINT, WENT_ON, BEST)}
    for branch, following in pairwise(branches):
        x, y, below = following.start, rows.at[branch.number], rows.at[following.number]
        colour = BEST if following.to_best else WENT_ON if following.went_on else FAINT
        down[colour][0].extend([x, x, nan])
        down[colour][1].extend([y, below, nan])
        pressed = branch.number in rows.pressed and following.number in rows.pressed
        if pressed or not rolled_back(history, branch.number) or branch.end <= x:
            continue
        axes.annotate(
            "",
            (x, below - 2.4),
            (branch.end, y + 2.4),
            arrowprops={
                "arrowstyle": "->",
                "color": LEFT,
                "linewidth": 1.0,
                "linestyle": (0, (3, 3)),
                "shrinkA": 0,
                "shrinkB": 2,
            },
        )
    for colour, line in down.items():
        axes.plot(*line, color=colour, linewidth=1.2, zorder=1.5)


def _leavers(
    axes: "Axes", history: History, branches: Sequence[Branch], rows: _StageRows, narrow: bool
) -> None:
    """A dot where they left, and their names right of the branch, where no line passes."""
    left: dict[int, list[Exclusion]] = {}
    size = 11 if narrow else 12
    for item in history.exclusions:
        left.setdefault(item.stage, []).append(item)
    for pressed in (True, False):
        stages = [stage for stage in left if (stage in rows.pressed) == pressed]
        xs = [epochs_to(history, left[stage][-1].checkpoint) for stage in stages]
        ys = [rows.at[stage] for stage in stages]
        axes.plot(xs, ys, "o", markersize=4.5 if pressed else 8, color=LEFT, markeredgecolor=PAPER)
        for stage, x in zip(stages, xs, strict=True):
            if not pressed:
                names = label(", ".join(item.name for item in left[stage]), 12 if narrow else 28)
                place = (max(branches[stage].end, x), rows.at[stage])
                beside(axes, place, f"{names} left", gap=8, colour=LEFT, size=size)
    many = sum(len(left.get(stage, [])) for stage in rows.pressed)
    if many:
        end = max(branches[stage].end for stage in rows.pressed)
        beside(axes, (end, rows.middle), f"{many} left", gap=8, colour=LEFT, size=size)


def _star(axes: "Axes", history: History, rows: _StageRows) -> None:
    assert history.best is not None
    if history.average_of:
        _average(axes, history, history.average_of, rows)
        return
    path = history.path(history.best)
    row = path[-1][0] if path else 0
    if row < len(rows.at):
        x = epochs_to(history, history.best)
        axes.plot([x], [rows.at[row]], marker="*", markersize=17, color=BEST, markeredgecolor=PAPER)


def _average(
    axes: "Axes", history: History, parts: Sequence[CheckpointId], rows: _StageRows
) -> None:
    """A ring at each tick that was averaged, and the star beside the axis: an average is at no
    tick."""
    ticks = [part for part in dict.fromkeys(parts) if part != BASE]
    xs = [epochs_to(history, tick) for tick in ticks]
    ys = [rows.at[place_of(tick)[0]] for tick in ticks]
    axes.plot(xs, ys, "o", markersize=6, markerfacecolor=PAPER, markeredgecolor=BEST)
    place, within = (1.0, ys[-1] if ys else rows.at[0]), axes.get_yaxis_transform()
    xy = ([place[0]], [place[1]])
    star = axes.plot(*xy, "*", markersize=17, color=BEST, transform=within)[0]
    star.set(clip_on=False, markeredgecolor=PAPER)
    beside(axes, place, f"mean of {len(parts)}", gap=12, colour=BEST, size=11, within=within)
