"""What `msft compare` and `msft report A B` write and print: every table and figure that these
runs can fill, as a page, on the terminal, and in three formats for other programs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msft.layout import WIDTH
from msft.report.averages import averages_table
from msft.report.certainty_tables import bootstrap_table, honesty_table, seed_table
from msft.report.compare.compared_run import (
    ComparedRun,
    GroupsOf,
    ReportSplit,
    compared_runs,
    no_groups,
)
from msft.report.compare.contest import Contest, contest_of_each, same_datasets, titles_of
from msft.report.compare.model_contests import model_contests, runs_by_model
from msft.report.contest_in_words import headline, remarks
from msft.report.disk_table import disk_table
from msft.report.facts import RunOnDisk, facts_of
from msft.report.flops_table import flops_table
from msft.report.model_tables import headline_of_models, labels_in, model_tables
from msft.report.once import page_figures, page_tables
from msft.report.page import Section, page_sections, write_page
from msft.report.paper_tables import (
    ablation_table,
    dataset_tables,
    main_tables,
    places_table,
    spread_table,
)
from msft.report.sample_views import SampleViews, contest_samples
from msft.report.sections import comparison_figures, score_section
from msft.report.tables import (
    LEGEND,
    Table,
    cells_of,
    csv_text,
    latex_page,
    markdown_page,
    terminal,
    wrapped,
)
from msft.run.folder import RunFolder, write_text
from msft.search.scores import TEST
from msft.text import SELECTED_ON_TEST, listed

_AFTER: tuple[Callable[[Contest], Table | None], ...] = (
    ablation_table,
    averages_table,
    seed_table,
    bootstrap_table,
    places_table,
    spread_table,
    flops_table,
    disk_table,
)


def tables_of(contest: Contest) -> list[Table]:
    """All that say something about this contest, in the order in which they are read."""
    first = [*main_tables(contest), honesty_table(contest), *dataset_tables(contest)]
    made = [*first, *(make(contest) for make in _AFTER)]
    return [table for table in made if table is not None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a page, a terminal and files say of runs.

    short: the tables for a terminal, the others are for pages and files.
    scores: what stands before the tables; figures: what stands behind them.
    samples: rows with the answers of each method; of several models none.
    selection: the split that chose every checkpoint.
    """

    title: str
    headline: str
    remarks: Sequence[str]
    warnings: Sequence[str]
    runs: Sequence[ComparedRun]
    tables: Sequence[Table]
    short: Sequence[Table]
    scores: Sequence[Section]
    figures: Sequence[Section]
    samples: SampleViews
    selection: str

    @property
    def mark(self) -> str:
        """What stands beside every score where test rows selected; else nothing."""
        return SELECTED_ON_TEST if self.selection == TEST else ""

    def marked(self, tables: Sequence[Table]) -> list[Table]:
        """Tables that say so too."""
        return [replace(table, note=f"{self.mark} {table.note}".strip()) for table in tables]


def comparison_of(contests: Sequence[Contest]) -> Comparison:
    """Of one contest, or of one for each of several models."""
    if len(contests) > 1:
        return _of_models(contests)
    (contest,) = contests
    tables = tables_of(contest)
    return Comparison(
        _title(contest),
        headline(contest),
        remarks(contest),
        contest.warnings,
        contest.runs,
        tables,
        tables,
        [score_section(contest)],
        comparison_figures(contest.runs, _reports(contest)),
        contest_samples(contest),
        contest.selection,
    )


def _of_models(contests: Sequence[Contest]) -> Comparison:
    first, tables = contests[0], model_tables(contests)
    joined = {table.key for table in tables}
    titles = titles_of(contests)
    own = [
        replace(table, key=f"{table.key}-{number}", title=f"{table.title} · {title}")
        for number, (contest, title) in enumerate(zip(contests, titles, strict=True), start=1)
        for table in tables_of(contest)
        if table.key not in joined
    ]
    runs = [run for contest in contests for run in contest.runs]
    return Comparison(
        f"{listed(labels_in(contests))} compared on {listed(titles)}",
        headline_of_models(contests),
        [*dict.fromkeys(remark for contest in contests for remark in remarks(contest))],
        [*dict.fromkeys(warning for contest in contests for warning in contest.warnings)],
        runs,
        [*tables, *own],
        tables,
        [
            score_section(contest, f"-{number}", f" · {title}")
            for number, (contest, title) in enumerate(zip(contests, titles, strict=True), start=1)
        ],
        comparison_figures(runs, _reports(first)),
        {},
        first.selection,
    )


def _reports(contest: Contest) -> ReportSplit:
    return "test" if contest.split == TEST else "selection"


def comparison_of_folders(
    folders: Sequence[Path],
    older_groups: GroupsOf = no_groups,
    report_split: ReportSplit | None = None,
) -> Comparison:
    """Runs of one model, finished or not, each by itself against the first one; of several models
    the methods of each, as `msft compare` has them.

    report_split: the one that reports; by default what the runs' recipes say.
    """
    runs = compared_runs(folders, older_groups)
    finished = [run for run in runs if run.history.ended is not None]
    if len(runs_by_model(finished)) > 1 and same_datasets(finished):
        return comparison_of(model_contests(runs, report_split))
    return comparison_of([contest_of_each(runs, report_split)])


def write_comparison(
    folders: Sequence[Path],
    out: Path,
    older_groups: GroupsOf = no_groups,
    report_split: ReportSplit | None = None,
) -> Path:
    """The page that compares these runs; its other arguments are those of `comparison_of_folders`.

    out: the file, or the folder in which it is to be `report.html`.
    older_groups: says the groups of a folder whose environment.json does not.
    """
    path = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    return _write_page(path, comparison_of_folders(folders, older_groups, report_split))


def write_files(comparison: Comparison, out: Path) -> list[Path]:
    """`compare.html`, `.md`, `.tex` and `.csv` in a folder."""
    tables, title = comparison.marked(comparison.tables), comparison.title
    mark = [comparison.mark] if comparison.mark else []
    said = [*mark, comparison.headline, *comparison.remarks, *comparison.warnings]
    page, text, tex, numbers = [
        out / f"compare.{suffix}" for suffix in ("html", "md", "tex", "csv")
    ]
    _write_page(page, comparison)
    write_text(text, markdown_page(title, said, tables))
    write_text(tex, latex_page(title, said, tables))
    write_text(numbers, csv_text(tables, comparison.selection if comparison.mark else ""))
    return [page, text, tex, numbers]


def _write_page(path: Path, comparison: Comparison) -> Path:
    """Each run's own report is linked if it is there."""
    content = {
        "facts": facts_of([RunOnDisk(r.folder, r.history, r.summary) for r in comparison.runs]),
        "samples": comparison.samples,
        "title": comparison.title,
        "headline": comparison.headline,
        "mark": comparison.mark,
        "selection": comparison.selection,
        "remarks": comparison.remarks,
        "warnings": comparison.warnings,
        "links": [(run.title, _link_to(run.folder, path.parent)) for run in comparison.runs],
        "scores": page_sections(comparison.scores),
        "tables": comparison.marked(page_tables(comparison.tables, comparison.figures)),
        "figures": page_sections(page_figures(comparison.tables, comparison.figures)),
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


def contest_text(contest: Contest, width: int = WIDTH, tables: Sequence[Table] = ()) -> str:
    """The tables for a terminal, all of them or these."""
    comparison = comparison_of([contest])
    return text_of(replace(comparison, short=tables or comparison.short), width)


def content_of(comparison: Comparison) -> dict[str, Any]:
    """The same for programs: what is said, every run, and every cell of every table."""
    return {
        "title": comparison.title,
        "headline": comparison.headline,
        **({"selection_split": comparison.selection} if comparison.mark else {}),
        "remarks": [*([comparison.mark] if comparison.mark else []), *comparison.remarks],
        "warnings": [*comparison.warnings],
        "runs": [
            {
                "name": run.label,
                "folder": str(run.folder),
                "method": run.method,
                "seed": run.seed,
                "best": run.summary["best"],
                "flops": run.summary["flops"],
            }
            for run in comparison.runs
        ],
        "cells": cells_of(comparison.tables),
    }


def text_of(comparison: Comparison, width: int = WIDTH) -> str:
    """The tables for a terminal, and what is to be known about them."""
    mark = [comparison.mark] if comparison.mark else []
    said = [*comparison.remarks, *comparison.warnings, LEGEND, comparison.headline, *mark]
    parts = [terminal(table, width) for table in comparison.marked(comparison.short)]
    return "\n".join([*parts, *(line for text in said for line in wrapped(text, width))]) + "\n"


def comparison_text(folders: Sequence[Path], width: int = WIDTH) -> str:
    """The scores of these runs for a terminal, each by itself, and what selected."""
    contest = contest_of_each(compared_runs(folders))
    honesty = honesty_table(contest)
    tables = [*reversed(dataset_tables(contest)), *([honesty] if honesty else [])]
    return contest_text(contest, width, tables)
