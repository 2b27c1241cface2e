"""A run that is only counted: real methods, feeds and evaluation grid, but nobody trains.

Steps and tokens come out exactly as a run would log them. What a run finds out by itself (who peaks
when, which rows stop bending, whom a bandit favours) is written down beforehand as a `Script`.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from typing import Any

from msft.errors import UsageError, WrongMethod
from msft.run.history import History
from msft.run.log import Asked, Event, Log
from msft.run.recorded_run import RecordedRun
from msft.run.worker import EngineWorker, Scored
from msft.search.feeds import Batch, Losses
from msft.search.methods import PreparedMethod
from msft.search.mixture import Mixture
from msft.search.rollout import Settings, Tokens
from msft.search.scores import SELECTION, TEST, value
from msft.store.store import CheckpointStore
from msft.store.tiers import MemoryTier

TrainRows = Mapping[str, Sequence[int]]
"""Tokens of each training row of a sub-dataset."""
EvaluationTokens = Mapping[tuple[str, str], int]
"""Tokens of one evaluation, by sub-dataset and split."""
MOST_ROLLOUTS = 1000
RESTLESS = 1e12
"""A row's loss grows by this, so that it bends whatever the threshold is."""
REHEARSED_SECONDS = 2.0
FEW_ROWS = 4
"""Rows of each sub-dataset, all alike: a fall is sure where there is one."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a run is taken to find out.

    falling: of a roll-out's active sub-datasets, those whose score falls from the start on; the
        scores of the others rise to the end.
    restless: whether the rows' losses go on bending, so that IES never lets them rest.
    favoured: the only sub-dataset whose loss a look-ahead lowers.
    """

    falling: Callable[[Mixture], Collection[str]]
    restless: bool = False
    favoured: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One roll-out: active sub-datasets, epochs, steps, training tokens."""

    active: int
    epochs: float
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Case:
    """One way that a whole run can go.

    largest_batch: tokens of its largest training batch.
    """

    stages: tuple[Stage, ...]
    evaluations: int
    tokens: Tokens
    largest_batch: int

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def epochs(self) -> float:
        return sum(stage.epochs for stage in self.stages)


def counted_run(
    settings: Settings,
    method: PreparedMethod,
    batch_size: int,
    train: TrainRows,
    evaluation: EvaluationTokens,
    script: Script,
    most_rollouts: int = MOST_ROLLOUTS,
    until: float = inf,
) -> Case:
    """A whole run in which the script decides; UsageError after so many roll-outs.

    until: when to give up, by the monotonic clock, with a TimeoutError.
    """
    settings = replace(settings, peaks=replace(settings.peaks, by="score"))  # a script's are both
    if method.peaks is not None:
        method = replace(method, peaks=replace(method.peaks, by="score"))
    engine = CountingEngine(train, evaluation, script, 1 + settings.peaks.min_delta, until)

    def watch(event: Event, live: bool) -> None:
        if not isinstance(event, Asked):
            return
        if event.rollout >= most_rollouts:
            raise UsageError(
                f"the method asks for more than {most_rollouts:,} roll-outs while scores rise, so "
                "its cost has no bound; give it a limit of its own, as msft has max_stages"
            )
        parts = (part for part in settings.mixture.parts if part.name in event.active)
        engine.follow(Mixture(tuple(parts)))

    worker = EngineWorker(
        engine,
        engine.score,
        seed=settings.seed,
        batch_size=batch_size,
        evals_per_epoch=settings.evals_per_epoch,
    )
    store = CheckpointStore([MemoryTier("memory", capacity=10**9)])
    history = RecordedRun(settings, method, worker, Log(), store, watch=watch).carry_out()
    return Case(_stages(history), engine.evaluations, history.tokens, engine.largest_batch)


def refuse_wrong_method(settings: Settings, method: PreparedMethod, batch_size: int) -> None:
    """WrongMethod where a method of the user's own ends as none may, or excludes whom there is
    not, before anything is trained. It is asked twice: while all scores rise, and while all fall.

    The scores are not real, so whatever else goes wrong here says nothing.
    """
    rows = {name: [1] * size for name, size in settings.mixture.sizes.items()}
    free = {(name, split): 0 for name in rows for split in (SELECTION, TEST)}
    for script in (Script(lambda mixture: ()), Script(lambda mixture: mixture.active)):
        until = time.monotonic() + REHEARSED_SECONDS
        try:
            counted_run(settings, method, batch_size, rows, free, script, until=until)
        except WrongMethod:
            raise
        except Exception:  # noqa: S112
            continue


def _stages(history: History) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            len(stage.asked.active),
            stage.ticks / history.evals_per_epoch,
            sum(point.steps for point in stage.points),
            sum(point.tokens.train for point in stage.points),
        )
        for stage in history.stages
    )


class CountingEngine:
    """A `Trainer` that counts. Its weights are the scores, which a script moves."""

    num_parameters = 1
    num_trainable = 1

    def __init__(
        self,
        train: TrainRows,
        evaluation: EvaluationTokens,
        script: Script,
        slope: float,
        until: float = inf,
    ) -> None:
        self.largest_batch = 0
        self._until = until
        self.evaluations = 0
        self._train = train
        self._evaluation = evaluation
        self._script = script
        self._slope = slope
        self._falling: frozenset[str] = frozenset()
        self._seen: Counter[tuple[str, int]] = Counter()
        self.load(None)

    def follow(self, mixture: Mixture) -> None:
        """A roll-out begins; the mixture has its active sub-datasets."""
        self._settle()
        self._falling = frozenset(self._script.falling(mixture))

    def load(self, weights: Any | None) -> None:
        self._heights: dict[str, float] = dict(weights or dict.fromkeys(self._train, 0.0))
        self._rise = 0.0

    def load_optimizer(self, moments: Any | None) -> None:
        pass  # nothing here has moments

    def _settle(self) -> None:
        """Move the scores by the steps taken since; not at each of them, for there are many."""
        for name in self._heights if self._rise else ():
            self._heights[name] += -self._rise if name in self._falling else self._rise
        self._rise = 0.0

    def weights(self) -> Any:
        self._settle()
        return dict(self._heights)

    def optimizer(self) -> Any:
        return {}

    def average(self, weights: Iterable[Any]) -> Any:
        held = list(weights)
        return {name: fsum(each[name] for each in held) / len(held) for name in self._heights}

    def seed(self, number: int) -> None:
        pass  # nothing here is random

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if time.monotonic() > self._until:
            raise TimeoutError
        tokens = sum(self._train[name][number] for name, number in batch.rows)
        if batch.use == "look_ahead":
            after = [0.0 if name == self._script.favoured else 1.0 for name, _ in batch.rows]
            return Losses([1.0] * len(batch.rows), after), tokens
        if batch.use == "train":
            self.largest_batch = max(self.largest_batch, tokens)
            self._rise += self._slope
        if not self._script.restless:
            return Losses([1.0] * len(batch.rows)), tokens
        self._seen.update(batch.rows)
        return Losses([RESTLESS * self._seen[row] ** 2 for row in batch.rows]), tokens

    def score(self, names: Sequence[str], split: str) -> Scored:
        self.evaluations += 1
        self._settle()
        tokens = sum(self._evaluation[name, split] for name in names)
        verdicts = {name: [self._heights[name]] * FEW_ROWS for name in names}
        return Scored({name: value(self._heights[name]) for name in names}, tokens, verdicts)
