"""Single values of the test of falls, at the edges: few rows, rounding, equality, the halves."""

from typing import Any

import numpy as np
import pytest

from msft.search import falls as module
from msft.search.draws import shuffled
from msft.search.falls import Fall, RowScores, at_confidence, falls


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
