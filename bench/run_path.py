"""The path of a finished run, walked again: its tokens by recipe and data, its disk by the store.

The log says who was in each roll-out, for how many ticks, and what was scored; nothing is trained.
Of feeds that look at losses the log has the number of rows only, so their tokens are that number
times the mean row. The store keeps and drops as it did then, on a disk that is only counted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msft.run.history import History, Stage, disk_of
from msft.run.log import Log, PointEvent, ScoresEvent, Tokens
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Scored
from msft.run.worker import Question, Work
from msft.search.curves import SELECTION, Score, Scores
from msft.search.feeds import SHUFFLED, Feed, FeedContext, Losses, Mixture, Part
from msft.search.methods import PreparedMethod
from msft.search.methods.dynamix import Dynamix
from msft.search.options import MixtureOptions, RolloutOptions
from msft.search.rollout import BASE, CheckpointId, OptimizerStart, Run, Settings, checkpoint_id
from msft.store.store import CheckpointStore, MemoryTier

TrainRows = Mapping[str, Sequence[int]]
"""Tokens of each training row of a sub-dataset."""
Evaluation = Callable[[str, str, Score], int]
"""Tokens of an evaluation of a sub-dataset's split that came out like this."""


def path_tokens(
    history: History,
    measured: Sequence[ScoresEvent],
    train: TrainRows,
    evaluation: Evaluation,
    batch_size: int,
) -> Tokens:
    """Tokens of the run by recipe and data.

    measured: its evaluations outside of ticks.
    """
    tokens = Tokens()
    for number, stage in enumerate(history.stages):
        mixture = _mixture(stage, history.start.datasets)
        ticks, per_epoch = stage.asked.ticks, history.evals_per_epoch
        place = FeedContext(mixture, ticks, per_epoch, batch_size, history.start.seed, number)
        tokens += _fed(place, stage, train)
        for point in stage.points:
            if point.steps:
                tokens += _scored(point.scores, SELECTION, evaluation)
    for event in measured:
        tokens += _scored(event.scores, event.split, evaluation)
    return tokens


def _scored(scores: Scores, split: str, evaluation: Evaluation) -> Tokens:
    return Tokens(evaluation=sum(evaluation(n, split, score) for n, score in scores.items()))


def seconds_of(steps: Path) -> float | None:
    """How long a run took, by the clock of its steps; pauses between resumes do not count."""
    if not steps.exists():
        return None
    total = before = 0.0
    for line in steps.read_text().splitlines():
        try:
            now = float(json.loads(line)["seconds"])
        except (ValueError, KeyError, TypeError):
            continue  # the last line may be torn
        total += before if now < before else 0.0
        before = now
    return total + before


def _mixture(stage: Stage, sizes: Mapping[str, int]) -> Mixture:
    rows = {**stage.asked.active, **stage.asked.rehearsed}
    return Mixture(
        tuple(
            Part(name, size, rows[name], rehearsed=name in stage.asked.rehearsed)
            for name, size in sizes.items()
            if name in rows
        )
    )


def _fed(place: FeedContext, stage: Stage, train: TrainRows) -> Tokens:
    settings = dict(stage.asked.feed)
    name = settings.pop("name")
    if name == "shuffled":
        return _drawn(SHUFFLED.open(place), stage.points, train)
    if name == "dynamix":
        return _drawn(Dynamix(**settings).open(place), stage.points, train)
    return _by_rows(place, stage.points, train, bool(settings.get("track_excluded")))


def _drawn(feed: Feed, points: Sequence[PointEvent], train: TrainRows) -> Tokens:
    """Tokens of the rows that a feed draws if no loss ever changes."""
    tokens = Tokens()
    for tick in range(1, len(points) + 1):
        for batch in feed.batches(tick):
            count = sum(train[name][number] for name, number in batch.rows)
            ahead = batch.use == "look_ahead"
            tokens += Tokens(lookahead=count) if ahead else Tokens(train=count)
            still = [1.0] * len(batch.rows)
            feed.observe(batch, Losses(still, still if ahead else ()))
    return tokens


def _by_rows(
    place: FeedContext, points: Sequence[PointEvent], train: TrainRows, tracked: bool
) -> Tokens:
    """Rows as the log counts them, each of mean length; tracked: the others are looked at."""
    parts = place.mixture.parts
    total = sum(part.rows * sum(train[part.name]) / part.size for part in parts)
    mean = total / place.mixture.rows
    trained = sum(point.loss[1] for point in points)
    epochs = len(points) // place.evals_per_epoch
    whole = points[: epochs * place.evals_per_epoch]
    resting = epochs * place.mixture.rows - sum(point.loss[1] for point in whole)
    return Tokens(round(trained * mean), round(resting * mean) if tracked else 0)


class _CountedDisk:
    """A disk tier that writes nothing."""

    name = "disk"

    def __init__(self) -> None:
        self._payloads: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._payloads

    def put(self, key: str, payload: Any) -> None:
        self._payloads[key] = payload

    def get(self, key: str) -> Any | None:
        return self._payloads.get(key)

    def drop(self, key: str) -> None:
        self._payloads.pop(key, None)

    def is_whole(self, key: str) -> bool:
        return key in self._payloads

    def listed(self) -> list[str]:
        return list(self._payloads)

    def flush(self) -> None:
        """Nothing to wait for."""


class _LogWorker:
    """A `Worker` that answers from the log."""

    def __init__(self, history: History) -> None:
        self.num_parameters = history.start.num_parameters
        self._history = history
        self._rollout = 0
        self._at: CheckpointId = BASE

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        self._rollout = question.rollout
        self._at = checkpoint_id(question.rollout, tick) if tick else question.start

    def advance(self, tick: int) -> Work:
        self._at = checkpoint_id(self._rollout, tick)
        return Work(self._history.stages[self._rollout].points[tick - 1].steps, (0.0, 0), Tokens())

    def load(self, weights: Any | None) -> None:
        self._at = weights or BASE

    def score(self, names: Sequence[str], split: str) -> Scored:
        scores = self._history.known(self._at, split)
        return Scored({name: scores[name] for name in names}, 0)

    def weights(self) -> Any:
        return self._at

    def training(self) -> Any:
        return {"optimizer": None}


def path_disk(history: History, weights: int, moments: int, in_memory: int) -> int:
    """The most bytes on disk at a time, if memory holds so many checkpoints."""
    settings = history.start.settings
    rollback = settings["rollout"]["on_rollback"]
    excluded = settings["rollout"]["score_excluded"]
    method = PreparedMethod(
        history.start.method,
        {},
        lambda run: _again(run, history.stages),
        RolloutOptions(on_rollback=rollback, score_excluded=excluded),
        MixtureOptions(),
    )
    run = RecordedRun(
        Settings(
            mixture=Mixture.of(history.start.datasets),
            compute_budget=settings["compute_budget"],
            train_ticks=settings["train_ticks"],
            evals_per_epoch=history.evals_per_epoch,
            peaks=history.rule,
            mean=settings["mean"],
        ),
        method,
        _LogWorker(history),
        Log(),
        CheckpointStore(
            [MemoryTier("memory", in_memory)] if in_memory else [],
            _CountedDisk(),
            weights,
            moments,
        ),
    )
    return int(disk_of(run.carry_out())["peak_bytes"])


def _again(run: Run, stages: Sequence[Stage]) -> None:
    """The method that asks and decides as the log says."""
    for stage in stages:
        asked, optimizer = stage.asked, cast(OptimizerStart, stage.asked.optimizer)
        mixture = _mixture(stage, run.mixture.sizes)
        run.rollout(asked.start, mixture, stage.ticks, optimizer=optimizer, eligible=asked.eligible)
        for decision in stage.decisions:
            if decision.what == "exclude":
                run.exclude(decision.names, decision.checkpoint, decision.tick or 0)
            elif decision.what == "go_on":
                run.go_on(decision.checkpoint)
            else:
                run.report(decision.checkpoint)
