"""The decisions of a run as rows of a table, each with how sure it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from msft.report.compare.intervals import Intervals
from msft.report.deciding import deciding_curve, is_derived
from msft.report.figures.branches import Branch
from msft.report.findings import Tests, search_of, unlearned_before
from msft.report.findings_in_words import certainty
from msft.report.wording import NOTHING, difference, number
from msft.text import epochs


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A stage and a sub-dataset that left after it, or one in which nobody left.

    score: at the peak, of the curve that decided.
    raw: the score of that tick where the curve is smoothed or of probabilities, else nothing.
    fall: from the peak to the last tick, on the curve that decided.
    sure, measured: how sure the fall is, in words and in numbers.
    tested: whether only sure falls counted.
    """

    stage: int
    active: int
    name: str | None
    peak: str = NOTHING
    score: str = NOTHING
    raw: str = ""
    interval: str = ""
    runner_up: str = NOTHING
    runner_up_peak: str = ""
    fall: str = NOTHING
    sure: str = NOTHING
    measured: str = ""
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
    peak, at = peaks[name], search.checkpoints[peaks[name]]
    unit, curve = history.unit_of(name), deciding_curve(history, search.number, name)
    score, ending, is_last = curve[peak], curve[-1], peak == search.ticks
    fall = None if score is None or ending is None or is_last else ending - score
    others = [other for other in peaks if other in active and other not in left]
    runner_up = min(others, key=lambda other: peaks[other], default=None)
    unlearned = name in unlearned_before(tests, stage + 1)
    sure, measured = certainty(tests.get(search.number), name, unit, unlearned)
    return DecisionRow(
        stage=stage,
        active=len(active),
        name=name,
        peak=epochs(peak / history.evals_per_epoch),
        score=number(score, unit),
        raw=number(history.known(at)[name].value, unit) if is_derived(history) else "",
        interval=intervals.text(at, name),
        runner_up=runner_up or NOTHING,
        runner_up_peak=epochs(peaks[runner_up] / history.evals_per_epoch) if runner_up else "",
        fall=difference(fall, unit),
        sure="peaked at the last tick" if is_last else sure,
        measured="" if is_last else measured,
    )
