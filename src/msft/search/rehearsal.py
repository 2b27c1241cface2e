"""A rehearsal: a method comes as far as its first question, before which it checks its options.

That question also says how many checkpoints the run will have to hold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from msft.search.feeds import SHUFFLED, FeedSpec, Mixture
from msft.search.methods import PreparedMethod
from msft.search.rollout import (
    BASE,
    CONTENDERS,
    CheckpointId,
    EndedBy,
    Keep,
    OptimizerStart,
    Run,
    Settings,
)


@dataclass(frozen=True, slots=True)
class FirstRollout:
    """The first roll-out that a method asks for: its ticks, and which of them must be held.

    plain: of the whole mixture, from the base model, in the usual order of rows.
    """

    ticks: int
    keep: Keep
    plain: bool


class _Enough(Exception):
    """The method has asked its first question."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A `Run` without answers."""

    mixture: Mixture
    compute_budget: int
    train_ticks: int
    evals_per_epoch: int
    base: ClassVar[CheckpointId] = BASE
    seed: ClassVar[int] = 0
    best: ClassVar[CheckpointId | None] = None

    def rollout(
        self,
        start: Any,
        mixture: Any,
        ticks: int,
        *,
        feed: FeedSpec = SHUFFLED,
        optimizer: OptimizerStart | None = None,
        keep: Keep = CONTENDERS,
        **how: Any,
    ) -> NoReturn:
        whole = start == BASE and mixture == self.mixture
        plain = whole and feed is SHUFFLED and optimizer != "kept"
        raise _Enough(FirstRollout(ticks, keep, plain))

    def score(self, *question: Any, **how: Any) -> NoReturn:
        raise _Enough(None)

    average = falls = exclude = go_on = report = score


def rehearse(carry_out: Callable[[Run], EndedBy | None], run: Rehearsal) -> FirstRollout | None:
    """Let a method check its options; what it finds wrong is its own `OptionError`.

    None where its first question is no roll-out.
    """
    try:
        carry_out(run)
    except _Enough as asked:
        first: FirstRollout | None = asked.args[0]
        return first
    return None


def most_held(method: PreparedMethod, settings: Settings) -> int:
    """Checkpoints that a run may need at a time, as its method's first roll-out says: those ticks,
    the start, the newest and the best, and the averages that it makes."""
    names = settings.mixture.active
    run = Rehearsal(
        settings.mixture, settings.compute_budget, settings.train_ticks, settings.evals_per_epoch
    )
    try:
        first = rehearse(method.carry_out, run)
    except Exception:  # a method of the user's own; the run will say what is wrong
        first = None
    besides = 2 + max(1, method.averages)  # a method that averages starts from the base model
    match first.keep if first else CONTENDERS:
        case "contenders":
            return len(names) + besides
        case "best":  # with room for the next one, which comes before anything goes
            return besides + 1
        case "span" | "all":
            return (first.ticks if first else 0) + method.averages
        case numbers:
            return len(numbers) + besides
