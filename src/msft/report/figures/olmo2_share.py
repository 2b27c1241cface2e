"""Fig. 1: the share of SFT in the training compute of OLMo 2, and what a search makes of it."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from msft.report.compare.olmo2_compute import BASE_STAGES, OLMO_2, Training
from msft.report.figures.bars import horizontal_axes, rows_of
from msft.report.figures.chart import NARROW, beside
from msft.report.figures.colours import BEST, LEFT, MUTED, PAPER, WENT_ON
from msft.report.figures.legend import Entry
from msft.report.page import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
