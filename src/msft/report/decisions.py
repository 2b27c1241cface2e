"""The decisions of a run as rows of a table, each with how sure it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from msft.report.compare.evidence import Paired
from msft.report.compare.intervals import Intervals
from msft.report.figures.branches import Branch
from msft.report.wording import NOTHING, difference, number, p_value
from msft.search.rollout import CheckpointId
from msft.text import counted, epochs


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


def decision_rows(branches: Sequence[Branch], intervals: Intervals) -> list[DecisionRow]:
    """One row per sub-dataset that left, and one per stage in which the method let all stay."""
    rows: list[DecisionRow] = []
    history = intervals.history
    for stage, record in enumerate(history.stages):
        # sro found its peaks in its search, which is its first roll-out
        search = branches[0 if history.start.method == "sro" else stage]
        left = [name for name, _ in record.excluded]
        rows += [_row(intervals, stage, search, name, left) for name in left]
        if any(decision.what == "go_on" for decision in record.decisions):
            tested = bool(record.falls)
            rows.append(DecisionRow(stage, len(record.asked.active), None, tested=tested))
    return rows


def peak_rows(branches: Sequence[Branch], intervals: Intervals) -> list[DecisionRow]:
    """For a method that excludes nobody: where each sub-dataset peaked in the first roll-out."""
    stages = intervals.history.stages
    if not stages or not stages[0].points:
        return []
    names = stages[0].asked.active
    return [_row(intervals, 0, branches[0], name, [*names]) for name in names]


def _row(
    intervals: Intervals, stage: int, search: Branch, name: str, left: Sequence[str]
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
    pair = intervals.paired(name, at, last) if at != last else None
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
        sure=_sure(pair, at, last),
        p=p_value(pair.p) if pair else "",
    )


def _sure(pair: Paired | None, at: CheckpointId, last: CheckpointId) -> str:
    if at == last:
        return "peaked at the last tick"
    if pair is None:
        return "no row verdicts"
    return f"{counted(pair.better, 'row')} better at the peak, {pair.worse} worse"
