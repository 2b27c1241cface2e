"""The figures of a run, a comparison and a pair of branches, each as a section with its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msft.report.branches import Branch, branches_of, deciding_words
from msft.report.compare.comparison import (
    Comparison,
    MethodRuns,
    comparisons_of,
    over_in_words,
    places_text,
    spread_of,
    titles_of,
)
from msft.report.compare.paper import Parts, changes, left_out, mean_shift
from msft.report.compare.runs import ComparedRun, ReportSplit, model_labels
from msft.report.figures import costs
from msft.report.figures.costs import loss_runs, losses_figure, rows_figure, rows_per_epoch
from msft.report.figures.methods import (
    budget_figure,
    budgets_of,
    gains,
    gains_figure,
    group_gains,
    parts_figure,
    parts_of,
    places_figure,
    score_figure,
    score_text,
    size_figure,
    spread_figure,
)
from msft.report.figures.peaks import divergence, mean_shifts, peaks, peaks_of
from msft.report.figures.search import timeline
from msft.report.page import Section, marked
from msft.report.wording import method_name
from msft.run.folder import StepLosses
from msft.run.history import History
from msft.text import counted, epochs, epochs_in_words, listed


def run_sections(history: History) -> list[Section]:
    """The paper's figures of one run, beside those that its page has anyway."""
    found: list[Section] = []
    peaked = peaks_of(history)
    if peaked is not None and len(peaked.peaks) > 1:
        text = (
            "The first roll-out trains every sub-dataset. The curves are "
            f"{deciding_words(history)}, each with its peak. The bars say how far each peak is "
            f"from that of the mean, which is at {epochs_in_words(peaked.mean)} (the paper's Fig. "
            "2)."
        )
        draw = partial(peaks, history)
        found.append(Section("peaks", "Where each sub-dataset peaks", text, draw))
    if history.start.method == "ies":
        found += _active_rows([("", history)])
    return marked(found, history.selected_on_test)


def page_figures(history: History, branches: Sequence[Branch], steps: StepLosses) -> list[Section]:
    """The figures that the page of every run has; their texts stand in its template."""
    searched = "Timeline of the search: one branch per roll-out"
    learned = "Training loss over the epochs trained, and the number of active sub-datasets"
    copied = "Copies of the weights on disk over the epochs trained"
    found = [
        Section("timeline", searched, "", partial(timeline, history, branches)),
        Section("loss", learned, "", partial(costs.loss, history, branches, steps)),
        Section("flops", "FLOPs by what they were for", "", partial(costs.flops, history)),
        Section("disk", copied, "", partial(costs.disk, history, branches)),
    ]
    return marked(found, history.selected_on_test)


def search_section(history: History) -> Section:
    """The figure of a search for a page that has other runs beside it."""
    text = (
        "Each row is a roll-out, from top to bottom in the order of work. A dot stands where a "
        "sub-dataset left; a dashed arrow goes back to where the next roll-out begins; the star "
        "is the best checkpoint."
    )
    draw = partial(timeline, history, branches_of(history))
    return Section("timeline", f"The search of {method_name(history.start.method)}", text, draw)


def run_figures(history: History, steps: StepLosses) -> list[Section]:
    """All figures of one run: those of its page, and the paper's."""
    if not any(stage.points for stage in history.stages):
        return []
    first, *others = page_figures(history, branches_of(history), steps)
    return [first, *run_sections(history), *others]


def comparison_figures(
    runs: Sequence[ComparedRun], report_split: ReportSplit | None = None
) -> list[Section]:
    """The paper's figures of several runs, as far as these runs have what they need.

    Runs that have not finished take no part, except in the training loss.
    report_split: the one that scores are of; by default what the runs' recipes say.
    """
    pairs = pairs_of(runs)
    apart = {id(run) for pair in pairs for run in (pair.with_all, pair.without)}
    rest = [run for run in runs if id(run) not in apart]
    finished = [run for run in rest if run.history.ended is not None]
    comparisons = comparisons_of(finished, report_split)
    rivals = [comparison for comparison in comparisons if comparison.sft and comparison.others]
    found = divergence_sections(pairs)
    if any(len(comparison.methods) > 1 for comparison in comparisons):
        found += _spreads([comparison for comparison in comparisons if len(comparison.methods) > 1])
    if len({comparison.mixture for comparison in rivals}) > 1:
        found.append(_sizes(rivals))
    for comparison, suffix, title in _numbered(comparisons):
        found += _of_comparison(comparison, suffix, title)
    for comparison, suffix, title in _numbered(comparisons_of(rest)):
        found += _losses(comparison, suffix, title)
    stopped = [(run.title, run.history) for run in rest if run.history.start.method == "ies"]
    found += _active_rows(stopped)
    return marked(found, any(run.history.selected_on_test for run in runs))


def score_section(comparison: Comparison, suffix: str = "", title: str = "") -> Section:
    """Every score of a comparison."""
    draw = partial(score_figure, comparison)
    name = f"Scores on {comparison.split}{title}"
    section = Section(f"scores{suffix}", name, score_text(comparison), draw)
    return marked([section], comparison.selected_on_test)[0]


def _numbered(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str, str]]:
    """Each comparison with the ends of its keys and titles; of one comparison both are empty."""
    if len(comparisons) == 1:
        return [(comparisons[0], "", "")]
    return [
        (comparison, f"-{number}", f" · {title}")
        for number, (comparison, title) in enumerate(
            zip(comparisons, titles_of(comparisons), strict=True), 1
        )
    ]


def _spreads(comparisons: Sequence[Comparison]) -> list[Section]:
    found: list[Section] = []
    splits = listed(dict.fromkeys(comparison.split for comparison in comparisons))
    several = f" Mean over {over_in_words(comparisons)}." if len(comparisons) > 1 else ""
    if any(spread_of(each, method) is not None for each in comparisons for method in each.methods):
        text = (
            f"Standard deviation (over n − 1) of the {splits} scores over the sub-datasets (the "
            f"paper's Fig. 4, left). It says nothing of how high the scores are.{several}"
        )
        draw = partial(spread_figure, comparisons)
        found.append(Section("spread", "Spread over sub-datasets", text, draw))
    text = f"On {splits} (the paper's Fig. 4, right). {places_text(comparisons)}"
    return [*found, Section("places", "First places", text, partial(places_figure, comparisons))]


def _sizes(comparisons: Sequence[Comparison]) -> Section:
    mixtures = len({comparison.mixture for comparison in comparisons})
    text = (
        f"Gain of the mean over SFT on the same mixture, for {mixtures} mixtures of different size "
        "(the paper's Fig. 5)."
    )
    draw = partial(size_figure, comparisons)
    return Section("sizes", "Gain against the size of the mixture", text, draw)


def _of_comparison(comparison: Comparison, suffix: str, title: str) -> list[Section]:
    found: list[Section] = []
    budgets = budgets_of(comparison)
    if len({method.budget for method in budgets}) > 1:
        text = (
            "Mean score and FLOPs of mSFT with different compute budgets C"
            + (", beside SFT" if comparison.sft else "")
            + " (the paper's Fig. 6)."
        )
        draw = partial(budget_figure, comparison)
        found.append(Section(f"budgets{suffix}", f"Compute budget{title}", text, draw))
    if comparison.sft is None or not comparison.others:
        return found
    text = f"Gain over SFT on {comparison.split}, sub-dataset by sub-dataset (the paper's Fig. 7)."
    if comparison.unit() is None:
        text += " Metrics differ, and the mean gain is over the base model, so no mean is drawn."
    draw = partial(gains_figure, comparison, gains(comparison))
    found.append(Section(f"gains{suffix}", f"Gain by sub-dataset{title}", text, draw))
    if comparison.groups and comparison.unit() is not None:
        text = (
            f"Gain of the mean over SFT on {comparison.split}, group by group (the paper's Fig. 7)."
        )
        draw = partial(gains_figure, comparison, group_gains(comparison))
        found.append(Section(f"groups{suffix}", f"Gain by group{title}", text, draw))
    for number, method in enumerate(budgets):
        more = f"-c{epochs(method.budget)}" if number and len(budgets) > 1 else ""
        found += _parts(
            comparison,
            method,
            suffix + more,
            title if len(budgets) < 2 else f"{title} · {method.label}",
        )
    return found


def _parts(comparison: Comparison, method: MethodRuns, suffix: str, title: str) -> list[Section]:
    """Eq. 4; not where metrics are mixed, since its parts could not be added."""
    if comparison.unit() is None:
        return []
    table, split = parts_of(comparison, method)
    if all(part.gain is None for part in table.values()):
        return []
    text = (
        f"The gain of {method.label} over SFT on {split} in two parts that add up to it (the "
        "paper's Eq. 4 and Fig. 8). One part is what a sub-dataset lost or won from where it left "
        "to the best checkpoint. The rest is overfitting prevented. The mean is of all. "
        f"{_undefined(table)}"
    )
    draw = partial(parts_figure, table, split, comparison.unit())
    return [Section(f"parts{suffix}", f"What the gain is made of{title}", text.strip(), draw)]


def _undefined(table: Mapping[str, Parts]) -> str:
    reasons: dict[str, int] = {}
    for part in table.values():
        if part.prevention is None:
            reasons[part.why] = reasons.get(part.why, 0) + 1
    told = [f"{count} ({why})" for why, count in reasons.items()]
    return f"The parts are undefined for {listed(told)} of {len(table)}." if told else ""


def _losses(comparison: Comparison, suffix: str, title: str) -> list[Section]:
    if len(loss_runs(comparison)) < 2:
        return []
    text = (
        "The mean training loss of each tick along the path of the search, and the moving average "
        "over 10 steps. What was rolled back is faint. A dashed line shows where one left "
        "(the paper's Fig. 9)."
    )
    draw = partial(losses_figure, comparison)
    return [Section(f"losses{suffix}", f"Training loss{title}", text, draw)]


def _active_rows(runs: Sequence[tuple[str, History]]) -> list[Section]:
    shown = [(name, history) for name, history in runs if rows_per_epoch(history)]
    if not shown:
        return []
    text = (
        "Rows that IES still trained in each epoch, in per cent of the first epoch, counted from "
        "the rows that each tick logged."
    )
    return [Section("rows", "Rows still active", text, partial(rows_figure, shown))]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two branches that `msft analyze divergence` left in folders `with` and `without`."""

    name: str
    excluded: str
    with_all: ComparedRun
    without: ComparedRun


def pairs_of(runs: Sequence[ComparedRun]) -> list[Pair]:
    """The pairs among these runs."""
    by_parent: dict[Path, dict[str, ComparedRun]] = {}
    for run in runs:
        path = run.folder.resolve()
        by_parent.setdefault(path.parent, {})[path.name] = run
    found: list[Pair] = []
    for parent, held in by_parent.items():
        if {"with", "without"} <= set(held):
            with_all, without = held["with"], held["without"]
            try:
                excluded = left_out(with_all.history, without.history)
            except ValueError:
                continue  # not two branches, or one that has not begun
            name = parent.name if all(p.name != parent.name for p in found) else str(parent)
            found.append(Pair(name, excluded, with_all, without))
    models = model_labels([pair.with_all for pair in found])
    if len(set(models)) == len(found) > 1 and all(pair.with_all.model for pair in found):
        return [replace(pair, name=name) for pair, name in zip(found, models, strict=True)]
    return found


def divergence_sections(pairs: Sequence[Pair]) -> list[Section]:
    """Fig. 3a of every pair, and Fig. 3b of several."""
    found: list[Section] = []
    moved: dict[str, dict[str, float]] = {}
    for number, pair in enumerate(pairs, start=1):
        name, excluded = pair.name, pair.excluded
        moved[name] = changes(pair.with_all.history, pair.without.history, excluded)
        text = (
            f"By how many epochs the peaks of the others move when {excluded} is taken out (the "
            f"paper's Fig. 3): {mean_shift(moved[name]):.2f} on average, whatever the direction, "
            f"over {counted(len(moved[name]), 'sub-dataset')}."
        )
        key = "divergence" if len(pairs) == 1 else f"divergence-{number}"
        title = "Change of optimal compute" + ("" if len(pairs) == 1 else f" · {name}")
        found.append(Section(key, title, text, partial(divergence, moved[name])))
    if len(moved) > 1:
        text = "Mean absolute change of every analysis (the paper's Fig. 3b)."
        draw = partial(mean_shifts, moved)
        found.append(Section("shifts", "Mean change of optimal compute", text, draw))
    return found
