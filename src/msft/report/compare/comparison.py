"""Runs that are compared: a compared run is one log under a name, an entrant is a method with its
runs by seed, a contest is entrants on one mixture.

A contest knows over which seeds and on which split its entrants are compared, and what makes the
comparison less than it seems: missing seeds, data or models that differ. What tables and figures
show of an entrant is the mean over the seeds that all of them have. Of several base models each has
a contest of its own, and all are reported on one split.
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
from msft.report.compare.statistics import Paired, mean, paired, sample_sd, verdict_at
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


PairedVerdicts = dict[str, tuple[Verdict, Verdict]]
"""Per sub-dataset the verdicts of two runs on the same rows."""


def same_rows(
    one: ComparedRun, two: ComparedRun, split: str, of_two: Mapping[str, Verdict]
) -> PairedVerdicts | None:
    """Of both best checkpoints; None unless the data are the same and all verdicts are there.

    of_two: the second run's verdicts, which several may be compared with.
    """
    if one.data != two.data:
        return None
    first, second = one.verdicts(split), of_two
    if any(
        name not in first or name not in second or len(first[name]) != len(second[name])
        for name in one.names
    ):
        return None
    return {name: (first[name], second[name]) for name in one.names}


def rows_apart(one: ComparedRun, rows: PairedVerdicts) -> Paired | None:
    """On how many of the same rows the first run is better, and on how many worse."""
    total = Paired(0, 0)
    for name, (first, second) in rows.items():
        pair = paired(first, second, one.history.unit_of(name) == "nll")
        if pair is None:
            return None
        total += pair
    return total


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
class Entrant:
    """runs: by seed, at least one."""

    label: str
    method: str
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


def entrants_by_method(runs: Sequence[ComparedRun]) -> tuple[Entrant, ...]:
    """Runs that differ in their seed alone are one entrant."""
    groups: dict[tuple[str, int], dict[int, ComparedRun]] = {}
    for run in runs:
        key, again = _settings(run), 0
        while run.seed in groups.get((key, again), {}):
            again += 1  # the same run once more
        groups.setdefault((key, again), {})[run.seed] = run
    held = [*groups.values()]
    firsts = [next(iter(group.values())) for group in held]
    return tuple(
        Entrant(label, run.method, group)
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


def common_seeds(entrants: Sequence[Entrant], warnings: list[str]) -> tuple[int, ...]:
    """The seeds that means are over: those that all entrants have, or all if none is common."""
    every = sorted({seed for entrant in entrants for seed in entrant.runs})
    common = tuple(seed for seed in every if all(seed in entrant.runs for entrant in entrants))
    if len(common) == len(every):
        return common
    lacking = [
        f"{entrant.label} {listed(str(seed) for seed in every if seed not in entrant.runs)}"
        for entrant in entrants
        if len(entrant.runs) < len(every)
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


def unlike(entrants: Sequence[Entrant]) -> list[str]:
    """Runs under one seed that did not have the same data, model or own metric."""
    found: list[str] = []
    for seed in sorted({seed for entrant in entrants for seed in entrant.runs}):
        runs = [entrant.runs[seed] for entrant in entrants if seed in entrant.runs]
        prints = {tuple(sorted(run.data.items())) for run in runs}
        if len(prints) > 1:
            labels = listed(run.label for run in runs)
            found.append(f"{labels} did not have the same data or base model: fingerprints differ.")
        for metric in dict.fromkeys(metric for run in runs for metric in run.metrics):
            having = [run for run in runs if metric in run.metrics]
            if len({run.metrics[metric] for run in having}) > 1:
                labels = listed(run.label for run in having)
                found.append(f"The code of {metric} changed between {labels}.")
    sizes = {run.history.start.num_parameters for e in entrants for run in e.runs.values()}
    return [*found, "The models differ in size."] if len(sizes) > 1 else found


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


MODEL = "model_name_or_path"


def runs_by_model(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """The runs of each model.

    A variant that has a model of its own is an entrant beside the others where these have one
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


def model_contests(
    runs: Sequence[ComparedRun],
    report_split: ReportSplit | None = None,
    missing: Sequence[str] = (),
    unreadable: Mapping[str, str] | None = None,
) -> list[Contest]:
    """A contest of methods for each model that has a finished run; its arguments are those of
    `contest_of`."""
    refuse_mixed_selection(runs)
    groups = runs_by_model(runs)
    whole = [group for group in groups if any(run.history.ended for run in group)]
    finished = [run for run in runs if run.history.ended is not None]
    if len(groups) < 2 or not whole:
        return [contest_of(runs, report_split, missing, unreadable)]
    if not same_datasets(finished):
        raise UsageError(
            f"{listed(run.label for run in finished)} have different sub-datasets; expected runs "
            "of one recipe"
        )
    waiting = [run.label for group in groups if group not in whole for run in group]
    lists = ([*waiting, *missing], unreadable)
    rest: tuple[list[str], None] = ([], None)

    def contests(split: ReportSplit | None) -> list[Contest]:
        return [
            contest_of(group, split, *(rest if number else lists))
            for number, group in enumerate(whole)
        ]

    found = contests(report_split)
    if len({contest.split for contest in found}) > 1:
        untested = "Not every model was scored on test, so validation is reported."
        first, *others = contests("selection")
        found = [replace(first, warnings=(*first.warnings, untested)), *others]
    return _told_apart(found)


def _told_apart(contests: Sequence[Contest]) -> list[Contest]:
    """A method that has several budgets on one model is named with its budget on all of them."""
    several = {
        entrant.short
        for contest in contests
        for entrant in contest.entrants
        if entrant.label == with_budget(entrant.short, entrant.first)
    }
    found: list[Contest] = []
    for contest in contests:
        entrants = tuple(_named(entrant, several) for entrant in contest.entrants)
        baseline = entrants[contest.entrants.index(contest.baseline)]
        found.append(replace(contest, entrants=entrants, baseline=baseline))
    return found


def _named(entrant: Entrant, several: set[str]) -> Entrant:
    if entrant.short not in several:
        return entrant
    return replace(entrant, label=with_budget(entrant.short, entrant.first))


def spread_of(contest: Contest, entrant: Entrant) -> float | None:
    """The standard deviation over sub-datasets of a run's scores, mean over the seeds.

    None of one sub-dataset, where metrics differ, and where a score is missing.
    """
    spreads: list[float] = []
    for run in entrant.over(contest.seeds):
        scores = [run.score((name,), contest.split) for name in contest.names]
        known = [score for score in scores if score is not None]
        spread = sample_sd(known) if len(known) == len(scores) and contest.unit() else None
        if spread is None:
            return None
        spreads.append(spread)
    return float(mean(spreads))


Ends = tuple[Number | None, Number | None]
"""The lowest and the highest score of a run over its sub-datasets, mean over the seeds."""


def ends_of(contest: Contest, entrant: Entrant) -> Ends:
    """None where a score is missing."""
    scores = [
        [run.score((name,), contest.split) for name in contest.names]
        for run in entrant.over(contest.seeds)
    ]
    known = [[score for score in one if score is not None] for one in scores]
    whole = [one if len(one) == len(contest.names) else None for one in known]
    lowest = known_mean(min(one) if one else None for one in whole)
    return lowest, known_mean(max(one) if one else None for one in whole)


def places_text(contests: Sequence[Contest]) -> str:
    """What a first place is, and how many there are in these contests."""
    who = "run" if all(contest.each for contest in contests) else "method"
    rounds = sum(len(rounds_of(contest)) for contest in contests)
    every = sum(len(contest.names) * len(_turns(contest)) for contest in contests)
    own = any(len(contest.seeds) > len(_turns(contest)) for contest in contests)
    first, *others = contests
    over = f" over {over_in_words(contests)}"
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


def rounds_of(contest: Contest) -> list[dict[str, Number]]:
    """Heights by entrant on each sub-dataset that all are scored on, under each seed.

    Where no seed is common to all, one round per sub-dataset, of the means over their seeds.
    """
    rounds: list[dict[str, Number]] = []
    for seeds in _turns(contest):
        for name in contest.names:
            unit = contest.unit((name,))
            scores = {
                entrant.label: known_mean(
                    run.score((name,), contest.split) for run in entrant.over(seeds)
                )
                for entrant in contest.entrants
            }
            heights = {
                label: height(score, unit) for label, score in scores.items() if score is not None
            }
            if len(heights) == len(contest.entrants) > 1:
                rounds.append(heights)
    return rounds


def _turns(contest: Contest) -> list[tuple[int, ...]]:
    """The seeds that are compared together: each by itself, or all where none is common."""
    common = all(seed in entrant.runs for entrant in contest.entrants for seed in contest.seeds)
    return [(seed,) for seed in contest.seeds] if common else [contest.seeds]
