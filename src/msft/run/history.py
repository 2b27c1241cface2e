"""The history of a run: a fold over its log, and what is told of it.

The run builds it event by event while it works; the report builds it from a log file. So there is
one answer to "what is the best checkpoint", not two. `summary.json` and `schedule.json` say what a
run found.

FLOPs follow from the tokens in the log, by the formulas of the paper's appendix. Training costs
6·|theta|·t, inference 2·|theta|·t, a look-ahead 8·|theta|·t (forward, backward, forward again).
Tokens are counted as integers where the work is done, so the sums are exact. Beside an adapter of T
weights the F weights of the model are frozen and have no gradient: training costs (4·F + 6·T)·t, a
look-ahead (6·F + 8·T)·t, and evaluation, of the merged model, 2·F·t.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from msft.errors import LogError
from msft.files import DAMAGED
from msft.run.log import (
    AverageEvent,
    DecisionEvent,
    EndEvent,
    Event,
    FallsEvent,
    FoundEvent,
    JudgedEvent,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    read_log,
)
from msft.search.curves import (
    SELECTION,
    TEST,
    Curve,
    MeanRule,
    Metric,
    Number,
    PeakRule,
    Score,
    Scores,
    SelectionSplit,
    overall,
    overall_height,
)
from msft.search.falls import Drop, Fall
from msft.search.rollout import BASE, LEAN, CheckpointId, DiskPolicy, checkpoint_id, place_of
from msft.store.store import Disk
from msft.text import shown


def selection_of(opened: RunEvent) -> str:
    """The split that the ticks of a run are scored on, and that chooses."""
    return str(opened.settings.get("selection_split", SELECTION))


@dataclass(slots=True)
class Stage:
    """One roll-out, its points as run, and what was decided after it.

    checkpoints: the checkpoint at the start, and one for each tick.
    excluded: name and tick of each sub-dataset that left after the roll-out; the tick is the
        method's own.
    falls: the fall of each active sub-dataset, where the method had falls tested.
    """

    asked: RolloutEvent
    checkpoints: list[CheckpointId]
    points: list[PointEvent] = field(default_factory=list)
    decisions: list[DecisionEvent] = field(default_factory=list)
    excluded: list[tuple[str, int]] = field(default_factory=list)
    falls: Mapping[str, Fall] = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        return len(self.points)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A sub-dataset that left after a stage, at the method's own tick, and the checkpoint to which
    training went back."""

    name: str
    stage: int
    tick: int
    checkpoint: CheckpointId


class History:
    """Everything the log says, in the shape in which it is asked for.

    opened: the first event; the settings below it are fields once it was added.
    rule: where a curve peaks; mean_rule: how the scores of sub-datasets make one number.
    selection: the split that decided and chose: validation, or test as in the paper's protocol.
    tested: the sub-datasets that have rows in the test split.
    watched: sub-datasets that are scored and never trained, each with the splits of its rows. Their
        scores are in no mean: `known` does not have them, `seen` has them alone.
    guards: for each guarded sub-dataset, the drop below the base model that a result may have.
    early_stopping_patience: how many evaluations without a better mean end a roll-out.
    disk_policy: which checkpoints were on disk.
    scores: by split and checkpoint.
    patterns: for each sub-dataset the score of the base model, whose kind all later scores have.
    drops: the guards' findings, by checkpoint.
    candidates: the number of eligible, fully scored points; best_tick: the best of them.
    refused: points that are not eligible because they break a guard; best_refused: the best of
        them, where its mean is higher than that of the best tick.
    best: the result: the checkpoint that the method reported (`reported`), else the best tick.
    found: the findings of each round of an audit.
    """

    rule: PeakRule
    mean_rule: MeanRule
    evals_per_epoch: int
    tested: Sequence[str]
    watched: Mapping[str, Sequence[str]]
    guards: Mapping[str, float]
    early_stopping_patience: int | None
    disk_policy: str

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.opened: RunEvent | None = None
        self.selection: str = SELECTION
        self.stages: list[Stage] = []
        self.scores: dict[str, dict[CheckpointId, dict[str, Score]]] = {SELECTION: {}, TEST: {}}
        self.patterns: dict[str, Score] = {}
        self.drops: dict[CheckpointId, dict[str, Drop]] = {}
        self.tokens = Tokens()
        self.disk: list[Disk] = []
        self.averages: dict[CheckpointId, AverageEvent] = {}
        self.candidates = 0
        self.best: CheckpointId | None = None
        self.best_tick: CheckpointId | None = None
        self.refused: list[CheckpointId] = []
        self.reported: CheckpointId | None = None
        self.found: list[FoundEvent] = []
        self.ended: EndEvent | None = None
        self._best_height: Number = 0
        self._watched_scores: dict[str, dict[CheckpointId, dict[str, Score]]]
        self._watched_scores = {SELECTION: {}, TEST: {}}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        match event:
            case RunEvent(settings=settings):
                self.opened = event
                self.rule = PeakRule(**settings["peaks"])
                self.mean_rule = settings["mean"]
                self.evals_per_epoch = int(settings["evals_per_epoch"])
                self.selection = selection_of(event)
                self.tested = settings.get("tested", [*event.datasets])
                self.watched = settings.get("watched", {})
                self.guards = settings.get("guards", {})
                self.early_stopping_patience = settings.get("early_stopping_patience")
                self.disk_policy = str(settings.get("disk_policy", LEAN))
            case RolloutEvent():
                self.stages.append(Stage(event, [event.start]))
            case PointEvent():
                stage = self.stages[-1]
                stage.points.append(event)
                stage.checkpoints.append(event.checkpoint)
                self.disk.append(event.disk)
                self.tokens += event.tokens
                self._score(self.selection, event.checkpoint, event.scores, event.guards)
            case AverageEvent():
                self.averages[event.checkpoint] = event
            case ScoresEvent():
                self.tokens += event.tokens
                self._score(event.split, event.checkpoint, event.scores, event.guards)
            case FallsEvent():
                self.stages[event.rollout].falls = event.falls
            case JudgedEvent():
                self.tokens += event.tokens
            case FoundEvent():
                self.found.append(event)
            case DecisionEvent():
                if self.stages:
                    stage = self.stages[-1]
                    stage.decisions.append(event)
                    if event.what == "exclude":
                        stage.excluded += [(name, event.tick or 0) for name in event.names]
                if event.what == "report":
                    self.best = self.reported = event.checkpoint
            case EndEvent():
                self.ended = event

    @property
    def start(self) -> RunEvent:
        if self.opened is None:
            raise ValueError("this log has no events yet")
        return self.opened

    @property
    def selected_on_test(self) -> bool:
        """Whether the test rows chose the checkpoints, so that no score is of unseen rows."""
        return self.selection == TEST

    @property
    def average_of(self) -> tuple[CheckpointId, ...] | None:
        """What was averaged, where the result is an average."""
        best = self.averages.get(self.best) if self.best else None
        return best.of if best else None

    def reach(self, checkpoint: CheckpointId) -> CheckpointId:
        """A tick itself; for an average, the latest tick that was averaged."""
        average = self.averages.get(checkpoint)
        return max(average.of, key=place_of) if average else checkpoint

    def known(self, checkpoint: CheckpointId, split: str | None = None) -> Scores:
        """The scores recorded so far for a checkpoint, on the split that selects or on another."""
        return self.scores[split or self.selection].get(checkpoint, {})

    def missing(self, checkpoint: CheckpointId, split: str | None = None) -> list[str]:
        """The sub-datasets that have no score at a checkpoint."""
        return [name for name in self.start.datasets if name not in self.known(checkpoint, split)]

    def seen(self, checkpoint: CheckpointId, split: str | None = None) -> Scores:
        """As `known`, of the watched sub-datasets. Those without validation rows have the scores of
        their test rows on the split that selects."""
        return self._watched_scores[split or self.selection].get(checkpoint, {})

    def score_of(self, checkpoint: CheckpointId, name: str) -> Score:
        """The score of a sub-dataset, watched or not, on the split that selects."""
        scores = self.seen(checkpoint) if name in self.watched else self.known(checkpoint)
        return scores[name]

    def keeps(self, checkpoint: CheckpointId) -> bool | None:
        """Whether a checkpoint keeps every guard; None while a guard has no rows of it."""
        if checkpoint == BASE:
            return True
        drops = self.drops.get(checkpoint, {})
        if any(not drop.kept for drop in drops.values()):
            return False
        return True if drops.keys() >= self.guards.keys() else None

    @property
    def best_refused(self) -> CheckpointId | None:
        best: CheckpointId | None = None
        height = self._best_height
        for checkpoint in self.refused:
            found = self.height(checkpoint)
            if found > height:
                best, height = checkpoint, found
        return best

    @property
    def is_guarded(self) -> bool:
        """Whether guards take part in the choice of the result; else they are only reported."""
        return bool(self.guards) and self.reported is None

    def untested(self, checkpoint: CheckpointId) -> list[str]:
        """The sub-datasets without test rows, where others are scored on test at a checkpoint."""
        return [name for name in self.missing(checkpoint, TEST) if name not in self.tested]

    def mean(self, checkpoint: CheckpointId, split: str | None = None) -> Number:
        """The mean over all sub-datasets, by the recipe's rule."""
        return overall(self.known(checkpoint, split), self.known(BASE, split), self.mean_rule)

    def height(self, checkpoint: CheckpointId) -> Number:
        """The mean on the split that selects, turned so that higher is better."""
        return overall_height(self.known(checkpoint), self.known(BASE), self.mean_rule)

    def has_mean(self, checkpoint: CheckpointId, split: str | None = None) -> bool:
        """Whether the mean is known: every sub-dataset has a score, for a mean of gains at the base
        model too."""
        gains = self.mixed and self.missing(BASE, split)
        return not gains and not self.missing(checkpoint, split)

    @property
    def mixed(self) -> bool:
        """Whether the mean is one of gains over the base model, because metrics differ."""
        return len({score.metric for score in self.known(BASE).values()}) > 1

    def unit_of(self, name: str) -> Metric:
        """The metric of a sub-dataset, from the first of its scores."""
        apart = self._watched_scores if name in self.watched else self.scores
        for scores in (self.known(BASE), *apart[self.selection].values()):
            if name in scores:
                return scores[name].metric
        return "value"

    @property
    def mean_unit(self) -> Metric | None:
        """The metric of all sub-datasets; None where they differ."""
        units = {self.unit_of(name) for name in self.start.datasets}
        return units.pop() if len(units) == 1 else None

    @property
    def exclusions(self) -> list[Exclusion]:
        """Who left the mixture, in the order of the decisions."""
        return [
            Exclusion(name, number, decision.tick or 0, decision.checkpoint)
            for number, stage in enumerate(self.stages)
            for decision in stage.decisions
            if decision.what == "exclude"
            for name in decision.names
        ]

    def path_exclusions(self, checkpoint: CheckpointId) -> list[Exclusion]:
        """Who left on the way to a checkpoint, in order; what happened after it does not count."""
        exclusions = self.exclusions
        last = place_of(self.reach(checkpoint))[0] if exclusions else 0
        return [each for each in exclusions if each.stage < last]

    def curve(self, stage: int, name: str) -> Curve:
        """Heights of an active sub-dataset over a roll-out, its start included."""
        checkpoints = self.stages[stage].checkpoints
        height = self.rule.height
        return [height(self.known(checkpoint)[name]) for checkpoint in checkpoints]

    def path(self, checkpoint: CheckpointId) -> list[tuple[int, int]]:
        """Roll-outs and ticks in them on the way from the base model to a checkpoint; to an
        average, all the way to the latest tick in it."""
        legs: list[tuple[int, int]] = []
        checkpoint = self.reach(checkpoint)
        while checkpoint != BASE:
            rollout, tick = place_of(checkpoint)
            legs.append((rollout, tick))
            checkpoint = self.stages[rollout].asked.start
        return legs[::-1]

    def _score(
        self,
        split: str,
        checkpoint: CheckpointId,
        scores: Scores,
        guards: Mapping[str, Drop],
    ) -> None:
        """Take in scores. Those of watched sub-datasets go elsewhere, so that no mean has them."""
        held = self.scores[split].setdefault(checkpoint, {})
        was_full = len(held) == len(self.start.datasets)
        held.update({name: score for name, score in scores.items() if name not in self.watched})
        apart = {name: score for name, score in scores.items() if name in self.watched}
        if apart:
            self._watched_scores[split].setdefault(checkpoint, {}).update(apart)
        if guards:
            self.drops.setdefault(checkpoint, {}).update(guards)
        for name, score in scores.items():
            self.patterns.setdefault(name, score)
            if score.metric == "value" != self.patterns[name].metric:  # in older logs
                self.patterns[name] = score
        if split == self.selection and not was_full and len(held) == len(self.start.datasets):
            self._consider(checkpoint)

    def _consider(self, checkpoint: CheckpointId) -> None:
        """Let a point be the best tick if its mean is the highest, or equally high and earlier.
        Averages, points of roll-outs that are not eligible and points that break a guard are not
        considered."""
        if checkpoint in self.averages:
            return
        if checkpoint != BASE and not self.stages[place_of(checkpoint)[0]].asked.eligible:
            return
        if self.guards and not self.keeps(checkpoint):
            self.refused.append(checkpoint)
            return
        self.candidates += 1
        height, best = self.height(checkpoint), self.best_tick
        if best is not None and not height > self._best_height:
            tie = height == self._best_height
            if not tie or place_of(best) < place_of(checkpoint):
                return
        self.best_tick, self._best_height = checkpoint, height
        self.best = self.reported or checkpoint


# Reading a log that somebody else may have written.


def history_in(log: Path) -> History:
    """What a log tells. LogError, with the line, where no run can have written it: its checksums
    find a changed byte, but logs of earlier versions and of others have none."""
    history, made = History(), {BASE}
    for line, event in enumerate(read_log(log), start=1):
        try:
            fault = _fault(history, event, made)
            if not fault:
                history.add(event)
        except DAMAGED as error:
            fault = f"it does not fit the lines before it ({shown(str(error))})"
        if fault:
            raise LogError(
                f"{log}, line {line}: {fault}; expected a log as msft writes it: restore the file, "
                "or start in another folder"
            )
        if isinstance(event, PointEvent | AverageEvent):
            made.add(event.checkpoint)
    return history


def _fault(history: History, event: Event, made: Collection[CheckpointId]) -> str | None:
    """Why an event cannot follow the events before it.

    made: the checkpoints that earlier events made.
    """
    if isinstance(event, RunEvent):
        return "a second run starts here" if history.opened else _setting_fault(event)
    if history.opened is None or history.ended is not None:
        where = "before the start" if history.opened is None else "after the end"
        return f"the event {event.event!r} stands {where} of the run"
    asked: list[CheckpointId] = []
    names: list[str] = []
    match event:
        case RolloutEvent():
            asked, names = [event.start], [*event.active, *event.rehearsed]
            if event.rollout != len(history.stages) or event.ticks < 1 or not event.active:
                return f"roll-out {event.rollout} cannot be the next one"
        case PointEvent():
            names, number = [*event.scores], len(history.stages) - 1
            stage = history.stages[number] if number >= 0 else None
            if stage is None or event.checkpoint != checkpoint_id(number, stage.ticks + 1):
                return f"{event.checkpoint} is not the next tick"
            known = event.scores.keys() & history.known(stage.asked.start).keys()
            lost = [name for name in stage.asked.active if name not in known]
            if lost and stage.asked.scored:
                return f"{shown(lost[0])} has no score at this tick, or none at tick 0"
        case AverageEvent():
            asked = [*event.of]
            if not asked:
                return f"{event.checkpoint} is an average of nothing"
        case ScoresEvent():
            asked, names = [event.checkpoint], [*event.scores]
            if event.split not in history.scores:
                return f"the split is {shown(event.split)}"
        case DecisionEvent():
            asked, names = [event.checkpoint], [*event.names]
        case JudgedEvent():
            asked, names = [event.checkpoint], [*event.judged]
        case FoundEvent():
            names = [*event.findings]
        case FallsEvent():
            asked, names = [event.checkpoint], [*event.falls]
            if not 0 <= event.rollout < len(history.stages):
                return f"there is no roll-out {event.rollout}"
        case EndEvent():
            asked = [event.best]
    scored = isinstance(event, PointEvent | ScoresEvent)
    watched = history.watched if scored else {}
    known_names = {*history.opened.datasets, *watched}
    unknown = [name for name in names if name not in known_names]
    missing = [checkpoint for checkpoint in asked if checkpoint not in made]
    if unknown or missing:
        what = f"sub-dataset {shown(unknown[0])}" if unknown else f"checkpoint {missing[0]}"
        return f"the {what} is not one of this run"
    if isinstance(event, PointEvent | ScoresEvent):
        if any(s.count < 1 for s in event.scores.values()):
            return "a score is one of no rows"
        if not event.guards.keys() <= history.guards.keys() & event.scores.keys():
            return "a guard stands there of a sub-dataset that has none, or no score"
    return None


def _setting_fault(opened: RunEvent) -> str | None:
    """What is wrong with the settings that readers of the log rely on; None: nothing."""
    settings = opened.settings
    if not opened.datasets or min(opened.datasets.values()) < 0 or opened.num_parameters < 0:
        return "the run has no sub-datasets, or sizes below 0"
    PeakRule(**settings["peaks"])
    whole = ("evals_per_epoch", "compute_budget", "train_ticks")
    wrong = [key for key in whole if type(settings[key]) is not int or settings[key] < 1]
    wrong += [key for key in ("mean",) if settings[key] not in get_args(MeanRule)]
    patience = settings.get("early_stopping_patience", 1)
    wrong += ["early_stopping_patience"] if type(patience) is not int or patience < 1 else []
    nested = ("method", "rollout", "adapter", "watched", "guards")
    wrong += [key for key in nested if not isinstance(settings.get(key, {}), dict)]
    younger = {"disk_policy": DiskPolicy, "selection_split": SelectionSplit}
    wrong += [
        k for k, kind in younger.items() if k in settings and settings[k] not in get_args(kind)
    ]
    return f"the setting {wrong[0]} is {shown(settings[wrong[0]])}" if wrong else None


# FLOPs.

TRAIN, INFERENCE, LOOK_AHEAD, FROZEN = 6, 2, 8, 4


def train_flops(num_parameters: int, tokens: int, adapter: int = 0) -> int:
    """adapter: number of adapter weights, where only the adapter is trained."""
    if adapter:
        return (FROZEN * num_parameters + TRAIN * adapter) * tokens
    return TRAIN * num_parameters * tokens


def inference_flops(num_parameters: int, tokens: int) -> int:
    return INFERENCE * num_parameters * tokens


def look_ahead_flops(num_parameters: int, tokens: int, adapter: int = 0) -> int:
    if adapter:
        return train_flops(num_parameters, tokens, adapter) + inference_flops(
            num_parameters + adapter, tokens
        )
    return LOOK_AHEAD * num_parameters * tokens


def adapter_of(history: History) -> int:
    """Weights of the adapter that a run trains; 0: it trains all."""
    return int(history.start.settings.get("adapter", {}).get("trained", 0))


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of a run. kept + discarded = train + lookahead.

    kept: training on the path from the base model to the reported checkpoint.
    discarded: all other training, the search's price.
    """

    train: int
    evaluation: int
    lookahead: int
    total: int
    kept: int
    discarded: int


def flops_of(history: History) -> Flops:
    """The FLOPs of all training and scoring in a log."""
    size, adapter = history.start.num_parameters, adapter_of(history)
    tokens = history.tokens
    train = train_flops(size, tokens.train, adapter)
    ahead = look_ahead_flops(size, tokens.lookahead, adapter)
    path = path_tokens(history, history.best) if history.best else Tokens()
    kept = train_flops(size, path.train, adapter) + look_ahead_flops(size, path.lookahead, adapter)
    evaluation = inference_flops(size, tokens.evaluation)
    total = train + evaluation + ahead
    return Flops(train, evaluation, ahead, total, kept, train + ahead - kept)


def path_tokens(history: History, checkpoint: CheckpointId) -> Tokens:
    """Tokens on the way from the base model to a checkpoint."""
    tokens = Tokens()
    for rollout, ticks in history.path(checkpoint):
        for point in history.stages[rollout].points[:ticks]:
            tokens += point.tokens
    return tokens


def first_rollout_flops(history: History) -> int:
    """Training the first roll-out and scoring its ticks."""
    size, adapter, tokens = history.start.num_parameters, adapter_of(history), Tokens()
    for point in history.stages[0].points if history.stages else ():
        tokens += point.tokens
    trained = train_flops(size, tokens.train, adapter)
    trained += look_ahead_flops(size, tokens.lookahead, adapter)
    return trained + inference_flops(size, tokens.evaluation)


# `summary.json` and `schedule.json`.


def summary_of(history: History, stopped: bool = False) -> dict[str, Any]:
    """The summary as the contract has it; of an unfinished run, what is known so far. `validation`
    has the scores that chose: those of test where `selection_split` says so."""
    best = history.best or BASE
    ended = history.ended
    return {
        "method": history.start.method,
        "seed": history.start.seed,
        "status": "finished" if ended else "stopped" if stopped else "running",
        "ended_by": ended.by if ended else None,
        "num_parameters": history.start.num_parameters,
        **({"num_trainable": adapter} if (adapter := adapter_of(history)) else {}),
        "optim": history.start.settings.get("optim", "adamw"),
        "ema_decay": history.start.settings.get("ema_decay"),
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "stages": [stage_of(history, number) for number in range(len(history.stages))],
        "best": {
            "checkpoint": best,
            "epochs": epochs_of(history, best),
            "candidates": _candidates(history),
            "average_of": average_of(history, best),
            "path_exclusions": [
                *dict.fromkeys(each.name for each in history.path_exclusions(best))
            ],
            "validation": _scores(history, best, history.selection),
            "test": _scores(history, best, TEST),
        },
        "watched": {name: watched_of(history, name, best) for name in history.watched},
        **({"guards": guards} if (guards := _guards(history, best)) else {}),
        "epochs_trained": sum(stage.ticks for stage in history.stages) / history.evals_per_epoch,
        "tokens": asdict(history.tokens),
        "flops": asdict(flops_of(history)),
        "disk": disk_of(history),
        **_controls(history, best),
    }


def watched_of(history: History, name: str, best: CheckpointId) -> dict[str, Any]:
    """A watched sub-dataset: the base model's score and the result's; where it has test rows beside
    those of the ticks, these scores too."""

    def score(checkpoint: CheckpointId, split: str) -> float | None:
        found = history.seen(checkpoint, split).get(name)
        return None if found is None else float(found.value)

    selects = history.selection
    test = {"base": score(BASE, TEST), "best": score(best, TEST)}
    tested = TEST in history.watched[name][1:] and test["best"] is not None
    return {
        "base": score(BASE, selects),
        "best": score(best, selects),
        "guard": _guards(history, best).get(name),
        **({"test": test} if tested else {}),
    }


def _guards(history: History, best: CheckpointId) -> dict[str, Any]:
    """Of every guarded sub-dataset, what its guard allows and whether a checkpoint keeps it; None
    while that is not known."""
    drops = history.drops.get(best, {})
    here = best == BASE
    return {
        name: {"max_drop": allowed, "kept": here or (drops[name].kept if name in drops else None)}
        for name, allowed in history.guards.items()
    }


def _controls(history: History, best: CheckpointId) -> dict[str, Any]:
    """What was scored beside an average of the same training: other averages, and with them the
    best tick."""
    beside = [checkpoint for checkpoint in history.averages if checkpoint != best]
    if not history.average_of or not beside:
        return {}
    return {
        "controls": [
            {
                "checkpoint": checkpoint,
                "average_of": average_of(history, checkpoint),
                "validation": _scores(history, checkpoint, history.selection),
                "test": _scores(history, checkpoint, TEST),
            }
            for checkpoint in (*beside, history.best_tick or BASE)
        ]
    }


def average_of(history: History, checkpoint: CheckpointId) -> list[CheckpointId] | None:
    average = history.averages.get(checkpoint)
    return list(average.of) if average else None


def _candidates(history: History) -> int:
    """How many points the result was chosen from; of an average, the ticks that were looked at."""
    if history.average_of:
        return sum(stage.ticks for stage in history.stages)
    return 1 if history.reported else history.candidates


def stage_of(history: History, number: int) -> dict[str, Any]:
    """One roll-out: who was in it, where each peaked, who left and to where it went back."""
    stage = history.stages[number]
    per_epoch = history.evals_per_epoch
    peaks = {
        name: history.rule.peak(history.curve(number, name)) / per_epoch
        for name in stage.asked.active
        if stage.points
    }
    back_to = [d.checkpoint for d in stage.decisions if d.what == "exclude"]
    rollout, tick = place_of(back_to[-1]) if back_to else (number, 0)
    back = tick if rollout == number else 0  # another roll-out's checkpoint is the start
    return {
        "stage": number,
        "start": stage.asked.start,
        "active": list(stage.asked.active),
        "ticks": stage.ticks,
        "peaks": peaks,
        "excluded": [name for name, _ in stage.excluded],
        "rolled_back_to": back / per_epoch if back_to else None,
    }


def epochs_of(history: History, checkpoint: CheckpointId) -> float:
    """Ep. as the paper counts it: epochs on the path; of continual SFT, the mean of the stops."""
    per_epoch = history.evals_per_epoch
    if history.start.method == "continual":
        stops = [tick for stage in history.stages for _, tick in stage.excluded]
        return sum(stops) / per_epoch / len(stops) if stops else 0.0
    return sum(ticks for _, ticks in history.path(checkpoint)) / per_epoch


def disk_of(history: History) -> dict[str, float | int]:
    """Sets of weights on disk over the run: the mean over its ticks, and the most at any time."""
    points = history.disk
    every = [*points, *(average.disk for average in history.averages.values())]
    return {
        "mean_copies": sum(disk.copies for disk in points) / len(points) if points else 0.0,
        "peak_copies": max((disk.peak_copies for disk in every), default=0),
        "peak_bytes": max((disk.peak_bytes for disk in every), default=0),
    }


def schedule_of(history: History) -> dict[str, Any]:
    """What was found: per sub-dataset its epochs, and the stages on the way to the result."""
    per_epoch = history.evals_per_epoch
    stages: list[dict[str, Any]] = []
    for rollout, ticks in history.path(history.best or BASE):
        asked = history.stages[rollout].asked
        changes = {int(epoch) * per_epoch for each in asked.later.values() for epoch in each}
        begins = [0, *sorted(tick for tick in changes if tick < ticks)]
        for begin, end in pairwise([*begins, ticks]):  # a stage for each course of the weights
            rows = asked.rows_in(begin // per_epoch)
            active = {name: rows[name] for name in asked.active if rows[name] or not asked.later}
            stages.append(
                {
                    "active": active,
                    "rehearsed": dict(asked.rehearsed),
                    "ticks": end - begin,
                    "epochs": (end - begin) / per_epoch,
                    "optimizer": "kept" if begin else asked.optimizer,
                    "feed": dict(asked.feed),
                }
            )
    return {
        "method": history.start.method,
        "seed": history.start.seed,
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "evals_per_epoch": per_epoch,
        "rows": dict(history.start.datasets),
        "datasets": {
            name: sum(stage["ticks"] for stage in stages if name in stage["active"]) / per_epoch
            for name in history.start.datasets
        },
        "stages": stages,
        **({"average_of": averaged_epochs(history)} if history.average_of else {}),
    }


def averaged_epochs(history: History) -> list[float | None]:
    """Where the ticks in an average lie, in epochs on the path to the latest of them; None for one
    that is not on it."""
    legs = history.path(history.best or BASE)
    on_path = {BASE: 0.0}
    before = 0
    for rollout, ticks in legs:
        for tick in range(1, ticks + 1):
            on_path[checkpoint_id(rollout, tick)] = (before + tick) / history.evals_per_epoch
        before += ticks
    return [on_path.get(checkpoint) for checkpoint in history.average_of or ()]


def _scores(history: History, checkpoint: CheckpointId, split: str) -> dict[str, Any] | None:
    """Scores of a checkpoint on a split; mean: None where a sub-dataset has no test rows."""
    full, scores = history.has_mean(checkpoint, split), history.known(checkpoint, split)
    if not full and (split == history.selection or not scores or scores.keys() < {*history.tested}):
        return None
    return {
        "mean": float(history.mean(checkpoint, split)) if full else None,
        "datasets": {name: float(score.value) for name, score in scores.items()},
    }
