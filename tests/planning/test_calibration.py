"""How fast this machine is: what happens only once is not counted."""

from typing import Any

import pytest

from msft.planning.calibration import scoring_rate, training_rate
from msft.run.rows import Scored
from msft.search.feeds import Batch, FeedContext, Losses, Mixture


class Slow:
    """An engine whose first work of a kind takes long, since it is compiled then."""

    def __init__(self) -> None:
        self.now = 0.0
        self._seen: set[Any] = set()

    def clock(self) -> float:
        return self.now

    def _took(self, what: Any) -> None:
        self.now += 0.1 if what in self._seen else 20.0
        self._seen.add(what)

    def work(self, batch: Batch) -> tuple[Losses, int]:
        self._took(len(batch.rows))
        return Losses([0.0]), 1000

    def score(self, names: list[str], split: str) -> Scored:
        self._took(split)
        return Scored({}, 500)


def test_compiling_is_not_taken_for_the_speed_of_a_gpu() -> None:
    engine: Any = Slow()
    place = FeedContext(Mixture.of({"a": 64}), 4, 2, 8, 0, 0)
    assert training_rate(engine, place, True, 5.0, engine.clock) == pytest.approx(10_000)
    rate, sampled = scoring_rate(engine.score, ["a"], True, 5.0, engine.clock)
    assert rate == pytest.approx(5_000)
    assert not sampled


def test_a_slow_cpu_is_not_asked_more_often_than_needed() -> None:
    engine: Any = Slow()
    place = FeedContext(Mixture.of({"a": 64}), 4, 2, 8, 0, 0)
    assert training_rate(engine, place, False, 5.0, engine.clock) == pytest.approx(50)
    rate, sampled = scoring_rate(engine.score, ["a"], False, 5.0, engine.clock)
    assert rate == pytest.approx(25)
    assert sampled
    assert engine.now == 40
