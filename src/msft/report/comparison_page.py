"""The output of `msft compare` and `msft report A B`: every table and figure that these runs can
fill, as a page, on the terminal, and in three formats for other programs.

The page says everything once: first who is better on what, how sure that is and what it cost, and
the rest folded. Files for other programs have every table whole.

How far two methods are apart is a margin. With two seeds or more it comes from Student's paired
test over the seeds; with one seed from the rows: a paired bootstrap for the interval, a sign test
for p.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msft.report.audit_page import glance_section, read_audit
from msft.report.compare.comparison import (
    Comparison,
    MethodRuns,
    comparison_of_each,
    labels_in,
    model_comparisons,
    titles_of,
)
from msft.report.compare.runs import (
    ComparedRun,
    ReportSplit,
    compared_runs,
    rows_apart,
    runs_by_model,
    same_datasets,
)
from msft.report.compare.statistics import mean, minus, paired_interval, paired_t
from msft.report.comparison_tables import (
    SURE,
    ablation_table,
    bootstrap_table,
    dataset_tables,
    disk_table,
    flops_table,
    honesty_table,
    how_to_read,
    main_tables,
    model_tables,
    page_results,
    places_table,
    seed_table,
    spread_table,
    watched_methods,
)
from msft.report.page import (
    FOLDER,
    PageSection,
    RunOnDisk,
    SampleViews,
    Section,
    comparison_samples,
    facts_of,
    page_sections,
    write_figures,
    write_page,
)
from msft.report.sections import comparison_figures, run_figures, score_section
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
from msft.report.wording import (
    MEAN_OF_GAINS,
    Unit,
    difference,
    difference_in_words,
    height,
    in_words,
    p_value,
)
from msft.run.folder import RunFolder, recipe_value, step_losses_of, write_text
from msft.search.curves import TEST, Number
from msft.text import SELECTED_ON_TEST, WIDTH, counted, listed

CHANCE = "the difference may be chance"
CONSTANT = ("constant", "constant_with_warmup")
"""Schedules under which a run that is the best at its end may still improve."""


@dataclass(frozen=True, slots=True)
class Margin:
    """A difference of means, in score units.

    interval, p: at 95 %, two-sided; None where neither seeds nor rows say anything.
    """

    difference: Number
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def sure(self) -> bool:
        """True where the interval leaves out 0 and p is small."""
        if self.interval is None or self.p is None:
            return False
        low, high = self.interval
        return self.p <= SURE and (low > 0 or high < 0)

    def in_words(self, unit: Unit) -> str:
        """+5.1 points (95 % interval +3.8 to +6.5, p < 0.001)"""
        text = difference_in_words(self.difference, unit)
        if not self.difference:
            return text
        if self.interval is None or self.p is None:
            return f"{text} (not tested: {CHANCE})"
        low, high = self.interval
        between = f"95\u00a0% interval {difference(low, unit)} to {difference(high, unit)}"
        chance = "" if self.sure else f": {CHANCE}"
        return f"{text} ({between}, {p_value(self.p)}{chance})"


def margin_of(comparison: Comparison, method: MethodRuns, other: MethodRuns) -> Margin | None:
    """How far a method is above another one on the split that reports, over the seeds that both
    have, or of their means where they share none; None without scores."""
    names, split = comparison.names, comparison.split
    shared = shared_seeds(comparison, method, other)
    if not shared:
        gap = minus(comparison.score(method, names, split), comparison.score(other, names, split))
        return None if gap is None else Margin(gap)
    runs = [(method.runs[seed], other.runs[seed]) for seed in shared]
    gaps = [minus(one.score(names, split), two.score(names, split)) for one, two in runs]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return None
    if len(known) > 1:
        return margin_over(known)
    apart = rows_apart(*runs[0], split)
    if apart is None or apart.signs is None:
        return Margin(known[0])
    low, high = apart.drawn.low, apart.drawn.high
    interval = (-high, -low) if comparison.unit() == "nll" else (low, high)
    return Margin(known[0], interval, float(apart.signs.p))


def shared_seeds(comparison: Comparison, one: MethodRuns, two: MethodRuns) -> list[int]:
    """The seeds of a comparison that both have."""
    return [seed for seed in comparison.seeds if seed in one.runs and seed in two.runs]


def margin_over(gaps: list[Number]) -> Margin:
    """The mean of differences, tested against 0 over those who have them."""
    test = paired_t(gaps, [0] * len(gaps))
    return Margin(mean(gaps), paired_interval(gaps), test[1] if test else None)


MOST_MARGINS = 3
"""Others in a headline; of more, it has the best one and the tables have the rest."""


def headline(comparison: Comparison) -> str:
    """The best on the split that reports, how far it is above the second best, and the others
    against the baseline."""
    if not comparison.has_mean:
        return "These runs have different sub-datasets, so their means cannot be compared."
    unit, known = comparison.unit(), _means(comparison)
    if not known:
        return "None of these runs is scored on all sub-datasets."
    methods = counted(len(comparison.methods), "method")
    among = f"{methods}, {counted(len(comparison.seeds), 'seed')}"
    if comparison.each:
        among = counted(len(comparison.methods), "run")
    first, ahead = _first_two(comparison, known)
    said = f"{_best_in_words(known, comparison.split, unit)}{ahead}. "
    return f"{said}{_against(comparison, known, first)}{among}."


def _first_two(comparison: Comparison, known: Mapping[str, Number]) -> tuple[set[str], str]:
    """The best and the second best, and in words how far they are apart; nothing where several
    are the best."""
    unit = comparison.unit()
    ranked = sorted(
        (each for each in comparison.methods if each.label in known),
        key=lambda each: height(known[each.label], unit),
        reverse=True,
    )
    if len(ranked) < 2 or known[ranked[0].label] == known[ranked[1].label]:
        return set(), ""
    best, second = ranked[:2]
    found = margin_of(comparison, best, second)
    if found is None:
        return set(), ""
    some = _of_some(comparison, best, second)
    apart = f"{found.in_words(unit)}{some + ',' if some else ''} against {second.label}"
    return {best.label, second.label}, f", {apart}, the second best"


def headline_of_models(comparisons: Sequence[Comparison]) -> str:
    """The best average over the models, in one sentence."""
    first, labels = comparisons[0], labels_in(comparisons)
    unit, split, models = first.unit(), first.split, counted(len(comparisons), "model")
    scores = [_means(comparison) for comparison in comparisons]
    known = {
        label: mean([each[label] for each in scores])
        for label in labels
        if all(label in each for each in scores)
    }
    if not known:
        return f"No method was scored on all sub-datasets with each of {models}."
    text = f"{_best_in_words(known, f'{split} averaged over {models}', unit)}. "
    baselines = {comparison.baseline.label for comparison in comparisons}
    others = [label for label in known if label not in baselines]
    if others and all(each.baseline.label in known for each in comparisons):
        best = max(others, key=lambda label: height(known[label], unit))
        pairs = zip(scores, comparisons, strict=True)
        gaps = [each[best] - each[comparison.baseline.label] for each, comparison in pairs]
        margin = margin_over(gaps).in_words(unit)
        text += f"Against {first.baseline.label} on the same model: {best} {margin}. "
    return f"{text}{counted(len(labels), 'method')}, {counted(len(first.seeds), 'seed')}."


def _best_in_words(means: Mapping[str, Number], where: str, unit: Unit) -> str:
    top = max(height(score, unit) for score in means.values())
    winners = [label for label, score in means.items() if height(score, unit) == top]
    have = "has" if len(winners) == 1 else "have"
    return f"{listed(winners)} {have} the best mean on {where}, {in_words(means[winners[0]], unit)}"


def _against(comparison: Comparison, known: Mapping[str, Number], told: set[str]) -> str:
    """How far the other methods are above or below the baseline; of many, only the best.

    told: two methods whose difference was said before.
    """
    baseline, unit = comparison.baseline, comparison.unit()
    others = [
        each
        for each in comparison.methods
        if each is not baseline and each.label in known and {each.label, baseline.label} != told
    ]
    if baseline.label not in known or not others:
        return ""
    others.sort(key=lambda each: height(known[each.label], unit), reverse=True)
    shown = others if len(others) <= MOST_MARGINS else others[:1]
    margins = [
        f"{each.label} {found.in_words(unit)}{_of_some(comparison, each, baseline)}"
        for each in shown
        if (found := margin_of(comparison, each, baseline)) is not None
    ]
    against = f"{baseline.label} ({in_words(known[baseline.label], unit)})"
    return f"Against {against}: {'; '.join(margins)}. "


def _of_some(comparison: Comparison, method: MethodRuns, other: MethodRuns) -> str:
    """Which seeds a difference is over, where one of the two means is over others."""
    shared = shared_seeds(comparison, method, other)
    means = {seed for each in (method, other) for seed in each.runs}
    if not shared or {*shared} == means & {*comparison.seeds}:
        return ""
    seeds = "seed" if len(shared) == 1 else "seeds"
    return f" on {seeds} {listed(map(str, shared))}, which both have"


def remarks(comparison: Comparison) -> list[str]:
    """Sentences to read before a table."""
    unit = comparison.unit()
    chose, again = comparison.selection, comparison.split == comparison.selection
    found = [
        f"{chose.capitalize()} chose every checkpoint. The reported scores are from "
        + (
            f"{chose} too, as in the paper. They flatter, and the more so the more checkpoints a "
            "method could choose from."
            if again
            else "test."
        )
    ]
    if len({run.seed for run in comparison.runs}) < 2:
        found.append(
            "There is one seed, so nothing here says what another seed would give. msft compare "
            "with --seeds 20,30,40 runs more."
        )
    if not comparison.has_mean:
        return found
    base = comparison.base_score(comparison.names, comparison.split)
    means = _means(comparison).values()
    if base is not None and all(height(mean, unit) <= height(base, unit) for mean in means):
        found.append(f"No method is better than the base model on {comparison.split}.")
    if unit is None:
        found.append(MEAN_OF_GAINS)
    return found


def warnings(comparison: Comparison) -> list[str]:
    """Sentences on what makes a comparison unfair, and on runs that are left out of it."""
    rising = still_rising(comparison) if comparison.has_mean else []
    if not rising:
        return [*comparison.warnings]
    return [
        f"{listed(rising)} chose the last checkpoint of the budget, so the scores may still rise. "
        "With more num_train_epochs the order may change.",
        *comparison.warnings,
    ]


def still_rising(comparison: Comparison) -> list[str]:
    """The methods that are not the best, train at a constant rate for a fixed number of epochs, and
    chose the last checkpoint under every seed."""
    unit, known = comparison.unit(), _means(comparison)
    top = max((height(score, unit) for score in known.values()), default=0)
    return [
        method.label
        for method in comparison.methods
        if method.label in known
        and height(known[method.label], unit) < top
        and all(_at_its_end(run) for run in method.over(comparison.seeds))
    ]


def _at_its_end(run: ComparedRun) -> bool:
    """Whether the best of a run is the last tick of the one roll-out that its budget gave it."""
    history = run.history
    return (
        history.ended is not None
        and history.ended.by == "budget"
        and len(history.stages) == 1
        and history.best == history.stages[0].checkpoints[-1]
        and recipe_value(run.folder, "lr_scheduler_type") in CONSTANT
    )


def _means(comparison: Comparison) -> dict[str, Number]:
    """The means of the methods that are scored on every sub-dataset."""
    scores = {
        e.label: comparison.score(e, comparison.names, comparison.split) for e in comparison.methods
    }
    return {label: score for label, score in scores.items() if score is not None}


_AFTER: tuple[Callable[[Comparison], Table | None], ...] = (
    watched_methods,
    ablation_table,
    seed_table,
    bootstrap_table,
    places_table,
    spread_table,
    flops_table,
    disk_table,
)


def tables_of(comparison: Comparison) -> list[Table]:
    """The tables that this comparison can fill, in the order in which they are read."""
    first = [*main_tables(comparison), honesty_table(comparison), *dataset_tables(comparison)]
    made = [*first, *(make(comparison) for make in _AFTER)]
    return [table for table in made if table is not None]


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The content of a page, a terminal and files about runs.

    tables: those of files; short: of a terminal; page: of a page, where no number stands twice.
    reading: how to read the scores in the tables of a page.
    scores: the figures that have every score; figures: all others.
    samples: rows with the answers of each method; of several models none.
    selection: the split that chose every checkpoint.
    """

    title: str
    headline: str
    remarks: Sequence[str]
    warnings: Sequence[str]
    reading: str
    runs: Sequence[ComparedRun]
    tables: Sequence[Table]
    short: Sequence[Table]
    page: Sequence[Table]
    scores: Sequence[Section]
    figures: Sequence[Section]
    samples: SampleViews
    selection: str

    @property
    def mark(self) -> str:
        """The mark of every score where test rows chose the checkpoints; else empty."""
        return SELECTED_ON_TEST if self.selection == TEST else ""

    @property
    def said(self) -> list[str]:
        """Sentences to read before a number."""
        return [*([self.mark] if self.mark else []), *self.remarks, *self.warnings]

    def marked(self, tables: Sequence[Table]) -> list[Table]:
        """Tables that have the mark too."""
        return [replace(table, note=f"{self.mark} {table.note}".strip()) for table in tables]


def report_of(comparisons: Sequence[Comparison]) -> ComparisonReport:
    """The report of one comparison, or of several that differ in their model."""
    first, several = comparisons[0], len(comparisons) > 1
    titles = titles_of(comparisons)
    suffixes = [f"-{number}" if several else "" for number in range(1, len(comparisons) + 1)]
    endings = [f" · {title}" if several else "" for title in titles]
    joined = model_tables(comparisons) if several else []
    ends = [*zip(comparisons, suffixes, endings, strict=True)]
    own = [
        replace(table, key=f"{table.key}{suffix}", title=f"{table.title}{ending}")
        for comparison, suffix, ending in ends
        for table in tables_of(comparison)
        if table.key not in {each.key for each in joined}
    ]
    runs = [run for comparison in comparisons for run in comparison.runs]
    figures = comparison_figures(runs, "test" if first.split == TEST else "selection")
    labels = listed(labels_in(comparisons))
    return ComparisonReport(
        title=f"{labels} compared" + (f" on {listed(titles)}" if several else ""),
        headline=headline_of_models(comparisons) if several else headline(first),
        remarks=[*dict.fromkeys(said for each in comparisons for said in remarks(each))],
        warnings=[*dict.fromkeys(said for each in comparisons for said in warnings(each))],
        reading=how_to_read(first),
        runs=runs,
        tables=[*joined, *own],
        short=joined or own,
        page=page_tables(comparisons, [*joined, *own], figures),
        scores=[score_section(*each) for each in ends],
        figures=figures,
        samples={} if several else comparison_samples(first),
        selection=first.selection,
    )


def page_tables(
    comparisons: Sequence[Comparison], tables: Sequence[Table], figures: Sequence[Section]
) -> list[Table]:
    """The tables of a page, on which no number stands twice: what selected and the means of other
    tables join the results, the ablation is rows of the results, first places are a figure."""
    if not comparisons[0].has_mean:
        return [*tables]
    elsewhere = {"honesty", "ablation"} | ({"places"} & {figure.key for figure in figures})
    found: list[Table] = []
    for table in tables:
        if table.key == "main" and len(comparisons) == 1:
            found.append(page_results(comparisons[0]))
        elif table.key == "seeds":
            found.append(seed_table(comparisons[0], with_mean=False) or table)
        elif table.key.startswith("datasets") and len(comparisons) == 1:
            found.append(replace(table, rows=tuple(row for row in table.rows if not row.apart)))
        elif table.key not in elsewhere:
            found.append(table)
    return found


def report_of_folders(
    folders: Sequence[Path],
    report_split: ReportSplit | None = None,
) -> ComparisonReport:
    """Runs of one model, finished or not, each by itself against the first one; of several models
    the methods of each, as `msft compare` has them.

    report_split: the one that reports; by default what the runs' recipes say.
    """
    runs = compared_runs(folders)
    finished = [run for run in runs if run.history.ended is not None]
    if len(runs_by_model(finished)) > 1 and same_datasets(finished):
        return report_of(model_comparisons(runs, report_split))
    return report_of([comparison_of_each(runs, report_split)])


def write_comparison(
    folders: Sequence[Path],
    out: Path,
    report_split: ReportSplit | None = None,
    told: Sequence[str] = (),
    figures: Sequence[Section] = (),
    links: Sequence[tuple[str, Path]] = (),
) -> Path:
    """The page that compares these runs; its other arguments are those of `report_of_folders`.

    out: the file, or the folder in which it is to be `report.html`.
    told: sentences that the page begins with.
    figures: the page shows them before its other figures.
    links: names and folders of other reports, such as an audit's.
    """
    path = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = report_of_folders(folders, report_split)
    remarks, scores = [*told, *report.remarks], [*report.scores, *figures]
    return _write_page(path, replace(report, remarks=remarks, scores=scores), figures, links)


def write_files(report: ComparisonReport, out: Path) -> list[Path]:
    """`compare.html`, `.md`, `.tex` and `.csv` in a folder."""
    tables, said = report.marked(report.tables), [report.headline, *report.said]
    files = [out / f"compare.{suffix}" for suffix in ("html", "md", "tex", "csv")]
    _write_page(files[0], report)
    write_text(files[1], markdown_page(report.title, said, tables))
    write_text(files[2], latex_page(report.title, said, tables))
    write_text(files[3], csv_text(tables, report.selection if report.mark else ""))
    return files


OPEN = ("main", "scores", "datasets", "watched", "seeds", "flops")
"""Keys of what a page shows at once: who is better on what, how sure that is, and what it costs.
All else is folded."""


def _write_page(
    path: Path,
    report: ComparisonReport,
    opened: Sequence[Section] = (),
    links: Sequence[tuple[str, Path]] = (),
) -> Path:
    """Each run's own report is linked if it is there.

    opened: figures that are not folded. links: as in `write_comparison`.
    """
    keys = {table.key for table in report.page}
    shown = {*OPEN, "" if "seeds" in keys else "bootstrap", *(each.key for each in opened)}
    figures = [each for each in report.figures if each.key != "spread" or "spread" not in keys]
    best, full_stop, margins = report.headline.partition(". ")
    first, *others = report.marked(report.page)
    parts: list[Table | PageSection] = [first]
    parts += [*page_sections(report.scores), *others, *page_sections(figures)]
    content = {
        "facts": facts_of([RunOnDisk(r.folder, r.history, r.summary) for r in report.runs]),
        "samples": report.samples,
        "title": report.title,
        "headline": best + full_stop.strip(),
        "margins": margins,
        "mark": report.mark,
        "selection": report.selection,
        "reading": report.reading,
        "remarks": report.remarks,
        "warnings": report.warnings,
        "links": [
            (name, _link_to(folder, path.parent))
            for name, folder in [*((run.title, run.folder) for run in report.runs), *links]
        ],
        "parts": [part for part in parts if part.key in shown],
        "folded": [part for part in parts if part.key not in shown],
    }
    return write_page(path, "comparison.html", content)


def _link_to(folder: Path, place: Path) -> str | None:
    """The report of a run, from a page in `place`; None if there is none."""
    report = RunFolder(folder).report
    if not report.exists():
        return None
    return "./" + quote(os.path.relpath(report.resolve(), place.resolve()))


def content_of(report: ComparisonReport) -> dict[str, Any]:
    """The report for programs: its sentences, every run, and every cell of every table."""
    return {
        "title": report.title,
        "headline": report.headline,
        **({"selection_split": report.selection} if report.mark else {}),
        "remarks": [*([report.mark] if report.mark else []), *report.remarks],
        "warnings": [*report.warnings],
        "runs": [
            {
                "name": run.label,
                "folder": str(run.folder),
                "method": run.method,
                "seed": run.seed,
                "best": run.summary["best"],
                "flops": run.summary["flops"],
            }
            for run in report.runs
        ],
        "cells": cells_of(report.tables),
    }


def text_of(report: ComparisonReport, width: int = WIDTH) -> str:
    """The comparison for a terminal: the headline, the tables, each with the first sentence of its
    note, and how to read them. The files have the whole notes."""
    tables = [
        replace(table, reading="", note=first_sentence(table.note))
        for table in report.marked(report.short)
    ]
    mark = [report.mark] if report.mark else []
    said = [report.reading, LEGEND, *report.remarks, *report.warnings, *mark]
    below = [line for text in said if text for line in wrapped(text, width)]
    above = [*wrapped(report.headline, width), ""] if report.headline else []
    return "\n".join([*above, *(terminal(table, width) for table in tables), *below]) + "\n"


def first_sentence(text: str) -> str:
    sentence, end, _ = text.partition(". ")
    return sentence + end.strip()


def comparison_text(folders: Sequence[Path], width: int = WIDTH) -> str:
    """The scores of these runs for a terminal, each by itself, and what selected."""
    comparison = comparison_of_each(compared_runs(folders))
    honesty = honesty_table(comparison)
    tables = [*dataset_tables(comparison), *([honesty] if honesty else [])]
    return text_of(replace(report_of([comparison]), short=tables), width)


def write_all_figures(folders: Sequence[Path], formats: Sequence[str]) -> list[Path]:
    """Every figure of each run into its folder `figures`; of several runs also those that compare
    them, into `figures` beside the first one. An audit, which stands alone, has one figure."""
    if RunFolder(folders[0]).is_audit():
        sections = [glance_section(read_audit(folders[0]))]
        return write_figures(sections, folders[0] / FOLDER, formats)
    paths: list[Path] = []
    for run in compared_runs(folders):
        sections = run_figures(run.history, step_losses_of(run.folder))
        paths += write_figures(sections, run.folder / FOLDER, formats)
    if len(folders) > 1:
        compared = report_of_folders(folders)
        paths += write_comparison_figures(compared, folders[0].parent, formats)
    return paths


def write_comparison_figures(
    report: ComparisonReport, place: Path, formats: Sequence[str]
) -> list[Path]:
    """Every figure of a comparison's page into the folder `figures` of a place."""
    sections = [*report.scores, *report.figures]
    return write_figures(sections, place / FOLDER, formats)
