"""Figures over epochs: training loss of several runs (Fig. 9), rows still active under IES."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING

from msft.report.compare.compared_run import ComparedRun
from msft.report.compare.contest import Contest
from msft.report.compare.entrant import Entrant
from msft.report.figures.branches import Polyline, branches_of, rolled_back
from msft.report.figures.chart import DASHED, NARROW, above, add_axes, new_figure
from msft.report.figures.colours import FAINT, MUTED, PAPER, colour_at
from msft.report.figures.legend import Entry, draw_legend, legend_height
from msft.report.figures.moving_loss import WINDOW, Place, moving_losses, thinned
from msft.run.folder import StepLosses, step_losses_of
from msft.run.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FAR = 8
"""Highest over lowest loss from which the axis is logarithmic."""


def loss_runs(contest: Contest) -> list[tuple[Entrant, ComparedRun]]:
    """The runs that have a training loss, without continual SFT, whose epochs are of one
    sub-dataset each."""
    return [
        (entrant, run)
        for entrant in contest.entrants
        for run in entrant.over(contest.seeds)
        if entrant.method != "continual"
        and any(point.loss[1] for stage in run.history.stages for point in stage.points)
    ]


@dataclass(frozen=True, slots=True)
class LossLine:
    """A run's training loss: its colour, its log, and the moving average along its path."""

    colour: str
    history: History
    moving: Polyline


def loss_line(colour: str, run: ComparedRun) -> LossLine:
    return LossLine(colour, run.history, path_steps(run.history, step_losses_of(run.folder)))


def losses_figure(contest: Contest, width: float) -> "Figure":
    """Fig. 9: training loss along the path that each search took; what was rolled back is faint.

    A dashed line is where a sub-dataset left. Of the one run that has any, the numbers above say
    how many sub-datasets remained.
    """
    runs = loss_runs(contest)
    colours = {
        entrant.label: colour_at(contest.entrants.index(entrant)) for entrant, _ in runs
    }  # one for all seeds
    lines = [loss_line(colours[entrant.label], run) for entrant, run in runs]
    entries = [Entry(name, colour, "line") for name, colour in colours.items()]
    entries += loss_entries(lines)
    top = legend_height(entries, width) + (22 if len(_leavers(lines)) == 1 else 6)
    figure = new_figure(width, top + 290)
    axes = add_axes(figure, 62, 12, top, 44)
    draw_losses(axes, lines)
    axes.set_xlabel("epochs on the path" if width <= NARROW else "epochs on the path from the base")
    draw_legend(figure, entries)
    return figure


def loss_entries(lines: Sequence[LossLine]) -> list[Entry]:
    """What is drawn beside the lines themselves."""
    entries: list[Entry] = []
    if any(places for places, _ in (line.moving for line in lines)):
        entries.append(Entry(f"thin: moving average over {WINDOW} steps", MUTED, "line"))
    if leavers := _leavers(lines):
        more = "; above: how many remain" if len(leavers) == 1 else ""
        entries.append(Entry(f"a sub-dataset left{more}", MUTED, "dash"))
    return entries


def _leavers(lines: Sequence[LossLine]) -> list[LossLine]:
    return [line for line in lines if _rollbacks(line.history)]


def draw_losses(axes: "Axes", lines: Sequence[LossLine]) -> None:
    """The losses of runs in one frame, and where sub-datasets left."""
    heights: list[float] = []
    for line in lines:
        kept, gone = path_losses(line.history)
        axes.plot(*gone, color=FAINT, linewidth=1)
        axes.plot(*line.moving, color=line.colour, linewidth=0.8, alpha=0.6)
        axes.plot(*kept, color=line.colour, linewidth=1.8)
        heights += [loss for loss in (*kept[1], *gone[1]) if not isnan(loss)]
    leavers = _leavers(lines)
    for line in leavers:
        _rollback_lines(axes, line.history, line.colour, len(leavers) == 1)
    if min(heights, default=0) > 0 and max(heights) > _FAR * min(heights):
        _logarithmic(axes, max(heights) / min(heights))
    axes.set_ylabel("training loss")
    axes.margins(x=0.01)


def _logarithmic(axes: "Axes", ratio: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 1000 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")


def path_losses(history: History) -> tuple[Polyline, Polyline]:
    """Mean training loss of each tick: along the path that the search took, and rolled back."""
    kept: Polyline = ([], [])
    gone: Polyline = ([], [])
    for branch in branches_of(history):
        points = history.stages[branch.number].points
        for line, first, last in ((kept, 1, branch.went_on), (gone, branch.went_on, branch.ticks)):
            for tick in range(max(first, 1), last + 1):
                total, rows = points[tick - 1].loss
                if rows:
                    line[0].append(branch.at(tick))
                    line[1].append(total / rows)
            if line is gone or not branch.went_on:
                line[0].append(nan)
                line[1].append(nan)
    return kept, gone


def path_steps(history: History, steps: StepLosses) -> Polyline:
    """The moving average over steps along the path that the search took."""
    line: list[Place] = []
    for branch, places in zip(branches_of(history), moving_losses(history, steps), strict=True):
        on_path = (place for place in places if place[0] <= branch.went_on)
        line += [(branch.start + at / branch.per_epoch, loss) for at, loss in on_path]
    shown = thinned(line)
    return [at for at, _ in shown], [loss for _, loss in shown]


def _rollbacks(history: History) -> list[tuple[float, int]]:
    """Where a roll-out began after a roll-back in which somebody left, and with how many."""
    return [
        (branch.start, len(history.stages[branch.number].asked.active))
        for branch in branches_of(history)[1:]
        if history.stages[branch.number - 1].excluded and rolled_back(history, branch.number - 1)
    ]


def _rollback_lines(axes: "Axes", history: History, colour: str, numbered: bool) -> None:
    across = axes.get_xaxis_transform()
    marks = dict(_rollbacks(history))  # of several at one place, the last
    axes.vlines(list(marks), 0, 1, transform=across, color=colour, **DASHED)
    if not numbered:
        return
    edges = [0.0, *marks, max(branch.end for branch in branches_of(history))]
    counts = [len(history.start.datasets), *marks.values()]
    span = (edges[-1] or 1.0) / max(axes.get_position().width * 72, 1)
    for (left, right), count in zip(pairwise(edges), counts, strict=True):
        if right - left > 1.2 * span:
            text = axes.text((left + right) / 2, 1.01, str(count), transform=across, fontsize=11)
            text.set(ha="center", va="bottom", color=colour)


def rows_per_epoch(history: History) -> list[int]:
    """Rows trained in each whole epoch of the last roll-out, from the rows that each tick logged.

    Under IES these are the rows that were still active.
    """
    per_epoch = history.evals_per_epoch
    points = history.stages[-1].points if history.stages else []
    rows = [point.loss[1] for point in points]
    whole = len(rows) // per_epoch * per_epoch
    return [sum(rows[first : first + per_epoch]) for first in range(0, whole, per_epoch)]


def rows_figure(runs: Sequence[tuple[str, History]], width: float) -> "Figure":
    """Rows still trained in each epoch, in per cent of the first epoch's."""
    colours = [colour_at(place + 1) for place in range(len(runs))]
    entries = [Entry(name, colour, "line") for (name, _), colour in zip(runs, colours, strict=True)]
    entries = entries if len(runs) > 1 else []
    top = legend_height(entries, width) + 14
    figure = new_figure(width, top + 230)
    axes = add_axes(figure, 48, 16, top, 44)
    longest = 1
    for (_, history), colour in zip(runs, colours, strict=True):
        rows = rows_per_epoch(history)
        shares = [100 * count / rows[0] if rows[0] else nan for count in rows]
        at = range(1, len(rows) + 1)
        axes.plot(at, shares, "o-", color=colour, markersize=6, markeredgecolor=PAPER)
        longest = max(longest, len(rows))
        if len(runs) == 1:
            for epoch, share in zip(at, shares, strict=True):
                above(axes, (epoch, share), f"{share:.0f}", 7, 10.5)
    axes.set_ylim(0, 112)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_xlim(0.6, longest + 0.4)
    axes.locator_params(axis="x", nbins=11, integer=True)
    axes.set_ylabel("rows trained, % of epoch 1")
    axes.set_xlabel("epoch")
    draw_legend(figure, entries)
    return figure
