"""`msft analyze grid`: one figure with a panel of each finished run, from logs alone."""

import argparse
import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from msft.app.admission import refuse_unwritable
from msft.app.terminal.screen import show, show_paths, width
from msft.errors import UsageError
from msft.layout import table
from msft.report.compare.compared_run import compared_runs
from msft.report.compare.disk_bounds import disk_bounds
from msft.report.compare.entrant import budget_of
from msft.report.figure_files import write_figures
from msft.report.figures.epochs import path_losses
from msft.report.figures.grids import Panel, grid_section, panels_of
from msft.report.figures.peaks import peaks_of
from msft.run.folder import RunFolder
from msft.run.summary import disk_of
from msft.text import counted, epochs, listed


def grid(options: argparse.Namespace) -> None:
    """One figure with a panel of each finished run, and what its panels say as a table."""
    out, kind = Path(options.out), options.kind
    folders = [found for folder in options.folders for found in _runs_below(Path(folder))]
    runs = compared_runs([*dict.fromkeys(folders)])
    panels = panels_of(kind, runs)
    if not panels:
        wanted = "with a first roll-out of the whole mixture" if kind == "peaks" else "of msft"
        raise UsageError(
            f"none of the {counted(len(runs), 'run')} is a finished one {wanted}; name folders "
            "that have one, such as those of `msft compare`"
        )
    refuse_unwritable(out)
    section = grid_section(kind, panels)
    files = write_figures([section], out, ("svg", "png"))
    content = [{"title": panel.title, **_panel(kind, panel)} for panel in panels]
    unfinished = [run.label for run in runs if run.history.ended is None]
    if options.json:
        found = {"grid": kind, "panels": content, "unfinished": unfinished}
        found |= {"folder": str(out), "files": [str(each) for each in files]}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    notes = [f"not finished, and so left out: {listed(unfinished)}"] if unfinished else []
    show("\n".join([*table(_panel_rows(kind, content), width()), "", *notes, section.text]))
    show_paths(*files)


def _runs_below(folder: Path) -> list[Path]:
    """A run's folder itself, or every run below a folder that is none."""
    if RunFolder(folder).log.is_file():
        return [folder]
    logs = sorted(folder.rglob("run.jsonl"))
    found = [log.parent for log in logs]
    shown = [each for each in found if not _is_hidden(each.relative_to(folder))]
    if not shown:
        raise UsageError(f"{folder} is not a run folder, and has none in it: no run.jsonl")
    return shown


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _panel(kind: str, panel: Panel) -> dict[str, Any]:
    """What a panel says, for a program."""
    run = panel.run
    history = run.history
    searches = run.method == "msft"
    found: dict[str, Any] = {
        "run": str(run.folder),
        "model": run.model,
        "method": run.method,
        "compute_budget": budget_of(history) if searches else None,
        "sub_datasets": len(run.names),
        "seed": run.seed,
    }
    match kind:
        case "peaks":
            peaks = peaks_of(history)
            assert peaks is not None, "panels_of leaves out what has no peaks"
            return {**found, "peaks": dict(peaks.peaks), "peak_of_mean": peaks.mean}
        case "loss":
            both = [(run, "last"), *([(panel.sft, "sft_last")] if panel.sft else [])]
            losses = {key: path_losses(each.history)[0][1] for each, key in both}
            ends = {
                key: next((loss for loss in reversed(line) if not isnan(loss)), None)
                for key, line in losses.items()
            }
            left = len(history.exclusions)
            beside = str(panel.sft.folder) if panel.sft else None
            return {**found, "sft": beside, "left": left, "sft_last": None, **ends}
        case _:
            bounds = disk_bounds(history)
            assert bounds is not None, "mSFT has bounds"
            copies = {key: disk_of(history)[key] for key in ("mean_copies", "peak_copies")}
            return {**found, **copies, "paper_mean": bounds.mean, "paper_most": bounds.most}


def _panel_rows(kind: str, panels: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What panels say, for a person."""
    rows: list[tuple[str, ...]]
    if kind == "peaks":
        rows = [("run", "first peak", "last peak", "peak of the mean")]
        for panel in panels:
            peaks = panel["peaks"].values()
            ends = (min(peaks), max(peaks), panel["peak_of_mean"])
            rows.append((panel["title"], *map(epochs, ends)))
    elif kind == "loss":
        rows = [("run", "sub-datasets left", "last loss", "of SFT")]
        for panel in panels:
            losses = (panel["last"], panel["sft_last"])
            cells = ("–" if loss is None else f"{loss:.4f}" for loss in losses)
            rows.append((panel["title"], str(panel["left"]), *cells))
    else:
        rows = [("run", "mean", "most", "paper's mean", "paper's most")]
        keys = ("mean_copies", "peak_copies", "paper_mean", "paper_most")
        for panel in panels:
            rows.append((panel["title"], *(f"{panel[key]:.4g}" for key in keys)))
        means = [panel["mean_copies"] for panel in panels]
        rows.append(("mean of all", f"{sum(means) / len(means):.4g}", "", "", ""))
    return rows
