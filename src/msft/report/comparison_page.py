"""What `msft compare` and `msft report A B` write and print: every table and figure that these
runs can fill, as a page, on the terminal, and in three formats for other programs."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from msft.report.averages import averages_table
from msft.report.certainty_tables import bootstrap_table, honesty_table, seed_table
from msft.report.compare.compared_run import GroupsOf, compared_runs, no_groups
from msft.report.compare.contest import Contest, ReportSplit, contest_of_each
from msft.report.figures.scores import score_figure, score_text
from msft.report.in_words import headline, remarks
from msft.report.page import Section, page_sections, write_page
from msft.report.paper_tables import (
    ablation_table,
    dataset_tables,
    flops_table,
    main_tables,
    places_table,
    spread_table,
)
from msft.report.sections import comparison_figures
from msft.report.tables import (
    LEGEND,
    Table,
    csv_text,
    latex_page,
    markdown_page,
    terminal,
    wrapped,
)
from msft.run.folder import RunFolder, write_text
from msft.text import listed

_AFTER: tuple[Callable[[Contest], Table | None], ...] = (
    ablation_table,
    averages_table,
    seed_table,
    bootstrap_table,
    places_table,
    spread_table,
    flops_table,
)


def tables_of(contest: Contest) -> list[Table]:
    """All that say something about this contest, in the order in which they are read."""
    first = [*main_tables(contest), honesty_table(contest), *dataset_tables(contest)]
    made = [*first, *(make(contest) for make in _AFTER)]
    return [table for table in made if table is not None]


def write_comparison(
    folders: Sequence[Path], out: Path, older_groups: GroupsOf = no_groups
) -> Path:
    """The page that compares these runs, finished or not, each by itself, with the first one.

    out: the file, or the folder in which it is to be `report.html`.
    older_groups: says the groups of a folder whose environment.json does not.
    """
    path = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    contest = contest_of_each(compared_runs(folders, older_groups))
    return _write_page(path, contest, tables_of(contest))


def write_contest(contest: Contest, out: Path) -> list[Path]:
    """`compare.html`, `.md`, `.tex` and `.csv` in a folder."""
    tables, title = tables_of(contest), _title(contest)
    said = [headline(contest), *remarks(contest), *contest.warnings]
    page, text, tex, numbers = [
        out / f"compare.{suffix}" for suffix in ("html", "md", "tex", "csv")
    ]
    _write_page(page, contest, tables)
    write_text(text, markdown_page(title, said, tables))
    write_text(tex, latex_page(title, said, tables))
    write_text(numbers, csv_text(tables))
    return [page, text, tex, numbers]


def _write_page(path: Path, contest: Contest, tables: Sequence[Table]) -> Path:
    """Each run's own report is linked if it is there."""
    runs = contest.runs
    scores = Section(
        "scores", f"Scores on {contest.split}", score_text(contest), partial(score_figure, contest)
    )
    report_split: ReportSplit = "test" if contest.split == "test" else "selection"
    first, *figures = page_sections([scores, *comparison_figures(runs, report_split)])
    content = {
        "title": _title(contest),
        "headline": headline(contest),
        "remarks": remarks(contest),
        "warnings": contest.warnings,
        "links": [(run.label, _link_to(run.folder, path.parent)) for run in runs],
        "scores": first,
        "tables": tables,
        "figures": figures,
    }
    return write_page(path, "comparison.html", content)


def _title(contest: Contest) -> str:
    return f"{listed(entrant.label for entrant in contest.entrants)} compared"


def _link_to(folder: Path, place: Path) -> str | None:
    """The report of a run, from a page in `place`; None if there is none."""
    report = RunFolder(folder).report
    if not report.exists():
        return None
    return "./" + quote(os.path.relpath(report.resolve(), place.resolve()))


def contest_text(contest: Contest, width: int = 79, tables: Sequence[Table] = ()) -> str:
    """The tables for a terminal, all of them or these."""
    said = [*remarks(contest), *contest.warnings, LEGEND, headline(contest)]
    parts = [terminal(table, width) for table in tables or tables_of(contest)]
    return "\n".join([*parts, *(line for text in said for line in wrapped(text, width))]) + "\n"


def comparison_text(folders: Sequence[Path]) -> str:
    """The scores of these runs for a terminal, each by itself, and what selected."""
    contest = contest_of_each(compared_runs(folders))
    honesty = honesty_table(contest)
    tables = [*reversed(dataset_tables(contest)), *([honesty] if honesty else [])]
    return contest_text(contest, tables=tables)
