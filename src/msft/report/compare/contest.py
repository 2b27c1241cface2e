"""A contest: entrants on one mixture, over which seeds and on which split they are compared.

What tables and figures show of an entrant is the mean over the seeds that all of them have.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msft.errors import UsageError
from msft.report.compare.compared_run import ComparedRun, ReportSplit
from msft.report.compare.entrant import Entrant, entrants_by_method, labels_of_runs
from msft.report.compare.fairness import common_seeds, unlike
from msft.report.compare.models import model_labels, models_of
from msft.report.compare.statistics import mean
from msft.report.wording import Unit, height, points
from msft.search.rollout import BASE
from msft.search.scores import SELECTION, TEST, Number, mean_gain
from msft.text import counted, listed, no_test_mean

BASELINE = "sft"
UNGROUPED = "own data"


@dataclass(frozen=True, slots=True)
class Contest:
    """What tables and figures are made of.

    seeds: means are over these: the seeds that all entrants have, or all if none is common.
    names: the sub-datasets.
    split: the one that reports.
    selection: the one that chose every checkpoint.
    baseline: differences are to it.
    each: every entrant is one run by itself.
    warnings: what makes the comparison less than it seems.
    """

    entrants: tuple[Entrant, ...]
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    split: str
    baseline: Entrant
    each: bool = False
    warnings: tuple[str, ...] = ()
    selection: str = SELECTION

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for entrant in self.entrants for run in entrant.runs.values()]

    @property
    def first(self) -> ComparedRun:
        return self.entrants[0].first

    @property
    def has_mean(self) -> bool:
        """Whether means can be compared: all have the same sub-datasets."""
        return same_datasets(self.runs)

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that were scored, the one that reports first."""
        scored = (self.selection, TEST) if _any_tested(self.runs) else (self.selection,)
        return (self.split, *(split for split in scored if split != self.split))

    @property
    def selected_on_test(self) -> bool:
        """Whether no score here is of rows that selected nothing."""
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
    def sft(self) -> Entrant | None:
        """What gains are measured against, if it is there."""
        return self.baseline if self.baseline.method == BASELINE else None

    @property
    def others(self) -> list[Entrant]:
        """All but SFT."""
        return [entrant for entrant in self.entrants if entrant is not self.sft]

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

    def score(self, entrant: Entrant, names: Sequence[str], split: str) -> Number | None:
        """The mean score of these sub-datasets, over the seeds."""
        return known_mean(run.score(names, split) for run in entrant.over(self.seeds))

    def base_score(self, names: Sequence[str], split: str) -> Number | None:
        """The base model's, from the runs of the baseline."""
        runs = self.baseline.over(self.seeds)
        return known_mean(run.score(names, split, BASE) for run in runs)

    def flops(self, entrant: Entrant, kind: str) -> Number:
        """What it computed, mean over the seeds."""
        return mean([Fraction(run.summary["flops"][kind]) for run in entrant.over(self.seeds)])

    def gain(self, entrant: Entrant, name: str) -> float | None:
        """Gain over SFT on a sub-dataset, as figures show it."""
        unit = self.unit()
        gains = [_gain(run, sft, name, self.split, unit) for run, sft in self.pairs(entrant)]
        gain = known_mean(gains)
        return None if gain is None else float(gain)

    def mean_gain(self, entrant: Entrant, names: Sequence[str] = ()) -> float | None:
        """Gain over SFT of the mean over these sub-datasets, or all, as figures show it."""
        unit, names = self.unit(), names or self.names
        gaps = [
            minus(run.score(names, self.split), sft.score(names, self.split))
            for run, sft in self.pairs(entrant)
        ]
        gap = known_mean(height(gap, unit) for gap in gaps)
        return None if gap is None else points(gap, unit)

    def pairs(self, entrant: Entrant) -> list[tuple[ComparedRun, ComparedRun]]:
        """Runs with the SFT run of the same seed; each with each where no seed is shared."""
        sft = self.sft.over(self.seeds) if self.sft else []
        every = [(run, other) for run in entrant.over(self.seeds) for other in sft]
        return [(run, other) for run, other in every if run.seed == other.seed] or every


def contest_of(
    runs: Sequence[ComparedRun],
    report_split: ReportSplit | None = None,
    missing: Sequence[str] = (),
    unreadable: Mapping[str, str] | None = None,
) -> Contest:
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
    if not same_datasets(finished):
        raise UsageError(
            f"{listed(run.label for run in finished)} have different sub-datasets; expected runs "
            "of one recipe"
        )
    return _contest(entrants_by_method(finished), report_split, warnings)


def contest_of_each(
    runs: Sequence[ComparedRun], report_split: ReportSplit | None = None
) -> Contest:
    """Every run an entrant by itself, and the first is the baseline."""
    labels = labels_of_runs(runs)
    entrants = tuple(
        Entrant(label, run.method, {0: run}) for label, run in zip(labels, runs, strict=True)
    )
    warnings: list[str] = []
    running = [run.label for run in runs if run.history.ended is None]
    if running:
        warnings.append(f"Not finished yet: {listed(running)}.")
    if not same_datasets(runs):
        warnings.append("The runs have different sub-datasets; no means are shown.")
    return _contest(entrants, report_split, warnings, entrants[0])


def contests_of(
    runs: Sequence[ComparedRun], report_split: ReportSplit | None = None
) -> list[Contest]:
    """A contest of methods for each mixture and model, the smallest mixture first."""
    found: dict[str, list[ComparedRun]] = {}
    for run, model in zip(runs, models_of(runs), strict=True):
        start = run.history.start
        key = json.dumps([sorted(start.datasets.items()), start.num_parameters, model])
        found.setdefault(key, []).append(run)
    contests = [
        _contest(entrants_by_method(members), report_split, []) for members in found.values()
    ]
    return sorted(
        contests,
        key=lambda each: (len(each.names), sum(each.first.history.start.datasets.values())),
    )


def titles_of(contests: Sequence[Contest]) -> list[str]:
    """What tells contests apart: their mixtures, their models, or both."""
    models = model_labels([contest.first for contest in contests])
    if len({contest.mixture for contest in contests}) == 1 and len(set(models)) > 1:
        return models
    several = len(set(models)) > 1
    return [
        contest.title + (f", {model}" if several else "")
        for contest, model in zip(contests, models, strict=True)
    ]


def over_in_words(contests: Sequence[Contest]) -> str:
    """What several contests are of: 2 models, 3 mixtures, or both."""
    models = len(set(model_labels([contest.first for contest in contests])))
    mixtures = len({contest.mixture for contest in contests})
    told = [(mixtures, "mixture"), (models, "model")]
    return listed(counted(count, noun) for count, noun in told if count > 1) or "1 mixture"


def _contest(
    entrants: tuple[Entrant, ...],
    report_split: ReportSplit | None,
    warnings: list[str],
    baseline: Entrant | None = None,
) -> Contest:
    runs = [run for entrant in entrants for run in entrant.runs.values()]
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
    return Contest(
        entrants,
        common_seeds(entrants, warnings),
        tuple(dict.fromkeys(name for run in runs for name in run.names)),
        TEST if reports == "test" and tested else selection,
        baseline or _baseline(entrants),
        baseline is not None,
        (*warnings, *unlike(entrants)),
        selection,
    )


def refuse_mixed_selection(runs: Sequence[ComparedRun]) -> None:
    """UsageError where some runs were selected on test and others on validation: their scores on
    test are not worth the same."""
    on_test = [run.label for run in runs if run.history.selected_on_test]
    others = [run.label for run in runs if not run.history.selected_on_test]
    if on_test and others:
        was = "was" if len(on_test) == 1 else "were"
        raise UsageError(
            f"{listed(on_test)} {was} selected on test rows (selection_split: test), and "
            f"{listed(others)} on validation, so their scores cannot be compared; name runs with "
            "one selection_split"
        )


def _baseline(entrants: Sequence[Entrant]) -> Entrant:
    """SFT, rather without settings of its own; else the first."""
    found = [entrant for entrant in entrants if entrant.method == BASELINE]
    plain = [entrant for entrant in found if not entrant.first.variant]
    return (*plain, *found, *entrants)[0]


def same_datasets(runs: Sequence[ComparedRun]) -> bool:
    return len({frozenset(run.names) for run in runs}) == 1


def _any_tested(runs: Sequence[ComparedRun]) -> bool:
    return any(run.history.known(run.best, TEST) for run in runs)


def minus(one: Number | None, two: Number | None) -> Number | None:
    """A difference, if both are known."""
    return None if one is None or two is None else one - two


def known_mean(values: Iterable[Number | None]) -> Number | None:
    """The mean, if there are values and all are known."""
    found = [*values]
    known = [value for value in found if value is not None]
    return mean(known) if known and len(known) == len(found) else None


def _gain(run: ComparedRun, sft: ComparedRun, name: str, split: str, unit: Unit) -> float | None:
    """In the unit of the sub-dataset; where metrics are mixed, as the mean gain counts it."""
    ours, theirs = (each.history.known(each.best, split).get(name) for each in (run, sft))
    if ours is None or theirs is None:
        return None
    if unit is None:
        return points(mean_gain({name: ours}, {name: theirs}), unit)
    return points(ours.height - theirs.height, unit)
