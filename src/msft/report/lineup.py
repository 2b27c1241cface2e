"""The line-up of a comparison: who is compared, over which seeds, on which split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import yaml

from msft.folder import RunFolder, UsageError
from msft.history import SELECTION, TEST
from msft.report.contenders import Contender, same_datasets
from msft.report.wording import Unit, listed, method_name, unit_of
from msft.rollout import BASE, CheckpointId
from msft.scores import Number, overall
from msft.statistics import mean

BASELINE = "sft"
UNGROUPED = "own data"


@dataclass(frozen=True, slots=True)
class Entry:
    """A method with its finished runs by seed."""

    label: str
    method: str
    runs: Mapping[int, Contender]

    def over(self, seeds: Sequence[int]) -> list[Contender]:
        """Its runs under these seeds, as far as there are any."""
        return [self.runs[seed] for seed in seeds if seed in self.runs]


@dataclass(frozen=True, slots=True)
class Lineup:
    """What tables are made of.

    seeds: means are over these; every entry has finished all of them if it can be had.
    groups: sub-datasets by group; empty where they are all of one.
    split: the one that reports.
    baseline: differences are to it.
    warnings: what makes the comparison less than it seems.
    """

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    split: str
    baseline: Entry
    warnings: tuple[str, ...] = ()

    @property
    def first(self) -> Contender:
        return next(iter(self.entries[0].runs.values()))

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that were scored, the one that reports first."""
        others = (SELECTION, TEST) if _tested(self.entries) else (SELECTION,)
        return (self.split, *(split for split in others if split != self.split))

    def unit(self, names: Sequence[str]) -> Unit:
        units = {unit_of(self.first.history, name) for name in names}
        return units.pop() if len(units) == 1 else None

    def score(self, entry: Entry, names: Sequence[str], split: str) -> Number | None:
        """The mean score of these sub-datasets, over the seeds."""
        return _known_mean([score_at(run, names, split) for run in entry.over(self.seeds)])

    def base_score(self, names: Sequence[str], split: str) -> Number | None:
        """The base model's, from the runs of the baseline."""
        runs = self.baseline.over(self.seeds)
        return _known_mean([score_at(run, names, split, BASE) for run in runs])


@overload
def height(value: Number, unit: Unit) -> Number: ...
@overload
def height(value: Number | None, unit: Unit) -> Number | None: ...
def height(value: Number | None, unit: Unit) -> Number | None:
    """A score turned so that higher is better."""
    return None if value is None else -value if unit == "nll" else value


def score_at(
    run: Contender, names: Sequence[str], split: str, checkpoint: CheckpointId | None = None
) -> Number | None:
    """The mean over sub-datasets at a run's best checkpoint or another; None unless all are
    scored there."""
    history = run.history
    known = history.known(checkpoint or history.best or BASE, split)
    scores = {name: known[name] for name in names if name in known}
    base = history.known(BASE, split)
    mixed = len({score.metric for score in scores.values()}) > 1
    if len(scores) < len(names) or (mixed and any(name not in base for name in names)):
        return None
    return overall(scores, base, history.start.settings["mean"])


def lineup_of(
    runs: Sequence[Contender],
    report_split: Literal["test", "selection"] = "test",
    missing: Sequence[str] = (),
) -> Lineup:
    """Methods by their seeds; runs that have not finished are named and left out.

    missing: names of runs that have not even begun.
    """
    finished = [run for run in runs if run.history.ended is not None]
    warnings: list[str] = []
    waiting = [*(run.label for run in runs if run.history.ended is None), *missing]
    if waiting:
        warnings.append(f"Not finished, and so not in the tables: {listed(waiting)}.")
    methods = list(dict.fromkeys(run.history.start.method for run in finished))
    entries = tuple(
        Entry(
            method_name(method),
            method,
            {r.history.start.seed: r for r in finished if r.history.start.method == method},
        )
        for method in methods
    )
    return _lineup(entries, finished, report_split, warnings)


def lineup_of_each(
    runs: Sequence[Contender], report_split: Literal["test", "selection"] = "test"
) -> Lineup:
    """Every run an entry of its own under its label, and the first is the baseline."""
    entries = tuple(Entry(run.label, run.history.start.method, {0: run}) for run in runs)
    return _lineup(entries, runs, report_split, [], entries[0] if entries else None)


def _lineup(
    entries: tuple[Entry, ...],
    runs: Sequence[Contender],
    report_split: str,
    warnings: list[str],
    baseline: Entry | None = None,
) -> Lineup:
    if not entries:
        raise UsageError("no run has finished yet, so there is nothing to compare")
    if not same_datasets(runs):
        raise UsageError(
            f"{listed(run.label for run in runs)} have different sub-datasets; expected runs of "
            "one recipe"
        )
    names = tuple(runs[0].history.start.datasets)
    tested = all(score_at(run, names, TEST) is not None for run in runs)
    if report_split == "test" and not tested and _tested(entries):
        warnings.append("Not every run was scored on test, so validation is reported.")
    return Lineup(
        entries,
        _common_seeds(entries, warnings),
        names,
        groups_of(runs[0].folder, names),
        TEST if report_split == "test" and tested else SELECTION,
        baseline or next((e for e in entries if e.method == BASELINE), entries[0]),
        (*warnings, *_unlike(entries)),
    )


def _common_seeds(entries: Sequence[Entry], warnings: list[str]) -> tuple[int, ...]:
    every = sorted({seed for entry in entries for seed in entry.runs})
    common = tuple(seed for seed in every if all(seed in entry.runs for entry in entries))
    if len(common) == len(every):
        return common
    lacking = [
        f"{entry.label} {listed(str(seed) for seed in every if seed not in entry.runs)}"
        for entry in entries
        if len(entry.runs) < len(every)
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


def _unlike(entries: Sequence[Entry]) -> list[str]:
    """Runs under one seed that did not have the same data or model."""
    found: list[str] = []
    seeds = sorted({seed for entry in entries for seed in entry.runs})
    for seed in seeds:
        runs = [entry.runs[seed] for entry in entries if seed in entry.runs]
        prints = {tuple(sorted(run.history.start.fingerprint.items())) for run in runs}
        if len(prints) > 1:
            labels = listed(run.label for run in runs)
            found.append(f"{labels} did not have the same data or base model: fingerprints differ.")
    if len({run.history.start.num_parameters for e in entries for run in e.runs.values()}) > 1:
        found.append("The models differ in size.")
    return found


def groups_of(folder: Path, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Sub-datasets by the groups of their benchmarks, as the run's recipe.yaml names them; empty
    where there are not two groups."""
    from msft.tasks import PUBLIC

    grouped: dict[str, list[str]] = {}
    specs = _specs(RunFolder(folder).recipe)
    for name in names:
        spec = next((s for s in specs if _is_of(name, s)), {})
        benchmark = PUBLIC.get(str(spec.get("benchmark")))
        grouped.setdefault(benchmark.group if benchmark else UNGROUPED, []).append(name)
    return {group: tuple(held) for group, held in grouped.items()} if len(grouped) > 1 else {}


def _specs(recipe: Path) -> list[Mapping[str, Any]]:
    try:
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    specs = content.get("datasets") if isinstance(content, dict) else None
    return [s for s in specs if isinstance(s, dict)] if isinstance(specs, list) else []


def _is_of(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether a sub-dataset is this one, or a part of it by `split_by`."""
    own = str(spec.get("name"))
    return name == own or (spec.get("split_by") is not None and name.startswith(f"{own}."))


def _tested(entries: Sequence[Entry]) -> bool:
    runs = [run for entry in entries for run in entry.runs.values()]
    return any(run.history.known(run.history.best or BASE, TEST) for run in runs)


def _known_mean(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None
