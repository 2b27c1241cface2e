"""An engine that keeps an average and trains something else: a run needs to know nothing of it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mortal import (
    LEARNERS,
    PLAIN,
    STORES,
    VARIED,
    Case,
    Left,
    left_by,
)
from msft.run.rows import Scored
from msft.search.feeds import Batch, Losses
from msft.testing import SimulatedEngine

CASES = PLAIN | {name: case for name, case in VARIED.items() if "restored" in name}


class AverageEngine:
    """Simulated raw weights, and the moving average of their numbers."""

    num_parameters = num_trainable = SimulatedEngine.num_parameters

    def __init__(self, decay: float = 0.75) -> None:
        self._raw, self._average = SimulatedEngine(LEARNERS), SimulatedEngine(LEARNERS)
        self._decay = decay
        self.starts: list[tuple[Any, Any]] = []

    def load(self, weights: Any | None) -> None:
        self._raw.load(weights)
        self._average.load(weights)

    def load_optimizer(self, moments: Any | None) -> None:
        self._raw.load_optimizer(moments)
        if moments is not None:
            self._raw.load(moments["raw"])
        self.starts.append((self._raw.weights(), self._average.weights()))

    def weights(self) -> Any:
        return self._average.weights()

    def optimizer(self) -> Any:
        return {**self._raw.optimizer(), "raw": self._raw.weights()}

    def average(self, parts: Iterable[Any]) -> Any:
        return self._raw.average(parts)

    def seed(self, number: int) -> None: ...

    def work(self, batch: Batch) -> tuple[Losses, int]:
        done = self._raw.work(batch)
        if batch.use == "train":
            self._average.load(self._mixed(self._average.weights(), self._raw.weights()))
        return done

    def score(self, names: Sequence[str], split: str) -> Scored:
        return self._average.score(names, split)

    def _mixed(self, average: Mapping[str, Any], raw: Mapping[str, Any]) -> Any:
        def mixed(one: float, other: float) -> float:
            return self._decay * one + (1 - self._decay) * other

        minds = {
            name: [mixed(*pair) for pair in zip(mind, raw["minds"][name], strict=True)]
            for name, mind in average["minds"].items()
        }
        return {"passes": mixed(average["passes"], raw["passes"]), "minds": minds}


def run(case: Case, folder: Path, memory: int | None) -> Left:
    engine: Any = AverageEngine()
    return left_by(case.run(folder, memory, engine=engine), folder)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_event_it_ends_the_same(name: str, store: str, place: Path) -> None:
    case, memory = CASES[name], STORES[store]
    expected = run(case, place / "alone", memory)
    engine: Any = AverageEngine()
    moments = [(last, True) for last in range(expected.log.count(b"\n"))]
    for moment, folder in case.killed(place, memory, moments, engine=engine).items():
        assert run(case, folder, memory) == expected, moment


@pytest.mark.parametrize("rule", ["reset", "restore"])
def test_a_restored_stage_goes_on_with_the_raw_weights_and_another_one_with_the_average(
    rule: str, place: Path
) -> None:
    engine: Any = AverageEngine()
    history = Case("msft", {"on_rollback": rule}).run(place, None, None, engine)
    assert len(engine.starts) == len(history.stages) > 2
    apart = [raw != average for raw, average in engine.starts]
    assert apart == [False, *[rule == "restore"] * (len(apart) - 1)]
