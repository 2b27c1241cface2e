"""How sure the scores of a run are: Wilson's intervals of counts, a bootstrap over the rows of
others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msft.report.compare.evidence import verdict_at, wilson
from msft.report.compare.statistics import MIDDLE, draws_of
from msft.report.wording import number
from msft.run.history import History
from msft.run.rows import VerdictsByKey
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import Score

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 1000
_MOST_DRAWS = 10_000_000
"""Rows drawn in all; of very large splits fewer resamples are made."""

Interval = tuple[float, float]


class Intervals:
    """The 95 % interval of any score of a run on the split that selects, each worked out once.

    Rows are drawn anew with replacement, the same draws at every checkpoint, so that a band shows
    what another such split would have moved. The losses of rows do not say how many tokens
    each has; a drawn set counts as long as the whole split.
    """

    def __init__(self, history: History, verdicts: VerdictsByKey) -> None:
        self.history = history
        self._verdicts = verdicts
        self._known: dict[tuple[CheckpointId, str], Interval | None] = {}
        self._shares: dict[int, NDArray[np.float64]] = {}

    def at(self, checkpoint: CheckpointId, name: str) -> Interval | None:
        """Of a sub-dataset at a checkpoint; None without a score, or without its rows."""
        key = (checkpoint, name)
        if key not in self._known:
            score = self.history.known(checkpoint).get(name)
            self._known[key] = None if score is None else self._of(score, checkpoint, name)
        return self._known[key]

    def text(self, checkpoint: CheckpointId, name: str) -> str:
        """The interval in the unit of its score, or nothing."""
        score, found = self.history.known(checkpoint).get(name), self.at(checkpoint, name)
        if score is None or found is None:
            return ""
        return " to ".join(number(bound, score.metric) for bound in found)

    def kinds(self) -> set[str]:
        """What the intervals of this run are made from: of `counts`, of `rows`."""
        best = self.history.best or BASE
        return {
            "counts" if score.metric == "accuracy" else "rows"
            for name, score in self.history.known(best).items()
            if self.at(best, name) is not None
        }

    def _of(self, score: Score, checkpoint: CheckpointId, name: str) -> Interval | None:
        if score.metric == "accuracy":
            return wilson(int(score.total), score.count)
        selection = self.history.selection
        rows = verdict_at(self.history, self._verdicts, checkpoint, selection, name)
        if rows is None or isinstance(rows, str) or len(rows) < 2:
            return None
        scale = len(rows) / score.count if score.metric == "nll" else 1.0
        try:
            low, high = self._bootstrap(rows)
        except (ValueError, TypeError):  # somebody else's file
            return None
        return (low * scale, high * scale)

    def _bootstrap(self, rows: Sequence[float]) -> Interval:
        """The middle 95 % of the means of drawn rows."""
        import numpy as np

        count = len(rows)
        if count not in self._shares:
            times = max(100, min(RESAMPLES, _MOST_DRAWS // count))
            drawn = draws_of(count, count, times, 0, "report", "bootstrap", count)
            shares = [np.bincount(places, minlength=count) / count for places in drawn]
            self._shares[count] = np.array(shares)
        low, high = np.quantile(self._shares[count] @ np.asarray(rows, dtype=float), MIDDLE)
        return (float(low), float(high))
