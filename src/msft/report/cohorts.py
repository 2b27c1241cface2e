"""Runs sorted for the paper's figures: fields (one mixture, one model) of cohorts (one method).

The runs of a cohort differ in their seed alone; what a figure shows of it is their mean.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msft.history import SELECTION, TEST, History
from msft.report.chart import SERIES
from msft.report.wording import Unit, epochs, mean_unit, method_name, si, unit_of
from msft.rollout import BASE
from msft.scores import Number, Score, mean_gain
from msft.statistics import mean

if TYPE_CHECKING:
    from msft.report.contenders import Contender


@dataclass(frozen=True, slots=True)
class Cohort:
    """Runs of one method with the same settings."""

    label: str
    method: str
    runs: tuple["Contender", ...]

    @property
    def history(self) -> History:
        """The first of them."""
        return self.runs[0].history

    @property
    def budget(self) -> float:
        """C in epochs."""
        return budget_of(self.history)

    def score(self, name: str, split: str) -> Number | None:
        return mean_of_known(run.score(name, split) for run in self.runs)

    def mean(self, split: str) -> Number | None:
        return mean_of_known(run.mean(split) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Field:
    """The cohorts that had the same mixture and model."""

    cohorts: tuple[Cohort, ...]

    @property
    def history(self) -> History:
        return self.cohorts[0].history

    @property
    def names(self) -> list[str]:
        return list(self.history.start.datasets)

    @property
    def rows(self) -> int:
        return sum(self.history.start.datasets.values())

    @property
    def title(self) -> str:
        return f"N = {len(self.names)}, {self.rows:,} rows"

    @property
    def split(self) -> str:
        """Test if every run was scored there, else validation."""
        tested = [
            not run.history.missing(run.history.best or BASE, TEST)
            for cohort in self.cohorts
            for run in cohort.runs
        ]
        return TEST if all(tested) else SELECTION

    @property
    def unit(self) -> Unit:
        return mean_unit(self.history)

    @property
    def reference(self) -> Cohort | None:
        """SFT, which gains are measured against."""
        return next((cohort for cohort in self.cohorts if cohort.method == "sft"), None)

    @property
    def others(self) -> list[Cohort]:
        return [cohort for cohort in self.cohorts if cohort is not self.reference]

    def gain(self, cohort: Cohort, name: str) -> float | None:
        """Gain of a cohort over SFT on a sub-dataset, see `gain_unit`."""
        return mean_as_float(
            _gain(run, reference, name, self.split, self.unit)
            for run, reference in self.pairs(cohort)
        )

    def mean_gain(self, cohort: Cohort) -> float | None:
        """Gain of the mean over all sub-datasets."""
        return mean_as_float(
            None
            if (ours := run.mean(self.split)) is None or (sft := reference.mean(self.split)) is None
            else upwards(ours - sft, self.unit)
            for run, reference in self.pairs(cohort)
        )

    def pairs(self, cohort: Cohort) -> list[tuple["Contender", "Contender"]]:
        """Runs with the SFT run of the same seed; each with each where no seed is shared."""
        sft = self.reference.runs if self.reference else ()
        every = [(run, other) for run in cohort.runs for other in sft]
        same = [pair for pair in every if pair[0].history.start.seed == pair[1].history.start.seed]
        return same or every


def fields_of(runs: Sequence["Contender"]) -> list[Field]:
    """The fields of these runs, the smallest mixture first."""
    fields: dict[str, list[Contender]] = {}
    for run in runs:
        start = run.history.start
        key = json.dumps([sorted(start.datasets.items()), start.num_parameters])
        fields.setdefault(key, []).append(run)
    found = [Field(_on_common_seeds(_cohorts(members))) for members in fields.values()]
    return sorted(found, key=lambda field: (len(field.names), field.rows))


def _on_common_seeds(cohorts: Sequence[Cohort]) -> tuple[Cohort, ...]:
    """The cohorts over the seeds that all of them have, if there are any."""
    seeds = [{run.history.start.seed for run in cohort.runs} for cohort in cohorts]
    common = set.intersection(*seeds) or set.union(*seeds)
    return tuple(
        Cohort(
            cohort.label,
            cohort.method,
            tuple(run for run in cohort.runs if run.history.start.seed in common),
        )
        for cohort in cohorts
    )


def colour_at(place: int) -> str:
    """The colour of the cohort or run at a place of the comparison."""
    return SERIES[place % len(SERIES)]


def budget_of(history: History) -> float:
    """C in epochs."""
    return float(history.start.settings["compute_budget"]) / history.evals_per_epoch


def points(value: Number, unit: Unit) -> float:
    """A score or difference as figures show it: shares of rows and mixed gains in points."""
    return float(value) * (100 if unit in ("accuracy", None) else 1)


def upwards(difference: Number, unit: Unit) -> float:
    """A difference as figures show it, turned so that more is better."""
    return points(-difference if unit == "nll" else difference, unit)


def gain_unit(unit: Unit) -> str:
    """The unit of gains, for an axis."""
    return {
        "accuracy": "points",
        "nll": "nats saved",
        "value": "",
        None: "points, nll: % saved",
    }[unit]


def score_unit(unit: Unit) -> str:
    """The unit of scores, for an axis."""
    return {"accuracy": "accuracy, %", "nll": "nll, nats", "value": "score", None: "gain, %"}[unit]


def mean_of_known(values: Iterable[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def mean_as_float(values: Iterable[float | None]) -> float | None:
    found = mean_of_known(values)
    return None if found is None else float(found)


def _gain(
    run: "Contender", reference: "Contender", name: str, split: str, unit: Unit
) -> float | None:
    ours, theirs = _score(run, name, split), _score(reference, name, split)
    if ours is None or theirs is None:
        return None
    if unit is None:
        return points(mean_gain({name: ours}, {name: theirs}), unit)
    return upwards(ours.value - theirs.value, unit_of(run.history, name))


def _score(run: "Contender", name: str, split: str) -> Score | None:
    return run.history.known(run.history.best or BASE, split).get(name)


def _cohorts(runs: Sequence["Contender"]) -> tuple[Cohort, ...]:
    groups: dict[str, list[Contender]] = {}
    for run in runs:
        groups.setdefault(_key(run.history), []).append(run)
    members = list(groups.values())
    return tuple(
        Cohort(label, group[0].history.start.method, tuple(group))
        for label, group in zip(_labels(members), members, strict=True)
    )


def _key(history: History) -> str:
    """Everything but the seed; of the two budgets only the one that the method uses."""
    start = history.start
    settings: dict[str, Any] = dict(start.settings)
    if start.method in ("sft", "dynamix", "ies", "sro", "soft_sro"):
        settings.pop("compute_budget", None)
    elif start.method in ("msft", "continual"):
        settings.pop("train_ticks", None)
    return json.dumps([start.method, settings], sort_keys=True, default=str)


def _labels(groups: Sequence[Sequence["Contender"]]) -> list[str]:
    """Names of methods; where two have the same one, with C, else by their folders."""
    histories = [group[0].history for group in groups]
    short = [method_name(history.start.method) for history in histories]
    budgets = [
        f"{name} C = {epochs(budget_of(history))}"
        for name, history in zip(short, histories, strict=True)
    ]
    found: list[str] = []
    for number, name in enumerate(short):
        if short.count(name) == 1:
            found.append(name)
        elif budgets.count(budgets[number]) == 1:
            found.append(budgets[number])
        else:
            found.append(groups[number][0].label)
    return found


def titles_of(fields: Sequence[Field]) -> list[str]:
    """What tells the fields apart: their mixtures, and the models where these differ."""
    sizes = [field.history.start.num_parameters for field in fields]
    several = len(set(sizes)) > 1
    return [
        field.title + (f", {si(size)} parameters" if several else "")
        for field, size in zip(fields, sizes, strict=True)
    ]
