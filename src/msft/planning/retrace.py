"""A finished run walked through again, to see where its checkpoints had to be.

The log says who was asked for what and what was scored; nothing is trained. The store keeps and
drops as it did then, on a disk that is only counted.
"""

from collections.abc import Sequence
from typing import Any

from msft.run.history import History, Stage
from msft.run.log import Log
from msft.run.recorded_run import RecordedRun
from msft.run.summary import disk_of
from msft.run.worker import Question, Scored, Work
from msft.search.methods import PreparedMethod
from msft.search.mixture import Mixture, Part
from msft.search.options import MixtureOptions, RolloutOptions
from msft.search.rollout import BASE, CheckpointId, Run, Settings, Tokens, checkpoint_id
from msft.store.store import CheckpointStore
from msft.store.tiers import MemoryTier


class _CountedDisk(MemoryTier):
    """A disk tier that writes nothing."""

    def __init__(self) -> None:
        super().__init__("disk", capacity=10**9)

    def listed(self) -> list[str]:
        return list(self._held)

    def flush(self) -> None:
        """Nothing to wait for."""


class _Witness:
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
        known = self._history.known(self._at, split)
        return Scored({name: known[name] for name in names}, 0)

    def weights(self) -> Any:
        return self._at

    def training(self) -> Any:
        return {"optimizer": None}


def retraced_disk(history: History, weights: int, moments: int, in_memory: int) -> int:
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
        _Witness(history),
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
    sizes = run.mixture.sizes
    for stage in stages:
        asked = stage.asked
        rows = {**asked.active, **asked.rehearsed}
        parts = tuple(
            Part(name, size, rows[name], rehearsed=name in asked.rehearsed)
            for name, size in sizes.items()
            if name in rows
        )
        optimizer: Any = asked.optimizer
        run.rollout(
            asked.start,
            Mixture(parts),
            stage.ticks,
            optimizer=optimizer,
            eligible=asked.eligible,
        )
        for decision in stage.decisions:
            if decision.what == "exclude":
                run.exclude(decision.names, decision.checkpoint, decision.tick or 0)
            elif decision.what == "go_on":
                run.go_on(decision.checkpoint)
            else:
                run.report(decision.checkpoint)
