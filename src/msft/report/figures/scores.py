"""Figures of scores on each sub-dataset: the scores themselves, their gain over SFT (Fig. 7), and
what the gain is made of (Fig. 8)."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

from msft.report.compare.contest import Contest
from msft.report.compare.decomposition import (
    Parts,
    decomposition,
    decomposition_split,
    mean_decomposition,
    mean_parts,
)
from msft.report.compare.entrant import Entrant
from msft.report.compare.evidence import wilson
from msft.report.figures.bars import (
    Panel,
    Series,
    horizontal_axes,
    horizontal_bars,
    horizontal_dots,
    room,
    rows_of,
)
from msft.report.figures.chart import NARROW, beside
from msft.report.figures.colours import (
    BEST,
    FAINT,
    GREEN,
    INK,
    LEFT,
    MUTED,
    PAPER,
    PINK,
    colour_at,
)
from msft.report.figures.legend import Entry
from msft.report.wording import Unit, difference, gain_unit, points, score_unit
from msft.search.scores import TEST, Number
from msft.text import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 3
"""Series that are bars; more are dots."""


def score_text(contest: Contest) -> str:
    """What the figure shows."""
    units = {contest.unit((name,)) for name in contest.names}
    text = "In per cent of rows right" if units == {"accuracy"} else "Accuracies in per cent"
    if "accuracy" not in units:
        text = "In the metric of each sub-dataset"
    elif _single(contest):
        text += "; the lines are Wilson's 95 % intervals"
    if not _single(contest):
        text += f"; mean over seeds {listed(map(str, contest.seeds))}"
    if len(units) > 1:
        text += "; each metric has an axis of its own"
    return text + (". Of nll, lower is better." if "nll" in units else ".")


def score_figure(contest: Contest, width: float) -> "Figure":
    """Sub-datasets with the same metric share an axis."""
    by_unit: dict[Unit, list[str]] = {}
    for name in contest.names:
        by_unit.setdefault(contest.unit((name,)), []).append(name)
    panels = [
        Panel(names, _series(contest, names), f"{score_unit(unit)} ({contest.split})")
        for unit, names in by_unit.items()
    ]
    return horizontal_dots(width, panels, zero=False)


def _series(contest: Contest, names: Sequence[str]) -> list[Series]:
    return [
        Series(
            entrant.label,
            colour_at(place),
            [_score(contest, entrant, name) for name in names],
            [_interval(contest, entrant, name) for name in names],
        )
        for place, entrant in enumerate(contest.entrants)
    ]


def _single(contest: Contest) -> bool:
    return all(len(entrant.over(contest.seeds)) == 1 for entrant in contest.entrants)


def _score(contest: Contest, entrant: Entrant, name: str) -> float | None:
    score = contest.score(entrant, (name,), contest.split)
    return None if score is None else points(score, contest.unit((name,)))


def _interval(contest: Contest, entrant: Entrant, name: str) -> tuple[float, float] | None:
    """Of a count under one seed."""
    run, *others = entrant.over(contest.seeds)
    score = run.history.known(run.best, contest.split).get(name)
    if others or score is None or score.metric != "accuracy":
        return None
    low, high = wilson(int(score.total), score.count)
    return (100 * low, 100 * high)


def gains(contest: Contest) -> dict[str, list[float | None]]:
    """Per sub-dataset the gain of each entrant other than SFT; the highest of mSFT's first, or of
    the first entrant's where there is no mSFT."""
    leader = next((c for c in contest.others if c.method == "msft"), contest.others[0])
    table = {
        name: [contest.gain(entrant, name) for entrant in contest.others] for name in contest.names
    }
    place = contest.others.index(leader)
    return {name: table[name] for name in _falling({name: table[name][place] for name in table})}


def _falling(values: Mapping[str, Number | None]) -> list[str]:
    """The names, the highest value's first; those without one last."""
    return sorted(values, key=lambda name: inf if (value := values[name]) is None else -value)


def gains_figure(contest: Contest, width: float) -> "Figure":
    """Fig. 7: the gain over SFT on each sub-dataset, sorted, and on their mean.

    Where metrics are mixed there is no mean: its gains are over the base model.
    """
    return _gains_drawn(contest, gains(contest), width)


def group_gains(contest: Contest) -> dict[str, list[float | None]]:
    """Per group of sub-datasets the gain of each entrant other than SFT, on its mean."""
    return {
        group: [contest.mean_gain(entrant, names) for entrant in contest.others]
        for group, names in contest.groups.items()
    }


def group_gains_figure(contest: Contest, width: float) -> "Figure":
    """Fig. 7 as the paper draws it: the gain over SFT on each group of sub-datasets."""
    return _gains_drawn(contest, group_gains(contest), width)


def _gains_drawn(
    contest: Contest, table: Mapping[str, Sequence[float | None]], width: float
) -> "Figure":
    unit, names, rows = contest.unit(), [*table], [*table.values()]
    if unit is not None:
        names = ["mean", *names]
        rows = [[contest.mean_gain(entrant) for entrant in contest.others], *rows]
    series = [
        Series(
            entrant.label,
            colour_at(contest.entrants.index(entrant)),
            [row[place] for row in rows],
        )
        for place, entrant in enumerate(contest.others)
    ]
    axis = f"gain over SFT on {contest.split}, {gain_unit(unit)}".rstrip(", ")
    if len(series) > MOST_BARS:
        return horizontal_dots(width, [Panel(names, series, axis)])

    def written(value: float) -> str:
        return difference(value / points(1, unit), unit or "accuracy")  # as it is drawn

    return horizontal_bars(width, names, series, axis, written)


def parts_of(contest: Contest, entrant: Entrant) -> tuple[dict[str, Parts], str]:
    """Eq. 4 for every sub-dataset, the mean over the pairs of runs, and the split it is of."""
    pairs = [(sft.history, msft.history) for msft, sft in contest.pairs(entrant)]
    splits = {contest.split, *(decomposition_split(sft, msft) for sft, msft in pairs)}
    split = TEST if splits == {TEST} else contest.selection
    return mean_decomposition([decomposition(sft, msft, split) for sft, msft in pairs]), split


PREVENTED, ADDED, FORGOTTEN, TRANSFERRED, UNDEFINED = (
    Entry("overfitting prevented (+)", GREEN),
    Entry("overfitting added (−)", PINK),
    Entry("forgetting (−)", LEFT),
    Entry("transfer (+)", BEST),
    Entry("undefined", FAINT),
)
"""A part and its sign have a colour of their own, so that no loss looks like a gain."""


def bars_of(part: Parts) -> list[tuple[Entry, Number]]:
    """What the parts of a gain are, and their lengths, those that are nothing left out."""
    prevention, forgetting = part.prevention or 0, part.forgetting or 0
    found = [
        (PREVENTED if prevention > 0 else ADDED, prevention),
        (TRANSFERRED if forgetting > 0 else FORGOTTEN, forgetting),
        (UNDEFINED, part.rest),
    ]
    return [(entry, length) for entry, length in found if length]


def parts_figure(parts: Mapping[str, Parts], split: str, unit: Unit, width: float) -> "Figure":
    """Fig. 8: the gain over SFT as overfitting prevented plus forgetting or transfer."""
    order = _falling({name: part.gain for name, part in parts.items()})
    names = ["mean", *order]
    shares = [mean_parts([*parts.values()]), *(parts[name] for name in order)]
    rows = rows_of(len(names))
    drawn = {entry for share in shares for entry, _ in bars_of(share)}
    entries = [PREVENTED, ADDED, FORGOTTEN, TRANSFERRED, UNDEFINED]
    entries = [*(entry for entry in entries if entry in drawn), Entry("gain", INK, "dot")]
    figure, axes = horizontal_axes(width, names, rows, 24, entries)
    reached: list[float] = []
    texts: list[str] = []
    for row, place in rows.places:
        share = shares[place]
        ends = {1: 0.0, -1: 0.0}
        for entry, part in bars_of(share):
            length = points(part, unit)
            side = 1 if length >= 0 else -1
            axes.barh([row], [length], left=[ends[side]], height=0.66, color=entry.colour)
            ends[side] += length
        gain = points(share.gain, unit) if share.gain is not None else 0.0
        if share.gain is not None and isfinite(gain):
            axes.plot([gain], [row], "o", markersize=7, color=INK, markeredgecolor=PAPER)
        reached += [*ends.values(), gain]
        texts.append(_gain_text(share, unit, width <= NARROW))
        colour = MUTED if share.prevention is None else INK
        beside(axes, (max(ends[1], gain), row), texts[-1], gap=8, colour=colour)
    room(axes, reached, width, max(map(len, texts)) + 1, left=0)
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_xlabel(f"gain over SFT on {split}, {gain_unit(unit)}".rstrip(", "))
    axes.locator_params(axis="x", nbins=4 if width <= NARROW else 7)
    return figure


def _gain_text(share: Parts, unit: Unit, narrow: bool) -> str:
    """A gain, and why the equation does not say all of it."""
    text = difference(share.gain, unit)
    if share.prevention is None:
        return f"{text}  undefined" if narrow else f"{text}  undefined: {share.why}"
    if not share.rest:
        return text
    rest = difference(share.rest, unit)
    return f"{text}  {rest} undef." if narrow else f"{text}  of it undefined: {rest}"
