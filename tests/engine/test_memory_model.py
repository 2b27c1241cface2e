"""The model of memory that engine and plan share."""

import pytest

from msft.engine.memory_model import Demand, best_fit, held_bytes, is_long
from msft.engine.model.shape import ModelShape
from msft.recipe.recipe import Recipe

GB = 10**9
SHAPE = ModelShape(8_030_261_248, 32, 4096, 14336, 128256, 65536)


@pytest.mark.parametrize(("datasets", "long"), [(21, True), (1, False)])
def test_a_run_is_as_long_as_its_sub_datasets_are_many(datasets: int, long: bool) -> None:
    """One entry of a recipe may be split into many."""
    rows = [{"prompt": "p", "completion": "c"}]
    recipe = Recipe("tiny", [{"name": "a", "train": rows, "validation": rows}], method="msft")
    assert is_long(recipe, 10_500, datasets) is long


def test_the_optimizer_in_bf16_takes_less() -> None:
    demand = Demand(1000, 0.2, bf16=True, half_moments=False)
    halved = Demand(1000, 0.2, bf16=True, half_moments=True)
    assert held_bytes(SHAPE, demand) == 14 * SHAPE.parameters
    assert held_bytes(SHAPE, halved) == 10 * SHAPE.parameters


def test_the_moving_average_is_one_more_copy() -> None:
    demand = Demand(1000, 0.2, bf16=True, half_moments=True, averaged=True)
    assert held_bytes(SHAPE, demand) == 14 * SHAPE.parameters


def test_ranks_have_the_optimizer_between_them() -> None:
    """An 8B model on eight ranks: a working copy in bf16 and an eighth of 12 bytes a weight."""
    eight = Demand(1000, 0.2, bf16=True, half_moments=False, ranks=8)
    assert held_bytes(SHAPE, eight) == 2 * SHAPE.parameters + 12 * SHAPE.parameters // 8
    fp32 = Demand(1000, 0.2, bf16=False, half_moments=False, averaged=True, ranks=2)
    assert held_bytes(SHAPE, fp32) == (4 + 8 // 2 + 4 // 2) * SHAPE.parameters


def test_activations_are_recomputed_where_a_batch_does_not_fit() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    roomy, tight = (best_fit(SHAPE, n * GB, demand, "auto") for n in (300, 140))
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens >= 512
