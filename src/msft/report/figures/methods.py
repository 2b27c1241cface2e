"""Figures that set methods beside each other: spread and first places (Fig. 4), gain against the
size of the mixture (Fig. 5), accuracy and FLOPs against the compute budget (Fig. 6)."""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from msft.report.compare.contest import Contest, titles_of
from msft.report.compare.entrant import Entrant
from msft.report.compare.first_places import rounds_of, spread_of
from msft.report.compare.statistics import Places, first_places, mean
from msft.report.figures.bars import Series, horizontal_axes, horizontal_bars, room, rows_of
from msft.report.figures.chart import NARROW, above, add_axes, beside, new_figure
from msft.report.figures.colours import BEST, FAINT, MUTED, OTHER, PAPER, WENT_ON, colour_at
from msft.report.figures.costs import flops_shares
from msft.report.figures.legend import Entry, draw_legend, legend_height
from msft.report.wording import difference, gain_unit, points, score_unit
from msft.text import epochs, label, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def labels_of(contests: Sequence[Contest]) -> list[str]:
    return [*dict.fromkeys(entrant.label for contest in contests for entrant in contest.entrants)]


def spread_figure(contests: Sequence[Contest], width: float) -> "Figure":
    """Fig. 4, left: the standard deviation over sub-datasets; of several contests, the mean."""
    names = labels_of(contests)
    values = [_mean_spread(contests, name) for name in names]
    unit = contests[0].unit()
    return horizontal_bars(
        width,
        names,
        [Series("", BEST, values)],
        "standard deviation" + (", points" if unit == "accuracy" else ""),
        lambda value: f"{value:.1f}" if unit == "accuracy" else f"{value:.3f}",
    )


def _mean_spread(contests: Sequence[Contest], name: str) -> float | None:
    spreads = [
        points(spread, contest.unit())
        for contest in contests
        for entrant in contest.entrants
        if entrant.label == name and (spread := spread_of(contest, entrant)) is not None
    ]
    return float(mean(spreads)) if spreads else None


def places_figure(contests: Sequence[Contest], width: float) -> "Figure":
    """Fig. 4, right: first places, those shared with others fainter."""
    names = labels_of(contests)
    table = first_places([heights for contest in contests for heights in rounds_of(contest)])
    entries = [Entry("alone", BEST), Entry("shared with others", FAINT)]
    rows = rows_of(len(names))
    figure, axes = horizontal_axes(width, names, rows, 24, entries)
    for row, place in rows.places:
        found = table.get(names[place], Places())
        alone = found.first - found.shared
        axes.barh([row], [alone], height=0.74, color=BEST)
        axes.barh([row], [found.shared], left=[alone], height=0.74, color=FAINT)
        beside(axes, (found.first, row), f"{found.first}")
    room(axes, [found.first for found in table.values()], width, 3)
    axes.set_xlabel("first places")
    axes.locator_params(axis="x", nbins=6, integer=True)
    return figure


def size_figure(contests: Sequence[Contest], width: float) -> "Figure":
    """Fig. 5: the gain of each method over SFT in mixtures of different size."""
    names = labels_of(contests)
    others = dict.fromkeys(entrant.label for contest in contests for entrant in contest.others)
    series = [
        Series(
            name, colour_at(names.index(name)), [_gain_of(contest, name) for contest in contests]
        )
        for name in others
    ]
    unit = contests[0].unit()
    shown = titles_of(contests)
    return horizontal_bars(
        width,
        [text.replace(" rows", "") if width <= NARROW else text for text in shown],
        series,
        f"gain of the mean over SFT, {gain_unit(unit)}".rstrip(", "),
        lambda value: difference(value / points(1, unit), unit),
    )


def _gain_of(contest: Contest, name: str) -> float | None:
    for entrant in contest.others:
        if entrant.label == name:
            return contest.mean_gain(entrant)
    return None


def budget_figure(contest: Contest, width: float) -> "Figure":
    """Fig. 6: the mean score of mSFT and what its FLOPs went into, by compute budget C."""
    entrants = budgets_of(contest)
    if contest.sft is not None:
        entrants = [contest.sft, *entrants]
    entries = [
        Entry("training kept", BEST),
        Entry("discarded", FAINT),
        Entry("evaluation", WENT_ON),
    ]
    if any(run.summary["flops"]["lookahead"] for run in contest.runs):
        entries.append(Entry("look-ahead", OTHER))
    narrow = width <= NARROW
    top = legend_height(entries, width) + 4
    figure = new_figure(width, top + (480 if narrow else 290))
    if narrow:
        above = add_axes(figure, 62, 10, top + 12, 276)
        below = add_axes(figure, 62, 10, top + 250, 44)
    else:
        above = add_axes(figure, 52, width * 0.53, top + 12, 44)
        below = add_axes(figure, width * 0.55, 10, top + 12, 44)
    _budget_scores(above, contest, entrants)
    _budget_flops(below, contest, entrants)
    for axes in (above, below):
        shown = [_budget_label(entrant, len(entrants) > 5 and narrow) for entrant in entrants]
        axes.set_xticks(range(len(entrants)), shown)
        axes.set_xlim(-0.6, len(entrants) - 0.4)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("compute budget of a roll-out, in epochs")
    draw_legend(figure, entries)
    return figure


def budgets_of(contest: Contest) -> list[Entrant]:
    """The entrants of mSFT that differ in nothing else, the smallest budget first."""
    found = [
        entrant
        for entrant in contest.entrants
        if entrant.method == "msft" and {*entrant.first.variant} <= {"compute_budget"}
    ]
    return sorted(found, key=lambda entrant: entrant.budget)


def _budget_label(entrant: Entrant, short: bool) -> str:
    if entrant.method != "msft":
        return label(entrant.label, 12)
    return epochs(entrant.budget) if short else f"C = {epochs(entrant.budget)}"


def _budget_scores(axes: "Axes", contest: Contest, entrants: Sequence[Entrant]) -> None:
    unit = contest.unit()
    scores = [contest.score(entrant, contest.names, contest.split) for entrant in entrants]
    values = [nan if score is None else points(score, unit) for score in scores]
    searched = [place for place, entrant in enumerate(entrants) if entrant.method == "msft"]
    axes.plot(searched, [values[place] for place in searched], color=BEST)
    for place, value in enumerate(values):
        colour = BEST if place in searched else MUTED
        axes.plot([place], [value], "o", markersize=9, color=colour, markeredgecolor=PAPER)
        text = f"{value:.1f}" if unit == "accuracy" else f"{value:.3f}"
        above(axes, (place, value), text, 8, 11)
        if place not in searched:
            axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.margins(y=0.22)
    axes.set_ylabel(f"{score_unit(unit)} ({contest.split})")


def _budget_flops(axes: "Axes", contest: Contest, entrants: Sequence[Entrant]) -> None:
    tops: list[float] = []
    for place, entrant in enumerate(entrants):
        bottom = 0.0
        shares = [flops_shares(run.history) for run in entrant.over(contest.seeds)]
        parts: dict[str, float] = {}
        for _, amount, colour in (part for run in shares for part in run):
            parts[colour] = parts.get(colour, 0.0) + amount / len(shares)
        for colour, height_of in parts.items():
            axes.bar([place], [height_of], bottom=[bottom], width=0.62, color=colour)
            bottom += height_of
        above(axes, (place, bottom), si(bottom), 4, 12)
        tops.append(bottom)
    axes.set_ylim(0, max([*tops, 0.0]) * 1.14 or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: si(value))
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylabel("FLOPs")
