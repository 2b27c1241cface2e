"""Who falls for sure: values by hand, and level and power in simulation, small but real.

The simulation of docs/results/simulation.md is `examples/noise.py`; these are its smaller sisters.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from msft.search import falls as module
from msft.search.falls import Fall, RowScores, at_confidence, falls

RNG = np.random.default_rng


def scores(ticks: Any, base: Any = None, weights: Any = None) -> RowScores:
    ticks = np.asarray(ticks, dtype=float)
    base = ticks[0] if base is None else np.asarray(base, dtype=float)
    weights = np.ones(len(base)) if weights is None else np.asarray(weights, dtype=float)
    return RowScores(ticks.tolist(), base.tolist(), weights.tolist())


def one(ticks: Any, base: Any = None, weights: Any = None, confidence: float = 0.95) -> Fall:
    return falls({"a": scores(ticks, base, weights)}, 0, confidence)["a"]


def rows_right(curve: Sequence[int], rows: int) -> Any:
    """The first rows are right, as many as the curve says: nested verdicts."""
    return [[1] * right + [0] * (rows - right) for right in curve]


def mixture(
    seed: int, rows: int, jitter: float, shapes: Any, spread: float = 0.3
) -> dict[str, RowScores]:
    """Right and wrong rows around a latent skill; shapes: true accuracy of each sub-dataset."""
    rng = RNG(seed)
    shapes = np.asarray(shapes, dtype=float)
    accuracy = np.clip(shapes + jitter * rng.normal(size=shapes.shape), 0.01, 0.99)
    bar = norm.ppf(accuracy) * sqrt(1 + spread**2)
    skill = rng.normal(size=(len(shapes), 1, rows))
    noise = spread * rng.normal(size=(*shapes.shape, rows))
    verdicts = skill + noise + bar[:, :, None] > 0
    return {f"d{number}": scores(each) for number, each in enumerate(verdicts)}


FLAT = np.full((10, 13), 0.6)


def wrong(rows: int, jitter: float, times: int, confidence: float = 0.95) -> int:
    """Roll-outs without a fall in which somebody falls for sure."""
    found = [falls(mixture(s, rows, jitter, FLAT), s, confidence) for s in range(times)]
    return sum(any(fall.sure for fall in each.values()) for each in found)


# By hand.


def test_the_fall_is_the_peak_with_its_neighbours_minus_the_last_three_ticks() -> None:
    curve = [40, 60, 80, 90, 80, 70, 60, 50, 40]
    found = one(rows_right(curve, 100))
    assert found.peaks == (3, 3)
    assert found.fall == pytest.approx((80 + 90 + 80) / 300 - (60 + 50 + 40) / 300, abs=0.03)
    assert found.sure
    assert found.learned == "above"
    assert found.leaves


def test_equal_halves_give_exactly_the_fall_of_all_rows() -> None:
    """Every row goes the same way, so it does not matter who is in which half."""
    curve = [0.1, 0.5, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2]
    found = one([[height] * 10 for height in curve])
    assert found.peaks == (2, 2)
    assert found.fall == pytest.approx((0.5 + 0.9 + 0.7) / 3 - (0.4 + 0.3 + 0.2) / 3)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("right", [1.0, 0.7, 1e-9, -2.3])
@pytest.mark.parametrize("ticks", [4, 5, 8, 12])
def test_a_curve_that_never_moves_neither_falls_nor_learns(
    share: float, right: float, ticks: int
) -> None:
    """To the last bit, the mean of two equal scores is not that of three."""
    rows = [right] * round(200 * share) + [0.0] * round(200 * (1 - share))
    found = one([rows] * (ticks + 1))
    assert (found.fall, found.p, found.sure, found.learned) == (0.0, 1.0, False, None)


def test_the_earliest_of_equal_peaks_counts() -> None:
    assert one([[x] * 8 for x in (0, 1, 3, 1, 0, 1, 3, 1, 0, 0, 0, 0)]).peaks == (2, 2)


def test_a_fall_from_the_start_is_a_fall() -> None:
    found = one(rows_right([90, 80, 70, 60, 50, 40, 30, 20, 10], 100))
    assert found.peaks == (0, 0)
    assert found.sure
    assert found.learned == "below"


@pytest.mark.parametrize("peak", [5, 6, 7, 8])
def test_no_fall_while_the_peaks_neighbours_reach_into_the_last_ticks(peak: int) -> None:
    """Ticks 6, 7 and 8 are the last three."""
    found = one(rows_right([90 - 10 * abs(tick - peak) for tick in range(9)], 100))
    assert min(found.peaks) >= peak
    assert (found.fall, found.p) == (0.0, 1.0)
    assert not found.sure


def test_one_tick_earlier_there_is_one() -> None:
    found = one(rows_right([90 - 10 * abs(tick - 4) for tick in range(9)], 100))
    assert found.peaks == (4, 4)
    assert found.fall > 0.1


@pytest.mark.parametrize("ticks", [1, 2, 3])
def test_a_short_rollout_has_no_fall(ticks: int) -> None:
    assert one(rows_right([90, 60, 30, 0][: ticks + 1], 100)).p == 1.0


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_cannot_be_halved_show_no_fall(rows: int) -> None:
    """A half of one row has no spread, so nothing is known of it."""
    found = one([[height] * rows for height in (0, 5, 9, 5, 3, 2, 1, 0)])
    assert not found.sure
    assert found.learned is None


def test_rows_without_weight_show_no_fall() -> None:
    found = one([[height] * 8 for height in (0, 5, 9, 5, 3, 2, 1, 0)], weights=[0] * 8)
    assert (found.fall, found.p, found.learned) == (0.0, 1.0, None)


def test_where_nothing_is_random_a_fall_is_certain() -> None:
    """Every row goes the same straight way down: neither rows nor ticks say that there is noise."""
    found = one([[height] * 8 for height in (0, 4, 8, 7, 6, 5, 4, 3, 2)])
    assert found.fall == pytest.approx(4)
    assert found == Fall((3, 3), found.fall, 0.0, 0.0, True, "above")


def test_a_fall_may_be_a_small_part_of_the_score() -> None:
    curve = np.array([0, 4, 8, 7, 6, 5, 4, 3, 2])
    found = one(np.repeat(1 + 1e-10 * curve[:, None], 1000, axis=1))
    assert found.fall == pytest.approx(4e-10, rel=1e-4)


def test_the_end_is_the_last_three_ticks_or_all_but_the_start() -> None:
    third = pytest.approx(1 / 3)
    assert module._end(9) == {6: third, 7: third, 8: third}
    assert module._end(4) == {1: third, 2: third, 3: third}
    assert module._end(3) == {1: 0.5, 2: 0.5}
    assert module._end(2) == {1: 1.0}


@pytest.mark.parametrize("curve", [[10, 90], [90, 10]])
def test_one_tick_says_nothing_of_noise_and_so_nothing_for_sure(curve: list[int]) -> None:
    found = falls({name: scores(rows_right(curve, 100)) for name in "abc"}, 0, 0.95)
    assert {(fall.p, fall.learned) for fall in found.values()} == {(1.0, None)}


def test_four_ticks_are_enough() -> None:
    assert module.FEWEST_TICKS == 4
    rows = {name: scores(rows_right([90, 90, 30, 20, 10], 200)) for name in "abcd"}
    assert all(fall.sure for fall in falls(rows, 0, 0.95).values())


def test_who_stays_at_the_base_model_has_learned_nothing_and_stays() -> None:
    """A real fall, back to where the base model is, from a peak that is not surely above it."""
    rng = RNG(3)
    base = rng.random(400) < 0.5
    rise = np.linspace(0, 0.02, 5)
    curve = np.array([0.5, *(0.5 + rise), 0.5, 0.49, 0.49, 0.49, 0.49])
    found = one([rng.permutation(rows_right([int(400 * c)], 400)[0]) for c in curve], base)
    assert found.learned is None
    assert not found.leaves
    assert not Fall((1, 1), 0.3, 0.01, 1e-9, True, None).leaves


def test_tokens_weigh_the_rows_of_a_loss() -> None:
    """Row losses are sums; with every row's tokens the fall is one per token."""
    curve = np.array([-3.0, -2.0, -1.0, -1.5, -2.0, -2.5, -3.0, -3.5])
    tokens = RNG(0).integers(1, 50, size=60)
    found = one(curve[:, None] * tokens, weights=tokens)
    assert found.fall == pytest.approx(-4.5 / 3 + 9.0 / 3)
    assert found.error == pytest.approx(0.0, abs=1e-6) or found.p < 0.05


def test_a_score_times_ten_changes_nothing_but_the_unit() -> None:
    rows = np.asarray(next(iter(mixture(5, 300, 0.01, FLAT[:1]).values())).ticks)
    small, large = one(rows), one(10 * rows)
    assert large.fall == pytest.approx(10 * small.fall)
    assert large.error == pytest.approx(10 * small.error)
    assert large.p == pytest.approx(small.p)


def test_rows_in_another_place_of_the_run_are_halved_anew() -> None:
    rows = mixture(2, 200, 0.01, FLAT)
    here, there = falls(rows, 0, 0.95), falls(rows, 1, 0.95)
    assert here == falls(rows, 0, 0.95)
    assert here != there


def test_either_half_is_measured_by_the_other_ones_peak() -> None:
    """The halves disagree on the peak, and what each chose is worth nothing on the other."""
    first, second = module._halves(100, "a", 0)
    assert sorted(first + second) == [*range(100)]
    assert len(first) == 50
    ticks = np.zeros((13, 100))
    ticks[2, first] = 1
    ticks[6, second] = 1
    found = one(ticks)
    assert found.peaks == (1, 5)  # the earliest of the windows that have the tick
    assert found.fall == 0
    assert found.p == 1


def test_holm_is_stricter_with_the_first_than_with_the_rest() -> None:
    def fall(p: float) -> Fall:
        return Fall((0, 0), 1.0, 1.0, p, False, "above")

    held = {"a": fall(0.02), "b": fall(0.012), "c": fall(0.04), "d": fall(0.9)}
    sure = {name for name, each in at_confidence(held, 0.95).items() if each.sure}
    assert sure == {"b"}  # 0.05 / 4, then 0.05 / 3 < 0.02
    held["a"] = fall(0.016)
    sure = {name for name, each in at_confidence(held, 0.95).items() if each.sure}
    assert sure == {"a", "b"}  # 0.05 / 2 < 0.04


def test_without_freedom_either_sign_is_as_likely() -> None:
    noise = module._Noise(squared=1.0, by_rows=1.0, freedom=0)
    assert module._p(module._Contrast(3.0, 1.0, 1.0, windows=0), noise, 0.0)[1] == 0.5


def test_jitter_is_what_rows_do_not_explain() -> None:
    """Rows that all move together: their own spread is nothing, the curve's is everything."""
    rng = RNG(1)
    curve = 0.5 + 0.1 * rng.normal(size=2001)
    noise = module._noise(scores(np.repeat(curve[:, None], 4, axis=1)), 1)
    assert sqrt(noise.squared) == pytest.approx(0.1, rel=0.05)
    assert noise.by_rows == pytest.approx(0, abs=1e-12)
    loose = module._noise(scores(rng.normal(size=(2001, 25))), 1)
    assert loose.squared == pytest.approx(loose.by_rows, rel=0.1)
    assert sqrt(loose.by_rows) == pytest.approx(1 / 5, rel=0.02)


# The formulas of the docstring once more, with numpy.


def mean_and_variance(values: Any, weights: Any) -> tuple[float, float]:
    """Of rows, weighted: the ratio of sums and its variance."""
    mean = values.sum() / weights.sum()
    rest = ((values - mean * weights) ** 2).sum() / weights.sum() ** 2
    return mean, rest * len(values) / (len(values) - 1)


class Oracle:
    """One sub-dataset of a roll-out of `last` ticks after the start."""

    def __init__(self, name: str, rows: RowScores, rollout: int, curves: int) -> None:
        self.ticks, self.base = np.array(rows.ticks), np.array(rows.base)
        self.weights, self.last = np.array(rows.weights), len(rows.ticks) - 1
        self.halves = module._halves(len(self.base), name, rollout)
        self.peaks = tuple(self.peak(half) for half in self.halves)
        bends = np.diff(self.ticks, 2, axis=0)[(self.last - 1) // 2 :]
        found = np.array([mean_and_variance(bend, self.weights) for bend in bends])
        self.squared, self.by_rows = (found[:, 0] ** 2).mean() / 6, found[:, 1].mean() / 6
        self.freedom = curves * len(bends) / 2

    def window(self, tick: int) -> Any:
        inside = np.abs(np.arange(self.last + 1) - tick) <= 1
        return inside / inside.sum()

    def peak(self, half: Sequence[int]) -> int:
        sums = self.ticks[:, half].sum(axis=1)
        heights = [(self.window(tick) * sums).sum() for tick in range(self.last + 1)]
        return int(np.argmax(np.array(heights) >= max(heights) - 1e-9))

    def end(self) -> Any:
        return (np.arange(self.last + 1) > self.last - 3) / 3

    def tested(
        self, excess: float, halves: Any, contrasts: Any, sign: int, base: int, chances: int
    ) -> tuple[float, float, float]:
        """Value, error and p of the mean of contrasts of ticks, each on its rows."""
        found = []
        for half, contrast in zip(halves, contrasts, strict=True):
            values = (contrast[:, None] * self.ticks[:, half]).sum(axis=0) - base * self.base[half]
            found.append(mean_and_variance(values, self.weights[half]))
        value = sign * sum(each for each, _ in found) / len(found)
        by_rows = sum(each for _, each in found) / len(found) ** 2
        squares = (np.mean(contrasts, axis=0) ** 2).sum()
        jitter = max(excess * self.by_rows, self.squared - self.by_rows)
        variance = by_rows + squares * jitter
        if value <= 0:
            return value, sqrt(variance), 1.0
        freedom = self.freedom * (variance / (squares * (jitter + self.by_rows))) ** 2
        tail = student.sf(value / sqrt(variance), freedom)
        tries = 1.0 if not chances else 2 + max(0, chances / 2 - 2) * squares * jitter / variance
        return value, sqrt(variance), min(1.0, tries * tail)

    def fall(self, excess: float) -> tuple[float, float, float]:
        contrasts = [
            self.window(peak) - self.end() if peak + 1 < self.last - 2 else 0 * self.end()
            for peak in self.peaks
        ]
        return self.tested(excess, self.halves[::-1], contrasts, 1, 0, self.last - 3)

    def learned(self, excess: float, level: float) -> str | None:
        windows = [self.window(peak) for peak in self.peaks]
        above = self.tested(excess, self.halves[::-1], windows, 1, 1, self.last + 1)[2]
        everybody = [[*range(len(self.base))]]
        below = self.tested(excess, everybody, [self.end()], -1, 1, 0)[2]
        return "above" if above <= level / 2 else "below" if below <= level / 2 else None


def excess_of(oracles: Iterable[Oracle]) -> float:
    return max(0.0, float(np.mean([each.squared / each.by_rows for each in oracles])) - 1)


@pytest.mark.parametrize("last", [5, 8, 12, 13])
@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize("seed", range(6))
def test_every_number_is_that_of_the_formulas(last: int, jitter: float, seed: int) -> None:
    rng = RNG(seed)
    shapes = 0.5 + rng.normal(size=(4, 1)) * 0.15 * np.sin(np.linspace(0, 3, last + 1))
    rows = mixture(seed, 31 if seed else 7, jitter, shapes, spread=1.0)
    tokens = rng.integers(1, 30, size=40)
    losses = -rng.gamma(2.0, size=(last + 1, 40)) * tokens
    rows["loss"] = scores(losses, losses[0] * 1.2, tokens)
    oracles = {name: Oracle(name, each, seed, 5) for name, each in rows.items()}
    excess = excess_of(oracles.values())
    found = falls(rows, seed, 0.9)
    for name, oracle in oracles.items():
        assert found[name].peaks == oracle.peaks
        expected = oracle.fall(excess)
        assert (found[name].fall, found[name].error) == pytest.approx(expected[:2], abs=1e-12)
        assert found[name].p == pytest.approx(expected[2], rel=1e-6)
        assert found[name].learned == oracle.learned(excess, 0.1 / 5)
    least, order = 0.0, sorted(found, key=lambda name: found[name].p)
    for times, name in zip(range(5, 0, -1), order, strict=True):
        least = max(least, times * found[name].p)
        assert found[name].sure == (least <= 0.1)


@pytest.mark.parametrize("curves", [1, 4])
def test_who_has_learned_is_decided_at_the_level_of_all_sub_datasets(curves: int) -> None:
    seen = set()
    for seed in range(60):
        ends = 0.5 + 0.2 * RNG(seed).normal(size=(curves, 1))
        rows = mixture(seed, 40, 0.01, 0.5 + (ends - 0.5) * np.linspace(0, 1, 9), spread=1.0)
        oracles = {name: Oracle(name, each, 0, curves) for name, each in rows.items()}
        excess = excess_of(oracles.values())
        for name, fall in falls(rows, 0, 0.95).items():
            assert fall.learned == oracles[name].learned(excess, 0.05 / curves)
            seen.add(fall.learned)
    assert seen == {"above", "below", None}


# Level and power. Seeds are fixed; the bounds would be crossed if the halves were the same rows,
# if all sub-datasets were tested at the whole level, or if jitter were left out.


def test_without_jitter_few_rollouts_without_a_fall_have_a_sure_one() -> None:
    assert wrong(200, 0.0, 200) <= 10


@pytest.mark.parametrize(("rows", "times"), [(200, 150), (1000, 40)])
def test_with_a_point_of_jitter_few_rollouts_without_a_fall_have_a_sure_one(
    rows: int, times: int
) -> None:
    assert wrong(rows, 0.01, times) <= 0.05 * times


def test_the_halves_keep_the_level_and_not_the_rest_of_the_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were both halves all the rows, luck would be found: this is what the halves are for."""

    def same(count: int, name: str, rollout: int) -> tuple[list[int], list[int]]:
        half = [*range(0, count, 2)]
        return half, half

    monkeypatch.setattr(module, "_halves", same)
    assert wrong(200, 0.0, 100) > 15


FALLING = np.full((10, 13), 0.6)
FALLING[:, 0] = 0.4


def found_of(depth: float, rows: int, jitter: float, times: int) -> float:
    """How often a fall of the first sub-dataset from tick 5 on is found among ten."""
    shapes = FALLING.copy()
    shapes[0] -= np.clip((np.arange(13) - 5) / 6, 0, None) * depth * 6 / 5
    found = [falls(mixture(s, rows, jitter, shapes), s, 0.95)["d0"].leaves for s in range(times)]
    return sum(found) / times


def test_most_falls_of_four_standard_errors_are_found() -> None:
    """By rows: 0.013 for 200 rows of this kind; a point of jitter adds 0.008."""
    assert found_of(4 * sqrt(0.013**2 + 0.0082**2), 200, 0.01, 100) > 0.5


def test_nearly_all_of_seven_are() -> None:
    assert found_of(7 * sqrt(0.013**2 + 0.0082**2), 200, 0.01, 40) > 0.9
