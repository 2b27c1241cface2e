"""Scores: what was counted, kept exact until somebody wants to read a ratio.

A decision of a method hangs on comparisons between scores, so counts stay integers and their
means are exact fractions; only what is a float by nature (a loss, a user's own metric) is summed
as floats, with `math.fsum`, so that the order of the sub-datasets cannot matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import fsum
from typing import Final, Literal

Metric = Literal["accuracy", "nll", "value"]
MeanRule = Literal["macro", "pooled"]
Number = Fraction | float


@dataclass(frozen=True, slots=True)
class Score:
    """`total` over `count`: right rows over rows, summed nll over tokens, or the summed numbers of
    a metric of the user's own over rows (over 1 where their mean is all that is known).

    probability: of rows with choices, what the right one gets on average, where peaks ask for it.
    """

    metric: Metric
    total: int | float
    count: int
    probability: float | None = None

    @property
    def value(self) -> Number:
        """The score as people read it: a share of right rows, a mean nll, a value."""
        if self.metric == "accuracy":
            return Fraction(int(self.total), self.count)
        return self.total / self.count

    @property
    def height(self) -> Number:
        """The score as methods compare it: higher is better."""
        return -self.value if self.metric == "nll" else self.value

    def to_json(self) -> object:
        """Counts as `[right, rows]` or `[right, rows, probability]`, nll as `{"nll": sum,
        "tokens": n}`, numbers as `{"value": sum, "rows": n}` or as their mean."""
        if self.metric == "accuracy":
            soft = [] if self.probability is None else [self.probability]
            return [self.total, self.count, *soft]
        if self.metric == "nll":
            return {"nll": self.total, "tokens": self.count}
        return self.total if self.count == 1 else {"value": self.total, "rows": self.count}

    @staticmethod
    def from_json(raw: object) -> "Score":
        match raw:
            case [int(right), int(rows)]:
                return accuracy(right, rows)
            case [int(right), int(rows), float(probability)]:
                return Score("accuracy", right, rows, probability)
            case {"nll": int() | float() as total, "tokens": int(tokens)}:
                return Score("nll", float(total), tokens)
            case {"value": int() | float() as total, "rows": int(rows)}:
                return value(float(total), rows)
            case bool() | int() | float():
                return value(float(raw))
        raise ValueError(f"not a score: {raw!r}")


Scores = Mapping[str, Score]


def accuracy(right: int, rows: int) -> Score:
    return Score("accuracy", right, rows)


def nll(total: float, tokens: int) -> Score:
    return Score("nll", total, tokens)


def value(total: float, rows: int = 1) -> Score:
    return Score("value", total, rows)


def mean(scores: Scores, rule: MeanRule = "macro") -> Number:
    """Mean of the values of sub-datasets that share one metric; `mean_gain` is for the rest."""
    metrics = {score.metric for score in scores.values()}
    if len(metrics) != 1:
        raise ValueError(f"a mean needs one metric, found {sorted(metrics)}")
    if rule == "pooled":
        rows = sum(score.count for score in scores.values())
        if metrics == {"accuracy"}:
            return Fraction(sum(int(score.total) for score in scores.values()), rows)
        return fsum(score.total for score in scores.values()) / rows
    if metrics == {"accuracy"}:
        right_by_rows: dict[int, int] = {}  # one fraction per size, not one per sub-dataset
        for score in scores.values():
            right_by_rows[score.count] = right_by_rows.get(score.count, 0) + int(score.total)
        shares = (Fraction(right, rows) for rows, right in right_by_rows.items())
        return sum(shares, Fraction(0)) / len(scores)
    return fsum(float(score.value) for score in scores.values()) / len(scores)


def mean_gain(scores: Scores, base: Scores) -> float:
    """Mean gain over the base model, where metrics are mixed.

    Accuracy and own metrics count in points, nll in relative decrease, so that a loss of 2.0
    and an accuracy of 0.5 can stand in one sum.
    """
    return fsum(_gain(score, base[name]) for name, score in scores.items()) / len(scores)


def _gain(score: Score, base: Score) -> float:
    if score.metric == "nll":
        reference = float(base.value)
        return (reference - float(score.value)) / reference if reference else 0.0
    return float(score.value - base.value)


def overall(scores: Scores, base: Scores, rule: MeanRule = "macro") -> Number:
    """The one number that selects a checkpoint, as people read it."""
    if len({score.metric for score in scores.values()}) > 1:
        return mean_gain(scores, base)
    return mean(scores, rule)


def overall_height(scores: Scores, base: Scores, rule: MeanRule = "macro") -> Number:
    """`overall`, turned so that higher is better."""
    number = overall(scores, base, rule)
    return -number if all(score.metric == "nll" for score in scores.values()) else number


SELECTION: Final = "validation"
"""The split that chooses checkpoints, where a recipe or a log names none."""

TEST: Final = "test"

SelectionSplit = Literal["validation", "test"]
"""What may choose checkpoints; on test rows the paper's protocol does, and reports them too."""
