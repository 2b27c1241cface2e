"""A bootstrap of the selection itself: what choosing on validation rows flatters; no torch.

The validation rows of each sub-dataset are drawn again, the checkpoint is chosen anew among the
run's candidates, and its score on the rows that chose is compared with its score on the rows that
were not drawn. The rows not drawn miss what the drawn ones have, so among equals the difference is
√2 times what the choice flatters. What came before the choice is as in the run: mSFT's exclusions
are not drawn anew.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from study_logs import history_of, verdicts_of

from msft.run.history import History
from msft.search.curves import SELECTION, TEST
from msft.search.draws import number
from msft.search.rollout import BASE, place_of

DRAWS = 1000
Marks = Mapping[str, NDArray[np.float64]]
"""Right or wrong by sub-dataset: (candidates, rows)."""


@dataclass(frozen=True)
class Selection:
    """A choice among candidates, made many times.

    chosen: different checkpoints that were chosen at least once.
    most: how often the one that was chosen most often was.
    optimism: mean over draws of the score on the drawn rows less that on the rows left out.
    test: the chosen one's test score, mean and standard deviation over draws; None where not every
        candidate was scored on test.
    """

    candidates: int
    chosen: int
    most: float
    optimism: float
    test: tuple[float, float] | None


def selection_of(validation: Marks, test: Marks | None = None, draws: int = DRAWS) -> Selection:
    """The bootstrap of choosing the highest mean over sub-datasets, the earliest on ties."""
    inside, outside = 0.0, 0.0
    for name, marks in validation.items():
        drawn = _times_drawn(name, marks.shape[1], draws)
        left = (drawn == 0).astype(float)
        with np.errstate(invalid="ignore"):  # a draw that leaves no row out says nothing
            outside = outside + (left @ marks.T) / left.sum(axis=1, keepdims=True)
        inside = inside + drawn @ marks.T / marks.shape[1]
    inside, outside = np.asarray(inside) / len(validation), np.asarray(outside) / len(validation)
    # Sums of shares that are equal differ in their last bits.
    choice = np.argmax(inside.round(12), axis=1)
    every = np.arange(draws)
    gaps = inside[every, choice] - outside[every, choice]
    times = Counter(choice.tolist())
    tested = None
    if test is not None:
        scores = np.mean([marks.mean(axis=1) for marks in test.values()], axis=0)[choice]
        tested = float(scores.mean()), float(scores.std())
    return Selection(
        inside.shape[1],
        len(times),
        max(times.values()) / draws,
        float(gaps[~np.isnan(gaps)].mean()),
        tested,
    )


@lru_cache(maxsize=64)
def _times_drawn(name: str, rows: int, draws: int) -> NDArray[np.float64]:
    """How often each row comes up, draw by draw: the same for every run with these rows."""
    random = np.random.RandomState(number(0, "selection", name) % 2**32)  # a promised sequence
    return random.multinomial(rows, np.full(rows, 1 / rows), size=draws).astype(float)


def candidates_of(history: History) -> list[str]:
    """What the run chose from, the earliest first; none where the method names its result."""
    if history.reported is not None and not history.averages:
        return []
    found = [
        point.checkpoint
        for stage in history.stages
        if stage.asked.eligible
        for point in stage.points
        if not history.missing(point.checkpoint)
    ]
    base = [] if history.missing(BASE) else [BASE]
    return base + sorted(found, key=place_of)


def selection_in(logs: Path) -> Selection | None:
    """Of a run with accuracies; None where nothing was chosen.

    Of a soup it is the choice of its best tick, which is SFT's.
    """
    history = history_of(logs)
    candidates = candidates_of(history)
    names = list(history.start.datasets)
    verdicts = verdicts_of(logs)
    validation = _marks(verdicts, SELECTION, candidates, names)
    if len(candidates) < 2 or validation is None:
        return None
    return selection_of(validation, _marks(verdicts, TEST, candidates, names))


def _marks(
    verdicts: Mapping[tuple[str, str, str], str],
    split: str,
    candidates: Sequence[str],
    names: Sequence[str],
) -> dict[str, NDArray[np.float64]] | None:
    """None where a candidate has no verdicts of the split."""
    found = {}
    for name in names:
        rows = [verdicts.get((each, split, name), "").encode() for each in candidates]
        if not all(rows):
            return None
        found[name] = np.array([np.frombuffer(row, np.uint8) == ord("1") for row in rows], float)
    return found
