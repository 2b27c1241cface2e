"""One kind of score for each sub-dataset of a run: counts of right rows, or sums of numbers.

A metric of the user's own may return true or false for some rows and numbers for others. The first
score, that of the base model, settles the kind: the mean over sub-datasets depends on the kinds,
and all checkpoints must be compared by the same mean.
"""

from collections.abc import Mapping
from dataclasses import replace

from msft.errors import BadScore
from msft.run.verdicts import Verdict
from msft.run.worker import Scored
from msft.search.scores import Score, accuracy, value


def alike(scored: Scored, patterns: Mapping[str, Score]) -> Scored:
    """The scores and verdicts in the kinds of the patterns; BadScore where one cannot be."""
    scores, verdicts = {**scored.scores}, {**scored.verdicts}
    for name, score in scored.scores.items():
        pattern = patterns.get(name, score)
        kinds = (pattern.metric, score.metric)
        if kinds == ("accuracy", "value"):
            verdicts[name] = _marks(name, verdicts.get(name, ()))
            scores[name] = accuracy(int(score.total), score.count)
        if kinds == ("value", "accuracy") and name in verdicts:
            verdicts[name] = [float(row) for row in verdicts[name]]
        if pattern.metric == "value":
            plain = pattern.count == 1  # older logs have means alone
            scores[name] = _mean(score) if plain else value(float(score.total), score.count)
    return replace(scored, scores=scores, verdicts=verdicts)


def _marks(name: str, rows: Verdict) -> str:
    """Numbers as right and wrong rows; BadScore unless each is 0 or 1."""
    other = [row for row in rows if row not in (0, 1)]
    if other or not rows:
        raise BadScore(
            f"{name}: its metric gave {other[0] if other else 'a number'} for a row, but for the "
            "base model only true or false, so this run counts right rows; let the metric return "
            "a number for every row (0.0 instead of False, 1.0 instead of True), then start in "
            "another folder"
        )
    return "".join("1" if row else "0" for row in rows)


def _mean(score: Score) -> Score:
    return value(float(score.value))
