"""DynamixSFT (arXiv 2508.12116): mixture probabilities by a bandit with one-step look-ahead.

It steers inside one roll-out, so it is a feed. Every U steps each sub-dataset gets a virtual
step; how much that lowers the loss on its own batch is its reward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum
from typing import Annotated, Any, Literal

from msft.search.draws import picked
from msft.search.feeds import Batch, Cycles, FeedContext, Losses, StepRule
from msft.search.options import Ge, Gt, Interval
from msft.search.rollout import Run


@dataclass(frozen=True, slots=True)
class Dynamix:
    """Settings; `update_every` counts steps from 1 on, and below 1 is a share of all steps."""

    gamma: float  # g: share of uniform exploration
    alpha: float  # a: memory of the rewards
    beta: float  # b: sharpness
    update_every: float
    lookahead_batch_size: int | None  # None: as the training batch
    min_max: bool
    virtual_step: StepRule = "sgd"

    def open(self, place: FeedContext) -> "DynamixFeed":
        return DynamixFeed(self, place)


ORIGINAL = Dynamix(0.3, 0.95, 4.0, 50, None, True)
PAPER = Dynamix(0.3, 0.95, 5000.0, 0.01, 128, False)


def dynamix(
    run: Run,
    *,
    preset: Literal["original", "msft-paper"] = "msft-paper",
    gamma: Annotated[float | None, Interval(ge=0, le=1)] = None,
    alpha: Annotated[float | None, Interval(ge=0, le=1)] = None,
    beta: Annotated[float | None, Ge(0)] = None,
    update_every: Annotated[float | None, Gt(0)] = None,
    lookahead_batch_size: Annotated[int | None, Ge(1)] = None,
    min_max: bool | None = None,
    virtual_step: StepRule | None = None,
) -> None:
    """One roll-out. Options left out are the preset's."""
    changes = {k: v for k, v in locals().items() if v is not None and k not in ("run", "preset")}
    feed = replace(PAPER if preset == "msft-paper" else ORIGINAL, **changes)
    run.rollout(run.base, run.mixture, run.train_ticks, feed=feed, keep="best")


def probabilities(q: Sequence[float], p0: Sequence[float], g: float, b: float) -> list[float]:
    """p_k = (1-g) · exp(b·Q_k)·p0_k / sum_j exp(b·Q_j)·p0_j + g/K"""
    top = max(q)
    odds = [exp(b * (q_k - top)) * p0_k for q_k, p0_k in zip(q, p0, strict=True)]
    total = fsum(odds)
    return [(1 - g) * odd / total + g / len(odds) for odd in odds]


class DynamixFeed:
    """Each slot of a batch draws k ~ p, then the next row of D_k's shuffled cyclic order."""

    def __init__(self, spec: Dynamix, place: FeedContext) -> None:
        self._spec, self._place, self._parts = spec, place, place.mixture.parts
        self._prior = [part.rows / place.mixture.rows for part in self._parts]
        self._cycles = Cycles(place)
        self._q, self._rewards = [0.0] * len(self._parts), list[float]()

    def batches(self, tick: int) -> Iterator[Batch]:
        spec, place = self._spec, self._place
        for step, slots in place.steps_of_tick(tick):
            if place.due(step, spec.update_every):  # before steps 0, U, 2U, …
                size, self._rewards = spec.lookahead_batch_size or place.batch_size, []
                for part in self._parts:
                    rows = place.sample(part, size, "look-ahead", step)
                    yield Batch(rows, "look_ahead", spec.virtual_step)
                self._update()
            p = probabilities(self._q, self._prior, spec.gamma, spec.beta)
            arms = picked(p, slots, place.seed, "arms", place.rollout, step)
            yield Batch(tuple(self._cycles.next(k) for k in arms))

    def observe(self, batch: Batch, losses: Losses) -> None:
        if batch.use == "look_ahead":
            self._rewards.append(losses.relative_drop())

    def _update(self) -> None:
        r, low, high, a = self._rewards, min(self._rewards), max(self._rewards), self._spec.alpha
        if self._spec.min_max:
            r = [(r_i - low) / (high - low) if high > low else 0.0 for r_i in r]
        self._q = [a * q_i + (1 - a) * r_i for q_i, r_i in zip(self._q, r, strict=True)]

    def state(self) -> Any:
        return {"q": self._q, "taken": list(self._cycles.taken)}

    def restore(self, state: Any) -> None:
        self._q, self._cycles.taken = list(state["q"]), list(state["taken"])
