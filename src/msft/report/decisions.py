"""The decisions of a run as rows of a table, each with how sure it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from msft.history import SELECTION, History
from msft.report.branches import Branch, leavings_of
from msft.report.evidence import Paired, VerdictsByKey, paired_at, wilson
from msft.report.wording import NOTHING, counted, difference, epochs, number, p_value, unit_of
from msft.rollout import CheckpointId
from msft.scores import Score


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A stage and a sub-dataset that left after it, or one in which nobody left."""

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


def decision_rows(
    history: History, branches: Sequence[Branch], verdicts: VerdictsByKey
) -> list[DecisionRow]:
    """One row per sub-dataset that left, and one per stage in which the method let all stay."""
    rows: list[DecisionRow] = []
    leavings = leavings_of(history)
    for stage, record in enumerate(history.stages):
        active = len(record.asked.active)
        for leaving in (item for item in leavings if item.stage == stage):
            # sro found its peaks in its search, which is its first roll-out
            search = 0 if history.start.method == "sro" else stage
            left = [item.name for item in leavings if item.stage == stage]
            rows.append(_row(history, verdicts, stage, branches[search], leaving.name, left))
        if any(decision.what == "go_on" for decision in record.decisions):
            rows.append(DecisionRow(stage, active, None))
    return rows


def peak_rows(
    history: History, branches: Sequence[Branch], verdicts: VerdictsByKey
) -> list[DecisionRow]:
    """For a method that excludes nobody: where each sub-dataset peaked in the first roll-out."""
    if not history.stages or not history.stages[0].points:
        return []
    names = history.stages[0].asked.active
    return [_row(history, verdicts, 0, branches[0], name, [*names]) for name in names]


def _row(
    history: History,
    verdicts: VerdictsByKey,
    stage: int,
    search: Branch,
    name: str,
    left: Sequence[str],
) -> DecisionRow:
    """search: the roll-out in which the peak was found."""
    active = history.stages[stage].asked.active
    peaks = search.peaks
    if name not in peaks:
        return DecisionRow(stage, len(active), name)
    at, last = search.checkpoints[peaks[name]], search.checkpoints[-1]
    unit, score = unit_of(history, name), history.known(at)[name]
    ending = history.known(last)[name]
    others = [other for other in peaks if other in active and other not in left]
    runner_up = min(others, key=lambda other: peaks[other], default=None)
    pair = paired_at(history, verdicts, name, SELECTION, at, last) if at != last else None
    return DecisionRow(
        stage=stage,
        active=len(active),
        name=name,
        peak=epochs(peaks[name] / history.evals_per_epoch),
        score=number(score.value, unit),
        interval=interval(score),
        runner_up=runner_up or NOTHING,
        runner_up_peak=epochs(peaks[runner_up] / history.evals_per_epoch) if runner_up else "",
        fall=difference(ending.value - score.value, unit) if at != last else NOTHING,
        sure=_sure(pair, at, last),
        p=p_value(pair.p) if pair else "",
    )


def interval(score: Score | None) -> str:
    """Wilson's interval of a count, else nothing."""
    if score is None or score.metric != "accuracy":
        return ""
    low, high = wilson(int(score.total), score.count)
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _sure(pair: Paired | None, at: CheckpointId, last: CheckpointId) -> str:
    if at == last:
        return "peaked at the last tick"
    if pair is None:
        return "no row verdicts"
    return f"{counted(pair.better, 'row')} better at the peak, {pair.worse} worse"
