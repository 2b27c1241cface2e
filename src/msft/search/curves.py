"""Scores, their curves over a roll-out, and the one rule that says where a curve peaks.

A decision of a method hangs on comparisons between scores, so counts stay integers and their
means are exact fractions; only what is a float by nature (a loss, a user's own metric) is summed
as floats, with `math.fsum`, so that the order of the sub-datasets cannot matter.

`peak(i) = argmax_c score(i, c)` (Algorithm 1, line 4) leaves open what happens on a tie, whether
the start of the roll-out counts, and what to do about noise. `PeakRule` is the one place that
answers; `msft`, `continual`, `sro` and `soft_sro` all ask it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import fsum
from typing import Any, Final, Literal

from msft.errors import OptionError

SELECTION: Final = "validation"
"""The split that chooses checkpoints, where a recipe or a log names none."""

TEST: Final = "test"

SelectionSplit = Literal["validation", "test"]
"""What may choose checkpoints; on test rows the paper's protocol does, and reports them too."""

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


# Curves and their peaks.

Curve = Sequence[Number]
"""Heights (higher is better) of one sub-dataset; the index is the tick, 0 the roll-out's start."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The peak among the ticks looked at so far."""

    tick: int
    height: Number


@dataclass(frozen=True, slots=True)
class PeakRule:
    """Where a curve peaks.

    smooth: centred mean over 2·smooth+1 ticks first, the window clipped at both ends.
    min_delta: scanning from the left, a later tick takes the peak only if it is higher by more
        than this, in score units. With 0 the earliest of equal ticks is the peak.
    include_start: tick 0 may be the peak. (Its score belongs to the smoothing window either way.)
    by: the curve is of scores, or of the probability that the right choice gets (`probability`).
    """

    smooth: int = 0
    min_delta: float = 0.0
    include_start: bool = True
    by: Literal["score", "probability"] = "score"

    def __post_init__(self) -> None:
        if self.smooth < 0:
            raise OptionError(f"peaks.smooth is {self.smooth}; expected 0 or more ticks", "smooth")
        if not 0 <= self.min_delta < float("inf"):
            raise OptionError(
                f"peaks.min_delta is {self.min_delta}; expected 0 or more", "min_delta"
            )

    def recorded(self) -> dict[str, Any]:
        """The rule as logs and recipes write it: `by` only where it is not `score`, since some logs
        and recipes are older than that option."""
        options = asdict(self)
        return (
            options if self.by == "probability" else {k: options[k] for k in options if k != "by"}
        )

    def height(self, score: Score) -> Number:
        """What the curve of a sub-dataset is made of: higher is better."""
        if self.by == "score":
            return score.height
        if score.probability is None:
            raise ValueError("peaks.by is probability, but a score says nothing of probabilities")
        return score.probability

    def peak(self, curve: Curve) -> int:
        """The tick at which a finished curve peaks."""
        leader = self.lead(None, curve, self._first, len(curve))
        if leader is None:
            raise ValueError("this curve has no tick that may be a peak")
        return leader.tick

    def update_leader(self, leader: Leader | None, curve: Curve) -> Leader | None:
        """Take in the tick whose smoothed height became final with the newest tick of `curve`."""
        settled = len(curve) - 1 - self.smooth
        if settled < self._first:
            return leader
        return self.lead(leader, curve, settled, settled + 1)

    def contenders(self, leader: Leader | None, curve: Curve) -> list[int]:
        """The ticks of an unfinished curve that could still become its peak.

        Those are the leader of the settled ticks and every tick whose smoothed height still
        depends on scores to come. All others can be forgotten, whatever the future brings.
        """
        unsettled = range(max(self._first, len(curve) - self.smooth), len(curve))
        return [*([leader.tick] if leader else []), *unsettled]

    def peak_so_far(self, leader: Leader | None, curve: Curve) -> int | None:
        """The peak if the roll-out ended now, given the leader of the settled ticks."""
        first = max(self._first, len(curve) - self.smooth)
        leader = self.lead(leader, curve, first, len(curve))
        return leader.tick if leader else None

    def lead(self, leader: Leader | None, curve: Curve, first: int, end: int) -> Leader | None:
        """Scan the ticks `first … end-1` from the left: the tie rule of the whole project."""
        for tick in range(first, end):
            height = self.smoothed(curve, tick)
            if leader is None or _exceeds(height, leader.height, self.min_delta):
                leader = Leader(tick, height)
        return leader

    @property
    def _first(self) -> int:
        return 0 if self.include_start else 1

    def smoothed(self, curve: Curve, tick: int) -> Number:
        """The height that the rule compares at a tick."""
        if not self.smooth:
            return curve[tick]
        window = curve[max(0, tick - self.smooth) : tick + self.smooth + 1]
        if all(isinstance(height, Fraction) for height in window):
            return sum(window, Fraction(0)) / len(window)
        return fsum(window) / len(window)


class Waiting:
    """Waits for a better mean: an equal one is not better, and the first is the first reference."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self._waited = 0
        self._best: Number | None = None

    def look(self, height: Number) -> None:
        """Take in the mean of the next evaluation."""
        if self._best is None or height > self._best:
            self._best, self._waited = height, 0
        else:
            self._waited += 1

    @property
    def is_over(self) -> bool:
        return self.patience is not None and self._waited >= self.patience


class Follower:
    """Follows the curves of a roll-out as they grow.

    contenders: the ticks that could still become somebody's peak.
    """

    def __init__(self, rule: PeakRule, active: Sequence[str]) -> None:
        self.contenders: set[int] = set()
        self._rule = rule
        self._curves: dict[str, list[Number]] = {name: [] for name in active}
        self._leaders: dict[str, Leader | None] = dict.fromkeys(active)

    def follow(self, scores: Scores) -> None:
        """Take in the scores of the next tick, 0 first."""
        self.contenders = set()
        for name, curve in self._curves.items():
            curve.append(self._rule.height(scores[name]))
            leader = self._rule.update_leader(self._leaders[name], curve)
            self._leaders[name] = leader
            self.contenders.update(self._rule.contenders(leader, curve))

    def waited(self, names: Sequence[str]) -> int:
        """Ticks since the earliest peak of these sub-datasets."""
        peaks = [self._rule.peak_so_far(self._leaders[n], self._curves[n]) for n in names]
        known = [peak for peak in peaks if peak is not None]
        now = len(self._curves[names[0]]) - 1
        return now - min(known) if known else 0


def _exceeds(height: Number, leader: Number, min_delta: float) -> bool:
    """`height > leader + min_delta`, read as the decimals that people write.

    In binary floats 0.8 > 0.7 + 0.1 is true; nobody who writes `min_delta: 0.1` means that.
    """
    if not min_delta:
        return height > leader
    return _decimal(height) > _decimal(leader) + _decimal(min_delta)


def _decimal(number: Number) -> Fraction:
    return number if isinstance(number, Fraction) else Fraction(repr(float(number)))
