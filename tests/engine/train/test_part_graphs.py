"""Recorded parts of a step: the gradients of a replay are those of its own lane or micro-batch."""

from typing import Any

import pytest
import torch
from engines import Direct, fast
from families import rows_of
from thread_ranks import in_threads

from msft.errors import NotRecorded
from msft.ranks import ALONE
from msft.search.feeds import Batch

pytestmark = pytest.mark.usefixtures("plain_kernels")
ROWS = rows_of(11)
ALL = tuple(("a", number) for number in range(11))


def trained(ranks: Any, recorder: Any, batch_rows: int = 11) -> tuple[dict[str, Any], Any]:
    how: dict[str, Any] = {
        "learning_rate": 1e-2,
        "bf16": True,
        "lanes": 4,
        "batch_rows": batch_rows,
    }
    engine = fast(ROWS, recorder=recorder, ranks=ranks, **how)
    seen = [list(engine.work(Batch(rows))[0].rows) for rows in (ALL, ALL[2:5], ALL)]
    return {"seen": seen, "weights": engine.weights()}, engine.paths().steps


def test_recorded_lanes_do_not_depend_on_the_number_of_ranks() -> None:
    alone, way = trained(ALONE, Direct)
    assert way == "recorded"
    plain, _ = trained(ALONE, Direct, batch_rows=0)
    for one, other in zip(alone["seen"], plain["seen"], strict=True):
        assert one == pytest.approx(other, rel=2e-2), "padding changes the rounding only"
    for world in (2, 4):
        for found, _ in in_threads(world, lambda ranks: trained(ranks, Direct)):
            assert found["seen"] == alone["seen"]
            for name, weight in found["weights"].items():
                assert torch.equal(weight, alone["weights"][name])


def test_what_cannot_be_recorded_is_computed_as_it_comes() -> None:
    class Full(Direct):
        def recorded(self, work: Any) -> Any:
            raise NotRecorded("it waits for the host")

    found, way = trained(ALONE, Full)
    plain, _ = trained(ALONE, Direct, batch_rows=0)
    assert way == "eager"
    assert found["seen"] == plain["seen"]
    assert all(torch.equal(w, plain["weights"][name]) for name, w in found["weights"].items())


def split(batch_rows: int, half_moments: bool = False, tokens: int = 700) -> tuple[Any, Any]:
    """Losses and weights after steps in micro-batches: 40 rows of about 40 tokens."""
    torch.manual_seed(0)
    how: dict[str, Any] = {"learning_rate": 1e-2, "bf16": True, "half_moments": half_moments}
    how |= {"batch_rows": batch_rows, "micro_batch_tokens": tokens}
    engine = fast(rows_of(40, longest=60), recorder=Direct, **how)
    if batch_rows:
        engine._rows_of = lambda rows: pytest.fail("taken as it comes")  # type: ignore[method-assign]
    every = tuple(("a", number) for number in range(40))
    seen = [list(engine.work(Batch(part))[0].rows) for part in (every, every[:6], every[::-1])]
    return (seen, engine.weights()), engine


@pytest.mark.parametrize("half_moments", [False, True])
def test_recorded_micro_batches_add_up_to_the_step(half_moments: bool) -> None:
    (seen, weights), engine = split(40, half_moments)
    (plain, expected), other = split(0, half_moments)
    (whole, _), _ = split(0, half_moments, tokens=10_000)
    assert (engine.paths().steps, other.paths().steps) == ("recorded", "eager")
    for one, two, three in zip(seen, plain, whole, strict=True):
        assert one == pytest.approx(two, rel=3e-2), "padding changes the rounding only"
        assert one == pytest.approx(three, rel=3e-2)
    for name, weight in weights.items():
        if not half_moments:  # whose rounding is drawn
            moved = (expected[name] - weight).abs().mean()
            assert moved < 3e-3, f"{name}: {moved}"


def test_parts_of_a_recorded_step_fit_with_their_padding() -> None:
    _, engine = split(40)
    sizes = [sum(len(r.tokens) for r in part) for part in engine._micro_batches(engine._rows["a"])]
    assert max(sizes) < 512
    assert max(sizes) - min(sizes) < 60, "evenly filled"
