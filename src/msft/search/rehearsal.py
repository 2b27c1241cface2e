"""A rehearsal: a method comes as far as its first question, before which it checks its options."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from msft.search.mixture import Mixture
from msft.search.rollout import BASE, CheckpointId, EndedBy, Run


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
    best: ClassVar[CheckpointId | None] = None

    def rollout(self, *question: Any, **how: Any) -> NoReturn:
        raise _Enough

    score = falls = exclude = go_on = report = rollout


def rehearse(carry_out: Callable[[Run], EndedBy | None], run: Rehearsal) -> None:
    """Let a method check its options; what it finds wrong is its own `OptionError`."""
    with suppress(_Enough):
        carry_out(run)
