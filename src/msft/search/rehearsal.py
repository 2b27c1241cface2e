"""A rehearsal: a method comes as far as its first question, before which it checks its options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from msft.search.mixture import Mixture
from msft.search.rollout import BASE, CONTENDERS, CheckpointId, EndedBy, Keep, Run


@dataclass(frozen=True, slots=True)
class FirstRollout:
    """The first roll-out that a method asks for: its ticks, and which of them must be held."""

    ticks: int
    keep: Keep


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

    def rollout(
        self, start: Any, mixture: Any, ticks: int, *, keep: Keep = CONTENDERS, **how: Any
    ) -> NoReturn:
        raise _Enough(FirstRollout(ticks, keep))

    def score(self, *question: Any, **how: Any) -> NoReturn:
        raise _Enough(None)

    average = exclude = go_on = report = score


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
