"""Figures that set methods beside each other: scores, gains (Fig. 7) and their parts (Fig. 8),
spread and first places (Fig. 4), gain against the size of the mixture (Fig. 5), score and FLOPs
against the compute budget (Fig. 6), and the share of SFT in the training compute of OLMo 2
(Fig. 1)."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

from msft.report.compare.comparison import (
    Comparison,
    MethodRuns,
    labels_in,
    rounds_of,
    spread_of,
    titles_of,
)
from msft.report.compare.paper import (
    BASE_STAGES,
    OLMO_2,
    Parts,
    Training,
    decomposition,
    decomposition_split,
    mean_decomposition,
    mean_parts,
)
from msft.report.compare.statistics import Places, first_places, mean, wilson
from msft.report.figures.chart import (
    BEST,
    FAINT,
    GREEN,
    INK,
    LEFT,
    MUTED,
    NARROW,
    OTHER,
    PAPER,
    PINK,
    WENT_ON,
    Entry,
    Panel,
    Series,
    above,
    add_axes,
    beside,
    colour_at,
    draw_legend,
    horizontal_axes,
    horizontal_bars,
    horizontal_dots,
    in_page,
    legend_height,
    new_figure,
    room,
    rows_of,
)
from msft.report.figures.costs import flops_shares
from msft.report.page import Section
from msft.report.wording import Unit, difference, gain_unit, points, score_unit
from msft.search.curves import TEST, Number
from msft.text import counted, epochs, label, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_BARS = 3
"""Series that are bars; more are dots."""


def score_text(comparison: Comparison) -> str:
    """A sentence on the intervals and the axes of the figure of scores."""
    units = {comparison.unit((name,)) for name in comparison.names}
    seeds = {len(method.over(comparison.seeds)) for method in comparison.methods}
    texts = list[str]()
    if seeds == {1} and "accuracy" in units:
        texts.append("The lines are Wilson's 95 % intervals.")
    elif max(seeds) > 1:
        texts.append(
            "The dots are means over seeds. The lines go from the lowest seed to the highest."
        )
    return " ".join(texts + ["Each metric has an axis of its own."] * (len(units) > 1))


def score_figure(comparison: Comparison, width: float) -> "Figure":
    """Sub-datasets with the same metric share an axis."""
    by_unit: dict[Unit, list[str]] = {}
    for name in comparison.names:
        by_unit.setdefault(comparison.unit((name,)), []).append(name)
    panels = [
        Panel(names, _series(comparison, names), f"{score_unit(unit)} ({comparison.split})")
        for unit, names in by_unit.items()
    ]
    return horizontal_dots(width, panels, zero=False)


def _series(comparison: Comparison, names: Sequence[str]) -> list[Series]:
    return [
        Series(
            method.label,
            colour_at(place),
            [_score(comparison, method, name) for name in names],
            [_interval(comparison, method, name) for name in names],
        )
        for place, method in enumerate(comparison.methods)
    ]


def _score(comparison: Comparison, method: MethodRuns, name: str) -> float | None:
    score = comparison.score(method, (name,), comparison.split)
    return None if score is None else points(score, comparison.unit((name,)))


def _interval(comparison: Comparison, method: MethodRuns, name: str) -> tuple[float, float] | None:
    """Of several seeds the lowest and the highest score; of one seed Wilson's interval, where the
    score is a count."""
    run, *others = method.over(comparison.seeds)
    if others:
        scores = [each.score((name,), comparison.split) for each in (run, *others)]
        known = [points(value, comparison.unit((name,))) for value in scores if value is not None]
        return (min(known), max(known)) if len(known) > 1 else None
    score = run.history.known(run.best, comparison.split).get(name)
    if score is None or score.metric != "accuracy":
        return None
    low, high = wilson(int(score.total), score.count)
    return (100 * low, 100 * high)


def gains(comparison: Comparison) -> dict[str, list[float | None]]:
    """Per sub-dataset the gain of each method other than SFT; the highest of mSFT's first, or of
    the first method's where there is no mSFT."""
    leader = next((c for c in comparison.others if c.name == "msft"), comparison.others[0])
    table = {
        name: [comparison.gain(method, name) for method in comparison.others]
        for name in comparison.names
    }
    place = comparison.others.index(leader)
    return {name: table[name] for name in _falling({name: table[name][place] for name in table})}


def _falling(values: Mapping[str, Number | None]) -> list[str]:
    """The names, the highest value's first; those without one last."""
    return sorted(values, key=lambda name: inf if (value := values[name]) is None else -value)


def group_gains(comparison: Comparison) -> dict[str, list[float | None]]:
    """Per group of sub-datasets the gain of each method other than SFT, on its mean."""
    return {
        group: [comparison.mean_gain(method, names) for method in comparison.others]
        for group, names in comparison.groups.items()
    }


def gains_figure(
    comparison: Comparison, table: Mapping[str, Sequence[float | None]], width: float
) -> "Figure":
    """Fig. 7: gains over SFT, and the gain on the mean. table: `gains` of sub-datasets, or
    `group_gains` as in the paper.

    Where metrics are mixed there is no mean: its gains are over the base model.
    """
    unit, names, rows = comparison.unit(), [*table], [*table.values()]
    if unit is not None:
        names = ["mean", *names]
        rows = [[comparison.mean_gain(method) for method in comparison.others], *rows]
    series = [
        Series(
            method.label,
            colour_at(comparison.methods.index(method)),
            [row[place] for row in rows],
        )
        for place, method in enumerate(comparison.others)
    ]
    axis = f"gain over SFT on {comparison.split}, {gain_unit(unit)}".rstrip(", ")
    if len(series) > MOST_BARS:
        return horizontal_dots(width, [Panel(names, series, axis)])

    def written(value: float) -> str:
        return difference(value / points(1, unit), unit or "accuracy")  # as it is drawn

    return horizontal_bars(width, names, series, axis, written)


def parts_of(comparison: Comparison, method: MethodRuns) -> tuple[dict[str, Parts], str]:
    """Eq. 4 for every sub-dataset, the mean over the pairs of runs, and the split it is of."""
    pairs = [(sft.history, msft.history) for msft, sft in comparison.pairs(method)]
    splits = {comparison.split, *(decomposition_split(sft, msft) for sft, msft in pairs)}
    split = TEST if splits == {TEST} else comparison.selection
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
    """The kinds and the lengths of the parts of a gain; parts of length 0 are left out."""
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
            bar = axes.barh([row], [length], left=[ends[side]], height=0.66, color=entry.colour)[0]
            in_page(bar, [f"{names[place]}: {entry.label} {difference(part, unit)}"])
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


def spread_figure(comparisons: Sequence[Comparison], width: float) -> "Figure":
    """Fig. 4, left: the standard deviation over sub-datasets; of several comparisons, the mean."""
    names = labels_in(comparisons)
    values = [_mean_spread(comparisons, name) for name in names]
    unit = comparisons[0].unit()
    return horizontal_bars(
        width,
        names,
        [Series("", BEST, values)],
        "standard deviation" + (", points" if unit == "accuracy" else ""),
        lambda value: f"{value:.1f}" if unit == "accuracy" else f"{value:.3f}",
    )


def _mean_spread(comparisons: Sequence[Comparison], name: str) -> float | None:
    spreads = [
        points(spread, comparison.unit())
        for comparison in comparisons
        for method in comparison.methods
        if method.label == name and (spread := spread_of(comparison, method)) is not None
    ]
    return float(mean(spreads)) if spreads else None


def places_figure(comparisons: Sequence[Comparison], width: float) -> "Figure":
    """Fig. 4, right: first places, those shared with others fainter."""
    names = labels_in(comparisons)
    table = first_places(
        [heights for comparison in comparisons for heights in rounds_of(comparison)]
    )
    entries = [Entry("alone", BEST), Entry("shared with others", FAINT)]
    rows = rows_of(len(names))
    figure, axes = horizontal_axes(width, names, rows, 24, entries)
    for row, place in rows.places:
        found = table.get(names[place], Places())
        alone = found.first - found.shared
        text = f"{names[place]}: {counted(found.first, 'first place')}, {found.shared} shared"
        in_page(axes.barh([row], [alone], height=0.74, color=BEST)[0], [text])
        shared = axes.barh([row], [found.shared], left=[alone], height=0.74, color=FAINT)
        in_page(shared[0], [text])
        beside(axes, (found.first, row), f"{found.first}")
    room(axes, [found.first for found in table.values()], width, 3)
    axes.set_xlabel("first places")
    axes.locator_params(axis="x", nbins=6, integer=True)
    return figure


def size_figure(comparisons: Sequence[Comparison], width: float) -> "Figure":
    """Fig. 5: the gain of each method over SFT in mixtures of different size."""
    names = labels_in(comparisons)
    gains_of = [{each.label: c.mean_gain(each) for each in c.others} for c in comparisons]
    series = [
        Series(name, colour_at(names.index(name)), [gains.get(name) for gains in gains_of])
        for name in dict.fromkeys(name for gains in gains_of for name in gains)
    ]
    unit = comparisons[0].unit()
    shown = titles_of(comparisons)
    return horizontal_bars(
        width,
        [text.replace(" rows", "") if width <= NARROW else text for text in shown],
        series,
        f"gain of the mean over SFT, {gain_unit(unit)}".rstrip(", "),
        lambda value: difference(value / points(1, unit), unit),
    )


def budget_figure(comparison: Comparison, width: float) -> "Figure":
    """Fig. 6: the mean score of mSFT and what its FLOPs went into, by compute budget C."""
    methods = budgets_of(comparison)
    if comparison.sft is not None:
        methods = [comparison.sft, *methods]
    entries = [
        Entry("training kept", BEST),
        Entry("discarded", FAINT),
        Entry("evaluation", WENT_ON),
    ]
    if any(run.summary["flops"]["lookahead"] for run in comparison.runs):
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
    _budget_scores(above, comparison, methods)
    _budget_flops(below, comparison, methods)
    for axes in (above, below):
        shown = [_budget_label(method, len(methods) > 5 and narrow) for method in methods]
        axes.set_xticks(range(len(methods)), shown)
        axes.set_xlim(-0.6, len(methods) - 0.4)
        axes.tick_params(axis="x", length=0)
        axes.set_xlabel("compute budget of a roll-out, in epochs")
    draw_legend(figure, entries)
    return figure


def budgets_of(comparison: Comparison) -> list[MethodRuns]:
    """The methods of mSFT that differ in nothing else, the smallest budget first."""
    found = [
        method
        for method in comparison.methods
        if method.name == "msft" and {*method.first.variant} <= {"compute_budget"}
    ]
    return sorted(found, key=lambda method: method.budget)


def _budget_label(method: MethodRuns, short: bool) -> str:
    if method.name != "msft":
        return label(method.label, 12)
    return epochs(method.budget) if short else f"C = {epochs(method.budget)}"


def _budget_scores(axes: "Axes", comparison: Comparison, methods: Sequence[MethodRuns]) -> None:
    unit = comparison.unit()
    scores = [comparison.score(method, comparison.names, comparison.split) for method in methods]
    values = [nan if score is None else points(score, unit) for score in scores]
    searched = [place for place, method in enumerate(methods) if method.name == "msft"]
    axes.plot(searched, [values[place] for place in searched], color=BEST)
    for place, value in enumerate(values):
        colour = BEST if place in searched else MUTED
        axes.plot([place], [value], "o", markersize=9, color=colour, markeredgecolor=PAPER)
        text = f"{value:.1f}" if unit == "accuracy" else f"{value:.3f}"
        above(axes, (place, value), text, 8, 11)
        if place not in searched:
            axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
    axes.margins(y=0.22)
    axes.set_ylabel(f"{score_unit(unit)} ({comparison.split})")


def _budget_flops(axes: "Axes", comparison: Comparison, methods: Sequence[MethodRuns]) -> None:
    tops: list[float] = []
    for place, method in enumerate(methods):
        bottom = 0.0
        shares = [flops_shares(run.history) for run in method.over(comparison.seeds)]
        parts, spent = dict[str, float](), dict[str, str]()
        for what, amount, colour in (part for run in shares for part in run):
            spent[colour] = what
            parts[colour] = parts.get(colour, 0.0) + amount / len(shares)
        for colour, height_of in parts.items():
            bar = axes.bar([place], [height_of], bottom=[bottom], width=0.62, color=colour)[0]
            in_page(bar, [f"{method.label}, {spent[colour]}: {si(height_of)}FLOPs"])
            bottom += height_of
        above(axes, (place, bottom), si(bottom), 4, 12)
        tops.append(bottom)
    axes.set_ylim(0, max([*tops, 0.0]) * 1.14 or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: si(value))
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylabel("FLOPs")


_ROWS = (*BASE_STAGES, "RLVR", "DPO", "SFT")
_COLOURS = (WENT_ON, BEST, LEFT)


def shares(training: Training, factors: Mapping[str, float]) -> dict[str, float]:
    """The share of every stage, and of SFT if it cost some factor as much, by the factor's name."""
    rlvr = training.share("RLVR-grad") + training.share("RLVR-roll")
    found = {stage: rlvr if stage == "RLVR" else training.share(stage) for stage in _ROWS}
    for name, factor in factors.items():
        found[f"× {factor:.2f} {name}"] = training.share("SFT", factor)
    return found


def share_figure(factors: Mapping[str, float], width: float) -> "Figure":
    """Shares of all training compute, on a logarithmic axis.

    factors: how many times the FLOPs of SFT each search cost, by its name.
    """
    tables = [shares(training, factors) for training in OLMO_2]
    names = list(tables[0])
    rows = rows_of(len(names))
    entries = [
        Entry(training.name, colour, "dot")
        for training, colour in zip(OLMO_2, _COLOURS, strict=True)
    ]
    figure, axes = horizontal_axes(width, names, rows, 26, entries)
    axes.set_xscale("log")
    for row, place in rows.places:
        values = [100 * table[names[place]] for table in tables]
        axes.plot([min(values), max(values)], [row, row], color=MUTED, linewidth=1)
        for value, colour in zip(values, _COLOURS, strict=True):
            axes.plot([value], [row], "o", markersize=9, color=colour, markeredgecolor=PAPER)
        right = max(values) < 10
        end = max(values) if right else min(values)
        beside(axes, (end, row), f"{min(values):.2g} to {max(values):.2g} %", right, gap=10)
    axes.set_xlim(0.002, 250)
    axes.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axes.minorticks_off()
    axes.set_xlabel("share of training compute, %" if width > NARROW else "share, %")
    return figure


def share_section(factors: Mapping[str, float]) -> Section:
    """Fig. 1 with its text; with factors also what SFT would take if it cost so many times more."""
    low, high = (100 * pick(model.share("SFT") for model in OLMO_2) for pick in (min, max))
    text = (
        f"SFT takes {low:.2g} to {high:.2g} % of all training compute of OLMo 2 (the paper's "
        "Fig. 1 and Appendix A)."
    )
    if factors:
        text += (
            " The other rows ask what it would take there if it cost as many times more as it did "
            "here, evaluation included."
        )
    return Section(
        "share", "Share of SFT in training compute", text, partial(share_figure, factors)
    )
