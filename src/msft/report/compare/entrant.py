"""Entrants of a comparison: a method with its runs by seed, or one run by itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msft.report.compare.compared_run import ComparedRun
from msft.report.compare.variant import variant_text
from msft.report.wording import method_name
from msft.run.history import History
from msft.text import epochs

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
