"""Findings: what a person should know about a run before believing it, and the words for it.

Each finding is worked out here and nowhere else, from the log and the rows, and has one wording
for the live table, the result, the report and the model card. There is one notion of "sure": the
test of `search/falls.py` at 95 %, over the sub-datasets of a roll-out together. If the method made
that test, the log has its answer; otherwise it is made from the rows.

In this file, in order: a training loss that grows, the shortfall of an average, sub-datasets whose
rows moved away from the base model, declines and departures, what the scores are worth, the words.

**A training loss that grows** means that the learning rate is too high. The rule is applied within
one roll-out, since another mixture has another loss: two ticks in a row whose mean loss is half as
high again as the reference and at least half of the run's first. The reference is the roll-out's
first tick; of the first roll-out also the run's first steps, if they were lower, because a model
may be spoiled within the first tick. With fewer than 100 rows more is asked for: the losses of rows
scatter about as much as they are high, so a mean of n rows is off by 1/√n of itself, and five of
these are allowed for. Overfitting does not count: it lowers the training loss. Feeds that choose
rows by their losses do not count either: what they leave out is the easy part.

**The shortfall of an average** is a tick of the same training that is above it by more than chance.
An average is the result whatever scored best. Where scores still rose at the end of training, or
fell for long, it contains weights that were trained too little or too long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal

from msft.report.branches import epochs_to, head_of
from msft.report.compare.runs import mean_at
from msft.report.compare.statistics import Z95, RecordedRows, paired_together, sign_test
from msft.report.watched import guard_texts
from msft.report.wording import (
    MEAN_OF_GAINS,
    Unit,
    difference,
    difference_in_words,
    height,
    method_name,
    number,
    p_value,
)
from msft.run.folder import first_loss_of, row_tokens_of, verdicts_of
from msft.run.history import Exclusion, History, Stage
from msft.run.rows import RowVerdicts, rollout_falls, row_scores
from msft.search.curves import SELECTION, TEST, Metric, Number, overall_height
from msft.search.falls import FEWEST_TICKS, Fall, RowScores, at_confidence, falls, joint_p
from msft.search.rollout import BASE, CheckpointId, checkpoint_id, place_of
from msft.text import counted, epochs_in_words, listed, no_test_mean

GROWTH = 0.5
ERRORS = 5
IN_A_ROW = 2

Loss = tuple[float, int]
"""Summed losses of rows, and rows."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The second tick in a row with too high a loss. first: the reference; now: the loss."""

    stage: int
    tick: int
    first: float
    now: float


def growth_of(history: History, first: Loss | None = None) -> Growth | None:
    """The first place at which the loss has grown; first: that of the run's first steps."""
    begun: Loss | None = None
    for at_stage, stage in enumerate(history.stages):
        ticks = [(t, p.loss) for t, p in enumerate(stage.points, start=1) if p.loss[1]]
        if not ticks:
            continue
        reference = ticks[0][1]
        if at_stage == 0 and first and first[1] and _mean(first) < _mean(reference):
            reference = first
        begun = begun or reference
        if stage.asked.feed.get("name") != "shuffled":
            continue
        high = 0
        for tick, loss in ticks:
            high = high + 1 if _has_grown(reference, loss, begun) else 0
            if high == IN_A_ROW:
                return Growth(at_stage, tick, _mean(reference), _mean(loss))
    return None


def _has_grown(reference: Loss, loss: Loss, begun: Loss) -> bool:
    allowed = max(GROWTH, ERRORS / sqrt(min(reference[1], loss[1])))
    return _mean(loss) > (1 + allowed) * _mean(reference) and _mean(loss) >= _mean(begun) / 2


def _mean(loss: Loss) -> float:
    return loss[0] / loss[1]


SHORT_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The best tick of the training that was averaged.

    gap: mean score of the average minus mean score of the tick, on the split that selects.
    p: of a sign test over all rows of that split, Bonferroni-corrected for the number of ticks.
    is_last: it is the last tick, so scores still rose.
    """

    tick: CheckpointId
    gap: Number
    unit: Unit
    p: float
    is_last: bool


def shortfall_of(history: History, rows: RowVerdicts) -> Shortfall | None:
    """Of a result that is an average, and below the best tick by more than chance; None where it is
    not, or where rows are lost."""
    average, tick = history.best, history.best_tick
    if average is None or tick is None or history.average_of is None:
        return None
    if not (history.has_mean(average) and history.has_mean(tick)):
        return None
    gap, unit = history.mean(average) - history.mean(tick), history.mean_unit
    together = paired_together(
        (rows.at(tick, name), rows.at(average, name), history.unit_of(name) == "nll")
        for name in history.start.datasets
    )
    lower = height(gap, unit)
    if together is None or lower is None or lower >= 0 or together.better <= together.worse:
        return None
    ticks = [
        point.checkpoint
        for stage in history.stages
        if stage.asked.eligible
        for point in stage.points
        if point.steps
    ]
    p = float(together.p) * len(ticks)
    return (
        Shortfall(tick, gap, unit, p, tick == max(ticks, key=place_of))
        if p <= SHORT_LEVEL
        else None
    )


LEVEL = 0.05


def moved_from_base(
    history: History, rows: RowVerdicts, stage: Stage, tested: Mapping[str, Fall]
) -> frozenset[str]:
    """The sub-datasets that learned by a sign test of their rows, at the highest tick and at the
    last one, corrected for the number of ticks; only those without `learned` in the test of falls.

    A few steep ticks look like jitter to the test of falls.
    """
    points = [point.checkpoint for point in stage.points if point.steps]
    moved: set[str] = set()
    for name in (name for name, fall in tested.items() if fall.learned is None):
        known = [at for at in points if name in history.known(at)]
        heights = [history.known(at)[name].height for at in known]
        if not known:
            continue
        highest = known[heights.index(max(heights))]
        try:
            scores = row_scores(history, rows, name, [highest, known[-1]], BASE)
        except (ValueError, TypeError, KeyError):  # lost, or somebody else's file
            continue
        for tick in scores.ticks:
            better = sum(now > before for now, before in zip(tick, scores.base, strict=True))
            worse = sum(now < before for now, before in zip(tick, scores.base, strict=True))
            if sign_test(better, worse) * len(points) <= LEVEL:
                moved.add(name)
    return frozenset(moved)


CONFIDENCE = 0.95
LATEST = 12
"""Ticks since a sub-dataset left that are looked at; a long run has hundreds."""

Untested = Literal["short", "rows"]
"""Why there is no test: the roll-out has too few ticks, or rows are missing."""


@dataclass(frozen=True, slots=True)
class StageTest:
    """The tested falls of all sub-datasets of a roll-out, or the reason why there is no test.

    moved: sub-datasets that the test of falls cannot tell from the base model, but a sign test
        over rows can.
    """

    falls: Mapping[str, Fall]
    untested: Untested | None = None
    moved: frozenset[str] = frozenset()

    def p(self, name: str) -> float:
        """Over all of the roll-out together: at most 0.05 where a fall is sure."""
        return min(1.0, joint_p({each: fall.p for each, fall in self.falls.items()})[name])


@dataclass(frozen=True, slots=True)
class Departure:
    """A sub-dataset that left the mixture.

    fall: the tested fall. p: its p-value, corrected for all sub-datasets of the roll-out. Both are
        None if no test was possible; `untested` then has the reason.
    unlearned: no test so far shows a difference from the base model, in either direction.
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
    """The findings of a run; those of finished runs are empty while it goes on.

    departures: everybody who left because of a peak, sure or not.
    unlearned: who is still neither surely above nor surely below the base model at the end.
    sft_epochs: the epochs of the result, where nobody had left on the way to it and later
        stages did not help.
    base_is_best: the result is the model that was given.
    worse_than_base: the method's own result is not better than that model.
    shortfall: the result is an average, and below a tick of the same training.
    guards: sentences about a result that guards decided, or that breaks one.
    fallen: who surely fell in the one roll-out of a run that excluded nobody.
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
    guards: tuple[str, ...] = ()
    fallen: tuple[str, ...] = ()
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
    """The findings of a run so far.

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
        sft_epochs=sft_epochs(history),
        growth=found.growth,
        base_is_best=best == BASE,
        worse_than_base=best != BASE and not _is_better(history, best),
        shortfall=shortfall_of(history, rows),
        guards=tuple(guard_texts(history)),
        fallen=_fallen(history, tests),
        selection=history.selection,
    )


def stage_tests(history: History, rows: RowVerdicts, known: Tests | None = None) -> Tests:
    """The test of every roll-out that is over."""
    tests = {} if known is None else known
    for at_stage, stage in enumerate(history.stages):
        over = at_stage + 1 < len(history.stages) or stage.decisions or history.ended
        if over and at_stage not in tests:
            tests[at_stage] = _tested(history, rows, at_stage, stage)
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


def _fallen(history: History, tests: Tests) -> tuple[str, ...]:
    """Who surely fell in the only roll-out of a run, and was trained to its end."""
    if len(history.stages) > 1 or history.exclusions or 0 not in tests:
        return ()
    return tuple(name for name, fall in tests[0].falls.items() if fall.sure)


def _departures(history: History, tests: Tests) -> tuple[Departure, ...]:
    if history.start.method == "continual":  # there everybody leaves, whatever the scores say
        return ()
    found: list[Departure] = []
    for each in history.exclusions:
        stage = history.stages[each.stage]
        last_ones = {*stage.asked.active} <= {name for name, _ in stage.excluded}
        if history.start.method == "sro" and last_ones:
            continue  # nothing is trained without them
        test = tests.get(search_of(history, each.stage), StageTest({}, "rows"))
        fall = test.falls.get(each.name)
        untested = None if fall else test.untested or "rows"
        unlearned = each.name in unlearned_before(tests, each.stage + 1)
        unit = history.unit_of(each.name)
        p = test.p(each.name) if fall else None
        found.append(Departure(each.name, each.stage, unit, fall, p, untested, unlearned))
    return tuple(found)


def unlearned_before(tests: Tests, before: int) -> dict[str, None]:
    """Sub-datasets that were tested before a roll-out and never found above or below the base
    model."""
    tested = [test for number, test in sorted(tests.items()) if number < before]
    learned = {n for test in tested for n, fall in test.falls.items() if fall.learned}
    learned |= {name for test in tested for name in test.moved}
    return {name: None for test in tested for name in test.falls if name not in learned}


def _declines(history: History, rows: RowVerdicts) -> tuple[Decline, ...]:
    """The sub-datasets whose scores fell surely after they left: the test of falls on the scores
    since then, with the scores at the exclusion in place of the base model's."""
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
    """The checkpoint to compare with the one at which a sub-dataset left: the result, if training
    reached it without the sub-dataset, else the head of the search."""
    best = history.best or BASE
    without = place_of(history.reach(best))[0] > left.stage
    return best if without and left.name in history.known(best) else head_of(history)


def _way(history: History, left: Exclusion, target: CheckpointId) -> list[CheckpointId]:
    """The latest checkpoints with a step, between the exclusion of a sub-dataset and a later
    checkpoint, that have its score; none if the later one has no score of it."""
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


def sft_epochs(history: History) -> float | None:
    """Epochs of a result that SFT would have had too: selected, of stages that trained all rows,
    while points of later stages were there to be selected."""
    best = history.best
    if history.reported or best in (None, BASE):
        return None
    path = [history.stages[rollout].asked for rollout, _ in history.path(best)]
    plain = all(
        asked.feed.get("name") == "shuffled" and dict(asked.active) == history.start.datasets
        for asked in path
    )
    after = place_of(history.reach(best))[0] + 1
    later = any(
        stage.asked.eligible and not history.missing(checkpoint_id(number, tick))
        for number, stage in enumerate(history.stages[after:], start=after)
        for tick in range(1, stage.ticks + 1)
    )
    return epochs_to(history, best) if plain and later else None


def _is_better(history: History, best: CheckpointId) -> bool:
    if history.missing(best):
        return True  # not known, so nothing is said
    base, rule = history.known(BASE), history.start.settings["mean"]
    heights = [overall_height(history.known(place), base, rule) for place in (best, BASE)]
    return heights[0] > heights[1]


MOST_NAMED = 8
"""Sub-datasets that a sentence names; the others are counted."""

NOT_OFF_BASE = "neither surely above nor surely below the base model"
_WHY = {
    "short": f"a roll-out of fewer than {FEWEST_TICKS} ticks is too short for the test",
    "rows": "verdicts.jsonl does not have the rows",
}
_SHORT_WHY: dict[Untested, str] = {"short": "too few ticks to test", "rows": "no row verdicts"}


def notes(history: History, status: str, reports: str = TEST) -> list[str]:
    """Warnings about the numbers of a page. reports: the split that reports."""
    found: list[str] = []
    if status == "stopped":
        found.append(
            "This run is not finished, and no process works on it. Run the same command again to "
            "go on where it stopped."
        )
    best = history.best
    if best and reports == SELECTION and mean_at(history, best, TEST) is not None:
        chosen = "" if history.reported else " It also chose the checkpoint, so the scores flatter."
        found.append(
            "The reported scores are from validation, as in the paper (report_split: selection)."
            f"{chosen}"
        )
    if best and history.known(best, TEST) and (without := history.untested(best)):
        text = no_test_mean(without)
        chose = "" if history.reported else ", and it chose"
        found.append(f"{text[0].upper()}{text[1:]}. Validation reports the mean{chose}.")
    elif best and history.ended and mean_at(history, best, TEST) is None:
        chosen = (
            " The checkpoint was chosen because its validation score is high, so that score "
            "flatters it."
        )
        found.append(
            f"The result was not scored on a test split.{'' if history.reported else chosen}"
        )
    if history.mixed:
        found.append(MEAN_OF_GAINS)
    elif history.mean_unit == "nll":
        found.append("Scores are negative log-likelihoods per token: lower is better.")
    return found


def finding_texts(found: Findings, headline: bool = False) -> list[str]:
    """Every finding of a run, one sentence or two each.

    headline: another sentence says already that the base model is the best.
    """
    texts = [
        *result_texts(found, headline),
        *([growth_text(found.growth)] if found.growth else []),
        *_departure_texts(found.departures),
        *_unlearned_texts(found.unlearned),
    ]
    declines = sorted(found.declines, key=lambda each: -abs(float(each.after - each.before)))
    texts += [decline_text(each) for each in declines[:MOST_NAMED]]
    if len(declines) > MOST_NAMED:
        more = counted(len(declines) - MOST_NAMED, "other sub-dataset")
        texts.append(f"So did {more}, by less.")
    return texts


def departure_texts(left: Departure) -> list[str]:
    """Sentences for the live table about a sub-dataset that left; none if its fall is sure."""
    texts: list[str] = []
    if left.untested:
        texts.append(f"how sure that is cannot be said: {_WHY[left.untested]}")
    if left.fall and left.p is not None and left.unsure:
        measured = _measured(left.fall, left.p, left.unit)
        texts.append(f"its fall is not sure at 95\u00a0%: {measured}")
    if left.unlearned:
        texts.append(f"it has learned nothing yet: {NOT_OFF_BASE}")
    return texts


def decline_text(each: Decline) -> str:
    before, after = number(each.before, each.unit), number(each.after, each.unit)
    text = f"{each.name} fell from {before} to {after} after it left"
    if each.unit == "nll":
        text = f"The loss of {each.name} grew from {before} to {after} nats after it left"
    return f"{text}." if each.in_result else f"{text}; the best checkpoint is from before that."


def growth_text(growth: Growth) -> str:
    where = f"at tick {growth.tick} of stage {growth.stage}"
    return (
        f"The training loss grew: from {growth.first:.3g} to {growth.now:.3g} {where}. The "
        "learning rate is probably too high."
    )


def certainty(test: StageTest | None, name: str, unit: Unit, unlearned: bool) -> tuple[str, str]:
    """The certainty of a sub-dataset's fall in a roll-out: in words, and the measured change with
    its 95 % interval and p; unlearned: as of a Departure."""
    fall = test.falls.get(name) if test else None
    if test is None or fall is None:
        why: Untested = (test and test.untested) or "rows"
        return _SHORT_WHY[why], ""
    sign, half = 1 if unit == "nll" else -1, Z95 * fall.error
    change = sign * fall.fall
    interval = f"{difference(change - half, unit)} to {difference(change + half, unit)}"
    measured = f"{difference_in_words(change, unit)} ({interval}), {p_value(test.p(name))}"
    return _sureness(fall.sure, unlearned, "not sure, may be chance"), measured


def certainty_of(departures: Sequence[Departure], name: str) -> str:
    """The certainty of a departed sub-dataset's fall in a few words; empty without a departure."""
    for each in departures:
        if each.name == name:
            if each.fall is None:
                return _SHORT_WHY[each.untested or "rows"]
            return _sureness(each.fall.sure, each.unlearned)
    return ""


def _sureness(sure: bool, unlearned: bool, unsure: str = "not sure") -> str:
    return ("sure" if sure else unsure) + (", nothing learned yet" if unlearned else "")


def findings_content(found: Findings) -> dict[str, Any]:
    """For `summary.json`, in score units."""
    short = found.shortfall
    return {
        "exclusions": [_departure_content(each) for each in found.departures],
        "lost_after_leaving": [
            {
                "dataset": each.name,
                "before": float(each.before),
                "after": float(each.after),
                "checkpoint": each.checkpoint,
            }
            for each in found.declines
        ],
        "learned_nothing": [*found.unlearned],
        "no_exclusion_on_path": found.sft_epochs is not None,
        "loss_grew": asdict(found.growth) if found.growth else None,
        "base_is_best": found.base_is_best,
        "worse_than_base": found.worse_than_base,
        "average_is_lower": short
        and {
            "checkpoint": short.tick,
            "difference": float(short.gap),
            "p": short.p,
        },
        **({"guards": [*found.guards]} if found.guards else {}),
        "text": finding_texts(found),
    }


def _departure_content(left: Departure) -> dict[str, Any]:
    fall = left.fall
    return {
        "dataset": left.name,
        "stage": left.stage,
        "fall": fall.fall if fall else None,
        "p": left.p,
        "sure": fall.sure if fall else None,
        "untested": left.untested,
        "learned_nothing": left.unlearned,
    }


Step = tuple[str, str]
"""A sentence on what to do, and the command for it in the folder of the run."""


def next_steps(history: History, found: Findings, stopped: bool, rate: object = None) -> list[Step]:
    """Next steps for a reader, the most urgent first; none while the run goes on.

    stopped: no process works on the run. rate: the learning rate that the recipe names.
    """
    method = history.start.method
    again = "msft replay schedule.json" if method == "replay" else "msft train"
    if history.ended is None:
        return [("Go on where it stopped.", f"{again} recipe.yaml --out .")] if stopped else []
    steps: list[Step] = []
    if found.growth and isinstance(rate, float):
        lower = f"msft train recipe.yaml --set learning_rate={rate / 3:.2g} --out ../lower"
        steps.append(("The training loss grew. Train with a third of the learning rate.", lower))
    look = "msft validate recipe.yaml --show 3"
    if found.base_is_best or found.worse_than_base:
        steps.append(("Training did not help. Look at rows as the model sees them.", look))
    elif found.unlearned:
        steps.append((f"Look at rows of {_named(found.unlearned)} as the model sees them.", look))
    left = [each.name for each in found.departures if each.fall and each.fall.sure]
    fell = [*left, *found.fallen]
    if fell:
        why = "A fall while others still learn is often a sign of wrong answers in training rows"
        steps.append((f"{why}. Audit {_named(fell)}.", "msft audit recipe.yaml --out ../audit"))
    if not found.base_is_best:
        steps.append(("Try the result beside the model you gave.", "msft chat ."))
    if method != "replay":
        rival = "msft" if method == "sft" else method
        command = (
            f"msft compare recipe.yaml --methods sft,{rival} --seeds 20,21,22 --out ../compare"
        )
        names = f"{method_name(rival)} against {method_name('sft')}"
        steps.append((f"Test {names} over several seeds.", command))
    return steps


def result_texts(found: Findings, headline: bool = False) -> list[str]:
    """Sentences about the result; headline: as in `finding_texts`."""
    texts = [*found.guards]
    if found.base_is_best and not found.guards and not headline:
        texts.append(
            "The best checkpoint is the model you gave: nothing that was trained is better on "
            f"{found.selection}."
        )
    if found.worse_than_base:
        texts.append(f"The result is not better on {found.selection} than the model you gave.")
    if found.sft_epochs is not None:
        texts.append(no_exclusion_text(found.sft_epochs))
    if found.shortfall:
        texts.append(shortfall_text(found.shortfall, found.selection))
    return texts


def no_exclusion_text(sft_epochs: float) -> str:
    length = epochs_in_words(sft_epochs)
    return f"No exclusion is on the path to the best: it is SFT for {length}."


def shortfall_text(found: Shortfall, selection: str) -> str:
    cause = (
        "It is the last tick: scores still rose, and the average has half-trained weights in it. "
        "Train longer, or use method: sft with ema_decay."
        if found.is_last
        else "The average has weights in it that were trained too little or too long. Use "
        "method: sft with ema_decay."
    )
    measured = f"{difference_in_words(found.gap, found.unit)}, {p_value(found.p)}"
    below = f"The average is below checkpoint {found.tick} on {selection} by more than chance"
    return f"{below}: {measured}. {cause}"


def _departure_texts(departures: Sequence[Departure]) -> list[str]:
    texts: list[str] = []
    unsure = [each for each in departures if each.unsure]
    tested = sum(each.fall is not None for each in departures)
    if unsure:
        some = _named([f"{each.name} (stage {each.stage})" for each in unsure])
        count = f"{len(unsure)} of {counted(tested, 'exclusion')}"
        are = "is" if len(unsure) == 1 else "are"
        texts.append(f"{count} {are} not sure at 95\u00a0%, noise may have decided: {some}.")
    for why, reason in _WHY.items():
        untested = [each.name for each in departures if each.untested == why]
        if untested:
            of = f"the exclusion of {untested[0]} was"
            if len(untested) > 1:
                of = f"the {counted(len(untested), 'exclusion')} of {_named(untested)} were"
            texts.append(f"How sure {of} cannot be said: {reason}.")
    unlearned = [each.name for each in departures if each.unlearned]
    if unlearned:
        it = "it left: it was" if len(unlearned) == 1 else "they left: they were"
        texts.append(f"{_named(unlearned)} had learned nothing yet when {it} {NOT_OFF_BASE}.")
    return texts


def _unlearned_texts(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    have = "has" if len(names) == 1 else "have"
    return [f"{_named(names)} {have} learned nothing yet: {NOT_OFF_BASE}."]


def _measured(fall: Fall, p: float, unit: Unit) -> str:
    """A fall and its p, measured on rows that did not choose the peak."""
    if fall.fall <= 0:
        return "no fall from the peak to the last three ticks"
    sign = 1 if unit == "nll" else -1
    return f"{difference_in_words(sign * fall.fall, unit)} after the peak, {p_value(p)}"


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])} and {rest} more" if rest > 0 else listed(names)
