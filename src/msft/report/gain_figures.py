"""Figures of the gain over SFT: by sub-dataset (Fig. 7), and split into what it is made of
(Fig. 8)."""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from msft.decomposition import (
    Parts,
    decomposition,
    decomposition_split,
    mean_decomposition,
    mean_parts,
)
from msft.history import SELECTION, TEST
from msft.report.bars import Series, lying_axes, lying_bars, lying_dots, room, rows_of
from msft.report.chart import GREEN, INK, LEFT, MUTED, NARROW, PAPER
from msft.report.cohorts import Cohort, Field, colour_at, gain_unit, points
from msft.report.legend import Entry
from msft.report.wording import Unit, difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 3
"""Cohorts that are bars; more are dots."""


def gains(field: Field) -> dict[str, list[float | None]]:
    """Per sub-dataset the gain of each cohort other than SFT; the highest of mSFT's first, or of
    the first cohort's where there is no mSFT."""
    leader = next((c for c in field.others if c.method == "msft"), field.others[0])
    table = {name: [field.gain(cohort, name) for cohort in field.others] for name in field.names}
    place = field.others.index(leader)

    def key(name: str) -> float:
        value = table[name][place]
        return float("inf") if value is None else -value

    return {name: table[name] for name in sorted(table, key=key)}


def gains_figure(field: Field, width: float) -> "Figure":
    """Fig. 7: the gain over SFT on each sub-dataset, sorted, and on their mean."""
    table = gains(field)
    means = [field.mean_gain(cohort) for cohort in field.others]
    unit, names = field.unit, ["mean", *table]
    series = [
        Series(
            cohort.label,
            colour_at(field.cohorts.index(cohort)),
            [means[place], *(row[place] for row in table.values())],
        )
        for place, cohort in enumerate(field.others)
    ]
    axis = f"gain over SFT on {field.split}, {gain_unit(unit)}".rstrip(", ")
    if len(series) > MOST_BARS:
        return lying_dots(width, names, series, axis)

    def written(value: float) -> str:
        return difference(value / points(1, unit), unit)

    return lying_bars(width, names, series, axis, written)


def parts_of(field: Field, cohort: Cohort) -> tuple[dict[str, Parts], str]:
    """Eq. 4 for every sub-dataset, the mean over the pairs of runs, and the split it is of."""
    pairs = [(sft.history, msft.history) for msft, sft in field.pairs(cohort)]
    tested = all(decomposition_split(sft, msft) == TEST for sft, msft in pairs)
    split = TEST if tested else SELECTION
    return mean_decomposition([decomposition(sft, msft, split) for sft, msft in pairs]), split


def parts_figure(parts: Mapping[str, Parts], split: str, unit: Unit, width: float) -> "Figure":
    """Fig. 8: the gain over SFT as overfitting prevented plus forgetting or transfer."""
    order = _sorted(parts)
    names = ["mean", *order]
    shares = [mean_parts([*parts.values()]), *(parts[name] for name in order)]
    rows = rows_of(len(names))
    entries = [
        Entry("overfitting prevented", GREEN),
        Entry("forgetting (−) or transfer (+)", LEFT),
        Entry("gain", INK, "dot"),
    ]
    figure, axes = lying_axes(width, names, rows, 24, entries)
    reached: list[float] = []
    for row, place in rows.places:
        share = shares[place]
        ends = {1: 0.0, -1: 0.0}
        for part, colour in ((share.prevention, GREEN), (share.forgetting, LEFT)):
            if part is None:
                continue
            length = points(part, unit)
            side = 1 if length >= 0 else -1
            axes.barh([row], [length], left=[ends[side]], height=0.66, color=colour)
            ends[side] += length
        gain = points(share.gain, unit) if share.gain is not None else 0.0
        if share.gain is not None and isfinite(gain):
            axes.plot([gain], [row], "o", markersize=7, color=INK, markeredgecolor=PAPER)
        reached += [*ends.values(), gain]
        text = difference(share.gain, unit)
        if share.prevention is None:
            text += f"  {share.why}" if width > NARROW else "  undefined"
        axes.annotate(
            text,
            (max(ends[1], gain), row),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=10.5,
            color=MUTED if share.prevention is None else INK,
        )
    undefined = any(share.prevention is None for share in shares)
    room(axes, reached, width, (46 if width > NARROW else 17) if undefined else 7, left=0)
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_xlabel(f"gain over SFT on {split}, {gain_unit(unit)}".rstrip(", "))
    axes.locator_params(axis="x", nbins=4 if width <= NARROW else 7)
    return figure


def _sorted(parts: Mapping[str, Parts]) -> list[str]:
    """The highest gain first; those without one last."""

    def key(name: str) -> float:
        gain = parts[name].gain
        return float("inf") if gain is None else -float(gain)

    return sorted(parts, key=key)
