"""Which sub-datasets are spoiled, how much of them is wrong, and which rows to look at first.

Training rows and validation rows of a clean sub-dataset are drawn alike, so a model that has seen
neither scores them alike. The judges of an audit are such models: each is trained on one half of
the training rows of all sub-datasets, and judges the rows of the other half and all validation
rows. What training rows score less is the gap, and the gap says how much of them is wrong.

    worth:   x of a row, higher is better: 1 or 0 for a right or wrong answer, the metric's number,
             minus the loss a token for nll. A validation row has the mean over judges f, weighted
             by n_f / n, so that the judges' levels cancel.
    weights: w of a row: its tokens for nll. For choices, a validation row with k choices counts
             n_k / m_k, the training rows over the validation rows that have k: rows with few
             choices are easier, and splits may differ. Else 1.
    scores:  V and T, the weighted means of validation and training rows;
             var V = sum of (w (x - V) / W)² · m / (m - 1), with m = W² / sum of w² rows.
    gap:     V - T

    scale:   D, what a row loses if its answer is wrong: the mean over validation rows of
             d = x - chance, where chance is how likely the judge gives a wrong answer that happens
             to be the given one. (1 - x) / (k - 1) for k choices; for generated answers how often
             its answer is that of another row, by `chances_of`.
    share:   gap / D. If a share r of the answers is wrong, T = (1 - r) V + r (V - D).
    interval: Fieller's, all r with |gap - r D| <= z · se(r), and
             se(r)² = var V - 2 r cov(V, D) + r² var D + var T

Where a row is right or wrong, one right and one wrong row are added to either set for intervals
and tests, as Agresti and Caffo do: else a set of which all rows are right has no noise.

    test:    p = P(T > (gap - r D) / se(r)) of Student, with Welch's degrees of freedom, at the
             share r = SLIGHT: training rows of clean data may be a little harder. p is 1 where D
             is not surely above KNOWN, since nobody can say of a task that the judges do not know.
             Holm's rule over all sub-datasets.
    spoiled: p <= 0.05 over all together, and a share of at least SPOILED.
    fine:    else, and the upper limit of the share is below LARGE.
    cannot tell: else, or with fewer than FEWEST rows on a side, or all of a side worth the same
             to a metric, or with one given answer in all training rows, which needs no question.

nll has no share: nobody knows what a wrong row loses. Its D is 1 nat a token, so that the same
rules read: a gap of at least 0.1 nats is spoiled, one surely below 0.25 is fine. A metric of the
user's own has no known scale either. Its D is V minus what the worst 5 % of validation rows are
worth at most; if wrong answers are worth more than that, the share is larger, so gap / D is a
lower limit of it. That is enough to call a sub-dataset spoiled, and too little to show.

Suspects of a spoiled sub-dataset are the round(share · n) rows with the largest doubts. There are
always that many in which the judge prefers another answer, but for noise: share <= 1 - T wherever
share <= (k - 1) / k. For nll they are as many as there are training rows above the 95 % quantile
of validation rows, beyond 5 % of them, which would be there anyway.

In later rounds the judges have not learned the suspects, so they know more, and share and ranks
are made anew. The verdict is not: a second try would double the chances of luck.

docs/results/audit-simulation.md has level, power and coverage. Mistakes that follow from the input
are learned by every judge and cannot be seen; wrong validation rows hide as much of the gap.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, sqrt
from typing import Literal

from msft.search.falls import joint_p
from msft.search.student import t_survival

LEVEL = 0.05
"""How often a mixture without a spoiled sub-dataset may have one that is called so."""

Z95 = 1.959963984540054
"""Standard errors on either side of a 95 % interval."""

POWER = 0.8416212335729143
"""Standard errors that make a test succeed in four of five cases."""

SLIGHT = 0.03
"""A share, surely exceeded by whoever is spoiled: clean training rows may be a little harder."""

SPOILED = 0.1
LARGE = 0.25
"""Shares: what is worth an alarm, and what must be ruled out to call a sub-dataset fine."""

KNOWN = 0.1
"""The scale that the judges must surely have, where rows are right or wrong."""

FEWEST = 30
"""Fewer rows on a side have no interval that could be trusted."""

TAIL = 0.05
"""The worst validation rows: what they are worth is normal for nll, and the bottom of a metric."""

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
    choices: log P(best) - log P(given); generated: log P(own answer) - log P(given). nll and
    value: the loss per token of the given answer.
    train_weights, validation_weights: nll: answer tokens of each row; else empty.
    train_choices, validation_choices: choices: how many each row has; else empty.
    validation_chances: generated: what `chances_of` says of each validation row, the mean over
    judges as in `validation`; else empty.
    one_answer: all training rows have the same given answer.
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
    validation_chances: Sequence[float] = ()
    one_answer: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; not cut off at 0 or 1."""

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


@dataclass(frozen=True, slots=True)
class _Side:
    """The rows of one split: what each is worth, what it counts, and what it shows of the scale."""

    worths: Sequence[float]
    weights: Sequence[float]
    scales: Sequence[float]

    @property
    def rows(self) -> float:
        """How many rows of equal weight tell as much."""
        squares = fsum(w * w for w in self.weights)
        return fsum(self.weights) ** 2 / squares if squares else 0.0

    @property
    def constant(self) -> bool:
        counting = [x for x, w in zip(self.worths, self.weights, strict=True) if w]
        return not counting or max(counting) == min(counting)


@dataclass(frozen=True, slots=True)
class _Moments:
    """Means of a side, and the variances and the covariance of these means."""

    worth: float
    scale: float
    var: float
    var_scale: float
    cov: float
    rows: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """A sub-dataset before its verdict.

    share: gap / scale; None without rows or where the scale is not surely large enough.
    """

    judged: JudgedRows
    validation: _Moments
    train: _Moments
    gap: Estimate
    scale: Estimate
    share: Estimate | None
    p: float
    told: str
    """Why nothing can be told, whatever the test says; else empty."""


def found_in(
    judged: Mapping[str, JudgedRows], first: Mapping[str, Finding] | None = None
) -> dict[str, Finding]:
    """The finding of each sub-dataset, by the rows that the judges of one round judged.

    first: in a later round, what round 1 found. Verdicts stay; who is spoiled gets new shares and
    ranks, if it was judged again and its task is still known, and everybody else keeps the finding
    of round 1.
    """
    measured = {name: _measured(rows) for name, rows in judged.items()}
    if first is None:
        together = joint_p({name: each.p for name, each in measured.items()})
        return {name: _finding(each, together[name]) for name, each in measured.items()}
    found = dict(first)
    for name, each in measured.items():
        if first[name].verdict == "spoiled" and each.share is not None:
            found[name] = _spoiled(each)
    return found


def chances_of(answers: Sequence[str], given: Sequence[str]) -> list[float]:
    """Of each validation row, how likely a judge's answer to it would be a wrong given answer.

    answers, given: the judge's answers and the given ones, made comparable (case, blanks). A wrong
    given answer is taken as drawn from those of the other rows that differ from the row's own.
    """
    counts = Counter(given)
    found = list[float]()
    for answer, right in zip(answers, given, strict=True):
        others = len(given) - counts[right]
        found.append(counts[answer] / others if others and answer != right else 0.0)
    return found
