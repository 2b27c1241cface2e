"""The decisions of a run as rows of a table, each with how sure it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from msft.report.compare.intervals import Intervals
from msft.report.figures.branches import Branch
from msft.report.findings import Tests, search_of, unlearned_before
from msft.report.findings_in_words import certainty
from msft.report.wording import NOTHING, difference, number
from msft.text import epochs


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A stage and a sub-dataset that left after it, or one in which nobody left.

    tested: whether only sure falls counted.
    """

    stage: int
    active: int
    name: str | None
    peak: str = NOTHING
    score: str = NOTHING
    interval: str = ""
    runner_up: str = NOTHING
    runner_up_peak: str = ""
    fall: str = NOTHING
    sure: str = NOTHING
    p: str = ""
    tested: bool = False


def decision_rows(
    branches: Sequence[Branch], intervals: Intervals, tests: Tests
) -> list[DecisionRow]:
    """One row per sub-dataset that left, and one per stage in which the method let all stay."""
    rows: list[DecisionRow] = []
    history = intervals.history
    for stage, record in enumerate(history.stages):
        search = branches[search_of(history, stage)]
        left = [name for name, _ in record.excluded]
        rows += [_row(intervals, stage, search, name, left, tests) for name in left]
        if any(decision.what == "go_on" for decision in record.decisions):
            tested = bool(record.falls)
            rows.append(DecisionRow(stage, len(record.asked.active), None, tested=tested))
    return rows


def peak_rows(branches: Sequence[Branch], intervals: Intervals, tests: Tests) -> list[DecisionRow]:
    """For a method that excludes nobody: where each sub-dataset peaked in the first roll-out."""
    stages = intervals.history.stages
    if not stages or not stages[0].points:
        return []
    names = stages[0].asked.active
    return [_row(intervals, 0, branches[0], name, [*names], tests) for name in names]


def _row(
    intervals: Intervals,
    stage: int,
    search: Branch,
    name: str,
    left: Sequence[str],
    tests: Tests,
) -> DecisionRow:
    """search: the roll-out in which the peak was found."""
    history = intervals.history
    active = history.stages[stage].asked.active
    peaks = search.peaks
    if name not in peaks:
        return DecisionRow(stage, len(active), name)
    at, last = search.checkpoints[peaks[name]], search.checkpoints[-1]
    unit, score = history.unit_of(name), history.known(at)[name]
    ending = history.known(last)[name]
    others = [other for other in peaks if other in active and other not in left]
    runner_up = min(others, key=lambda other: peaks[other], default=None)
    unlearned = name in unlearned_before(tests, stage + 1)
    p, sure = certainty(tests.get(search.number), name, unlearned)
    return DecisionRow(
        stage=stage,
        active=len(active),
        name=name,
        peak=epochs(peaks[name] / history.evals_per_epoch),
        score=number(score.value, unit),
        interval=intervals.text(at, name),
        runner_up=runner_up or NOTHING,
        runner_up_peak=epochs(peaks[runner_up] / history.evals_per_epoch) if runner_up else "",
        fall=difference(ending.value - score.value, unit) if at != last else NOTHING,
        sure="peaked at the last tick" if at == last else sure,
        p="" if at == last else p,
    )
