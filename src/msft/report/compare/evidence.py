"""How sure a score or a difference is: intervals of counts, and paired tests over rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, sqrt

from msft.run.history import History
from msft.run.rows import RowTokens, Verdict, VerdictsByKey
from msft.search.rollout import BASE, CheckpointId, checkpoint_id, place_of

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


def wilson(right: int, rows: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a share of right rows; it stays within 0 and 1, unlike p ± z·se."""
    if rows < 1:
        return (0.0, 1.0)
    share, spread = right / rows, z * z / rows
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / rows + spread / (4 * rows))
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == rows else min(1.0, centre + half)
    return (low, high)


def sign_test(wins: int, losses: int) -> Fraction:
    """Two-sided p of a sign test, ties left out: exact, in whole numbers until the last division.

    p = min(1, 2 · P(X <= min(wins, losses))) with X ~ Binomial(wins + losses, 1/2)
    """
    trials = wins + losses
    tail = sum(comb(trials, number) for number in range(min(wins, losses) + 1))
    return min(Fraction(1), Fraction(2 * tail, 2**trials))


@dataclass(frozen=True, slots=True)
class Paired:
    """The same rows, looked at twice: on how many the first was better, and on how many worse."""

    better: int
    worse: int

    @property
    def p(self) -> Fraction:
        return sign_test(self.better, self.worse)

    def __add__(self, other: "Paired") -> "Paired":
        return Paired(self.better + other.better, self.worse + other.worse)


def paired(first: Verdict, second: Verdict, lower_is_better: bool = False) -> Paired | None:
    """Row by row; None where the two are not of the same rows."""
    if len(first) != len(second) or isinstance(first, str) != isinstance(second, str):
        return None
    one, two = [*map(float, first)], [*map(float, second)]
    higher = sum(a > b for a, b in zip(one, two, strict=True))
    lower = sum(a < b for a, b in zip(one, two, strict=True))
    if lower_is_better:
        higher, lower = lower, higher
    return Paired(higher, lower)


def verdict_at(
    history: History, verdicts: VerdictsByKey, checkpoint: CheckpointId, split: str, name: str
) -> Verdict | None:
    """The verdict of a checkpoint; a tick without a step is the same model as the one before."""
    while (verdict := verdicts.get((checkpoint, split, name))) is None:
        if checkpoint == BASE or checkpoint in history.averages:
            break
        rollout, tick = place_of(checkpoint)
        stage = history.stages[rollout]
        if stage.points[tick - 1].steps:
            break
        checkpoint = checkpoint_id(rollout, tick - 1) if tick > 1 else stage.asked.start
    return verdict


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows of a run folder that selected, for the test of falls."""

    history: History
    verdicts: VerdictsByKey
    row_tokens: RowTokens

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None:
        return verdict_at(self.history, self.verdicts, checkpoint, self.history.selection, name)

    def tokens(self, name: str) -> Sequence[int] | None:
        return self.row_tokens.get((self.history.selection, name))
