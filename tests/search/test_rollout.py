"""A roll-out as a method sees it: where it ends."""

import pytest

from msft.search.curves import PeakRule, accuracy
from msft.search.feeds import Mixture
from msft.search.rollout import BASE, Point, Rollout, checkpoint_id


@pytest.mark.parametrize(
    ("steps", "last"),
    [((1, 1, 1, 1), 4), ((1, 0, 0, 0), 1), ((1, 0, 1, 0), 3), ((0, 0, 0, 0), 0)],
)
def test_c_is_the_last_tick_with_a_step(steps: tuple[int, ...], last: int) -> None:
    """The ticks after it are the same model; the roll-out has them all the same."""
    scores = {"a": accuracy(1, 2)}
    points = [Point(0, BASE, scores, steps=0)]
    points += [Point(t, checkpoint_id(0, t), scores, n) for t, n in enumerate(steps, start=1)]
    rollout = Rollout(BASE, Mixture.of({"a": 8}), tuple(points), PeakRule())
    assert (rollout.last, rollout.ticks, rollout.end) == (last, 4, "r0-t4")
