"""A run that is only counted: real methods, feeds and evaluation grid, but nobody trains.

Steps and tokens come out exactly as a run would log them. What a run finds out by itself (who peaks
when, which rows stop bending, whom a bandit favours) is written down beforehand as a `Script`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from msft.errors import UsageError
from msft.run.history import History
from msft.run.log import Log
from msft.run.recorded_run import RecordedRun
from msft.run.worker import EngineWorker, Question, Scored
from msft.search.feeds import Batch, Losses
from msft.search.methods import PreparedMethod
from msft.search.mixture import Mixture
from msft.search.rollout import Settings
from msft.search.scores import value
from msft.store.store import CheckpointStore
from msft.store.tiers import MemoryTier

MOST_ROLLOUTS = 1000
RESTLESS = 1e12
"""A row's loss grows by this, so that it bends whatever the threshold is."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a run is taken to find out.

    falling: of a roll-out's mixture, the sub-datasets whose score falls from the start on; the
        scores of the others rise to the end.
    restless: whether the rows' losses go on bending, so that IES never lets them rest.
    favoured: the only sub-dataset whose loss a look-ahead lowers.
    """

    falling: Callable[[Mixture], Collection[str]]
    restless: bool = False
    favoured: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What rows cost: tokens of each training row, and of an evaluation by name and split."""

    train: Mapping[str, Sequence[int]]
    evaluation: Mapping[tuple[str, str], int]


class CountingEngine:
    """A `Trainer` that counts. Its weights are the scores, which a script moves."""

    def __init__(self, rows: Rows, script: Script, num_parameters: int, slope: float) -> None:
        self.num_parameters = self.num_trainable = num_parameters
        self.largest = 0
        """Tokens of the largest training batch so far."""
        self.evaluations = 0
        self._rows = rows
        self._script = script
        self._slope = slope
        self._falling: Collection[str] = ()
        self._seen: Counter[tuple[str, int]] = Counter()
        self.load(None)

    def follow(self, mixture: Mixture) -> None:
        """A roll-out on this mixture begins."""
        self._falling = self._script.falling(mixture)

    def load(self, weights: Any | None) -> None:
        self._heights: dict[str, float] = dict(weights or dict.fromkeys(self._rows.train, 0.0))

    def load_optimizer(self, moments: Any | None) -> None:
        pass  # nothing here has moments

    def weights(self) -> Any:
        return dict(self._heights)

    def optimizer(self) -> Any:
        return {}

    def average(self, weights: Sequence[Any]) -> Any:
        return {name: fsum(w[name] for w in weights) / len(weights) for name in self._heights}

    def seed(self, number: int) -> None:
        pass  # nothing here is random

    def work(self, batch: Batch) -> tuple[Losses, int]:
        tokens = sum(self._rows.train[name][number] for name, number in batch.rows)
        if batch.use == "look_ahead":
            after = [0.0 if name == self._script.favoured else 1.0 for name, _ in batch.rows]
            return Losses([1.0] * len(batch.rows), after), tokens
        if batch.use == "train":
            self.largest = max(self.largest, tokens)
            for name in self._heights:
                self._heights[name] += -self._slope if name in self._falling else self._slope
        if not self._script.restless:
            return Losses([1.0] * len(batch.rows)), tokens
        self._seen.update(batch.rows)
        return Losses([RESTLESS * self._seen[row] ** 2 for row in batch.rows]), tokens

    def score(self, names: Sequence[str], split: str) -> Scored:
        self.evaluations += 1
        tokens = sum(self._rows.evaluation[name, split] for name in names)
        return Scored({name: value(self._heights[name]) for name in names}, tokens)


class _CountingWorker(EngineWorker):
    """Tells the engine which mixture a roll-out has."""

    def __init__(self, engine: CountingEngine, settings: Settings, batch_size: int) -> None:
        super().__init__(
            engine,
            engine.score,
            seed=settings.seed,
            batch_size=batch_size,
            evals_per_epoch=settings.evals_per_epoch,
        )
        self._counting = engine

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        if question.rollout >= MOST_ROLLOUTS:
            raise UsageError(
                f"the method asks for more than {MOST_ROLLOUTS:,} roll-outs while scores rise, so "
                "its cost has no bound; give it a limit of its own, as msft has max_stages"
            )
        super().open(question, tick, weights, training)
        self._counting.follow(question.mixture)

    def training(self) -> Any:
        return {"optimizer": None}  # nobody goes back inside a roll-out


@dataclass(frozen=True, slots=True)
class Counted:
    """A counted run: its history, tokens of its largest batch, and evaluations."""

    history: History
    largest_batch: int
    evaluations: int


def counted(
    settings: Settings,
    method: PreparedMethod,
    batch_size: int,
    rows: Rows,
    script: Script,
    num_parameters: int = 1,
) -> Counted:
    """A whole run in which the script decides."""
    engine = CountingEngine(rows, script, num_parameters, 1 + settings.peaks.min_delta)
    worker = _CountingWorker(engine, settings, batch_size)
    store = CheckpointStore([MemoryTier("memory", capacity=10**9)])
    history = RecordedRun(settings, method, worker, Log(), store).carry_out()
    return Counted(history, engine.largest, engine.evaluations)
