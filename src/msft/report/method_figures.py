"""Figures that set methods beside each other: spread and first places (Fig. 4), gain against the
size of the mixture (Fig. 5), accuracy and FLOPs against the compute budget (Fig. 6)."""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from msft.report.bars import Series, lying_axes, lying_bars, room, rows_of
from msft.report.chart import (
    BEST,
    FAINT,
    INK,
    MUTED,
    NARROW,
    OTHER,
    PAPER,
    WENT_ON,
    add_axes,
    new_figure,
)
from msft.report.cohorts import (
    Cohort,
    Field,
    colour_at,
    gain_unit,
    mean_as_float,
    points,
    score_unit,
    titles_of,
)
from msft.report.cost_figures import flops_shares
from msft.report.legend import Entry, draw_legend, legend_height
from msft.report.wording import difference, epochs, label, si, unit_of
from msft.scores import Number
from msft.statistics import Places, first_places, sample_sd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def spreads(field: Field) -> dict[str, float | None]:
    """The standard deviation over sub-datasets of each cohort's scores, as figures show them."""
    found: dict[str, float | None] = {}
    for cohort in field.cohorts:
        scores = [cohort.score(name, field.split) for name in field.names]
        known = [score for score in scores if score is not None]
        spread = sample_sd(known) if len(known) == len(scores) and field.unit else None
        found[cohort.label] = None if spread is None else points(spread, field.unit)
    return found


def places(fields: Sequence[Field]) -> dict[str, Places]:
    """How often each method is first on a sub-dataset; on a tie all of the first are."""
    rounds: list[dict[str, Number]] = []
    for field in fields:
        for name in field.names:
            unit = unit_of(field.history, name)
            heights: dict[str, Number] = {
                cohort.label: -score if unit == "nll" else score
                for cohort in field.cohorts
                if (score := cohort.score(name, field.split)) is not None
            }
            if len(heights) > 1:
                rounds.append(heights)
    return first_places(rounds)


def labels_of(fields: Sequence[Field]) -> list[str]:
    return [*dict.fromkeys(cohort.label for field in fields for cohort in field.cohorts)]


def spread_figure(fields: Sequence[Field], width: float) -> "Figure":
    """Fig. 4, left: the standard deviation over sub-datasets; of several fields, the mean."""
    names = labels_of(fields)
    tables = [spreads(field) for field in fields]
    values = [mean_as_float(table.get(name) for table in tables) for name in names]
    unit = fields[0].unit
    return lying_bars(
        width,
        names,
        [Series("", BEST, values)],
        "standard deviation" + (", points" if unit == "accuracy" else ""),
        lambda value: f"{value:.1f}" if unit == "accuracy" else f"{value:.3f}",
    )


def places_figure(fields: Sequence[Field], width: float) -> "Figure":
    """Fig. 4, right: first places, those shared with others fainter."""
    names, table = labels_of(fields), places(fields)
    entries = [Entry("alone", BEST), Entry("shared with others", FAINT)]
    rows = rows_of(len(names))
    figure, axes = lying_axes(width, names, rows, 24, entries)
    for row, place in rows.places:
        found = table.get(names[place], Places())
        alone = found.first - found.shared
        axes.barh([row], [alone], height=0.74, color=BEST)
        axes.barh([row], [found.shared], left=[alone], height=0.74, color=FAINT)
        text = f"{found.first}"
        axes.annotate(text, (found.first, row), (4, 0), textcoords="offset points", va="center")
    room(axes, [found.first for found in table.values()], width, 3)
    axes.set_xlabel("first places")
    axes.locator_params(axis="x", nbins=6, integer=True)
    return figure


def size_figure(fields: Sequence[Field], width: float) -> "Figure":
    """Fig. 5: the gain of each method over SFT in mixtures of different size."""
    names = labels_of(fields)
    others = dict.fromkeys(cohort.label for field in fields for cohort in field.others)
    series = [
        Series(name, colour_at(names.index(name)), [_gain_of(field, name) for field in fields])
        for name in others
    ]
    unit = fields[0].unit
    shown = titles_of(fields)
    return lying_bars(
        width,
        [text.replace(" rows", "") if width <= NARROW else text for text in shown],
        series,
        f"gain of the mean over SFT, {gain_unit(unit)}".rstrip(", "),
        lambda value: difference(value / points(1, unit), unit),
    )


def _gain_of(field: Field, name: str) -> float | None:
    for cohort in field.others:
        if cohort.label == name:
            return field.mean_gain(cohort)
    return None


def budget_figure(field: Field, width: float) -> "Figure":
    """Fig. 6: the mean score of mSFT and what its FLOPs went into, by compute budget C."""
    cohorts = budgets_of(field)
    if field.reference is not None:
        cohorts = [field.reference, *cohorts]
    entries = [
        Entry("training kept", BEST),
        Entry("discarded", FAINT),
        Entry("evaluation", WENT_ON),
    ]
    if any(run.summary["flops"]["lookahead"] for cohort in cohorts for run in cohort.runs):
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
    _budget_scores(above, field, cohorts)
    _budget_flops(below, cohorts)
    for axes in (above, below):
        shown = [_budget_label(cohort, len(cohorts) > 5 and narrow) for cohort in cohorts]
        axes.set_xticks(range(len(cohorts)), shown)
        axes.set_xlim(-0.6, len(cohorts) - 0.4)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("compute budget of a roll-out, in epochs")
    draw_legend(figure, entries)
    return figure


def budgets_of(field: Field) -> list[Cohort]:
    """The cohorts of mSFT, the smallest budget first."""
    found = [cohort for cohort in field.cohorts if cohort.method == "msft"]
    return sorted(found, key=lambda cohort: cohort.budget)


def _budget_label(cohort: Cohort, short: bool) -> str:
    if cohort.method != "msft":
        return label(cohort.label, 12)
    return epochs(cohort.budget) if short else f"C = {epochs(cohort.budget)}"


def _budget_scores(axes: "Axes", field: Field, cohorts: Sequence[Cohort]) -> None:
    means = [cohort.mean(field.split) for cohort in cohorts]
    values = [nan if mean is None else points(mean, field.unit) for mean in means]
    searched = [place for place, cohort in enumerate(cohorts) if cohort.method == "msft"]
    axes.plot(searched, [values[place] for place in searched], color=BEST)
    for place, value in enumerate(values):
        colour = BEST if place in searched else MUTED
        axes.plot([place], [value], "o", markersize=9, color=colour, markeredgecolor=PAPER)
        axes.annotate(
            f"{value:.1f}" if field.unit == "accuracy" else f"{value:.3f}",
            (place, value),
            (0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=11,
        )
        if place not in searched:
            axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.margins(y=0.22)
    axes.set_ylabel(f"{score_unit(field.unit)} ({field.split})")


def _budget_flops(axes: "Axes", cohorts: Sequence[Cohort]) -> None:
    tops: list[float] = []
    for place, cohort in enumerate(cohorts):
        bottom = 0.0
        shares = [flops_shares(run.history) for run in cohort.runs]
        parts: dict[str, float] = {}
        for _, amount, colour in (part for run in shares for part in run):
            parts[colour] = parts.get(colour, 0.0) + amount / len(shares)
        for colour, height_of in parts.items():
            axes.bar([place], [height_of], bottom=[bottom], width=0.62, color=colour)
            bottom += height_of
        axes.annotate(
            si(bottom), (place, bottom), (0, 4), textcoords="offset points", ha="center", color=INK
        )
        tops.append(bottom)
    axes.set_ylim(0, max([*tops, 0.0]) * 1.14 or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: si(value))
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylabel("FLOPs")
