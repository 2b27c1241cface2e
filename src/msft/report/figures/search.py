"""Figures of the search: its timeline, and the curve of each sub-dataset."""

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Any

from msft.report.branches import (
    Branch,
    Polyline,
    deciding_curve,
    epochs_to,
    is_derived,
    rolled_back,
)
from msft.report.compare.statistics import Intervals
from msft.report.figures.chart import (
    BEST,
    FAINT,
    INK,
    LEFT,
    MUTED,
    NARROW,
    PAPER,
    WENT_ON,
    add_axes,
    beside,
    colour_at,
    hover,
    in_page,
    log_axis_if_far,
    name_rows,
    new_figure,
)
from msft.report.wording import in_words, score_unit
from msft.run.history import Exclusion, History
from msft.search.rollout import BASE, CheckpointId, place_of
from msft.text import epochs, label, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MANY = 30
"""Roll-outs that get a row with a name each; of more, the ones between the ends are pressed."""

_ROW, _PRESSED, _ENDS = 34, 5, 8
"""Pixels of a row, pixels of a pressed one, and rows that stay as they are at each end."""


class _StageRows:
    """The height of each roll-out's row, in pixels from the top."""

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
        """The middle of the pressed rows."""
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
    active = [len(history.stages[branch.number].asked.active) for branch in named]
    names = [
        f"{branch.number}" if narrow else f"stage {branch.number} · {many} active"
        for branch, many in zip(named, active, strict=True)
    ]
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
    _hover_ticks(axes, history, branches, rows)
    return figure


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
    """Lines from each roll-out to the next: down to where the next one begins, dashed if it begins
    at an earlier epoch."""
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


def _hover_ticks(
    axes: "Axes", history: History, branches: Sequence[Branch], rows: _StageRows
) -> None:
    """Every tick says its mean; where somebody left, who."""
    left: dict[CheckpointId, list[str]] = {}
    for each in history.exclusions:
        left.setdefault(each.checkpoint, []).append(each.name)
    xs, ys, texts = list[float](), list[float](), list[str]()
    for branch in (each for each in branches if each.number not in rows.pressed):
        for tick, checkpoint in enumerate(branch.checkpoints[1:], start=1):
            mean = history.mean(checkpoint) if history.has_mean(checkpoint) else None
            text = f"stage {branch.number}, epoch {epochs(branch.at(tick))}, {checkpoint}"
            text += f": mean {in_words(mean, history.mean_unit)}" if mean is not None else ""
            text += f"; {listed(left[checkpoint])} left here" if checkpoint in left else ""
            text += "; the best checkpoint" if checkpoint == history.best else ""
            xs.append(branch.at(tick))
            ys.append(rows.at[branch.number])
            texts.append(text)
    hover(axes, xs, ys, texts)


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


_STYLES: dict[tuple[str, bool], dict[str, Any]] = {
    (FAINT, False): {"linewidth": 1.1},
    (WENT_ON, False): {"linewidth": 1.3, "linestyle": (0, (1, 2))},
    (WENT_ON, True): {},
    (BEST, True): {},
}
"""Line styles by the colour of a part and by whether the sub-dataset was in the mixture there."""


class _Heights:
    """One sub-dataset's scores as they are drawn: shares in per cent.

    The line of a roll-out is the curve that decided, such as a smoothed one; peaks and exclusions
    are marked on it.
    """

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._scores = history.scores[history.selection]
        self._name = name
        self._lines: dict[int, list[float]] = {}
        self.derived = is_derived(history)
        self.scale = 100.0 if history.unit_of(name) == "accuracy" else 1.0
        self.base = self(BASE)

    def __call__(self, checkpoint: CheckpointId) -> float:
        """The score of a checkpoint by itself."""
        score = self._scores.get(checkpoint, {}).get(self._name)
        return nan if score is None else self.scale * score.total / score.count

    def line(self, branch: Branch) -> list[float]:
        """The curve that decided in a roll-out, one height per tick."""
        if branch.number not in self._lines:
            if self.derived:
                curve = deciding_curve(self._history, branch.number, self._name)
                drawn = [nan if each is None else self.scale * float(each) for each in curve]
            else:
                drawn = [*map(self, branch.checkpoints)]
            self._lines[branch.number] = drawn
        return self._lines[branch.number]

    def where_left(self, branches: Sequence[Branch], exclusion: Exclusion) -> float:
        """On the line of the roll-out after which it left, if that has the checkpoint."""
        branch = branches[exclusion.stage]
        if exclusion.checkpoint in branch.checkpoints:
            return self.line(branch)[branch.checkpoints.index(exclusion.checkpoint)]
        return self(exclusion.checkpoint)


def curve(
    history: History,
    branches: Sequence[Branch],
    name: str,
    exclusion: Exclusion | None,
    intervals: Intervals,
) -> "Figure":
    """One sub-dataset's scores over the epochs on the path."""
    figure = new_figure(320, 190)
    axes = add_axes(figure, 42, 10, 10, 40)
    heights = _Heights(history, name)
    axes.axhline(heights.base, color=FAINT, linewidth=1, linestyle=(0, (2, 3)))
    _band(axes, branches, name, intervals, heights.scale)
    if heights.derived:
        _raw_scores(axes, branches, heights)
    for style, line in _lines(history, branches, name, heights).items():
        axes.plot(*line, color=style[0], **_STYLES[style])
    _peaks(axes, branches, name, heights)
    _marks(axes, history, branches, exclusion, heights)
    _hover_scores(axes, history, branches, name, heights, intervals)
    axes.set_xlabel("epochs on the path")
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=6)
    axes.margins(x=0.03)
    if history.unit_of(name) == "nll":
        log_axis_if_far(axes, (y for branch in branches for y in heights.line(branch)))
    return figure


def _hover_scores(
    axes: "Axes",
    history: History,
    branches: Sequence[Branch],
    name: str,
    heights: _Heights,
    intervals: Intervals,
    css: str = "",
) -> None:
    """Every tick says its score with its interval; in a long search, every tick on the path."""
    for branch in branches:
        ticks = range(0 if branch.number == 0 else 1, branch.ticks + 1)
        if (css and len(branches) > 1) or len(branches) > MANY:
            ticks = range(ticks.start, branch.used + 1)
        texts = []
        for tick in ticks:
            at = branch.checkpoints[tick]
            score = history.known(at).get(name)
            text = in_words(score.value, score.metric) if score else ""
            interval = intervals.text(at, name)
            text += f" ({interval})" if interval else ""
            texts.append(f"{name}, epoch {epochs(branch.at(tick))}, {at}: {text}")
        line = heights.line(branch)
        hover(axes, [*map(branch.at, ticks)], [line[tick] for tick in ticks], texts, css)


def together(
    history: History,
    branches: Sequence[Branch],
    names: Sequence[str],
    intervals: Intervals,
    width: float,
) -> "Figure":
    """The curves of all sub-datasets, without what a search rolled back, each in a colour; dotted
    where it is not in the mixture. A switch of the page hides the class of each, `d<place>`."""
    units = [*dict.fromkeys(history.unit_of(name) for name in names)]
    figure = new_figure(width, 280 * len(units))
    panels = {
        unit: add_axes(figure, 52, 12, 12 + 280 * at, 44 + 280 * (len(units) - at - 1))
        for at, unit in enumerate(units)
    }
    left = {each.name: each for each in history.exclusions}
    losses = list[float]()
    for place, name in enumerate(names):
        axes, heights = panels[history.unit_of(name)], _Heights(history, name)
        css, colour = f"d{place}", colour_at(place)
        lines: dict[bool, Polyline] = {True: ([], []), False: ([], [])}
        for branch in branches:
            xs, ys = lines[name in history.stages[branch.number].asked.active]
            last = branch.ticks if len(branches) == 1 else branch.used
            xs.extend([*map(branch.at, range(last + 1)), nan])
            ys.extend([*heights.line(branch)[: last + 1], nan])
        for trained, line in lines.items():
            style = "-" if trained else (0, (1, 2))
            in_page(axes.plot(*line, color=colour, linestyle=style, linewidth=1.8)[0], css=css)
            losses += line[1] if history.unit_of(name) == "nll" else []
        if name in left:
            x, y = (
                epochs_to(history, left[name].checkpoint),
                heights.where_left(branches, left[name]),
            )
            in_page(axes.plot([x], [y], "o", color=colour, markersize=9)[0], css=css)
        _hover_scores(axes, history, branches, name, heights, intervals, css)
    for unit, axes in panels.items():
        _best_line(axes, history)
        axes.set_ylabel(score_unit(unit))
        axes.locator_params(axis="x", nbins=6 if width <= NARROW else 12)
        axes.margins(x=0.02)
    if "nll" in panels:
        log_axis_if_far(panels["nll"], losses)
    axes.set_xlabel("epochs on the path")
    return figure


def _lines(
    history: History, branches: Sequence[Branch], name: str, heights: _Heights
) -> dict[tuple[str, bool], Polyline]:
    """The parts of a curve by how they are drawn.

    In a long search, what was rolled back after a sub-dataset had left is left out.
    """
    lines: dict[tuple[str, bool], Polyline] = {style: ([], []) for style in _STYLES}
    for branch in branches:
        active = name in history.stages[branch.number].asked.active
        for first, last, colour in branch.parts:
            if colour == FAINT and not active and len(branches) > MANY:
                continue
            if colour == BEST and not active:
                colour = WENT_ON  # it is on the path, but learns nothing there
            xs, ys = lines[colour, active and colour != FAINT]
            xs.extend([*map(branch.at, range(first, last + 1)), nan])
            ys.extend([*heights.line(branch)[first : last + 1], nan])
    return lines


def _raw_scores(axes: "Axes", branches: Sequence[Branch], heights: _Heights) -> None:
    """The scores behind a line that is not simply them: small points."""
    points = [
        (branch.at(tick), heights(checkpoint))
        for branch in branches
        for tick, checkpoint in enumerate(branch.checkpoints)
    ]
    axes.plot(*zip(*points, strict=True), "o", markersize=2.6, color=FAINT, zorder=1.2)


def _peaks(axes: "Axes", branches: Sequence[Branch], name: str, heights: _Heights) -> None:
    """A ring at the peak of each roll-out it was in."""
    found = [(branch, branch.peaks[name]) for branch in branches if name in branch.peaks]
    axes.plot(
        [branch.at(tick) for branch, tick in found],
        [heights.line(branch)[tick] for branch, tick in found],
        "o",
        markersize=4.5,
        markerfacecolor=PAPER,
        markeredgecolor=MUTED,
    )


def _marks(
    axes: "Axes",
    history: History,
    branches: Sequence[Branch],
    exclusion: Exclusion | None,
    heights: _Heights,
) -> None:
    """Full where it left, and the best checkpoint as a line."""
    if exclusion is not None:
        height = heights.where_left(branches, exclusion)
        place = ([epochs_to(history, exclusion.checkpoint)], [height])
        axes.plot(*place, "o", markersize=7.5, color=LEFT, markeredgecolor=PAPER)
    if history.best and history.average_of:  # at no tick, so beside them
        height, within = heights(history.best), axes.get_yaxis_transform()
        star = axes.plot([1.0], [height], "*", markersize=12, color=BEST, transform=within)[0]
        star.set(clip_on=False, markeredgecolor=PAPER)
    else:
        _best_line(axes, history)


def _best_line(axes: "Axes", history: History) -> None:
    if history.best and not history.average_of:
        x = epochs_to(history, history.best)
        axes.axvline(x, color=BEST, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)


def _band(
    axes: "Axes", branches: Sequence[Branch], name: str, intervals: Intervals, scale: float
) -> None:
    """The 95 % interval along what was not rolled back."""
    xs, low, high = list[float](), list[float](), list[float]()
    for branch in branches:
        for tick in range(branch.used + 1) if branch.used else ():
            found = intervals.at(branch.checkpoints[tick], name)
            bottom, top = found or (nan, nan)
            xs.append(branch.at(tick))
            low.append(scale * bottom)
            high.append(scale * top)
        xs.append(nan)
        low.append(nan)
        high.append(nan)
    if any(bottom == bottom for bottom in low):
        axes.fill_between(xs, low, high, color=INK, alpha=0.09, linewidth=0)
