"""Several runs beside each other, from their logs: rows for a page, and a table for a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from msft.history import SELECTION, TEST
from msft.report.contenders import (
    Contender,
    contenders_of,
    duels,
    headline,
    minus,
    protocol,
    same_datasets,
    tested,
    warnings_of,
)
from msft.report.wording import (
    NOTHING,
    Unit,
    difference,
    epochs,
    label,
    mean_unit,
    number,
    plain,
    si,
    unit_of,
)
from msft.scores import Number

COST = "cost"


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One line of the comparison.

    group: `validation`, `test` or `cost`.
    texts, differences: one per run; a difference is to the first run, and empty where it has no
        meaning.
    best: the runs that have the best score, more than one on a tie.
    """

    group: str
    label: str
    texts: tuple[str, ...]
    differences: tuple[str, ...]
    best: frozenset[int]
    is_mean: bool = False


def comparison_rows(folders: Sequence[Path]) -> list[ComparisonRow]:
    """The comparison of runs, row by row: both splits with their means, then what it cost."""
    return rows_of(contenders_of(folders))


def rows_of(runs: Sequence[Contender]) -> list[ComparisonRow]:
    names = [*dict.fromkeys(name for run in runs for name in run.history.start.datasets)]
    rows: list[ComparisonRow] = []
    for split in (SELECTION, TEST):
        if split == TEST and not tested(runs):
            continue
        for name in names:
            unit = next(
                unit_of(run.history, name) for run in runs if name in run.history.start.datasets
            )
            values = [run.score(name, split) for run in runs]
            rows.append(_score_row(split, name, values, unit))
        if same_datasets(runs):
            means = [run.mean(split) for run in runs]
            rows.append(_score_row(split, "mean", means, mean_unit(runs[0].history), True))
    if tested(runs) and same_datasets(runs):
        unit = mean_unit(runs[0].history)
        drifts = [minus(run.mean(SELECTION), run.mean(TEST)) for run in runs]
        texts = tuple(difference(drift, unit) for drift in drifts)
        rows.append(_plain_row("validation − test", texts))
    return [*rows, *_cost_rows(runs)]


def _score_row(
    group: str, name: str, values: Sequence[Number | None], unit: Unit, is_mean: bool = False
) -> ComparisonRow:
    texts = tuple(number(value, unit) for value in values)
    gaps = tuple(
        "" if place == 0 or value is None else difference(minus(value, values[0]), unit)
        for place, value in enumerate(values)
    )
    heights = [None if v is None else -v if unit == "nll" else v for v in values]
    top = max((height for height in heights if height is not None), default=None)
    best = frozenset(place for place, height in enumerate(heights) if height == top is not None)
    if len(best) == len(values):
        best = frozenset()  # nobody is better than the others
    return ComparisonRow(group, name, texts, gaps, best, is_mean)


def _plain_row(name: str, texts: tuple[str, ...]) -> ComparisonRow:
    return ComparisonRow(COST, name, texts, ("",) * len(texts), frozenset())


def _cost_rows(runs: Sequence[Contender]) -> list[ComparisonRow]:
    def share(run: Contender) -> str:
        flops = run.summary["flops"]
        return f"{flops['evaluation'] / flops['total']:.0%}" if flops["total"] else NOTHING

    shown: dict[str, Callable[[Contender], str]] = {
        "candidates": lambda run: f"{run.summary['best']['candidates']:,}",
        "Ep.": lambda run: epochs(run.summary["best"]["epochs"]),
        "epochs trained": lambda run: epochs(run.summary["epochs_trained"]),
        "FLOPs": lambda run: si(run.summary["flops"]["total"]),
        "of it evaluation": share,
        "best checkpoint": lambda run: str(run.summary["best"]["checkpoint"]),
    }
    return [_plain_row(name, tuple(show(run) for run in runs)) for name, show in shown.items()]


def comparison_text(folders: Sequence[Path]) -> str:
    """The comparison for a terminal: fixed width, no colour; * marks the best of a row."""
    runs = contenders_of(folders)
    rows = rows_of(runs)
    first = max([len("sub-dataset"), *(len(label(row.label)) for row in rows)])
    heads = [label(run.label, 20) for run in runs]
    widths = [max(9, len(head) + 2) for head in heads]
    tests = tested(runs)
    titles = {
        SELECTION: "validation (selected on)",
        TEST: "test (reported)",
        COST: "selection and cost" if tests else "cost",
    }
    lines: list[str] = []
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            lines += ["", titles[group]]
            cells = zip(heads, widths, strict=True)
            line = " " * first + "".join(
                f"{head:>{width}} " + ("" if not place or group == COST else " " * 8)
                for place, (head, width) in enumerate(cells)
            )
            lines.append(line.rstrip())
        line = f"{label(row.label):<{first}}"
        for place, width in enumerate(widths):
            mark = "*" if place in row.best else " "
            gap = f"{row.differences[place]:>8}" if place and group != COST else ""
            line += f"{label(row.texts[place], width):>{width}}{mark}{gap}"
        lines.append(line.rstrip())
    legend = f"* best of its row; differences are to {runs[0].label}."
    notes = [headline(runs), *duels(runs), protocol(runs), *warnings_of(runs)]
    wrapped = [fill(plain(note, keep=""), 79, break_on_hyphens=False) for note in (legend, *notes)]
    return "\n".join([*lines[1:], "", wrapped[0], "", *wrapped[1:]]) + "\n"
