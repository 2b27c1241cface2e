"""The model of memory that engine and plan share."""

from dataclasses import replace

import pytest
import torch

from msft.engine.memory import (
    Demand,
    best_fit,
    frozen_bytes,
    gradient_bytes,
    held_bytes,
    is_long,
    merged_bytes,
    step_bytes,
    token_bytes,
    uncut_bytes,
)
from msft.engine.model.shape import ModelShape
from msft.recipe.recipe import AdapterOptions, Recipe

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


def test_slices_are_a_share_of_all_but_of_working_weights_and_of_gradients_that_are_uncut() -> None:
    """Those of both ends, and twice those of 2^29 numbers, or of a layer that has more."""
    ends = 2 * 128256 * 4096
    assert uncut_bytes(SHAPE, 2) == 2 * (ends + 2 * 2**29)
    large = replace(SHAPE, parameters=20 * SHAPE.parameters)
    assert uncut_bytes(large, 2) == 2 * (ends + 2 * (large.parameters // 32))
    assert uncut_bytes(replace(SHAPE, layers=1), 2) == 2 * SHAPE.parameters
    eight = Demand(1000, 0.2, bf16=True, half_moments=False, ranks=8, sliced=True)
    assert held_bytes(SHAPE, eight) == 2 * SHAPE.parameters + 12 * SHAPE.parameters // 8
    fp32 = replace(eight, bf16=False, ranks=2)
    assert held_bytes(SHAPE, fp32) == (4 + (4 + 8) // 2) * SHAPE.parameters
    own = 4 * SHAPE.parameters // 8 + uncut_bytes(SHAPE, 2)
    assert gradient_bytes(SHAPE, eight, parts=False) == step_bytes(SHAPE, eight) == own
    assert gradient_bytes(SHAPE, eight, parts=True) == own + 4 * SHAPE.parameters
    halved = replace(eight, half_moments=True)
    assert step_bytes(SHAPE, halved) == own + 6 * 4 * SHAPE.largest // 8


def test_activations_are_recomputed_where_a_batch_does_not_fit() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    roomy, tight = (best_fit(SHAPE, n * GB, demand, "auto") for n in (300, 140))
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens >= 512


ADAPTED = Demand(8736, 0.185, bf16=True, half_moments=False, trained=42_000_000, frozen=16 * GB)


def test_beside_an_adapter_only_its_own_weights_have_masters_moments_and_gradients() -> None:
    assert held_bytes(SHAPE, ADAPTED) == 16 * GB + 42_000_000 * (4 + 8 + 2)
    assert gradient_bytes(SHAPE, ADAPTED, parts=True) == 42_000_000 * (2 + 4)
    averaged = replace(ADAPTED, averaged=True)
    assert held_bytes(SHAPE, averaged) - held_bytes(SHAPE, ADAPTED) == 42_000_000 * 4


def test_compiled_layers_with_an_adapter_compute_the_gate_again() -> None:
    kept, every = replace(ADAPTED, fused=True), replace(ADAPTED, fused=True, trained=None)
    apart = token_bytes(SHAPE, every, again=False) - token_bytes(SHAPE, kept, again=False)
    assert apart == pytest.approx(SHAPE.layers * 2 * SHAPE.inner)


def test_an_adapters_batch_is_cut_before_activations_are_recomputed() -> None:
    demand = replace(ADAPTED, fused=True, lean=True)
    roomy, cut, tight = (best_fit(SHAPE, n * GB, demand, "auto") for n in (80, 42, 24))
    assert roomy.micro_batch_tokens >= 8736
    assert not roomy.gradient_checkpointing
    assert 4096 <= cut.micro_batch_tokens < 8736
    assert not cut.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert [fit.recorded for fit in (roomy, cut, tight)] == [True, True, False]
    large = replace(SHAPE, parameters=11_000_000_000)
    assert not best_fit(large, 200 * GB, demand, "auto").recorded
    every = replace(demand, trained=None, frozen=0)
    assert not best_fit(SHAPE, 400 * GB, every, "auto").recorded, "eight billion, all trained"


def test_four_bits_hold_all_but_embeddings_and_head() -> None:
    linears = (("q_proj", 4096, 4096), ("up_proj", 4096, 14336))
    shape = replace(SHAPE, parameters=100_000_000, linears=linears)
    packed = 4096 * (4096 + 14336)
    assert frozen_bytes(shape, bf16=True, four_bit=False) == 200_000_000
    scales = packed / 64 + 4 * packed / (64 * 256)
    expected = 2 * (100_000_000 - packed) + packed / 2 + scales
    assert frozen_bytes(shape, bf16=True, four_bit=True) == pytest.approx(expected)
    some = AdapterOptions(r=16, alpha=32, targets=("q_proj",), dora=True)
    assert shape.adapter_weights(some) == 16 * (4096 + 4096) + 4096


def test_a_merged_model_beside_is_held_where_it_is_a_quarter_of_the_memory_at_most() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    size = 2 * SHAPE.parameters
    assert merged_bytes(SHAPE, True, cuda, 4 * size) == size
    assert merged_bytes(SHAPE, True, cuda, 4 * size - 1) == 0
    assert merged_bytes(SHAPE, False, cpu, 1) == 2 * size
    held = held_bytes(SHAPE, replace(ADAPTED, merged=size))
    assert held == held_bytes(SHAPE, ADAPTED) + size
