"""Findings: what a person should know about a run before believing it, from its log and rows.

Each is worked out here and nowhere else; `findings_in_words.py` says it, for the live table, the
result, the report and the model card alike. There is one notion of "sure": the test of
`search/falls.py` at 95 %, over the sub-datasets of a roll-out together. Where the method had it
made, the log has its answer; else it is made from the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msft.report.compare.evidence import RecordedRows
from msft.report.figures.branches import epochs_to, head_of
from msft.report.loss_growth import Growth, Loss, growth_of
from msft.report.moved_rows import moved_from_base
from msft.report.shortfall import Shortfall, shortfall_of
from msft.run.folder import first_loss_of, row_tokens_of, verdicts_of
from msft.run.history import Exclusion, History, Stage
from msft.run.rows import RowVerdicts, rollout_falls, row_scores
from msft.search.falls import FEWEST_TICKS, Fall, RowScores, at_confidence, falls, joint_p
from msft.search.rollout import BASE, CheckpointId, checkpoint_id, place_of
from msft.search.scores import SELECTION, Metric, Number, overall_height

CONFIDENCE = 0.95
LATEST = 12
"""Ticks since a sub-dataset left that are looked at; a long run has hundreds."""

Untested = Literal["short", "rows"]
"""Why there is no test: the roll-out has too few ticks, or rows are missing."""


@dataclass(frozen=True, slots=True)
class StageTest:
    """How everybody fell in a roll-out; or nothing, and why.

    moved: who did not learn by the test of falls, and is off the base model by its rows alone.
    """

    falls: Mapping[str, Fall]
    untested: Untested | None = None
    moved: frozenset[str] = frozenset()

    def p(self, name: str) -> float:
        """Over all of the roll-out together: at most 0.05 where a fall is sure."""
        return min(1.0, joint_p(self.falls)[name])


@dataclass(frozen=True, slots=True)
class Departure:
    """A sub-dataset that left the mixture.

    fall, p: as tested, p over all of the roll-out; None where it could not be, and why not.
    unlearned: no test until then found it above or below the base model.
    """

    name: str
    stage: int
    unit: Metric
    fall: Fall | None
    p: float | None
    untested: Untested | None
    unlearned: bool

    @property
    def unsure(self) -> bool:
        return self.fall is not None and not self.fall.sure


@dataclass(frozen=True, slots=True)
class Decline:
    """A sub-dataset that is surely lower than where it left.

    checkpoint: where `after` was scored.
    in_result: whether that is the result; else the result is from before it left.
    """

    name: str
    unit: Metric
    before: Number
    after: Number
    checkpoint: CheckpointId
    in_result: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """Of a run; what can only be said of a finished one is empty before.

    departures: everybody who left because of a peak, sure or not.
    unlearned: who is still neither surely above nor surely below the base model at the end.
    sft_epochs: the epochs of the result, where it is of stage 0 and later ones did not help.
    base_is_best: the result is the model that was given.
    worse_than_base: the method's own result is not better than that model.
    shortfall: the result is an average, and below a tick of the same training.
    selection: the split that all of this was found on.
    """

    departures: tuple[Departure, ...] = ()
    declines: tuple[Decline, ...] = ()
    unlearned: tuple[str, ...] = ()
    sft_epochs: float | None = None
    growth: Growth | None = None
    base_is_best: bool = False
    worse_than_base: bool = False
    shortfall: Shortfall | None = None
    selection: str = SELECTION


Tests = dict[int, StageTest]
"""By roll-out. Who asks more than once about a run that goes on keeps them."""


def findings_in(folder: Path, history: History, known: Tests | None = None) -> Findings:
    """The findings of the run of a folder, with what its files have besides the log."""
    rows = RecordedRows(history, verdicts_of(folder), row_tokens_of(folder))
    return findings_of(history, rows, first_loss_of(folder), known)


def findings_of(
    history: History, rows: RowVerdicts, first: Loss | None = None, known: Tests | None = None
) -> Findings:
    """What there is to say of a run so far.

    first: loss and rows of the first steps, before training had an effect, if they are known.
    known: tests that were made already; new ones are added.
    """
    if not history.stages:
        return Findings()
    tests = stage_tests(history, rows, known)
    departures = _departures(history, tests)
    found = Findings(departures, _declines(history, rows), growth=growth_of(history, first))
    if history.ended is None:
        return found
    named = {each.name for each in departures if each.unlearned}
    best = history.best or BASE
    return Findings(
        departures=found.departures,
        declines=found.declines,
        unlearned=tuple(
            name for name in unlearned_before(tests, len(history.stages)) if name not in named
        ),
        sft_epochs=_sft_epochs(history, best),
        growth=found.growth,
        base_is_best=best == BASE,
        worse_than_base=best != BASE and not _is_better(history, best),
        shortfall=shortfall_of(history, rows),
        selection=history.selection,
    )


def stage_tests(history: History, rows: RowVerdicts, known: Tests | None = None) -> Tests:
    """The test of every roll-out that is over."""
    tests = {} if known is None else known
    for number, stage in enumerate(history.stages):
        over = number + 1 < len(history.stages) or stage.decisions or history.ended
        if over and number not in tests:
            tests[number] = _tested(history, rows, number, stage)
    return tests


def search_of(history: History, stage: int) -> int:
    """The roll-out in which the peaks of those who left after a stage were found: sro finds them
    all in its first one."""
    return 0 if history.start.method == "sro" else stage


def _tested(history: History, rows: RowVerdicts, number: int, stage: Stage) -> StageTest:
    if stage.falls:
        found = at_confidence(stage.falls, CONFIDENCE)
        return StageTest(found, moved=moved_from_base(history, rows, stage, found))
    if sum(point.steps > 0 for point in stage.points) < FEWEST_TICKS:
        return StageTest({}, "short")
    try:
        found = rollout_falls(history, rows, number, CONFIDENCE)
    except (ValueError, TypeError, KeyError):  # lost, or somebody else's file
        return StageTest({}, "rows")
    return StageTest(found, moved=moved_from_base(history, rows, stage, found))


def _departures(history: History, tests: Tests) -> tuple[Departure, ...]:
    if history.start.method == "continual":  # there everybody leaves, whatever the scores say
        return ()
    found: list[Departure] = []
    for each in history.exclusions:
        if history.start.method == "sro" and _last_ones(history.stages[each.stage]):
            continue  # nothing is trained without them
        test = tests.get(search_of(history, each.stage), StageTest({}, "rows"))
        fall = test.falls.get(each.name)
        untested = None if fall else test.untested or "rows"
        unlearned = each.name in unlearned_before(tests, each.stage + 1)
        unit = history.unit_of(each.name)
        p = test.p(each.name) if fall else None
        found.append(Departure(each.name, each.stage, unit, fall, p, untested, unlearned))
    return tuple(found)


def _last_ones(stage: Stage) -> bool:
    """Whether everybody who was left in a stage left after it."""
    return {*stage.asked.active} <= {name for name, _ in stage.excluded}


def unlearned_before(tests: Tests, before: int) -> dict[str, None]:
    """Who was tested in the roll-outs before this one and never found off the base model."""
    tested = [test for number, test in sorted(tests.items()) if number < before]
    learned = {n for test in tested for n, fall in test.falls.items() if fall.learned}
    learned |= {name for test in tested for name in test.moved}
    return {name: None for test in tested for name in test.falls if name not in learned}


def _declines(history: History, rows: RowVerdicts) -> tuple[Decline, ...]:
    """Who is surely lower than where it left: the test of falls on its scores since then, held
    against those where it left instead of the base model's."""
    ways: dict[str, tuple[Exclusion, CheckpointId, RowScores]] = {}
    for each in history.exclusions:
        target = _later(history, each)
        since = _way(history, each, target)
        if not since:
            continue
        try:
            scores = row_scores(
                history, rows, each.name, [each.checkpoint, *since], each.checkpoint
            )
        except (ValueError, TypeError, KeyError):
            continue
        ways[each.name] = (each, target, scores)
    tested = falls({name: scores for name, (_, _, scores) in ways.items()}, 0, CONFIDENCE)
    found: list[Decline] = []
    for name, (each, target, _) in ways.items():
        before, after = (history.known(place)[name] for place in (each.checkpoint, target))
        surely = tested[name].learned == "below" or tested[name].sure
        if surely and after.height < before.height:
            found.append(
                Decline(
                    name,
                    before.metric,
                    before.value,
                    after.value,
                    target,
                    target == history.best,
                )
            )
    return tuple(found)


def _later(history: History, left: Exclusion) -> CheckpointId:
    """What is compared with where a sub-dataset left: the result, if training went on to it
    without that one, else where the search stands."""
    best = history.best or BASE
    without = place_of(history.reach(best))[0] > left.stage
    return best if without and left.name in history.known(best) else head_of(history)


def _way(history: History, left: Exclusion, target: CheckpointId) -> list[CheckpointId]:
    """The latest checkpoints with a step between where a sub-dataset left and a later one, as far
    as it was scored there; none if it is not scored at that one."""
    if left.name not in history.known(target):
        return []
    since = [
        point.checkpoint
        for rollout, ticks in history.path(target)
        if rollout > left.stage
        for point in history.stages[rollout].points[:ticks]
        if point.steps and left.name in history.known(point.checkpoint)
    ]
    return since[-LATEST:]


def _sft_epochs(history: History, best: CheckpointId) -> float | None:
    """Epochs of a result that SFT would have had too: selected, of a stage 0 that trained all
    rows, while later points were there to be selected."""
    if history.reported or best == BASE or place_of(best)[0] > 0:
        return None
    first = history.stages[0].asked
    plain = first.feed.get("name") == "shuffled" and dict(first.active) == history.start.datasets
    later = any(
        stage.asked.eligible and not history.missing(checkpoint_id(number, tick))
        for number, stage in enumerate(history.stages[1:], start=1)
        for tick in range(1, stage.ticks + 1)
    )
    return epochs_to(history, best) if plain and later else None


def _is_better(history: History, best: CheckpointId) -> bool:
    if history.missing(best):
        return True  # not known, so nothing is said
    base, rule = history.known(BASE), history.start.settings["mean"]
    heights = [overall_height(history.known(place), base, rule) for place in (best, BASE)]
    return heights[0] > heights[1]
