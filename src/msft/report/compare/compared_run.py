"""A run that is compared with others: its log under a name of its own, and its scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msft.errors import LogError
from msft.files import DAMAGED, kind_of
from msft.report.compare.evidence import Paired, paired, verdict_at
from msft.report.compare.variant import settings_in
from msft.report.wording import method_name
from msft.run.environment import read_groups, rollout_from
from msft.run.folder import RunFolder, read_history, recipe_text, verdicts_of
from msft.run.history import History, history_in
from msft.run.rows import Verdict
from msft.run.summary import summary_of
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import Number, overall
from msft.system_errors import worded

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
