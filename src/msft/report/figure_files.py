"""Figures as files: SVG, PNG and PDF by the code that draws them in pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msft.errors import UsageError
from msft.report.compare.compared_run import compared_runs
from msft.report.comparison_page import Comparison, comparison_of_folders
from msft.report.figures.chart import WIDE, drawing
from msft.report.figures.colours import PAPER
from msft.report.page import Section
from msft.report.sections import run_figures
from msft.run.folder import step_losses_of

FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 144, "metadata": {"Software": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
"""What each format needs to be the same bytes whenever it is written."""

_PAGE: dict[str, Any] = {"facecolor": PAPER, "bbox_inches": "tight", "pad_inches": 1 / 6}

FOLDER = "figures"


def formats_of(named: str | Sequence[str]) -> tuple[str, ...]:
    """The formats that an option names, in order."""
    words = named.split(",") if isinstance(named, str) else named
    formats = tuple(dict.fromkeys(part.strip().lower() for part in words if part.strip()))
    wrong = [name for name in formats if name not in FORMATS]
    if wrong or not formats:
        found = f"{wrong[0]!r}" if wrong else "nothing"
        raise UsageError(
            f"--figures has {found}; expected one or more of {', '.join(FORMATS)}, e.g. "
            "--figures svg,pdf"
        )
    return formats


def write_all_figures(folders: Sequence[Path], formats: Sequence[str]) -> list[Path]:
    """Every figure of each run into its folder `figures`; of several runs also those that compare
    them, into `figures` beside the first one."""
    paths: list[Path] = []
    for run in compared_runs(folders):
        sections = run_figures(run.history, step_losses_of(run.folder))
        paths += write_figures(sections, run.folder / FOLDER, formats)
    if len(folders) > 1:
        compared = comparison_of_folders(folders)
        paths += write_comparison_figures(compared, folders[0].parent, formats)
    return paths


def write_comparison_figures(
    comparison: Comparison, place: Path, formats: Sequence[str]
) -> list[Path]:
    """Every figure of a comparison's page into the folder `figures` of a place."""
    sections = [*comparison.scores, *comparison.figures]
    return write_figures(sections, place / FOLDER, formats)


def write_figures(
    sections: Sequence[Section], folder: Path, formats: Sequence[str], width: float = WIDE
) -> list[Path]:
    """Each figure on paper white, named by its key."""
    paths: list[Path] = []
    if sections:
        folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        with drawing():
            figure = section.draw(width)
            figure.patch.set_visible(True)
            for name in formats:
                path = folder / f"{section.key}.{name}"
                figure.savefig(path, format=name, **_PAGE, **FORMATS[name])
                paths.append(path)
    return paths
