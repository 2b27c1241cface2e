"""A comparison: methods with their runs by seed, on one mixture and one model.

A comparison knows over which seeds and on which split its methods are compared, and what makes the
comparison less than it seems: missing seeds, data or models that differ. What tables and figures
show of a method is the mean over the seeds that all of them have. Of several base models each has
a comparison of its own, and all are reported on one split.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from msft.errors import UsageError
from msft.report.compare.runs import (
    BUDGET,
    EXCLUDED,
    ComparedRun,
    ReportSplit,
    budget_of,
    labels_of_runs,
    model_labels,
    models_of,
    refuse_mixed_selection,
    refuse_other_mixtures,
    runs_by_model,
    same_datasets,
    short_label,
    with_budget,
)
from msft.report.compare.statistics import (
    known_mean,
    mean,
    minus,
    sample_sd,
)
from msft.report.wording import Unit, height, points
from msft.search.curves import SELECTION, TEST, Number, mean_gain
from msft.search.rollout import ALL_DATA, BASE
from msft.text import counted, listed, no_test_mean


@dataclass(frozen=True, slots=True)
class MethodRuns:
    """A method with its runs by seed, at least one.

    name: as a recipe has it; label: as tables have it.
    """

    label: str
    name: str
    runs: Mapping[int, ComparedRun]

    @property
    def first(self) -> ComparedRun:
        return next(iter(self.runs.values()))

    @property
    def short(self) -> str:
        """The label without the budget."""
        return short_label(self.first)

    @property
    def budget(self) -> float:
        """C in epochs."""
        return budget_of(self.first.history)

    def over(self, seeds: Sequence[int]) -> list[ComparedRun]:
        """The runs of these seeds, as far as there are any."""
        return [self.runs[seed] for seed in seeds if seed in self.runs]


def methods_by_settings(runs: Sequence[ComparedRun]) -> tuple[MethodRuns, ...]:
    """Runs that differ in their seed alone are one method."""
    groups: dict[tuple[str, int], dict[int, ComparedRun]] = {}
    for run in runs:
        key, again = _settings(run), 0
        while run.seed in groups.get((key, again), {}):
            again += 1  # the same run once more
        groups.setdefault((key, again), {})[run.seed] = run
    held = [*groups.values()]
    firsts = [next(iter(group.values())) for group in held]
    return tuple(
        MethodRuns(label, run.method, group)
        for label, run, group in zip(labels_of_runs(firsts), firsts, held, strict=True)
    )


def _settings(run: ComparedRun) -> str:
    """Everything but the seed; of the two budgets only the one that the method uses."""
    start = run.history.start
    settings: dict[str, Any] = dict(start.settings)
    if start.method in ("sft", "dynamix", "ies", "sro", "soft_sro", "soup"):
        settings.pop(BUDGET, None)
    elif start.method in ("msft", "continual"):
        settings.pop("train_ticks", None)
    excludes = ALL_DATA in start.fingerprint
    told = [start.method, settings, start.fingerprint.get("training"), dict(run.variant), excludes]
    return json.dumps(told, sort_keys=True, default=str)


def common_seeds(methods: Sequence[MethodRuns], warnings: list[str]) -> tuple[int, ...]:
    """The seeds that means are over: those that all methods have, or all if none is common."""
    every = sorted({seed for method in methods for seed in method.runs})
    common = tuple(seed for seed in every if all(seed in method.runs for method in methods))
    if len(common) == len(every):
        return common
    lacking = [
        f"{method.label} {listed(str(seed) for seed in every if seed not in method.runs)}"
        for method in methods
        if len(method.runs) < len(every)
    ]
    if not common:
        warnings.append(
            f"No seed was finished by every method (missing: {'; '.join(lacking)}), so each mean "
            "is over the seeds that its method has, and they cannot be compared row by row."
        )
        return tuple(every)
    warnings.append(
        f"Means are over the seeds that every method has finished, {listed(map(str, common))}; "
        f"missing: {'; '.join(lacking)}."
    )
    return common


def unlike(methods: Sequence[MethodRuns]) -> list[str]:
    """Runs under one seed that did not have the same data, model or own metric."""
    found: list[str] = []
    for seed in sorted({seed for method in methods for seed in method.runs}):
        runs = [method.runs[seed] for method in methods if seed in method.runs]
        prints = {tuple(sorted(run.data.items())) for run in runs}
        if len(prints) > 1:
            labels = listed(run.label for run in runs)
            found.append(f"{labels} did not have the same data or base model: fingerprints differ.")
        fewer = [run for run in runs if ALL_DATA in run.history.start.fingerprint]
        if 0 < len(fewer) < len(runs) and not any(EXCLUDED in run.variant for run in runs):
            labels = listed(run.label for run in fewer)
            found.append(f"{labels} left training rows out (exclude_rows), and others did not.")
        for metric in dict.fromkeys(metric for run in runs for metric in run.metrics):
            having = [run for run in runs if metric in run.metrics]
            if len({run.metrics[metric] for run in having}) > 1:
                labels = listed(run.label for run in having)
                found.append(f"The code of {metric} changed between {labels}.")
    sizes = {run.history.start.num_parameters for e in methods for run in e.runs.values()}
    return [*found, "The models differ in size."] if len(sizes) > 1 else found


BASELINE = "sft"


UNGROUPED = "own data"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Methods with their runs on one mixture: the input of tables and figures.

    seeds: means are over these: the seeds that all methods have, or all if none is common.
    names: the sub-datasets.
    split: the one that reports.
    selection: the one that chose every checkpoint.
    baseline: differences are to it.
    each: every method is one run by itself.
    warnings: what makes the comparison less than it seems.
    """

    methods: tuple[MethodRuns, ...]
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    split: str
    baseline: MethodRuns
    each: bool = False
    warnings: tuple[str, ...] = ()
    selection: str = SELECTION

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for method in self.methods for run in method.runs.values()]

    @property
    def first(self) -> ComparedRun:
        return self.methods[0].first

    @property
    def has_mean(self) -> bool:
        """True where all runs have the same sub-datasets, so that means can be compared."""
        return same_datasets(self.runs)

    @property
    def splits(self) -> tuple[str, ...]:
        """The scored splits, the reporting one first."""
        scored = (self.selection, TEST) if _any_tested(self.runs) else (self.selection,)
        return (self.split, *(split for split in scored if split != self.split))

    @property
    def selected_on_test(self) -> bool:
        """True where test rows chose the checkpoints, so that every score flatters."""
        return self.selection == TEST

    @property
    def title(self) -> str:
        rows = sum(self.first.history.start.datasets.values())
        return f"N = {len(self.names)}, {rows:,} rows"

    @property
    def mixture(self) -> tuple[tuple[str, int], ...]:
        """The sub-datasets and their rows."""
        return tuple(sorted(self.first.history.start.datasets.items()))

    @property
    def sft(self) -> MethodRuns | None:
        """SFT, if it is among the methods: gains are measured against it."""
        return self.baseline if self.baseline.name == BASELINE else None

    @property
    def others(self) -> list[MethodRuns]:
        """All but SFT."""
        return [method for method in self.methods if method is not self.sft]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Sub-datasets by the groups of their benchmarks; empty where there are not two groups."""
        recorded, members = self.first.groups, dict[str, tuple[str, ...]]()
        for name in self.names:
            group = recorded.get(name, UNGROUPED)
            members[group] = (*members.get(group, ()), name)
        return members if len(members) > 1 else {}

    def unit(self, names: Sequence[str] = ()) -> Unit:
        """The metric of these sub-datasets, or of all."""
        runs = self.runs
        units = {
            next(run.history.unit_of(name) for run in runs if name in run.history.start.datasets)
            for name in names or self.names
        }
        return units.pop() if len(units) == 1 else None

    def score(self, method: MethodRuns, names: Sequence[str], split: str) -> Number | None:
        """The mean score of these sub-datasets, over the seeds."""
        return known_mean(run.score(names, split) for run in method.over(self.seeds))

    def base_score(self, names: Sequence[str], split: str) -> Number | None:
        """The base model's, from the runs of the baseline."""
        runs = self.baseline.over(self.seeds)
        return known_mean(run.score(names, split, BASE) for run in runs)

    def flops(self, method: MethodRuns, kind: str) -> Number:
        """The FLOPs of a method, mean over the seeds."""
        return mean([Fraction(run.summary["flops"][kind]) for run in method.over(self.seeds)])

    def gain(self, method: MethodRuns, name: str) -> float | None:
        """Gain over SFT on a sub-dataset, as figures show it."""
        unit = self.unit()
        gains = [_gain(run, sft, name, self.split, unit) for run, sft in self.pairs(method)]
        gain = known_mean(gains)
        return None if gain is None else float(gain)

    def mean_gain(self, method: MethodRuns, names: Sequence[str] = ()) -> float | None:
        """Gain over SFT of the mean over these sub-datasets, or all, as figures show it."""
        unit, names = self.unit(), names or self.names
        gaps = [
            minus(run.score(names, self.split), sft.score(names, self.split))
            for run, sft in self.pairs(method)
        ]
        gap = known_mean(height(gap, unit) for gap in gaps)
        return None if gap is None else points(gap, unit)

    def pairs(self, method: MethodRuns) -> list[tuple[ComparedRun, ComparedRun]]:
        """Runs with the SFT run of the same seed; each with each where no seed is shared."""
        sft = self.sft.over(self.seeds) if self.sft else []
        every = [(run, other) for run in method.over(self.seeds) for other in sft]
        return [(run, other) for run, other in every if run.seed == other.seed] or every


def comparison_of(
    runs: Sequence[ComparedRun],
    report_split: ReportSplit | None = None,
    missing: Sequence[str] = (),
    unreadable: Mapping[str, str] | None = None,
) -> Comparison:
    """Methods by their seeds, all on one mixture; what has not finished is named and left out.

    report_split: the one that reports; by default what the runs' recipes say.
    missing: names of runs that have not even begun.
    unreadable: names of runs whose logs cannot be read, and why.
    """
    finished = [run for run in runs if run.history.ended is not None]
    warnings: list[str] = []
    waiting = [*(run.label for run in runs if run.history.ended is None), *missing]
    if waiting:
        warnings.append(f"Not finished, and so not in the tables: {listed(waiting)}.")
    if unreadable:
        told = [f"{name} ({why})" for name, why in unreadable.items()]
        warnings.append(f"Not readable, and so not in the tables: {listed(told)}.")
    if not finished:
        raise UsageError("no run has finished yet, so there is nothing to compare")
    refuse_other_mixtures(finished)
    return _comparison(methods_by_settings(finished), report_split, warnings)


def comparison_of_each(
    runs: Sequence[ComparedRun], report_split: ReportSplit | None = None
) -> Comparison:
    """Every run a method by itself, and the first is the baseline."""
    labels = labels_of_runs(runs)
    methods = tuple(
        MethodRuns(label, run.method, {0: run}) for label, run in zip(labels, runs, strict=True)
    )
    warnings: list[str] = []
    running = [run.label for run in runs if run.history.ended is None]
    if running:
        warnings.append(f"Not finished yet: {listed(running)}.")
    if not same_datasets(runs):
        warnings.append("The runs have different sub-datasets; no means are shown.")
    return _comparison(methods, report_split, warnings, methods[0])


def comparisons_of(
    runs: Sequence[ComparedRun], report_split: ReportSplit | None = None
) -> list[Comparison]:
    """A comparison of methods for each mixture and model, the smallest mixture first."""
    found: dict[str, list[ComparedRun]] = {}
    for run, model in zip(runs, models_of(runs), strict=True):
        start = run.history.start
        key = json.dumps([sorted(start.datasets.items()), start.num_parameters, model])
        found.setdefault(key, []).append(run)
    comparisons = [
        _comparison(methods_by_settings(members), report_split, []) for members in found.values()
    ]
    return sorted(
        comparisons,
        key=lambda each: (len(each.names), sum(each.first.history.start.datasets.values())),
    )


def titles_of(comparisons: Sequence[Comparison]) -> list[str]:
    """Titles that tell comparisons apart: by mixture, by model, or by both."""
    models = model_labels([comparison.first for comparison in comparisons])
    if len({comparison.mixture for comparison in comparisons}) == 1 and len(set(models)) > 1:
        return models
    several = len(set(models)) > 1
    return [
        comparison.title + (f", {model}" if several else "")
        for comparison, model in zip(comparisons, models, strict=True)
    ]


def over_in_words(comparisons: Sequence[Comparison]) -> str:
    """The numbers of models and mixtures in words: "2 models", "3 mixtures", or both."""
    models = len(set(model_labels([comparison.first for comparison in comparisons])))
    mixtures = len({comparison.mixture for comparison in comparisons})
    told = [(mixtures, "mixture"), (models, "model")]
    return listed(counted(count, noun) for count, noun in told if count > 1) or "1 mixture"


def _comparison(
    methods: tuple[MethodRuns, ...],
    report_split: ReportSplit | None,
    warnings: list[str],
    baseline: MethodRuns | None = None,
) -> Comparison:
    runs = [run for method in methods for run in method.runs.values()]
    refuse_mixed_selection(runs)
    selection = runs[0].history.selection
    tested = all(run.score(run.names, TEST) is not None for run in runs)
    asked = {run.report_split for run in runs}
    reports = report_split or ("test" if asked == {"test"} else "selection")
    if selection == TEST:
        reports = "test"
    elif report_split is None and len(asked) > 1:
        warnings.append(
            "Recipes differ in their report_split, so validation is reported, which selected."
        )
    elif reports == "test" and not tested and _any_tested(runs):
        without = [name for name in runs[0].names if name in runs[0].history.untested(runs[0].best)]
        why = no_test_mean(without) if without else "not every run was scored on test"
        warnings.append(f"{why[0].upper()}{why[1:]}; validation is reported.")
    return Comparison(
        methods,
        common_seeds(methods, warnings),
        tuple(dict.fromkeys(name for run in runs for name in run.names)),
        TEST if reports == "test" and tested else selection,
        baseline or _baseline(methods),
        baseline is not None,
        (*warnings, *unlike(methods)),
        selection,
    )


def _baseline(methods: Sequence[MethodRuns]) -> MethodRuns:
    """SFT, rather without settings of its own; else the first."""
    found = [method for method in methods if method.name == BASELINE]
    plain = [method for method in found if not method.first.variant]
    return (*plain, *found, *methods)[0]


def _any_tested(runs: Sequence[ComparedRun]) -> bool:
    return any(run.history.known(run.best, TEST) for run in runs)


def _gain(run: ComparedRun, sft: ComparedRun, name: str, split: str, unit: Unit) -> float | None:
    """In the unit of the sub-dataset; where metrics are mixed, as the mean gain counts it."""
    ours, theirs = (each.history.known(each.best, split).get(name) for each in (run, sft))
    if ours is None or theirs is None:
        return None
    if unit is None:
        return points(mean_gain({name: ours}, {name: theirs}), unit)
    return points(ours.height - theirs.height, unit)


def model_comparisons(
    runs: Sequence[ComparedRun],
    report_split: ReportSplit | None = None,
    missing: Sequence[str] = (),
    unreadable: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """A comparison of methods for each model that has a finished run; its arguments are those of
    `comparison_of`."""
    refuse_mixed_selection(runs)
    groups = runs_by_model(runs)
    whole = [group for group in groups if any(run.history.ended for run in group)]
    finished = [run for run in runs if run.history.ended is not None]
    if len(groups) < 2 or not whole:
        return [comparison_of(runs, report_split, missing, unreadable)]
    refuse_other_mixtures(finished)
    waiting = [run.label for group in groups if group not in whole for run in group]
    lists = ([*waiting, *missing], unreadable)
    rest: tuple[list[str], None] = ([], None)

    def comparisons(split: ReportSplit | None) -> list[Comparison]:
        return [
            comparison_of(group, split, *(rest if number else lists))
            for number, group in enumerate(whole)
        ]

    found = comparisons(report_split)
    if len({comparison.split for comparison in found}) > 1:
        untested = "Not every model was scored on test, so validation is reported."
        first, *others = comparisons("selection")
        found = [replace(first, warnings=(*first.warnings, untested)), *others]
    return _told_apart(found)


def _told_apart(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """A method that has several budgets on one model is named with its budget on all of them."""
    several = {
        method.short
        for comparison in comparisons
        for method in comparison.methods
        if method.label == with_budget(method.short, method.first)
    }
    found: list[Comparison] = []
    for comparison in comparisons:
        methods = tuple(
            replace(each, label=with_budget(each.short, each.first))
            if each.short in several
            else each
            for each in comparison.methods
        )
        baseline = methods[comparison.methods.index(comparison.baseline)]
        found.append(replace(comparison, methods=methods, baseline=baseline))
    return found


def labels_in(comparisons: Sequence[Comparison]) -> list[str]:
    """The methods of all comparisons, in the order in which they come up."""
    return [*dict.fromkeys(method.label for each in comparisons for method in each.methods)]


def scores_by_seed(
    comparison: Comparison, method: MethodRuns, seeds: Sequence[int]
) -> dict[int, Number]:
    """A method's means on the split that reports, of the seeds that have one."""
    found = {
        seed: method.runs[seed].score(comparison.names, comparison.split)
        for seed in seeds
        if seed in method.runs
    }
    return {seed: score for seed, score in found.items() if score is not None}


def spread_of(comparison: Comparison, method: MethodRuns) -> float | None:
    """The standard deviation over sub-datasets of a run's scores, mean over the seeds.

    None of one sub-dataset, where metrics differ, and where a score is missing.
    """
    spreads: list[float] = []
    for run in method.over(comparison.seeds):
        scores = [run.score((name,), comparison.split) for name in comparison.names]
        known = [score for score in scores if score is not None]
        spread = sample_sd(known) if len(known) == len(scores) and comparison.unit() else None
        if spread is None:
            return None
        spreads.append(spread)
    return float(mean(spreads))


def places_text(comparisons: Sequence[Comparison]) -> str:
    """The definition of a first place, and the number of first places in these comparisons."""
    who = "run" if all(comparison.each for comparison in comparisons) else "method"
    rounds = sum(len(rounds_of(comparison)) for comparison in comparisons)
    every = sum(len(comparison.names) * len(_turns(comparison)) for comparison in comparisons)
    own = any(len(comparison.seeds) > len(_turns(comparison)) for comparison in comparisons)
    first, *others = comparisons
    over = f" over {over_in_words(comparisons)}"
    if not others:
        over = f", one for each of {counted(len(first.names), 'sub-dataset')}"
        seeds = len(_turns(first))
        over += f" under each of {counted(seeds, 'seed')}" if seeds > 1 else ""
    return (
        f"A {who} has a first place on a sub-dataset where no other one scores better. "
        + ("Scores are means over a method's own seeds. " if own else "")
        + f"That makes {counted(rounds, 'first place')}{over}"
        + (", except where a score is missing" if rounds < every else "")
        + ". Where several are equally good, each has the place, so that the numbers may add up "
        "to more. One row can decide a place."
    )


def rounds_of(comparison: Comparison) -> list[dict[str, Number]]:
    """Heights by method on each sub-dataset that all are scored on, under each seed.

    Where no seed is common to all, one round per sub-dataset, of the means over their seeds.
    """
    rounds: list[dict[str, Number]] = []
    for seeds in _turns(comparison):
        for name in comparison.names:
            unit = comparison.unit((name,))
            scores = {
                method.label: known_mean(
                    run.score((name,), comparison.split) for run in method.over(seeds)
                )
                for method in comparison.methods
            }
            heights = {
                label: height(score, unit) for label, score in scores.items() if score is not None
            }
            if len(heights) == len(comparison.methods) > 1:
                rounds.append(heights)
    return rounds


def _turns(comparison: Comparison) -> list[tuple[int, ...]]:
    """The seeds that are compared together: each by itself, or all where none is common."""
    common = all(seed in method.runs for method in comparison.methods for seed in comparison.seeds)
    return [(seed,) for seed in comparison.seeds] if common else [comparison.seeds]
