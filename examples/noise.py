"""Noise: how often a fall is called sure that is none, how often a real one is found, and how
often the interval of the headroom covers its truth.

    python examples/noise.py [ROLLOUTS]

Every sub-dataset has rows with a skill each; a row is right at a tick if its skill, some luck and
the model's level are above 0 together. Luck is new at every tick ("flips"), or it adds up ("walks":
rows are learned and lost for good). On top of that every checkpoint as a whole is off by a normal
number with a standard deviation of `JITTER`, on all rows alike.
"""

import sys
from math import sqrt
from typing import Any

import numpy as np
from scipy.stats import norm

from msft.report.compare.statistics import Z95
from msft.report.headroom import Heights, crossfitted
from msft.search.falls import RowScores, falls

JITTER = 0.01
TICKS = 12
DATASETS = 10
LUCK = {"flips": 0.3, "walks": 0.12}
ERRORS = {"flips": 0.185, "walks": 0.225}
"""Standard error of a fall over one row: that of n rows is this by sqrt(n)."""


def verdicts(rng: Any, level: Any, rows: int, kind: str, jitter: float = JITTER) -> tuple[Any, Any]:
    """Right and wrong, (ticks, rows), and the accuracy on all rows that there could be."""
    level = np.asarray(level, dtype=float)
    accuracy = np.clip(level + jitter * rng.normal(size=level.shape), 0.01, 0.99)
    luck = LUCK[kind] * rng.normal(size=(len(level), rows))
    spread = LUCK[kind] ** 2 * np.ones(len(level))
    if kind == "walks":
        luck, spread = luck.cumsum(axis=0), spread.cumsum()
    bar = norm.ppf(accuracy) * np.sqrt(1 + spread)
    return (rng.normal(size=rows) + luck + bar[:, None] > 0).astype(float), accuracy


def learning(rng: Any, fall: float = 0.0, peak: int = 5) -> Any:
    """A curve that rises, then stays, or falls steadily from its peak to its end, so that the mean
    of the highest three ticks in a row is so much above that of the last three."""
    ticks = np.arange(TICKS + 1)
    rise = 0.6 - 0.25 * np.exp(-ticks / rng.uniform(0.5, 1.5))
    slope, curve = fall, rise
    for _ in range(8 if fall else 0):
        curve = rise - slope * np.clip((ticks - peak) / (TICKS - peak), 0, None)
        slope *= fall / max(
            1e-3, np.convolve(curve, np.ones(3) / 3, "valid").max() - curve[-3:].mean()
        )
    return curve


def wrongly(rows: int, kind: str, flat: bool, times: int, jitter: float = JITTER) -> float:
    """Share of roll-outs without a fall in which somebody falls for sure, at 0.95."""
    found = 0
    for seed in range(times):
        rng = np.random.default_rng([rows, seed])
        curves = [np.full(TICKS + 1, 0.6) if flat else learning(rng) for _ in range(DATASETS)]
        found += any(fall.sure for fall in _tested(rng, curves, rows, kind, jitter, seed).values())
    return found / times


def rightly(rows: int, kind: str, errors: float, times: int) -> float:
    """Share of falls of so many standard errors, of rows and jitter together, that are found."""
    error = sqrt(ERRORS[kind] ** 2 / rows + JITTER**2 * 2 / 3)
    found = 0
    for seed in range(times):
        rng = np.random.default_rng([1, rows, seed])
        curves = [learning(rng) for _ in range(DATASETS - 1)]
        falling = learning(rng, errors * error)
        found += _tested(rng, [falling, *curves], rows, kind, JITTER, seed)["0"].leaves
    return found / times


def _tested(rng: Any, curves: Any, rows: int, kind: str, jitter: float, seed: int) -> Any:
    scores = {}
    for number, curve in enumerate(curves):
        right = verdicts(rng, curve, rows, kind, jitter)[0].tolist()
        scores[str(number)] = RowScores(right, right[0], [1.0] * rows)
    return falls(scores, seed, 0.95)


def covered(kind: str, fall: float, times: int, fewest: int = 200, most: int = 500) -> Any:
    """How often the interval of the mean covers its truth; and the means of truth, naive and
    cross-fitted headroom, in points."""
    inside, figures = 0, []
    for seed in range(times):
        rng = np.random.default_rng([2, most, seed])
        heights, truths = {}, []
        for number in range(DATASETS):
            size, peak = int(rng.integers(fewest, most + 1)), int(rng.integers(2, TICKS - 3))
            level = learning(rng, fall * rng.uniform(), peak)
            right, true = verdicts(rng, level, size, kind)
            heights[str(number)] = Heights(right, np.ones(size), 1 / DATASETS)
            truths.append(true)
        curves, true = np.array([h.rows.mean(axis=1) for h in heights.values()]), np.array(truths)
        common, own, everyone = curves.mean(axis=0).argmax(), curves.argmax(axis=1), range(DATASETS)
        truth = (true[everyone, own] - true[:, common]).mean()
        naive = (curves[everyone, own] - curves[:, common]).mean()
        gain, error = crossfitted(heights, 20)[None]
        inside += abs(gain - truth) <= Z95 * error
        figures.append((truth, naive, gain))
    return inside / times, *(100 * np.mean(figures, axis=0))


def main(times: int = 200) -> None:
    print(f"a point of jitter, {DATASETS} sub-datasets, {TICKS} ticks, confidence 0.95")
    print("no fall: roll-outs with a sure one   flips  learning     walks  learning")
    for rows in (200, 500, 2000):
        few = times if rows < 2000 else times // 2
        shares = [wrongly(rows, kind, flat, few) for kind in LUCK for flat in (True, False)]
        print(f"  {rows:5} rows                     " + "".join(f"{x:10.1%}" for x in shares))
    print("falls that are found                 4 errors         6  4 errors         6")
    for rows in (200, 500, 2000):
        few = times if rows < 2000 else times // 2
        shares = [rightly(rows, kind, errors, few) for kind in LUCK for errors in (4, 6)]
        print(f"  {rows:5} rows                     " + "".join(f"{x:10.1%}" for x in shares))
    print("headroom of the mean, points          truth     naive   crossed   covered")
    for kind in LUCK:
        for fall, name in ((0.0, "no falls"), (0.1, "falls to 10")):
            share, *figures = covered(kind, fall, times)
            cells = "".join(f"{each:10.2f}" for each in figures) + f"{share:10.1%}"
            print(f"  {kind}, {name:12}               " + cells)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
