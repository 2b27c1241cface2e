"""What `msft compare` and `msft report A B` write and print: every table and figure that these
runs can fill, as a page, on the terminal, and in three formats for other programs.

The page says everything once; files for other programs have every table whole.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msft.report.compare.comparison import (
    ComparedRun,
    Contest,
    Entrant,
    GroupsOf,
    ReportSplit,
    compared_runs,
    contest_of_each,
    model_contests,
    no_groups,
    runs_by_model,
    same_datasets,
    titles_of,
)
from msft.report.comparison_tables import (
    ablation_table,
    averages_table,
    bootstrap_table,
    dataset_tables,
    disk_table,
    flops_table,
    headline_of_models,
    honesty_table,
    labels_in,
    main_tables,
    margin_in_words,
    margin_of,
    model_tables,
    places_table,
    seed_table,
    shared_seeds,
    spread_table,
)
from msft.report.page import (
    FOLDER,
    RunOnDisk,
    SampleViews,
    Section,
    contest_samples,
    facts_of,
    page_sections,
    write_figures,
    write_page,
)
from msft.report.sections import comparison_figures, run_figures, score_section
from msft.report.tables import (
    EMPTY,
    LEGEND,
    Table,
    cells_of,
    csv_text,
    latex_page,
    markdown_page,
    terminal,
    wrapped,
)
from msft.report.wording import MEAN_OF_GAINS, height, in_words
from msft.run.folder import RunFolder, step_losses_of, write_text
from msft.search.curves import SELECTION, TEST, Number
from msft.text import SELECTED_ON_TEST, WIDTH, counted, listed


def page_tables(tables: Sequence[Table], figures: Sequence[Section]) -> list[Table]:
    """First places are a figure. What selected and what reports joins the results, whose means
    stand nowhere else."""
    drawn = {each.key for each in figures}
    by_key = {table.key: table for table in tables}
    results, honesty = by_key.get("main"), by_key.get("honesty")
    found: list[Table] = []
    for table in tables:
        if table is results and honesty is not None:
            found.append(_joined(results, without_columns(honesty, _splits_of_results(tables))))
        elif results is not None and table.key in ("datasets", f"datasets-{SELECTION}"):
            rows = tuple(row for row in table.rows if not row.apart)
            found.append(replace(table, note="", rows=rows))
        elif results is not None and table is not results and table.key.startswith("main"):
            found.append(replace(table, note=""))
        elif not (table is honesty and results is not None) and not (
            table.key == "places" and "places" in drawn
        ):
            found.append(table)
    return found


def page_figures(tables: Sequence[Table], figures: Sequence[Section]) -> list[Section]:
    """The spread is a table, which has both ends beside it."""
    keys = {table.key for table in tables}
    return [each for each in figures if not (each.key == "spread" and "spread" in keys)]


def without_columns(table: Table, heads: Collection[str]) -> Table:
    """A table that lacks the columns with these heads."""
    kept = [place for place, head in enumerate(table.head[1:]) if head not in heads]
    rows = (replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    head = (table.head[0], *(table.head[place + 1] for place in kept))
    return replace(table, head=head, rows=tuple(rows))


def _splits_of_results(tables: Sequence[Table]) -> list[str]:
    """The splits whose means a table of results has."""
    titles = [table.title for table in tables if table.key.startswith("main")]
    return [split for split in (SELECTION, TEST) if any(f"on {split}" in t for t in titles)]


def _joined(results: Table, more: Table) -> Table:
    """The rows of a table with the cells of another one behind them, by their names."""
    cells = {row.name: row.cells for row in more.rows}
    nothing = (EMPTY,) * (len(more.head) - 1)
    rows = (replace(row, cells=(*row.cells, *cells.get(row.name, nothing))) for row in results.rows)
    head = (*results.head, *more.head[1:])
    return replace(results, note=f"{results.note} {more.note}", head=head, rows=tuple(rows))


MOST_MARGINS = 3
"""Others in a headline; of more, it has the best one and the tables have the rest."""


def headline(contest: Contest) -> str:
    """The best on the split that reports, in one sentence."""
    if not contest.has_mean:
        return "These runs have different sub-datasets, so their means cannot be compared."
    unit, known = contest.unit(), _means(contest)
    if not known:
        return "None of these runs is scored on all sub-datasets."
    top = max(height(score, unit) for score in known.values())
    winners = [label for label, score in known.items() if height(score, unit) == top]
    text = f"{listed(winners)} {'has' if len(winners) == 1 else 'have'} the best mean on "
    text += f"{contest.split}, {in_words(known[winners[0]], unit)}. {_against(contest, known)}"
    if contest.each:
        return f"{text}{counted(len(contest.entrants), 'run')}."
    methods = counted(len(contest.entrants), "method")
    return f"{text}{methods}, {counted(len(contest.seeds), 'seed')}."


def _against(contest: Contest, known: Mapping[str, Number]) -> str:
    """How far the other methods are above or below the baseline; of many, only the best."""
    baseline, unit = contest.baseline, contest.unit()
    others = [each for each in contest.entrants if each is not baseline and each.label in known]
    if baseline.label not in known or not others:
        return ""
    others.sort(key=lambda each: height(known[each.label], unit), reverse=True)
    shown = others if len(others) <= MOST_MARGINS else others[:1]
    told = [
        f"{each.label} {margin_in_words(found, unit)}{_of_some(contest, each)}"
        for each in shown
        if (found := margin_of(contest, each, baseline)) is not None
    ]
    against = f"{baseline.label} ({in_words(known[baseline.label], unit)})"
    return f"Against {against}: {'; '.join(told)}. "


def _of_some(contest: Contest, entrant: Entrant) -> str:
    """Which seeds a difference to the baseline is over, where one of the means is over others."""
    shared = shared_seeds(contest, entrant, contest.baseline)
    means = {seed for each in (entrant, contest.baseline) for seed in each.runs}
    if not shared or {*shared} == means & {*contest.seeds}:
        return ""
    seeds = "seed" if len(shared) == 1 else "seeds"
    return f" on {seeds} {listed(map(str, shared))}, which both have"


def remarks(contest: Contest) -> list[str]:
    """What to know before reading a table."""
    unit = contest.unit()
    chose, again = contest.selection, contest.split == contest.selection
    found = [
        f"{chose.capitalize()} chose every checkpoint. The reported scores are from "
        + (
            f"{chose} too, as in the paper. They flatter, and the more so the more checkpoints a "
            "method could choose from."
            if again
            else "test."
        )
    ]
    if len({run.seed for run in contest.runs}) < 2:
        found.append(
            "There is one seed, so nothing here says what another seed would give. msft compare "
            "with --seeds 20,30,40 runs more."
        )
    if not contest.has_mean:
        return found
    base = contest.base_score(contest.names, contest.split)
    means = _means(contest).values()
    if base is not None and all(height(mean, unit) <= height(base, unit) for mean in means):
        found.append(f"No method is better than the base model on {contest.split}.")
    if unit is None:
        found.append(MEAN_OF_GAINS)
    return found


def _means(contest: Contest) -> dict[str, Number]:
    """Of the entrants that are scored on everything."""
    scores = {e.label: contest.score(e, contest.names, contest.split) for e in contest.entrants}
    return {label: score for label, score in scores.items() if score is not None}


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
