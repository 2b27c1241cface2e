"""The board: where a run stands, from the events of its log and the steps of its engine."""

import time
from collections.abc import Collection
from pathlib import Path

from msft.app.terminal.remarks import Remarks
from msft.app.terminal.time_left import Pace, TimeLeft, time_left
from msft.run.history import History
from msft.run.log import Event, PointEvent, RolloutEvent, ScoresEvent
from msft.run.worker import Step
from msft.search.feeds import epoch_and_steps, steps_before, steps_of
from msft.search.rollout import CheckpointId
from msft.search.scores import Score

FIXED_FEEDS = ("shuffled", "dynamix")
"""Feeds that train as many rows an epoch as the mixture has; others may leave some out."""

Placed = tuple[CheckpointId, Score]
"""A score and where it was measured."""


class Board:
    """Where a run stands, for showing.

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
        steps = self._steps_per_epoch
        return done, epochs * steps + steps_before(rest, steps, per_epoch)

    @property
    def ticks(self) -> float:
        """Ticks done of the present stage, the part of the one that is being trained included."""
        stage = self.history.stages[-1]
        if not self._steps or stage.ticks == stage.asked.ticks:
            return float(stage.ticks)
        per_epoch = self.history.evals_per_epoch
        asked = len(epoch_and_steps(stage.ticks + 1, self._steps_per_epoch, per_epoch)[1])
        return stage.ticks + min(1.0, self._steps / max(1, asked))

    @property
    def is_evaluating(self) -> bool:
        """Whether the steps of the present tick are done, and its scores are not."""
        stage = self.history.stages[-1]
        return bool(self._steps) and self.ticks == stage.ticks + 1

    @property
    def _steps_per_epoch(self) -> int:
        asked = self.history.stages[-1].asked
        rows = sum(asked.active.values()) + sum(asked.rehearsed.values())
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
        """Whether it is being trained: it is in the present stage, and has not left after it."""
        stages = self.history.stages if self.history.ended is None else []
        return bool(stages) and name in stages[-1].asked.active and self.left(name) is None

    def state(self, name: str) -> str:
        """active, kept, left (with where, and whether its fall is sure), or waiting."""
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
