"""The runs of a comparison, and what can be said of them: who is ahead, how sure, how fair."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msft.history import SELECTION, TEST, History
from msft.report.evidence import Paired, paired, verdict_at
from msft.report.results import mean_of
from msft.report.run_report import read_history, verdicts_of
from msft.report.wording import (
    counted,
    difference_in_words,
    in_words,
    listed,
    mean_unit,
    p_value,
    unit_of,
)
from msft.rollout import BASE
from msft.scores import Number
from msft.summary import summary_of
from msft.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the runs that are compared."""

    label: str
    folder: Path
    history: History
    summary: dict[str, Any]

    def score(self, name: str, split: str) -> Number | None:
        score = self.history.known(self.history.best or BASE, split).get(name)
        return score.value if score else None

    def mean(self, split: str) -> Number | None:
        return mean_of(self.history, self.history.best or BASE, split)

    def verdicts(self, split: str) -> dict[str, Verdict]:
        """Rows right and wrong at the best checkpoint, of the sub-datasets that have them."""
        known, best = verdicts_of(self.folder), self.history.best or BASE
        found = {
            name: verdict_at(self.history, known, best, split, name)
            for name in self.history.start.datasets
        }
        return {name: verdict for name, verdict in found.items() if verdict is not None}


def contenders_of(folders: Sequence[Path]) -> list[Contender]:
    """The runs in these folders, under names that tell them apart."""
    if not folders:
        raise ValueError("no run folder was given; expected at least one")
    histories = [read_history(folder) for folder in folders]
    return [
        Contender(name, folder, history, summary_of(history))
        for name, folder, history in zip(_labels(folders), folders, histories, strict=True)
    ]


def _labels(folders: Sequence[Path]) -> list[str]:
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    longer = [f"{path.parent.name}/{path.name}" for path in paths]
    if len(set(longer)) == len(longer):
        return longer
    return [f"{number} {name}" for number, name in enumerate(names, start=1)]


def tested(runs: Sequence[Contender]) -> bool:
    """Whether any run was scored on test."""
    return any(run.history.known(run.history.best or BASE, TEST) for run in runs)


def same_datasets(runs: Sequence[Contender]) -> bool:
    return len({frozenset(run.history.start.datasets) for run in runs}) == 1


def minus(one: Number | None, two: Number | None) -> Number | None:
    """A difference, if both are known."""
    return None if one is None or two is None else one - two


def headline(runs: Sequence[Contender]) -> str:
    """The means on the split that reports, in one sentence."""
    if not same_datasets(runs):
        return "These runs have different sub-datasets, so their means cannot be compared."
    split, unit = reporting(runs), mean_unit(runs[0].history)
    means = {run.label: run.mean(split) for run in runs}
    known = [f"{name} {in_words(mean, unit)}" for name, mean in means.items() if mean is not None]
    if not known:
        return "None of these runs is scored yet."
    where = "test" if split == TEST else "validation, on which each was also selected,"
    return f"The mean on {where} is {listed(known)}."


def duels(runs: Sequence[Contender]) -> list[str]:
    """Every run against the first one, on the split that reports, and how sure that is."""
    if not same_datasets(runs):
        return []
    split, unit, first = reporting(runs), mean_unit(runs[0].history), runs[0]
    texts: list[str] = []
    for run in runs[1:]:
        gap = minus(run.mean(split), first.mean(split))
        if gap is None:
            continue
        text = f"{run.label} against {first.label} on {split}: {difference_in_words(gap, unit)}"
        if pair := paired_runs(run, first, split):
            text += (
                f"; of {pair.rows:,} rows {pair.better} better and {pair.worse} worse "
                f"(two-sided sign test: {p_value(pair.p)})"
            )
        texts.append(text + ".")
    return texts


def reporting(runs: Sequence[Contender]) -> str:
    """The split whose scores count: test, if there is one."""
    return TEST if tested(runs) else SELECTION


def paired_runs(one: Contender, two: Contender, split: str) -> Paired | None:
    """The best checkpoints of two runs, row by row over all sub-datasets; None unless all the
    verdicts are there and the data are the same."""
    rows = same_rows(one, two, split)
    if rows is None:
        return None
    total = Paired(0, 0, 0)
    for name, (first, second) in rows.items():
        pair = paired(first, second, unit_of(one.history, name) == "nll")
        if pair is None:
            return None
        total += pair
    return total


def same_rows(
    one: Contender, two: Contender, split: str
) -> dict[str, tuple[Verdict, Verdict]] | None:
    """The verdicts of both best checkpoints on every sub-dataset; None unless the data are the
    same and all verdicts are there."""
    if one.history.start.fingerprint != two.history.start.fingerprint:
        return None
    first, second = one.verdicts(split), two.verdicts(split)
    names = one.history.start.datasets
    if any(name not in first or name not in second for name in names):
        return None
    return {name: (first[name], second[name]) for name in names}


def protocol(runs: Sequence[Contender]) -> str:
    """Which split selected, which reports, and how far apart they are."""
    if not tested(runs):
        return (
            "Every run chose its checkpoint on validation and no test split was scored: these "
            "scores flatter, and the more so the more candidates a run could choose from."
        )
    text = (
        "Validation selected: every run chose its checkpoint there. Test reports: it decided "
        "nothing."
    )
    unit = mean_unit(runs[0].history)
    drifts = [
        f"{run.label} {difference_in_words(drift, unit)}, "
        f"from {counted(run.summary['best']['candidates'], 'candidate')}"
        for run in runs
        if (drift := minus(run.mean(SELECTION), run.mean(TEST))) is not None
    ]
    if drifts:
        text += f" Optimism of the selected score (validation − test): {'; '.join(drifts)}."
    return text


def warnings_of(runs: Sequence[Contender]) -> list[str]:
    """What makes the comparison unfair."""
    found: list[str] = []
    running = [run.label for run in runs if run.history.ended is None]
    if running:
        found.append(f"Not finished yet: {listed(running)}.")
    if not same_datasets(runs):
        found.append("The runs have different sub-datasets; no means are shown.")
    if len({tuple(sorted(run.history.start.fingerprint.items())) for run in runs}) > 1:
        found.append("The runs did not have the same data or base model: fingerprints differ.")
    if len({run.history.start.num_parameters for run in runs}) > 1:
        found.append("The models differ in size.")
    return found
