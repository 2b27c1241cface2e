"""Figures of what runs did and what it cost: training loss (Fig. 9), FLOPs, copies on disk, rows
still active under IES."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, nan
from typing import TYPE_CHECKING

from msft.report.branches import Branch, Polyline, branches_of, rolled_back
from msft.report.compare.comparison import Comparison, MethodRuns
from msft.report.compare.paper import disk_bounds
from msft.report.compare.runs import ComparedRun
from msft.report.figures.chart import (
    BEST,
    DASHED,
    FAINT,
    GOLD,
    GREEN,
    INK,
    LEFT,
    MUTED,
    NARROW,
    OTHER,
    PAPER,
    WENT_ON,
    Entry,
    above,
    add_axes,
    colour_at,
    draw_legend,
    hover,
    in_page,
    legend_height,
    log_axis_if_far,
    new_figure,
)
from msft.report.wording import method_name
from msft.run.folder import StepLosses, step_losses_of
from msft.run.history import History, adapter_of, disk_of, flops_of, path_tokens, train_flops
from msft.search.rollout import CheckpointId
from msft.text import epochs, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WINDOW = 10
"""Steps that are averaged, as in the paper."""

MOST = 500
"""Points of a roll-out that are drawn; of more, every second, third, …"""

XY = tuple[float, float]
"""Ticks since a roll-out began, and a loss."""


def moving_losses(history: History, steps: StepLosses) -> list[list[XY]]:
    """For each roll-out, the mean loss of the last ten steps up to each of its steps.

    The ten reach back over the start of a roll-out along its path, never into what was discarded.
    """
    return [
        _moving(_losses_to(history, steps, stage.asked.start), _own(history, steps, number))
        for number, stage in enumerate(history.stages)
    ]


def thinned(places: Sequence[XY]) -> Sequence[XY]:
    """Not more than a figure can show; the last is always among them."""
    stride = -(-len(places) // MOST) or 1
    return places[(len(places) - 1) % stride :: stride]


def _moving(before: Sequence[float], own: Sequence[XY]) -> list[XY]:
    losses = [*before, *(loss for _, loss in own)]
    found: list[XY] = []
    for number, (place, _) in enumerate(own, start=len(before) + 1):
        if number >= WINDOW:
            found.append((place, fsum(losses[number - WINDOW : number]) / WINDOW))
    return found


def _own(history: History, steps: StepLosses, rollout: int) -> list[XY]:
    """The steps of a roll-out as far as its ticks are in the log and all their steps are known."""
    found: list[XY] = []
    for tick, point in enumerate(history.stages[rollout].points, start=1):
        losses = steps.get((rollout, tick), ())
        if not point.steps or len(losses) < point.steps:
            continue
        latest = losses[len(losses) - point.steps :]  # a tick may have been trained twice
        found += [(tick - 1 + n / point.steps, loss) for n, loss in enumerate(latest, start=1)]
    return found


def _losses_to(history: History, steps: StepLosses, checkpoint: CheckpointId) -> list[float]:
    """The losses on the way to a checkpoint, as many of the last as a window may need."""
    found: list[float] = []
    for rollout, ticks in reversed(history.path(checkpoint)):
        on_path = [loss for place, loss in _own(history, steps, rollout) if place <= ticks]
        found = [*on_path, *found]
        if len(found) >= WINDOW:
            break
    return found[-(WINDOW - 1) :]


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
    axes = add_axes(figure, 56, 12, top + 12, 118)
    below = add_axes(figure, 56, 12, top + 206, 44, sharex=axes)
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
        texts = [f"{epochs(x)} epochs trained: {y:.4g}" for x, y in zip(*line, strict=True)]
        hover(axes, *line, texts)
    axes.locator_params(axis="y", nbins=5)
    log_axis_if_far(axes, (y for line in lines.values() for y in line[1]))
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
    """The shares of all FLOPs by what they were for: name, amount, colour."""
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
    shares = flops_shares(history)
    entries = [Entry(f"{name} {si(amount)}FLOPs", colour) for name, amount, colour in shares]
    top = legend_height(entries, width) + 4
    figure = new_figure(width, top + 42)
    axes = add_axes(figure, 0, 0, top, 4)
    axes.set_axis_off()
    total = sum(amount for _, amount, _ in shares) or 1
    left = 0.0
    for name, amount, colour in shares:
        share = amount / total
        bar = axes.barh([0], [share], left=[left], height=1, color=colour, edgecolor=PAPER)[0]
        bar.set_linewidth(2)
        in_page(bar, [f"{name}: {si(amount)}FLOPs, {share:.1%}"])
        if share * width > 36:
            ink = INK if colour == FAINT else PAPER
            place = (left + share / 2, 0)
            axes.text(*place, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=12)
        left += share
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, 0.5)
    draw_legend(figure, entries)
    return figure


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
        texts = [
            f"from epoch {epochs(x)} trained: {copy.copies} copies, {copy.peak_copies} at most"
            for x, copy in points
        ]
        hover(axes, [x + step / 2 for x, _ in points], copies, texts)
        for height, colour in lines.values():
            axes.axhline(height, color=colour, linewidth=1.4, linestyle=(0, (4, 3)))
    begun = [branch.before for branch in branches[1:]]
    across = axes.get_xaxis_transform()
    axes.vlines(begun, [0], [1], transform=across, color=LEFT, zorder=0.9, **DASHED)
    axes.set_ylim(0, max([1, *peaks, *(height for height, _ in lines.values())]) * 1.1)
    axes.set_ylabel("copies")
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.margins(x=0.01)


def loss_runs(comparison: Comparison) -> list[tuple[MethodRuns, ComparedRun]]:
    """The runs that have a training loss, without continual SFT, whose epochs are of one
    sub-dataset each."""
    return [
        (method, run)
        for method in comparison.methods
        for run in method.over(comparison.seeds)
        if method.name != "continual"
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


def losses_figure(comparison: Comparison, width: float) -> "Figure":
    """Fig. 9: training loss along the path that each search took; what was rolled back is faint.

    A dashed line is where a sub-dataset left. Of the one run that has any, the numbers above say
    how many sub-datasets remained.
    """
    runs = loss_runs(comparison)
    colours = {
        method.label: colour_at(comparison.methods.index(method)) for method, _ in runs
    }  # one for all seeds
    lines = [loss_line(colours[method.label], run) for method, run in runs]
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
    """Legend entries for the moving average and for the places where sub-datasets left."""
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
        heights += [*kept[1], *gone[1]]
        name = method_name(line.history.start.method)
        texts = [f"{name}, epoch {epochs(x)}: {y:.4g}" for x, y in zip(*kept, strict=True)]
        hover(axes, *kept, texts)
    leavers = _leavers(lines)
    for line in leavers:
        _rollback_lines(axes, line.history, line.colour, len(leavers) == 1)
    log_axis_if_far(axes, heights)
    axes.set_ylabel("training loss")
    axes.margins(x=0.01)


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
    line: list[XY] = []
    for branch, places in zip(branches_of(history), moving_losses(history, steps), strict=True):
        on_path = (place for place in places if place[0] <= branch.went_on)
        line += [(branch.start + at / branch.per_epoch, loss) for at, loss in on_path]
    shown = thinned(line)
    return [at for at, _ in shown], [loss for _, loss in shown]


def _rollbacks(history: History) -> list[tuple[float, int]]:
    """The epoch of each roll-back after which a sub-dataset left, and how many stayed."""
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
