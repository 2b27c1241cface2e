"""Figures of what a run did and what it cost: training loss, FLOPs, copies on disk."""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from msft.report.compare.disk_bounds import disk_bounds
from msft.report.figures.branches import Branch, Polyline, rolled_back
from msft.report.figures.chart import DASHED, NARROW, add_axes, new_figure
from msft.report.figures.colours import (
    BEST,
    FAINT,
    GOLD,
    GREEN,
    INK,
    LEFT,
    MUTED,
    OTHER,
    PAPER,
    VARIABLES,
    WENT_ON,
)
from msft.report.figures.legend import Entry, draw_legend, legend_height
from msft.report.figures.moving_loss import WINDOW, moving_losses, thinned
from msft.run.folder import StepLosses
from msft.run.history import History
from msft.run.summary import adapter_of, disk_of, flops_of, path_tokens, train_flops
from msft.text import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINED = "epochs trained, discarded ones included"
STEPS = f"moving average over {WINDOW} steps"


def loss(history: History, branches: Sequence[Branch], steps: StepLosses, width: float) -> "Figure":
    """Mean training loss of each tick in the order of work, beside it the moving average over
    steps where these are known, and how many were active."""
    moving = moving_losses(history, steps)
    entries = [Entry("mean of each tick", BEST, "line"), Entry(STEPS, GOLD, "line")]
    entries = entries if any(moving) else []
    top = legend_height(entries, width)
    figure = new_figure(width, top + 300)
    axes = add_axes(figure, 48, 12, top + 12, 118)
    below = add_axes(figure, 48, 12, top + 206, 44, sharex=axes)
    for branch, places in zip(branches, moving, strict=True):
        shown = thinned(places)
        at = [branch.trained_at(0) + place / branch.per_epoch for place, _ in shown]
        axes.plot(at, [height for _, height in shown], color=GOLD, linewidth=1)
    lines: dict[str, Polyline] = {colour: ([], []) for colour in (FAINT, WENT_ON, BEST)}
    for branch in branches:
        points = history.stages[branch.number].points
        for first, last, colour in branch.parts:
            ticks = [tick for tick in range(max(first, 1), last + 1) if points[tick - 1].loss[1]]
            ticks += ticks if len(ticks) == 1 else []  # a line to itself is a dot
            losses = [points[tick - 1].loss for tick in ticks]
            lines[colour][0].extend([*(branch.trained_at(tick) for tick in ticks), nan])
            lines[colour][1].extend([*(total / rows for total, rows in losses), nan])
    for colour, line in lines.items():
        axes.plot(*line, color=colour)
    active = [len(history.stages[branch.number].asked.active) for branch in branches]
    edges = [*(branch.before for branch in branches), branches[-1].trained_at(branches[-1].ticks)]
    below.stairs(active, edges, color=MUTED, fill=True, alpha=0.25)
    below.stairs(active, edges, color=MUTED, linewidth=1.5)
    back = [b.before for b in branches[1:] if rolled_back(history, b.number - 1)]
    for each in (axes, below):
        across = each.get_xaxis_transform()
        each.vlines(back, [0], [1], transform=across, color=LEFT, zorder=0.9, **DASHED)
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("training loss")
    axes.locator_params(axis="y", nbins=5)
    below.set_ylabel("active")
    many = len(history.start.datasets)
    below.set_ylim(0, 1.2 * many)
    below.set_yticks([0, many])
    below.set_xlabel(TRAINED)
    below.locator_params(axis="x", nbins=5 if width <= NARROW else 9)
    axes.margins(x=0.01)
    draw_legend(figure, entries)
    return figure


def flops_shares(history: History) -> list[tuple[str, int, str]]:
    """What the FLOPs went into, adding up to all of them: name, amount, colour."""
    all_of = flops_of(history)
    path = path_tokens(history, history.best).train if history.best else 0
    kept = train_flops(history.start.num_parameters, path, adapter_of(history))
    shares = [
        ("training kept", kept, BEST),
        ("training discarded", all_of.train - kept, FAINT),
        ("look-ahead", all_of.lookahead, OTHER),
        ("evaluation", all_of.evaluation, WENT_ON),
    ]
    return [share for share in shares if share[1] or share[0] != "look-ahead"]


def flops(history: History, width: float) -> "Figure":
    """All FLOPs of the run as one bar."""
    figure = new_figure(width, 46)
    axes = add_axes(figure, 0, 0, 4, 4)
    axes.set_axis_off()
    shares = flops_shares(history)
    total = sum(amount for _, amount, _ in shares) or 1
    left = 0.0
    for name, amount, colour in shares:
        share = amount / total
        axes.barh([0], [share], left=[left], height=1, color=colour, edgecolor=PAPER, linewidth=2)
        text = f"{name} {share:.0%}" if share * width > 150 else f"{share:.0%}"
        if share * width > 36:
            ink = INK if colour == FAINT else PAPER
            axes.text(left + share / 2, 0, text, ha="center", va="center", color=ink, fontsize=12)
        left += share
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, 0.5)
    return figure


def flop_rows(history: History) -> list[tuple[str, str, str]]:
    """The same as rows: name, amount, and the CSS variable of the colour."""
    return [(name, si(amount), VARIABLES[colour]) for name, amount, colour in flops_shares(history)]


def disk(history: History, branches: Sequence[Branch], width: float) -> "Figure":
    """Sets of weights on disk while each tick was trained, the most of it, and the mean; where
    roll-outs began, and the paper's bounds for mSFT."""
    lines = disk_lines(history)
    held = f"held (disk_policy: {history.disk_policy})"
    entries = [Entry(held, MUTED), Entry("most", FAINT, "line")]
    entries += [Entry(text, colour, "dash") for text, (_, colour) in lines.items()]
    entries += [Entry("new roll-out", LEFT, "dash")] if branches[1:] else []
    top = legend_height(entries, width) + 4
    figure = new_figure(width, top + 190)
    axes = add_axes(figure, 48, 12, top, 44)
    draw_disk(axes, history, branches)
    axes.locator_params(axis="x", nbins=5 if width <= NARROW else 9)
    axes.set_xlabel(TRAINED)
    draw_legend(figure, entries)
    return figure


def disk_lines(history: History) -> dict[str, tuple[float, str]]:
    """The mean and the paper's bounds: height and colour by what they are."""
    mean = disk_of(history)["mean_copies"]
    lines = {f"mean {mean:.2f}": (mean, BEST)}
    bounds = disk_bounds(history)
    if bounds:
        lines[f"paper's mean, {bounds.rule} = {bounds.mean:.4g}"] = (bounds.mean, GREEN)
        lines[f"paper's most, N + 1 = {bounds.most}"] = (bounds.most, OTHER)
    return lines


def draw_disk(axes: "Axes", history: History, branches: Sequence[Branch]) -> None:
    points = [
        (branch.trained_at(tick), point.disk)
        for branch in branches
        for tick, point in enumerate(history.stages[branch.number].points)
    ]
    lines = disk_lines(history)
    step = 1 / history.evals_per_epoch
    xs = [*(x for x, _ in points), points[-1][0] + step] if points else []
    copies = [copy.copies for _, copy in points]
    peaks = [copy.peak_copies for _, copy in points]
    if points:
        most, there = [*peaks, peaks[-1]], [*copies, copies[-1]]
        axes.plot(xs, most, color=FAINT, linewidth=1.2, drawstyle="steps-post")
        axes.fill_between(xs, there, step="post", color=MUTED, alpha=0.25, linewidth=0)
        axes.plot(xs, there, color=MUTED, linewidth=1.5, drawstyle="steps-post")
        for height, colour in lines.values():
            axes.axhline(height, color=colour, linewidth=1.4, linestyle=(0, (4, 3)))
    begun = [branch.before for branch in branches[1:]]
    across = axes.get_xaxis_transform()
    axes.vlines(begun, [0], [1], transform=across, color=LEFT, zorder=0.9, **DASHED)
    axes.set_ylim(0, max([1, *peaks, *(height for height, _ in lines.values())]) * 1.1)
    axes.set_ylabel("copies")
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.margins(x=0.01)
