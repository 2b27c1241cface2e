"""The board: where a run stands, from the events of its log and the steps of its engine.

Time left is the speed so far times what is still to be trained. How many stages a search takes is
what it finds out; one sub-dataset is taken to leave after every stage.
"""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from msft.report.findings import (
    Findings,
    Tests,
    decline_text,
    departure_texts,
    findings_in,
    growth_of,
    growth_text,
)
from msft.run.folder import first_loss_of
from msft.run.history import History
from msft.run.log import DecisionEvent, Event, PointEvent, RolloutEvent, ScoresEvent
from msft.run.worker import Step
from msft.search.curves import Score
from msft.search.feeds import epoch_and_steps, steps_before, steps_of
from msft.search.options import ticks_of
from msft.search.rollout import CheckpointId, checkpoint_id

RECENT = 4
"""Ticks whose speed is taken for that of the next ones."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A stage that is still to come: rows of its epoch, and ticks."""

    rows: float
    ticks: float


Stages = tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds left of the present stage, and about of the whole run; None where the method does not
    say what follows."""

    stage: float
    run: float | None


class Pace:
    """Seconds of a row of training and of an evaluation, from the ticks so far."""

    def __init__(self) -> None:
        self._ticks: list[tuple[int, float, float]] = []
        self.begin()

    def begin(self) -> None:
        """A tick begins now."""
        self._begun = self._trained = time.monotonic()
        self._rows = 0

    def step(self, rows: int) -> None:
        """A step over so many rows is done."""
        self._trained = time.monotonic()
        self._rows += rows

    def end(self) -> None:
        """The tick is trained and scored."""
        training, evaluation = self._trained - self._begun, time.monotonic() - self._trained
        self._ticks = [*self._ticks, (self._rows, training, evaluation)][-RECENT:]

    def seconds(self, ticks: float, rows: float) -> float | None:
        """Seconds of this many ticks over this many rows in all; None before a tick has ended."""
        if not self._ticks:
            return None
        seen, training, evaluation = map(sum, zip(*self._ticks, strict=True))
        each = training / seen if seen else 0.0
        return rows * each + ticks * evaluation / len(self._ticks)

    @property
    def elapsed(self) -> float:
        """Since the present tick began."""
        return time.monotonic() - self._begun


def time_left(history: History, kept: Collection[str], pace: Pace) -> TimeLeft | None:
    """None before the first tick has ended, and when the run has."""
    if not history.stages or history.ended:
        return None
    stage, per_epoch = history.stages[-1], history.evals_per_epoch
    left = stage.asked.ticks - stage.ticks if not stage.decisions else 0

    def seconds(ticks: int) -> float | None:
        epochs = Counter((stage.ticks + tick) // per_epoch for tick in range(ticks))
        rows = sum(n * sum(stage.asked.rows_in(epoch).values()) for epoch, n in epochs.items())
        return pace.seconds(ticks, rows / per_epoch)

    whole, one = seconds(left), seconds(1)
    if whole is None or one is None:
        return None
    present = max(0.0, whole - min(one, pace.elapsed))
    stages = stages_ahead(history, kept)
    if stages is None:
        return TimeLeft(present, None)
    parts = (pace.seconds(each.ticks, each.ticks * each.rows / per_epoch) for each in stages)
    return TimeLeft(present, present + sum(part or 0.0 for part in parts))


def stages_ahead(history: History, kept: Collection[str] = ()) -> Stages | None:
    """About which stages follow the present one; None: not known."""
    stage, opened = history.stages[-1], history.start
    budget, train_ticks = (opened.settings[key] for key in ("compute_budget", "train_ticks"))
    rows = sum(stage.asked.active.values())
    match opened.method:
        case "sft" | "dynamix" | "ies" | "soup":
            return ()
        case "soft_sro":
            return (Ahead(rows, train_ticks),) if len(history.stages) == 1 else ()
        case "sro":
            trained = sum(each.asked.ticks for each in history.stages[1:])
            return (Ahead(rows, max(0, train_ticks - trained)),)
        case "continual":
            names = list(opened.datasets)[len(history.stages) :]
            return tuple(Ahead(opened.datasets[name], budget) for name in names)
        case "replay":
            rest = opened.settings["method"]["stages"][len(history.stages) :]
            return tuple(
                Ahead(sum(each["active"].values()), each["epochs"] * history.evals_per_epoch)
                for each in rest
            )
        case "msft":
            return _of_msft(history, kept)
    return None


def _of_msft(history: History, kept: Collection[str]) -> Stages:
    """One leaves after each stage, until a limit of the method ends the search."""
    stage, start = history.stages[-1], history.start
    options, budget = start.settings["method"], start.settings["compute_budget"]
    gone = {name for name, _ in stage.excluded}
    active = {name: rows for name, rows in stage.asked.active.items() if name not in gone}
    may_leave = [rows for name, rows in active.items() if name not in kept]
    rows, each = sum(active.values()), sum(may_leave) / max(1, len(may_leave))
    first = 0 if stage.decisions else 1
    last = len(may_leave) if len(may_leave) < len(active) else len(may_leave) - 1
    about = tuple(Ahead(rows - each * left, budget) for left in range(first, last + 1))
    allowed = (options.get("max_stages") or 2 * len(start.datasets)) - len(history.stages)
    if epochs := options.get("max_epochs"):
        trained = sum(each.ticks for each in history.stages[:-1]) + stage.asked.ticks
        ticks = max(0, ticks_of(epochs, history.evals_per_epoch, "max_epochs") - trained)
        return _within(about[:allowed], ticks)
    return about[:allowed]


def _within(stages: Stages, ticks: float) -> Stages:
    """The stages within this many ticks, the last one cut to fit."""
    found: list[Ahead] = []
    for each in stages:
        found.append(Ahead(each.rows, min(each.ticks, ticks)))
        ticks -= found[-1].ticks
    return tuple(each for each in found if each.ticks > 0)


def clock(seconds: float) -> str:
    """4:05, or 1:04:05"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left_text(left: TimeLeft, stage: int) -> str:
    """The time left in words: of the stage, and of the whole run."""
    if left.run == left.stage:
        return f"time left: {clock(left.stage)} of the whole run"
    text = f"time left: {clock(left.stage)} of stage {stage}"
    if left.run is None:
        return f"{text}; how many stages follow is not known"
    return f"{text}, about {clock(left.run)} of the whole run"


class Remarks:
    """Remarks on decisions and growth, each given once. Without the run's folder there are no rows,
    so no exclusion is judged."""

    def __init__(self, history: History, folder: Path | None) -> None:
        self._history = history
        self._folder = folder
        self._tests = Tests()
        self._found: Findings | None = None
        self._fallen: set[str] = set()

    def after(self, event: Event) -> list[str]:
        """The remarks after a new event, which the history has."""
        if self._found is None and self._history.exclusions:  # of a run that was resumed
            self._look()
        if isinstance(event, PointEvent):
            return self._growth(event)
        if not isinstance(event, DecisionEvent) or self._folder is None:
            return []
        found = self._look()
        left = [each for each in found.departures if each.name in event.names]
        texts = [f"     {each.name}: {text}" for each in left for text in departure_texts(each)]
        for decline in found.declines:
            if decline.name not in self._fallen:
                self._fallen.add(decline.name)
                texts.append(f"     {decline_text(decline)}")
        return texts

    def is_unsure(self, name: str) -> bool:
        """Whether a sub-dataset left without a sure fall."""
        departures = self._found.departures if self._found else ()
        return any(each.name == name and each.unsure for each in departures)

    def _look(self) -> Findings:
        if self._folder is not None:
            self._found = findings_in(self._folder, self._history, self._tests)
        return self._found or Findings()

    def _growth(self, event: PointEvent) -> list[str]:
        first = first_loss_of(self._folder) if self._folder else None
        found = growth_of(self._history, first)
        if found is None or checkpoint_id(found.stage, found.tick) != event.checkpoint:
            return []
        return [f"note: {growth_text(found)}"]


FIXED_FEEDS = ("shuffled", "dynamix")
"""Feeds that train as many rows an epoch as the mixture has; others may leave some out."""

Placed = tuple[CheckpointId, Score]
"""A score and where it was measured."""


class Board:
    """The state of a run that goes on, for a display.

    kept: sub-datasets that may never be excluded.
    folder: of the run, whose rows say how sure an exclusion is.
    """

    def __init__(self, kept: Collection[str] = (), folder: Path | None = None) -> None:
        self.history = History()
        self.remarks = Remarks(self.history, folder)
        self.kept = kept
        self.loss: float | None = None
        self.tokens = 0
        self._pace = Pace()
        self._batch_size = 0
        self._begun = time.monotonic()
        self._steps = 0
        self._scores: dict[str, list[Placed]] = {}
        self._best: dict[str, Placed] = {}

    def event(self, event: Event, live: bool) -> None:
        self.history.add(event)
        selection = self.history.selection
        if isinstance(event, PointEvent) or (
            isinstance(event, ScoresEvent) and event.split == selection
        ):
            for name, score in event.scores.items():
                placed = (event.checkpoint, score)
                self._scores.setdefault(name, []).append(placed)
                if score.height > self._best.setdefault(name, placed)[1].height:
                    self._best[name] = placed
        if isinstance(event, PointEvent) and live:
            self._pace.end()
        if isinstance(event, RolloutEvent) and not self.tokens:
            self._begun = time.monotonic()
        self._steps = 0
        self._pace.begin()

    def step(self, step: Step) -> None:
        self.loss = step.loss
        self.tokens += step.tokens
        self._steps += 1
        self._batch_size = max(self._batch_size, step.rows)
        self._pace.step(step.rows)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(1e-9, time.monotonic() - self._begun)

    @property
    def time_left(self) -> TimeLeft | None:
        return time_left(self.history, self.kept, self._pace)

    @property
    def steps(self) -> tuple[int, int | None]:
        """Steps done of the present stage, and of how many; None where that is not known."""
        stage = self.history.stages[-1]
        done = sum(point.steps for point in stage.points) + self._steps
        if not self._batch_size or stage.asked.feed["name"] not in FIXED_FEEDS:
            return done, None
        per_epoch = self.history.evals_per_epoch
        epochs, rest = divmod(stage.asked.ticks, per_epoch)
        last = steps_before(rest, self._steps_in(epochs), per_epoch)
        return done, sum(map(self._steps_in, range(epochs))) + last

    @property
    def ticks(self) -> float:
        """Ticks done of the present stage, the part of the one that is being trained included."""
        stage = self.history.stages[-1]
        if not self._steps or stage.ticks == stage.asked.ticks:
            return float(stage.ticks)
        per_epoch = self.history.evals_per_epoch
        steps = self._steps_in(stage.ticks // per_epoch)
        asked = len(epoch_and_steps(stage.ticks + 1, steps, per_epoch)[1])
        return stage.ticks + min(1.0, self._steps / max(1, asked))

    @property
    def is_evaluating(self) -> bool:
        """Whether the steps of the present tick are done, and its scores are not."""
        stage = self.history.stages[-1]
        return bool(self._steps) and self.ticks == stage.ticks + 1

    def _steps_in(self, epoch: int) -> int:
        rows = sum(self.history.stages[-1].asked.rows_in(epoch).values())
        return steps_of(rows, max(1, self._batch_size))

    @property
    def epoch(self) -> float:
        return self.ticks / self.history.evals_per_epoch

    def left(self, name: str) -> tuple[int, float] | None:
        """The stage after which a sub-dataset left, and at which epoch of it."""
        for number, stage in enumerate(self.history.stages):
            for gone, tick in stage.excluded:
                if gone == name:
                    return number, tick / self.history.evals_per_epoch
        return None

    def active(self, name: str) -> bool:
        """Whether a sub-dataset is trained: it is in the present stage and has not left yet."""
        stages = self.history.stages if self.history.ended is None else []
        return bool(stages) and name in stages[-1].asked.active and self.left(name) is None

    def state(self, name: str) -> str:
        """active, kept, left (with where, and whether its fall is sure), or waiting."""
        if name in self.history.watched:
            return "watched"
        left = self.left(name)
        if left is not None:
            sure = ", unsure" if self.remarks.is_unsure(name) else ""
            return f"left: stage {left[0]}, epoch {left[1]:g}{sure}"
        if self.active(name):
            return "kept" if name in self.kept else "active"
        return "waiting" if self.history.ended is None else "trained"

    def scores(self, name: str) -> list[Placed]:
        """A sub-dataset's scores in the order in which they were measured."""
        return self._scores.get(name, [])

    def best(self, name: str) -> Placed | None:
        """The earliest of its highest scores, and where it was."""
        return self._best.get(name)
