"""Which sub-datasets are spoiled, how much of them is wrong, and which rows to look at first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["choices", "generated", "nll", "value"]
"""How rows are judged: by choices, by a generated answer that is right or wrong, by the loss of
the given answer, or by a metric of the user's own that gives numbers."""

Verdict = Literal["spoiled", "fine", "cannot_tell"]


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """What the judges of one round said of one sub-dataset.

    numbers: row numbers of the training rows, in the order of `train`.
    train: the worth of each training row under the one judge that has not seen it: 1 or 0 for
    choices and generated answers, the summed loss for nll, the metric's number for value.
    validation: the worth of each validation row, the mean over judges f weighted by n_f / n, n_f
    being the training rows that f judges.
    doubts: of each training row; the larger, the more its judge speaks against the given answer.
    choices: log P(best) - log P(given); generated: log P(own answer) - log P(given); both at most
    0 where the judge agrees. nll: loss per token. value: loss per token of the given answer.
    train_weights, validation_weights: nll: answer tokens of each row; else empty.
    train_choices, validation_choices: choices: how many each row has; else empty.
    chance: generated: how likely a judge's answer equals the given answer of another row.
    """

    kind: Kind
    numbers: Sequence[int]
    train: Sequence[float]
    validation: Sequence[float]
    doubts: Sequence[float]
    train_weights: Sequence[float] = ()
    validation_weights: Sequence[float] = ()
    train_choices: Sequence[int] = ()
    validation_choices: Sequence[int] = ()
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; infinite where the rows say nothing of a side."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What is found of one sub-dataset.

    validation, train: mean scores; nll: nats a token.
    gap: how much worse training rows do than validation rows; above 0 is worse, for nll too.
    wrong_share: None where nothing can be said of it (nll, value, a task that is not known).
    suspects: row numbers, worst first; empty unless spoiled.
    rows: training rows that were judged.
    why: one sentence that a person understands.
    """

    verdict: Verdict
    validation: float
    train: float
    gap: Estimate
    wrong_share: Estimate | None
    suspects: tuple[int, ...]
    rows: int
    why: str


def found_in(
    judged: Mapping[str, JudgedRows], first: Mapping[str, Finding] | None = None
) -> dict[str, Finding]:
    """The finding of each sub-dataset, by the rows that the judges of one round judged.

    first: in a later round, what round 1 found. Verdicts stay; who is spoiled gets new shares and
    ranks, if it was judged again, and everybody else keeps the finding of round 1.
    """
    raise NotImplementedError
