"""Figures as files: SVG, PNG and PDF by the code that draws them in pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msft.errors import UsageError
from msft.report.compare.compared_run import compared_runs
from msft.report.figures.chart import WIDE, drawing
from msft.report.figures.colours import PAPER
from msft.report.page import Section
from msft.report.sections import comparison_figures, run_figures

FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 144, "metadata": {"Software": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
"""What each format needs to be the same bytes whenever it is written."""

_PAGE: dict[str, Any] = {"facecolor": PAPER, "bbox_inches": "tight", "pad_inches": 1 / 6}

FOLDER = "figures"


def formats_of(text: str) -> tuple[str, ...]:
    """The formats that an option names, in order."""
    formats = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
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
    runs = compared_runs(folders)
    paths: list[Path] = []
    for run in runs:
        paths += write_figures(run_figures(run.history), run.folder / FOLDER, formats)
    if len(runs) > 1:
        paths += write_figures(comparison_figures(runs), folders[0].parent / FOLDER, formats)
    return paths


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
