"""Runs that are compared: a compared run is one log under a name, a method is a method with its
runs by seed, a comparison is methods on one mixture.

A comparison knows over which seeds and on which split its methods are compared, and what makes the
comparison less than it seems: missing seeds, data or models that differ. What tables and figures
show of a method is the mean over the seeds that all of them have. Of several base models each has
a comparison of its own, and all are reported on one split.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import quote, unquote

from msft.errors import LogError, UsageError, worded
from msft.files import DAMAGED, kind_of
from msft.report.compare.statistics import (
    Bootstrap,
    Paired,
    mean,
    paired_bootstrap,
    paired_together,
    sample_sd,
    verdict_at,
)
from msft.report.wording import Unit, height, method_name, points
from msft.run.environment import read_groups, rollout_from
from msft.run.folder import RunFolder, read_history, recipe_text, verdicts_of
from msft.run.history import History, history_in, summary_of
from msft.run.rows import Verdict
from msft.search.curves import SELECTION, TEST, Number, mean_gain, overall
from msft.search.rollout import BASE, CheckpointId
from msft.text import counted, epochs, listed, no_test_mean, si

_FOLDER = re.compile(r"[^+]+\+(?P<settings>[^+]+=[^+]*)-s\d+")
"""`soup+k=4,of=last-s20`; what a value has that could harm a path or a shell is quoted."""


def variant_text(method: str, settings: Mapping[str, str]) -> str:
    """As on the command line: `soup[k=4,of=last]`, or `soup`."""
    inside = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{method}[{inside}]" if inside else method


def folder_name(method: str, settings: Mapping[str, str], seed: int) -> str:
    """The folder of a run, whatever is in the values."""
    inside = ",".join(f"{_quoted(key)}={_quoted(value)}" for key, value in settings.items())
    return f"{method.replace(':', '.')}{'+' if inside else ''}{inside}-s{seed}"


def settings_in(folder: str) -> dict[str, str]:
    """The settings that a folder's name has; none where it is not that of a variant."""
    found = _FOLDER.fullmatch(folder)
    pairs = found["settings"].split(",") if found else []
    cut = (pair.partition("=") for pair in pairs)
    return {unquote(key): unquote(value) for key, _, value in cut}


def _quoted(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


Groups = Mapping[str, str]
"""The group of each sub-dataset that has one."""

ReportSplit = Literal["test", "selection"]
"""What `report_split` of a recipe may be; `selection` is the split that selects."""

GroupsOf = Callable[[Path, Sequence[str]], Groups]
"""From a run folder and its sub-datasets."""


def no_groups(folder: Path, names: Sequence[str]) -> Groups:
    return {}


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """label: tells it apart from the others, by its folder.

    older_groups: says the groups of a folder whose environment.json does not.
    """

    label: str
    folder: Path
    history: History
    summary: dict[str, Any]
    older_groups: GroupsOf = no_groups

    @property
    def title(self) -> str:
        """Its label; of a folder that is named after its method, with the method as tables spell
        it."""
        place, slash, name = self.label.rpartition("/")
        rest = name.removeprefix(self.method)
        named = name.startswith(self.method) and not rest[:1].isalnum() and rest[:1] != "_"
        return f"{place}{slash}{method_name(self.method)}{rest}" if named else self.label

    @property
    def method(self) -> str:
        return self.history.start.method

    @property
    def seed(self) -> int:
        return self.history.start.seed

    @property
    def best(self) -> CheckpointId:
        return self.history.best or BASE

    @property
    def variant(self) -> Mapping[str, str]:
        """What a comparison gave this run and not the others of its method."""
        return settings_in(self.folder.resolve().name)

    @property
    def rollout_from(self) -> str | None:
        """The run that trained its first roll-out, where it was not this one."""
        return rollout_from(RunFolder(self.folder).environment)

    @property
    def data(self) -> Mapping[str, str]:
        """Digests of its rows and its base model."""
        prints = self.history.start.fingerprint
        return {what: prints[what] for what in ("data", "model") if what in prints}

    @property
    def metrics(self) -> Mapping[str, str]:
        """Digests of the user's own metrics; older logs have none."""
        prints = self.history.start.fingerprint
        return {what: digest for what, digest in prints.items() if what.startswith("metric ")}

    @property
    def names(self) -> tuple[str, ...]:
        """Its sub-datasets."""
        return tuple(self.history.start.datasets)

    @property
    def model(self) -> str | None:
        """The base model as its recipe names it; None where no recipe is there."""
        return recipe_text(self.folder, "model_name_or_path")

    @property
    def report_split(self) -> ReportSplit:
        """The split that its recipe reports on; test where no recipe is there."""
        return report_split_of(self.folder)

    @property
    def groups(self) -> Groups:
        recorded = read_groups(RunFolder(self.folder).environment)
        return self.older_groups(self.folder, self.names) if recorded is None else recorded

    def score(
        self, names: Sequence[str], split: str, checkpoint: CheckpointId | None = None
    ) -> Number | None:
        """The mean over sub-datasets at its best checkpoint, or at another one.

        None unless all of them are scored there, and where metrics are mixed the base model too.
        """
        known = self.history.known(checkpoint or self.best, split)
        base = self.history.known(BASE, split)
        scores = {name: known[name] for name in names if name in known}
        mixed = len({score.metric for score in scores.values()}) > 1
        if not names or len(scores) < len(names) or (mixed and not base.keys() >= scores.keys()):
            return None
        return overall(scores, base, self.history.start.settings["mean"])

    def verdicts(self, split: str) -> dict[str, Verdict]:
        """Rows right and wrong at its best checkpoint, of the sub-datasets that have them."""
        known = verdicts_of(self.folder)
        found = {
            name: verdict_at(self.history, known, self.best, split, name) for name in self.names
        }
        return {name: verdict for name, verdict in found.items() if verdict is not None}


def report_split_of(folder: Path) -> ReportSplit:
    """The split that the recipe of a run reports on; test where it does not say."""
    return "selection" if recipe_text(folder, "report_split") == "selection" else "test"


def compared_runs(folders: Sequence[Path], older_groups: GroupsOf = no_groups) -> list[ComparedRun]:
    """The runs in these folders, under names that tell them apart."""
    if not folders:
        raise ValueError("no run folder was given; expected at least one")
    histories = [read_history(folder) for folder in folders]
    return [
        ComparedRun(name, folder, history, summary_of(history), older_groups)
        for name, folder, history in zip(_labels(folders), folders, histories, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FolderRuns:
    """What folders hold, of which some may hold no run.

    empty: labels of those where none has begun.
    unreadable: labels of those whose logs cannot be read, and why.
    """

    runs: list[ComparedRun]
    empty: list[str]
    unreadable: dict[str, str]


def runs_in(folders: Sequence[Path], older_groups: GroupsOf = no_groups) -> FolderRuns:
    """The runs in these folders, one by one: a broken log is no reason to leave out the others."""
    found = FolderRuns([], [], {})
    for label, folder in zip(_labels(folders), folders, strict=True):
        log = RunFolder(folder).log
        try:
            history = history_in(log) if kind_of(log) else History()
            if history.opened is None:
                found.empty.append(label)
                continue
            summary = summary_of(history)
            found.runs.append(ComparedRun(label, folder, history, summary, older_groups))
        except (LogError, OSError) as error:
            found.unreadable[label] = str(worded(error))
        except DAMAGED as error:
            why = f"{log}: its events do not fit together ({error!r}); restore it"
            found.unreadable[label] = why
    return found


def _labels(folders: Sequence[Path]) -> list[str]:
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    longer = [f"{path.parent.name}/{path.name}" for path in paths]
    if len(set(longer)) == len(longer):
        return longer
    return [f"{number} {name}" for number, name in enumerate(names, start=1)]


@dataclass(frozen=True, slots=True)
class RowsApart:
    """How far the best checkpoints of two runs are apart on the same rows.

    drawn: the difference of their means, with the rows drawn again.
    signs: on how many rows the first is better, and on how many worse; None where rows cannot be
        held against each other one by one.
    """

    drawn: Bootstrap
    signs: Paired | None


def rows_apart(one: ComparedRun, two: ComparedRun, split: str) -> RowsApart | None:
    """None unless the data are the same and all verdicts of both are there."""
    if one.data != two.data:
        return None
    both = first, second = one.verdicts(split), two.verdicts(split)
    if any(
        name not in first or name not in second or len(first[name]) != len(second[name])
        for name in one.names
    ):
        return None
    strata = {
        name: [a - b for a, b in zip(*(map(float, rows[name]) for rows in both), strict=True)]
        for name in one.names
    }
    signs = paired_together(
        (first[name], second[name], one.history.unit_of(name) == "nll") for name in one.names
    )
    return RowsApart(paired_bootstrap(strata, _weights(one, strata, split)), signs)


def _weights(
    run: ComparedRun, strata: Mapping[str, Sequence[float]], split: str
) -> dict[str, float]:
    """What one row's difference adds to that of the means: the mean's rule, row by row.

    Of nll, rows are summed losses and the divisor is tokens, which are taken as given.
    """
    history = run.history
    scores, base = history.known(run.best, split), history.known(BASE, split)
    metrics = {scores[name].metric for name in strata}
    sizes = {
        name: scores[name].count if scores[name].metric == "nll" else len(rows)
        for name, rows in strata.items()
    }
    alone = all(scores[name].count == 1 for name in strata)  # means of own metrics, in older logs
    if history.start.settings["mean"] == "pooled" and len(metrics) == 1 and not alone:
        sizes = dict.fromkeys(sizes, sum(sizes.values()))
    else:  # gains are not pooled
        sizes = {name: size * len(sizes) for name, size in sizes.items()}
    weights = {name: 1 / size for name, size in sizes.items()}
    for name in strata:
        if scores[name].metric == "nll":
            reference = float(base[name].value) if len(metrics) > 1 else 1.0
            weights[name] *= -1 / reference if reference else 0.0
    return weights


def models_of(runs: Sequence[ComparedRun]) -> list[str | None]:
    """The model of each run by the name in its recipe; one name for the same weights."""
    by_weights: dict[str, str | None] = {}
    found: list[str | None] = []
    for run in runs:
        weights = run.data.get("model")
        name = run.model
        found.append(by_weights.setdefault(weights, name) if weights and name else name)
    return found


def model_labels(runs: Sequence[ComparedRun]) -> list[str]:
    """The model of each run for people: a path by its last two parts, or more where these do not
    tell it apart; where no recipe is there, by its size."""
    names = models_of(runs)
    told = {name: _ends(name) for name in names if name is not None}
    for length in range(2, max([2, *(len(parts) for parts in told.values())]) + 1):
        short = {name: "/".join(parts[-length:]) for name, parts in told.items()}
        if len(set(short.values())) == len(short):
            break
    return [
        f"{si(run.history.start.num_parameters)} parameters" if name is None else short[name]
        for run, name in zip(runs, names, strict=True)
    ]


def _ends(name: str) -> tuple[str, ...]:
    """The parts that a name may be cut to; a name of the hub stays whole."""
    path = PurePath(name)
    is_path = name.startswith((".", "/", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return path.parts if is_path else (name,)


BUDGET = "compute_budget"


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
        """Its method with what is its own, whatever its budget."""
        return _short(self.first)

    @property
    def budget(self) -> float:
        """C in epochs."""
        return budget_of(self.first.history)

    def over(self, seeds: Sequence[int]) -> list[ComparedRun]:
        """Its runs under these seeds, as far as there are any."""
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
    told = [start.method, settings, start.fingerprint.get("training"), dict(run.variant)]
    return json.dumps(told, sort_keys=True, default=str)


def labels_of_runs(runs: Sequence[ComparedRun]) -> list[str]:
    """Names of methods, with what is their own; where two have the same one or C is their own,
    with C, else by their folders."""
    short = [_short(run) for run in runs]
    budgets = [with_budget(name, run) for name, run in zip(short, runs, strict=True)]
    alone = [
        short.count(name) == 1 and BUDGET not in run.variant
        for name, run in zip(short, runs, strict=True)
    ]
    found = [
        name if single else budget if budgets.count(budget) == 1 else run.title
        for name, budget, run, single in zip(short, budgets, runs, alone, strict=True)
    ]
    return found if len(set(found)) == len(found) else [run.label for run in runs]


def _short(run: ComparedRun) -> str:
    """Its budget is written as C, as in the paper's tables, and not as a setting."""
    settings = {key: value for key, value in run.variant.items() if key != BUDGET}
    return variant_text(method_name(run.method), settings)


def with_budget(name: str, run: ComparedRun) -> str:
    return f"{name} C = {epochs(budget_of(run.history))}"


def budget_of(history: History) -> float:
    """C in epochs."""
    return float(history.start.settings[BUDGET]) / history.evals_per_epoch


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
    """What tables and figures are made of.

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
    def sft(self) -> MethodRuns | None:
        """What gains are measured against, if it is there."""
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
        """What it computed, mean over the seeds."""
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
    """What tells comparisons apart: their mixtures, their models, or both."""
    models = model_labels([comparison.first for comparison in comparisons])
    if len({comparison.mixture for comparison in comparisons}) == 1 and len(set(models)) > 1:
        return models
    several = len(set(models)) > 1
    return [
        comparison.title + (f", {model}" if several else "")
        for comparison, model in zip(comparisons, models, strict=True)
    ]


def over_in_words(comparisons: Sequence[Comparison]) -> str:
    """What several comparisons are of: 2 models, 3 mixtures, or both."""
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


def refuse_other_mixtures(runs: Sequence[ComparedRun]) -> None:
    if not same_datasets(runs):
        raise UsageError(
            f"{listed(run.label for run in runs)} have different sub-datasets; expected runs of "
            "one recipe"
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


def _baseline(methods: Sequence[MethodRuns]) -> MethodRuns:
    """SFT, rather without settings of its own; else the first."""
    found = [method for method in methods if method.name == BASELINE]
    plain = [method for method in found if not method.first.variant]
    return (*plain, *found, *methods)[0]


def same_datasets(runs: Sequence[ComparedRun]) -> bool:
    return len({frozenset(run.names) for run in runs}) == 1


def _any_tested(runs: Sequence[ComparedRun]) -> bool:
    return any(run.history.known(run.best, TEST) for run in runs)


def minus(one: Number | None, two: Number | None) -> Number | None:
    """A difference, if both are known."""
    return None if one is None or two is None else one - two


def mean_at(history: History, checkpoint: CheckpointId, split: str) -> Number | None:
    """The mean at a checkpoint, None unless it is known."""
    return history.mean(checkpoint, split) if history.has_mean(checkpoint, split) else None


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


MODEL = "model_name_or_path"


def runs_by_model(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """The runs of each model.

    A variant that has a model of its own is a method beside the others where these have one
    model, and belongs to its own where they have several.
    """
    models = models_of(runs)
    named = {model for run, model in zip(runs, models, strict=True) if MODEL not in run.variant}
    if len(named) < 2:
        return [[*runs]]
    found: dict[str | None, list[ComparedRun]] = {}
    for run, model in zip(runs, models, strict=True):
        found.setdefault(model, []).append(run)
    return [*found.values()]


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
        methods = tuple(_named(method, several) for method in comparison.methods)
        baseline = methods[comparison.methods.index(comparison.baseline)]
        found.append(replace(comparison, methods=methods, baseline=baseline))
    return found


def _named(method: MethodRuns, several: set[str]) -> MethodRuns:
    if method.short not in several:
        return method
    return replace(method, label=with_budget(method.short, method.first))


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


Ends = tuple[Number | None, Number | None]
"""The lowest and the highest score of a run over its sub-datasets, mean over the seeds."""


def ends_of(comparison: Comparison, method: MethodRuns) -> Ends:
    """None where a score is missing."""
    scores = [
        [run.score((name,), comparison.split) for name in comparison.names]
        for run in method.over(comparison.seeds)
    ]
    known = [[score for score in one if score is not None] for one in scores]
    whole = [one if len(one) == len(comparison.names) else None for one in known]
    lowest = known_mean(min(one) if one else None for one in whole)
    return lowest, known_mean(max(one) if one else None for one in whole)


def places_text(comparisons: Sequence[Comparison]) -> str:
    """What a first place is, and how many there are in these comparisons."""
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
