"""A compared run: one log under a name that tells it from the others, with its model, its groups,
and its rows beside those of another run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import quote, unquote

from msft.errors import LogError, UsageError, worded
from msft.files import DAMAGED, kind_of
from msft.report.compare.statistics import (
    Bootstrap,
    Paired,
    paired_bootstrap,
    paired_together,
    verdict_at,
)
from msft.report.wording import method_name
from msft.run.environment import read_groups, rollout_from
from msft.run.folder import RunFolder, read_history, recipe_text, refuse_audit, verdicts_of
from msft.run.history import History, history_in, summary_of
from msft.run.rows import Verdict
from msft.search.curves import Number, overall
from msft.search.rollout import ALL_DATA, BASE, CheckpointId
from msft.text import epochs, listed, si

_FOLDER = re.compile(r"[^+]+\+(?P<settings>[^+]+=[^+]*)-s\d+")
"""`soup+k=4,of=last-s20`; what a value has that could harm a path or a shell is quoted."""


def variant_text(method: str, settings: Mapping[str, str]) -> str:
    """A variant as on the command line: `soup[k=4,of=last]`, or `soup`."""
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


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """label: tells it apart from the others, by its folder."""

    label: str
    folder: Path
    history: History
    summary: dict[str, Any]

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
        """The settings that a comparison gave to this run and not to others of its method."""
        return settings_in(self.folder.resolve().name)

    @property
    def rollout_from(self) -> str | None:
        """The run that trained its first roll-out, where it was not this one."""
        return rollout_from(RunFolder(self.folder).environment)

    @property
    def data(self) -> Mapping[str, str]:
        """Digests of its rows and its base model. Train rows that it left out by `exclude_rows`
        count: the rows that are scored are the same without them."""
        prints = self.history.start.fingerprint
        found = {what: prints[what] for what in ("data", "model") if what in prints}
        return {**found, "data": prints[ALL_DATA]} if ALL_DATA in prints else found

    @property
    def metrics(self) -> Mapping[str, str]:
        """Digests of the user's own metrics; older logs have none."""
        prints = self.history.start.fingerprint
        return {what: digest for what, digest in prints.items() if what.startswith("metric ")}

    @property
    def names(self) -> tuple[str, ...]:
        """The sub-datasets of the run."""
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
        return read_groups(RunFolder(self.folder).environment)

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


def compared_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """The runs in these folders, under names that tell them apart."""
    if not folders:
        raise ValueError("no run folder was given; expected at least one")
    for folder in folders:
        refuse_audit(folder)
    histories = [read_history(folder) for folder in folders]
    return [
        ComparedRun(name, folder, history, summary_of(history))
        for name, folder, history in zip(_labels(folders), folders, histories, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FolderRuns:
    """The runs found in folders, and the folders without a readable run.

    empty: labels of those where none has begun.
    unreadable: labels of those whose logs cannot be read, and why.
    """

    runs: list[ComparedRun]
    empty: list[str]
    unreadable: dict[str, str]


def runs_in(folders: Sequence[Path]) -> FolderRuns:
    """The runs in these folders, one by one: a broken log is no reason to leave out the others."""
    found = FolderRuns([], [], {})
    for label, folder in zip(_labels(folders), folders, strict=True):
        log = RunFolder(folder).log
        try:
            refuse_audit(folder)
            history = history_in(log) if kind_of(log) else History()
            if history.opened is None:
                found.empty.append(label)
                continue
            summary = summary_of(history)
            found.runs.append(ComparedRun(label, folder, history, summary))
        except (LogError, UsageError, OSError) as error:
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
    """The distance between the best checkpoints of two runs on the same rows.

    drawn: the difference of their means, with the rows drawn again.
    signs: on how many rows the first is better, and on how many worse; None where rows cannot be
        held against each other one by one.
    """

    drawn: Bootstrap
    signs: Paired | None


def rows_apart(one: ComparedRun, two: ComparedRun, split: str) -> RowsApart | None:
    """The distance between two runs; None for other data or missing verdicts."""
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
    """The weight of one row's difference in the difference of the means, by sub-dataset.

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
EXCLUDED = "exclude_rows"


def labels_of_runs(runs: Sequence[ComparedRun]) -> list[str]:
    """Names of methods, with what is their own; where two have the same one or C is their own,
    with C, else by their folders."""
    short = _short_labels(runs)
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


def short_label(run: ComparedRun, length: int | None = None) -> str:
    """The method with its settings, without the budget: tables write the budget as C.

    length: parts of the path of `exclude_rows`, from its end; None: all of them.
    """
    settings = {key: value for key, value in run.variant.items() if key != BUDGET}
    if length is not None and EXCLUDED in settings:
        settings[EXCLUDED] = "/".join(PurePath(settings[EXCLUDED]).parts[-length:])
    return variant_text(method_name(run.method), settings)


def _short_labels(runs: Sequence[ComparedRun]) -> list[str]:
    """Short labels in which the file of `exclude_rows` has as many of the last parts of its path as
    tell the runs apart."""
    whole = [short_label(run) for run in runs]
    files = [PurePath(run.variant[EXCLUDED]) for run in runs if EXCLUDED in run.variant]
    for length in range(1, max([0, *(len(file.parts) for file in files)])):
        found = [short_label(run, length) for run in runs]
        if len({*found}) == len({*whole}):
            return found
    return whole


def with_budget(name: str, run: ComparedRun) -> str:
    return f"{name} C = {epochs(budget_of(run.history))}"


def budget_of(history: History) -> float:
    """C in epochs."""
    return float(history.start.settings[BUDGET]) / history.evals_per_epoch


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


def same_datasets(runs: Sequence[ComparedRun]) -> bool:
    return len({frozenset(run.names) for run in runs}) == 1


def mean_at(history: History, checkpoint: CheckpointId, split: str) -> Number | None:
    """The mean at a checkpoint, None unless it is known."""
    return history.mean(checkpoint, split) if history.has_mean(checkpoint, split) else None


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
