"""The page that compares runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msft.folder import RunFolder
from msft.history import SELECTION, TEST
from msft.report.certainty_tables import bootstrap_table
from msft.report.chart import COLOURS, INK, NARROW, SERIES, add_axes, drawing, new_figure
from msft.report.comparison import COST, rows_of
from msft.report.contenders import (
    Contender,
    contenders_of,
    duels,
    headline,
    protocol,
    reporting,
    same_datasets,
    warnings_of,
)
from msft.report.evidence import wilson
from msft.report.lineup import lineup_of_each
from msft.report.page import drawn, write_page
from msft.report.paper_tables import flops_table, places_table
from msft.report.tables import Table
from msft.report.wording import label, listed, method_name, unit_of
from msft.rollout import BASE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class _Head:
    label: str
    method: str
    link: str | None
    colour: str


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the page that compares these runs.

    out: the file, or the folder in which it is to be `report.html`. Each run's own report is
        linked if it is there.
    """
    path = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    runs = contenders_of(folders)
    rows = rows_of(runs)
    split = reporting(runs)
    with drawing():
        bars = drawn("bars", f"Scores on {split} of every run", partial(bar_chart, runs, split))
    labels = [run.label for run in runs]
    variables = {colour: name for name, colour in COLOURS.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "title": f"{', '.join(labels)} compared",
        "eyebrow": f"{listed(labels)}, compared",
        "headline": headline(runs),
        "duels": duels(runs),
        "protocol": protocol(runs),
        "warnings": warnings_of(runs),
        "split": split,
        "bars": bars,
        "percent": _percent(runs),
        "heads": [
            _Head(
                run.label,
                method_name(run.history.start.method),
                link_to(run.folder, path.parent),
                variables[SERIES[place % len(SERIES)]],
            )
            for place, run in enumerate(runs)
        ],
        "groups": {
            group: [row for row in rows if row.group == group] for group in (SELECTION, TEST, COST)
        },
        "tables": _tables(runs),
    }
    return write_page(path, "comparison.html", content)


def _tables(runs: Sequence[Contender]) -> list[Table]:
    """What `msft compare` has too, with every run for itself against the first."""
    if not same_datasets(runs):
        return []
    lineup = lineup_of_each(runs)
    made = [make(lineup) for make in (bootstrap_table, places_table, flops_table)]
    return [table for table in made if table is not None]


def link_to(folder: Path, place: Path) -> str | None:
    """The report of a run, from a page in `place`; None if there is none."""
    report = RunFolder(folder).report
    if not report.exists():
        return None
    return "./" + quote(os.path.relpath(report.resolve(), place.resolve()))


def _percent(runs: Sequence[Contender]) -> bool:
    return all(
        unit_of(run.history, name) == "accuracy"
        for run in runs
        for name in run.history.start.datasets
    )


def bar_chart(runs: Sequence[Contender], split: str, width: float) -> "Figure":
    """Scores per sub-dataset and run as bars; upright on a screen, lying on a phone.

    The thin lines are Wilson's 95 % intervals, where scores are counts.
    """
    names = [*dict.fromkeys(name for run in runs for name in run.history.start.datasets)]
    lying = width <= NARROW or len(names) > 12
    thick = 0.8 / len(runs)
    if lying:
        figure = new_figure(width, 40 + len(names) * max(34, 14 * len(runs)))
        axes = add_axes(figure, 108 if width <= NARROW else 170, 10, 6, 34)
        axes.grid(visible=False)
        axes.grid(visible=True, axis="x")
        axes.set_ylim(len(names) - 0.5, -0.5)
    else:
        figure = new_figure(width, 280)
        axes = add_axes(figure, 44, 6, 10, 28)
        axes.set_xlim(-0.5, len(names) - 0.5)
    for number, run in enumerate(runs):
        places = [place - 0.4 + (number + 0.5) * thick for place in range(len(names))]
        bars = [_bar(run, name, split) for name in names]
        heights = [height for height, _, _ in bars]
        spread = [[height - low for height, low, _ in bars], [top - h for h, _, top in bars]]
        colour = SERIES[number % len(SERIES)]
        line: dict[str, Any] = {"ecolor": INK, "error_kw": {"elinewidth": 1, "alpha": 0.6}}
        if lying:
            axes.barh(places, heights, height=thick * 0.92, color=colour, xerr=spread, **line)
        else:
            axes.bar(places, heights, width=thick * 0.92, color=colour, yerr=spread, **line)
    shown = [label(name, 14 if width <= NARROW else 22) for name in names]
    if lying:
        axes.set_yticks(range(len(names)), shown)
    else:
        axes.set_xticks(range(len(names)), shown)
        axes.tick_params(axis="x", length=0, labelsize=12 if len(names) < 9 else 10)
    return figure


def _bar(run: Contender, name: str, split: str) -> tuple[float, float, float]:
    """Height, and the interval around it."""
    score = run.history.known(run.history.best or BASE, split).get(name)
    if score is None:
        return (nan, nan, nan)
    if score.metric == "accuracy":
        low, high = wilson(int(score.total), score.count)
        return (100 * float(score.value), 100 * low, 100 * high)
    return (float(score.value),) * 3
