"""The curve that decided: what the peak rule of a run looked at, for figures and tables to show."""

from msft.run.history import History
from msft.search.peaks import PeakRule
from msft.search.scores import Number, Score


def is_derived(history: History) -> bool:
    """Whether the rule looks at something else than the score of each tick."""
    rule = history.rule
    return bool(rule.smooth) or rule.by != "score"


def deciding_curve(history: History, number: int, name: str) -> list[Number | None]:
    """What the rule compared at each tick of a roll-out, as people read scores; None where a score
    that it takes is missing."""
    rule = history.rule
    scores = [history.known(place).get(name) for place in history.stages[number].checkpoints]
    heights = [_height(rule, score) for score in scores]
    sign = -1 if rule.by == "score" and history.unit_of(name) == "nll" else 1
    found: list[Number | None] = []
    for tick in range(len(heights)):
        first = max(0, tick - rule.smooth)
        window = heights[first : tick + rule.smooth + 1]
        known = [height for height in window if height is not None]
        whole = len(known) == len(window)
        found.append(sign * rule.smoothed(known, tick - first) if whole else None)
    return found


def deciding_words(history: History) -> str:
    """What the curve is, in words."""
    rule = history.rule
    what = "score" if rule.by == "score" else "probability of the right choice"
    return f"the {what} averaged over {2 * rule.smooth + 1} ticks" if rule.smooth else f"the {what}"


def _height(rule: PeakRule, score: Score | None) -> Number | None:
    if score is None or (rule.by == "probability" and score.probability is None):
        return None
    return rule.height(score)
