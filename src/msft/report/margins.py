"""How far two entrants of a contest are apart, and how sure that is, in numbers and in words.

With two seeds or more it is Student's paired test over the seeds. With one it is the rows that
decide: a paired bootstrap for the interval, a sign test for p.
"""

from dataclasses import dataclass

from msft.report.certainty_tables import SURE, bootstrap
from msft.report.compare.compared_run import rows_apart, same_rows
from msft.report.compare.contest import Contest, minus
from msft.report.compare.entrant import Entrant
from msft.report.compare.statistics import mean, paired_interval, paired_t
from msft.report.wording import Unit, difference, difference_in_words, p_value
from msft.search.scores import Number

CHANCE = "the difference may be chance"


@dataclass(frozen=True, slots=True)
class Margin:
    """A difference of means, in score units.

    interval, p: at 95 %, two-sided; None where neither seeds nor rows say anything.
    """

    difference: Number
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def sure(self) -> bool:
        """Whether both the interval and p tell it from nothing."""
        if self.interval is None or self.p is None:
            return False
        low, high = self.interval
        return self.p <= SURE and (low > 0 or high < 0)


def margin_of(contest: Contest, entrant: Entrant, other: Entrant) -> Margin | None:
    """How far an entrant is above another one on the split that reports, over the seeds that both
    have, or of their means where they share none; None without scores."""
    names, split = contest.names, contest.split
    shared = shared_seeds(contest, entrant, other)
    if len(shared) > 1:
        return _over_seeds([minus(*_scores(contest, entrant, other, seed)) for seed in shared])
    if not shared:
        found = minus(contest.score(entrant, names, split), contest.score(other, names, split))
        return None if found is None else Margin(found)
    found = minus(*_scores(contest, entrant, other, shared[0]))
    if found is None:
        return None
    run, against = entrant.runs[shared[0]], other.runs[shared[0]]
    rows = same_rows(run, against, split, against.verdicts(split))
    pair = rows_apart(run, rows) if rows else None
    if rows is None or pair is None:
        return Margin(found)
    drawn = bootstrap(run, rows, split)
    better = (drawn.low, drawn.high)
    interval = (-better[1], -better[0]) if contest.unit() == "nll" else better
    return Margin(found, interval, float(pair.p))


def shared_seeds(contest: Contest, one: Entrant, two: Entrant) -> list[int]:
    """The seeds of a contest that both have."""
    return [seed for seed in contest.seeds if seed in one.runs and seed in two.runs]


def _scores(
    contest: Contest, one: Entrant, two: Entrant, seed: int
) -> tuple[Number | None, Number | None]:
    ours, theirs = (each.runs[seed].score(contest.names, contest.split) for each in (one, two))
    return ours, theirs


def _over_seeds(gaps: list[Number | None]) -> Margin | None:
    known = [gap for gap in gaps if gap is not None]
    return margin_over(known) if len(known) == len(gaps) else None


def margin_over(gaps: list[Number]) -> Margin:
    """The mean of differences, tested against 0 over those who have them."""
    test = paired_t(gaps, [0] * len(gaps))
    return Margin(mean(gaps), paired_interval(gaps), test[1] if test else None)


def margin_in_words(found: Margin, unit: Unit) -> str:
    """+5.1 points (95 % interval +3.8 to +6.5, p < 0.001)"""
    text = difference_in_words(found.difference, unit)
    if not found.difference:
        return text
    if found.interval is None or found.p is None:
        return f"{text} (not tested: {CHANCE})"
    low, high = found.interval
    between = f"95\u00a0% interval {difference(low, unit)} to {difference(high, unit)}"
    chance = "" if found.sure else f": {CHANCE}"
    return f"{text} ({between}, {p_value(found.p)}{chance})"
