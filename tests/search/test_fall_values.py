"""Single values of the test of falls, at the edges: few rows, rounding, equality, the halves."""

from typing import Any

import numpy as np
import pytest

from msft.search import falls as module
from msft.search.draws import shuffled
from msft.search.falls import Drop, Fall, RowScores, at_confidence, drop_from_base, falls


def one(curve: Any, rows: int, confidence: float = 0.95) -> Fall:
    """Every row goes the same way."""
    ticks = [[float(height)] * rows for height in curve]
    return falls({"a": RowScores(ticks, ticks[0], [1.0] * rows)}, 0, confidence)["a"]


STRAIGHT = np.array([0, 4, 8, 7, 6, 5, 4, 3, 2])
"""From tick 2 on straight down: no noise."""


def test_a_half_is_half_of_the_rows_in_an_order_of_its_place() -> None:
    order = shuffled(7, 0, "halves", "a", 3)
    assert module._halves(7, "a", 3) == (sorted(order[:3]), sorted(order[3:]))


def test_the_variance_of_two_rows() -> None:
    assert module._ratio([1.0, 3.0], [1.0, 1.0]) == (2.0, 1.0)
    assert module._ratio([1.0, 5.0], [1.0, 2.0]) == (2.0, (1 + 1) / 9 * 2)


def test_a_single_row_shows_nothing() -> None:
    found = one((0, 5, 9, 5, 3, 2, 1, 0), 1)
    assert (found.fall, found.error, found.p, found.learned) == (0, 0, 1, None)
    found = one((0, 5, 9, 5, 3, 2, 1, 0), 2)
    assert (found.fall, found.p, found.learned) == (0, 1, None)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.7, 1 / 3, 1.1, 2.3])
def test_what_cancels_is_no_fall_whatever_it_rounds_to(scale: float) -> None:
    """Means of three around the peak and at the end are equal, one tick of them is 0."""
    found = one(scale * np.array([0, 1, 3, 0, 0, 2, 1, 1]), 8)
    assert (found.fall, found.p) == (0.0, 1.0)


def test_many_rows_that_never_move_do_not_fall() -> None:
    ticks = [[0.7] * 6000 + [0.1] * 14000] * 5
    found = falls({"a": RowScores(ticks, ticks[0], [1.0] * 20000)}, 0, 0.95)["a"]
    assert (found.fall, found.p, found.learned) == (0.0, 1.0, None)


def test_a_fall_may_be_small_against_the_score_and_the_score_small() -> None:
    assert one(1 + 1e-11 * STRAIGHT, 1000).fall == pytest.approx(4e-11, rel=1e-3)
    assert one(1e-9 * STRAIGHT, 8).fall == pytest.approx(4e-9)


def test_what_is_certain_is_sure_at_any_confidence() -> None:
    up_and_down, down = one(STRAIGHT, 8, 1.0), one(range(12, 0, -1), 8, 1.0)
    assert (up_and_down.sure, up_and_down.learned) == (True, "above")
    assert (down.sure, down.learned) == (True, "below")


def test_a_chance_of_just_the_level_is_small_enough() -> None:
    held = {"a": Fall((0, 0), 1.0, 1.0, 0.5, False, "above")}
    assert at_confidence(held, 0.5)["a"].sure
    assert not at_confidence(held, 0.51)["a"].sure


# The drop that a guard looks at.


def test_the_bound_of_a_drop_by_hand() -> None:
    """Of 100 rows 20 are lost: 20·0.8² + 80·0.2² = 16, so the variance of the mean is
    16 / 99 / 100, and t(0.95, 99) = 1.660391: 0.2 − 1.660391·0.0402015 = 0.133250."""
    rows = RowScores([[1.0] * 80 + [0.0] * 20], [1.0] * 100, [1.0] * 100)
    found = drop_from_base(rows, 0.13)
    assert found.drop == pytest.approx(0.2, rel=1e-12)
    assert found.low == pytest.approx(0.133250, abs=1e-6)
    assert not found.kept
    assert drop_from_base(rows, 0.14).kept, "the bound counts, not the drop"


def test_a_drop_is_paired_over_rows() -> None:
    """As many rows are won as lost: no drop, though half of the rows changed."""
    rows = RowScores([[0.0, 1.0] * 50], [1.0, 0.0] * 50, [1.0] * 100)
    found = drop_from_base(rows, 0.0)
    assert found.drop == 0
    assert found.low is not None
    assert found.low == pytest.approx(-1.660391 / 99**0.5, rel=1e-6)
    assert found.kept


def test_the_drop_of_a_loss_is_per_token() -> None:
    """Rows are sums over 1 and 3 tokens; the second one's loss grew by 3 nats: 0.75 a token."""
    rows = RowScores([[-1.0, -6.0]], [-1.0, -3.0], [1.0, 3.0])
    found = drop_from_base(rows, 10.0)
    assert found.drop == pytest.approx(0.75)
    # the differences 0 and 3 less 0.75·tokens: ±0.75, so the variance is 2·0.75²/4²·2
    assert found.low == pytest.approx(0.75 - 6.313752 * (2 * 0.75**2 / 16 * 2) ** 0.5, rel=1e-6)


def test_what_is_equal_and_what_is_one_row_has_no_drop_that_is_sure() -> None:
    same = drop_from_base(RowScores([[0.3] * 7], [0.3] * 7, [1.0] * 7), 0.0)
    assert same == Drop(0.0, 0.0, True)
    assert drop_from_base(RowScores([[0.0]], [1.0], [1.0]), 0.1) == Drop(1.0, None, True)
    assert drop_from_base(RowScores([[0.0, 0.0]], [1.0, 1.0], [1.0] * 2), 0.1) == Drop(1, 1, False)
