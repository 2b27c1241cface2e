"""Grids: a panel of each run, as the paper's appendix shows its models, C and N."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from msft.report.branches import branches_of
from msft.report.compare.runs import ComparedRun, budget_of, model_labels
from msft.report.figures.chart import (
    BEST,
    FAINT,
    GREEN,
    LEFT,
    MUTED,
    NARROW,
    OTHER,
    WENT_ON,
    Entry,
    add_axes,
    draw_legend,
    legend_height,
    name_panel,
    new_figure,
)
from msft.report.figures.costs import (
    TRAINED,
    LossLine,
    draw_disk,
    draw_losses,
    loss_entries,
    loss_line,
)
from msft.report.figures.peaks import (
    peak_rows,
    peaks_of,
)
from msft.report.page import Section, marked
from msft.run.history import disk_of
from msft.text import epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GridKind = Literal["peaks", "loss", "disk"]
TITLE, PANEL, FOOT = 34, 230, 48
"""Pixels: above a panel, of the panel, and below it."""
DISK_ENTRIES = (
    Entry("held", MUTED),
    Entry("most", FAINT, "line"),
    Entry("mean", BEST, "dash"),
    Entry("paper's mean", GREEN, "dash"),
    Entry("paper's most, N + 1", OTHER, "dash"),
    Entry("new roll-out", LEFT, "dash"),
)


@dataclass(frozen=True, slots=True)
class RunPanel:
    """One run of a grid. title: model, C and N. sft: what its loss is drawn beside."""

    title: str
    run: ComparedRun
    sft: ComparedRun | None = None


def panels_of(kind: GridKind, runs: Sequence[ComparedRun]) -> list[RunPanel]:
    """The panels that finished runs have: of peaks those of SFT, or of whatever has peaks where
    none is SFT's; of losses and disk those of mSFT, the largest C first."""
    finished = [run for run in runs if run.history.ended is not None]
    if kind == "peaks":
        whole = [run for run in finished if peaks_of(run.history) is not None]
        shown = [run for run in whole if run.method == "sft"] or whole
    else:
        shown = [run for run in finished if run.method == "msft"]
        shown.sort(key=lambda run: -budget_of(run.history))
    straight = [run for run in finished if run.method == "sft"]
    return [
        RunPanel(title, run, _beside(run, straight))
        for title, run in zip(_titles(shown), shown, strict=True)
    ]


def _beside(run: ComparedRun, others: Sequence[ComparedRun]) -> ComparedRun | None:
    """The run on the same model and rows, rather of the same seed."""
    alike = [
        other
        for other in others
        if other.model == run.model and other.history.start.datasets == run.history.start.datasets
    ]
    same = [other for other in alike if other.seed == run.seed]
    return next(iter([*same, *alike]), None)


def _titles(runs: Sequence[ComparedRun]) -> list[str]:
    """Model, C of a search, and N; with seed or folder where two would be alike."""
    models = model_labels(runs) if runs else []
    budgets = [
        f", C = {epochs(budget_of(run.history))}" if run.method in ("msft", "continual") else ""
        for run in runs
    ]
    short = [
        f"{model}{budget}, N = {len(run.names)}"
        for model, budget, run in zip(models, budgets, runs, strict=True)
    ]
    seeded = [f"{title}, seed {run.seed}" for title, run in zip(short, runs, strict=True)]
    return [
        title
        if short.count(title) == 1
        else more
        if seeded.count(more) == 1
        else f"{title} ({run.label})"
        for title, more, run in zip(short, seeded, runs, strict=True)
    ]


def grid_section(kind: GridKind, panels: Sequence[RunPanel]) -> Section:
    """The grid with what it shows; a grid that shows scores says if test rows selected."""
    title, text = {
        "peaks": (
            "Where each sub-dataset peaks, run by run",
            "The first roll-out of each run with the peak of every sub-dataset, and how far each "
            "is from the peak of the mean (the paper's Fig. 2 and its appendix).",
        ),
        "loss": (
            "Training loss, run by run",
            "mSFT beside SFT. What was rolled back is faint (the paper's Fig. 9 and its appendix "
            "on losses).",
        ),
        "disk": (
            "Copies of the weights on disk, run by run",
            "Sets of weights on disk at each evaluation, in multiples of the model (the paper's "
            "appendix on disk).",
        ),
    }[kind]
    draw = {"peaks": peaks_grid, "loss": loss_grid, "disk": disk_grid}[kind]
    section = Section(f"{kind}-grid", title, text, partial(draw, panels))
    return marked([section], any(panel.run.history.selected_on_test for panel in panels))[0]


def peaks_grid(panels: Sequence[RunPanel], width: float) -> "Figure":
    """Curves with their peaks, and distances to the peak of the mean: a row of each run."""
    return peak_rows([(each.title, each.run.history) for each in panels], width, TITLE, PANEL)


def loss_grid(panels: Sequence[RunPanel], width: float) -> "Figure":
    """The loss of mSFT beside that of SFT, and where sub-datasets left."""
    lines: list[list[LossLine]] = []
    for panel in panels:
        beside = [loss_line(WENT_ON, panel.sft)] if panel.sft else []
        lines.append([*beside, loss_line(BEST, panel.run)])
    entries = [Entry("SFT", WENT_ON, "line")] if any(panel.sft for panel in panels) else []
    entries.append(Entry("mSFT", BEST, "line"))
    entries += dict.fromkeys(entry for each in lines for entry in loss_entries(each))

    def draw(axes: "Axes", number: int) -> None:
        draw_losses(axes, lines[number])
        axes.set_xlabel("epochs on the path from the base")
        name_panel(axes, panels[number].title, axes.bbox.width, 14)

    return _grid(len(panels), entries, draw, width)


def disk_grid(panels: Sequence[RunPanel], width: float) -> "Figure":
    """Copies of the weights on disk, their mean, and the paper's bounds."""

    def draw(axes: "Axes", number: int) -> None:
        history = panels[number].run.history
        draw_disk(axes, history, branches_of(history))
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel(TRAINED)
        mean = disk_of(history)["mean_copies"]
        name_panel(axes, f"{panels[number].title}: mean {mean:.2f}", axes.bbox.width)

    return _grid(len(panels), DISK_ENTRIES, draw, width)


def _grid(
    count: int, entries: Sequence[Entry], draw: Callable[["Axes", int], None], width: float
) -> "Figure":
    """Panels in two columns, on a phone in one."""
    columns = 1 if width <= NARROW else 2
    rows, each = -(-count // columns), width / columns
    top, row = legend_height(entries, width) + 6, TITLE + PANEL + FOOT
    figure = new_figure(width, top + rows * row)
    for number in range(count):
        down, across = divmod(number, columns)
        left, right = across * each + 62, width - (across + 1) * each + 12
        above = top + down * row + TITLE
        draw(add_axes(figure, left, right, above, top + rows * row - above - PANEL), number)
    draw_legend(figure, entries)
    return figure
