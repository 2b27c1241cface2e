"""The worker: does what the log cannot answer, by bringing feed, engine and scoring together.

A run asks its worker to stand at a tick of a roll-out, to advance by one tick, to score what it
holds, and to hand out its state. It knows nothing of methods, logs or stores.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Protocol

from msft.run.engine import Trainer
from msft.run.log import Tokens
from msft.run.rows import Scored, Scorer
from msft.search.draws import number
from msft.search.feeds import Batch, Feed, FeedContext, FeedSpec, Losses, Mixture
from msft.search.rollout import CheckpointId


@dataclass(frozen=True, slots=True)
class Question:
    """A roll-out as it was asked for, with the objects that the log only describes."""

    rollout: int
    start: CheckpointId
    mixture: Mixture
    ticks: int
    feed: FeedSpec


@dataclass(frozen=True, slots=True)
class Work:
    """What one tick of training took: steps, summed row losses and rows, tokens."""

    steps: int
    loss: tuple[float, int]
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, for progress, trackers and `steps.jsonl`: mean row loss, rows, tokens.

    losses: mean row loss and rows of each sub-dataset in the step, where rows have their own.
    learning_rate, grad_norm: None where the engine does not say; the norm is that before clipping.
    """

    rollout: int
    tick: int
    loss: float
    rows: int
    tokens: int
    losses: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    learning_rate: float | None = None
    grad_norm: float | None = None

    def line(self, seconds: float) -> dict[str, Any]:
        """The line of the step in `steps.jsonl`."""
        line: dict[str, Any] = {"rollout": self.rollout, "tick": self.tick, "loss": self.loss}
        line |= {"rows": self.rows, "tokens": self.tokens, "seconds": round(seconds, 3)}
        if self.learning_rate is not None:
            line |= {"learning_rate": self.learning_rate, "grad_norm": self.grad_norm}
        return {**line, "losses": {name: mean for name, (mean, _) in self.losses.items()}}


class Worker(Protocol):
    """What a run needs to have done for it."""

    num_parameters: int

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        """Stand at a tick of a roll-out.

        weights: None means the base model's.
        training: optimizer and feed as they were at that tick; at tick 0 the optimizer's moments
            to go on with, or None for a fresh optimizer.
        """

    def advance(self, tick: int) -> Work:
        """Train to the end of the next tick."""

    def load(self, weights: Any | None) -> None:
        """Hold these weights, only to be scored."""

    def score(self, names: Sequence[str], split: str) -> Scored:
        """Score what is held. Not one bit of the training state may change."""

    def weights(self) -> Any:
        """The weights, as a copy that later training does not touch."""

    def training(self) -> Any:
        """Optimizer and feed, as a copy that later training does not touch."""

    def average(self, parts: Iterable[Any]) -> Any:
        """The mean of several weights, which are taken one at a time."""


class EngineWorker:
    """Feed → engine → feed, tick by tick; `score` gives the scores of what the engine holds.

    context: what the feed of the present roll-out is a function of.
    """

    def __init__(
        self,
        engine: Trainer,
        score: Scorer,
        *,
        seed: int,
        batch_size: int,
        evals_per_epoch: int,
        on_step: Callable[[Step], None] = lambda step: None,
        plan_steps: Callable[[int], None] = lambda steps: None,
    ) -> None:
        """plan_steps: is told how many steps a roll-out on some of the rows takes, and 0 where one
        on all rows follows it."""
        self._engine = engine
        self._on_step = on_step
        self._seed = seed
        self._batch_size = batch_size
        self._evals_per_epoch = evals_per_epoch
        self._feed: Feed | None = None
        self.context: FeedContext
        self.num_parameters = engine.num_parameters
        self.score = score
        self._plan_steps = plan_steps
        self._planned = 0
        self.weights = engine.weights
        self.load = engine.load
        self.average = engine.average

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        self.context = FeedContext(
            mixture=question.mixture,
            ticks=question.ticks,
            evals_per_epoch=self._evals_per_epoch,
            batch_size=self._batch_size,
            seed=self._seed,
            rollout=question.rollout,
        )
        some = any(part.numbers is not None for part in question.mixture.parts)
        planned, self._planned = self._planned, self.context.steps if some else 0
        if self._planned != planned:
            self._plan_steps(self._planned)
        self._feed = question.feed.open(self.context)
        if tick:
            self._feed.restore(training["feed"])
        self._engine.load(weights)
        self._engine.load_optimizer(training["optimizer"] if training else None)

    def advance(self, tick: int) -> Work:
        assert self._feed is not None, "open() comes first"
        rollout = self.context.rollout
        steps, losses, tokens = 0, list[float](), Tokens()
        for batch, seen, count in self._batches_with_losses(self._feed, tick):
            self._feed.observe(batch, seen)
            tokens += _tokens(batch, count)
            if batch.use == "train":
                steps += 1
                losses += seen.rows
                self._on_step(_step(rollout, tick, batch, seen, count))
        return Work(steps, (fsum(losses), len(losses)), tokens)

    def _batches_with_losses(self, feed: Feed, tick: int) -> Iterator[tuple[Batch, Losses, int]]:
        """Have the engine work through a tick, with dropout of its own; each batch with its losses
        and tokens.

        A blind feed does not look at losses, so a batch of it is given only after the next one was
        begun: a device never waits for somebody to look at a loss.
        """
        self._engine.seed(number(self._seed, "dropout", self.context.rollout, tick))
        most_under_way = 1 if getattr(feed, "blind", False) else 0
        under_way: list[tuple[Batch, Losses, int]] = []
        for batch in feed.batches(tick):
            under_way.append((batch, *self._engine.work(batch)))
            if len(under_way) > most_under_way:
                yield under_way.pop(0)
        yield from under_way

    def training(self) -> Any:
        feed = self._feed.state() if self._feed else None
        return {"optimizer": self._engine.optimizer(), "feed": feed}


def _step(rollout: int, tick: int, batch: Batch, seen: Losses, tokens: int) -> Step:
    parts: dict[str, list[float]] = {}
    for (name, _), loss in zip(batch.rows, seen.rows, strict=True) if seen.apart else ():
        parts.setdefault(name, []).append(loss)
    return Step(
        rollout,
        tick,
        fsum(seen.rows) / len(seen.rows),
        len(batch.rows),
        tokens,
        {name: (fsum(losses) / len(losses), len(losses)) for name, losses in parts.items()},
        seen.update.learning_rate if seen.update else None,
        seen.update.grad_norm() if seen.update else None,
    )


def _tokens(batch: Batch, count: int) -> Tokens:
    """Forward passes that only watch a row's loss count as evaluation."""
    match batch.use:
        case "train":
            return Tokens(train=count)
        case "look_ahead":
            return Tokens(lookahead=count)
        case "track":
            return Tokens(evaluation=count)
