"""Frozen weights in FP8: their numbers, their products, and an adapter beside them."""

import pytest
import torch
from families import loaded, model_of
from torch import Tensor, nn

from msft.engine.adapters import fp8
from msft.engine.adapters.lora import adapted
from msft.engine.memory import frozen_bytes
from msft.recipe.recipe import AdapterOptions

CPU = torch.device("cpu")
OPTIONS = AdapterOptions(r=4, alpha=8, seed=3, fp8=True)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_every_row_has_its_own_scale() -> None:
    """The largest number of a row becomes 448, whatever the other rows have."""
    given = torch.tensor([[1.0, -2.0, 0.5], [1e6, 3.0, 0.0], [0.0, 0.0, 0.0]])
    rounded, scales = fp8.rounded(given)
    assert scales.tolist() == pytest.approx([2 / 448, 1e6 / 448, 1e-12 / 448])
    assert rounded.float().tolist() == [
        [224.0, -448.0, 112.0],
        [448.0, 0.001953125, 0.0],
        [0.0] * 3,
    ]
    assert torch.equal(fp8.widened(rounded[:1], scales[:1], torch.float32), given[:1])


def test_numbers_keep_a_sixteenth() -> None:
    given = matrix(64, 256)
    made = fp8.widened(*fp8.rounded(given), torch.float32)
    normal = given.abs() > given.abs().amax(1, keepdim=True) * 2**-14
    assert ((made - given).abs() / given.abs())[normal].max() <= 1 / 16


def test_factors_go_into_the_columns_before_they_are_rounded() -> None:
    given, by = matrix(8, 32), matrix(1, 32, seed=1)[0].exp()
    for one, other in zip(fp8.rounded(given, by), fp8.rounded(given * by), strict=True):
        assert torch.equal(one.float(), other.float())


def test_products_are_those_of_the_rounded_numbers() -> None:
    """What differs from the plain product is the rounding of rows and weights, and nothing else."""
    rows, weight, grad = matrix(20, 64), matrix(48, 64, seed=1) / 8, matrix(20, 48, seed=2)
    packed, scales = fp8.rounded(weight)
    numbers = fp8.widened(packed, scales, torch.float32)
    given = fp8.widened(*fp8.rounded(rows), torch.float32)
    assert error(fp8.product(rows, packed, scales), given @ numbers.t()) < 1e-5
    assert 0.01 < error(fp8.product(rows, packed, scales), rows @ weight.t()) < 0.05
    scaled = fp8.widened(*fp8.rounded(grad * scales), torch.float32)
    expected = scaled @ packed.float()
    assert error(fp8.input_gradient(grad, packed, scales), expected) < 1e-5
    assert 0.01 < error(fp8.input_gradient(grad, packed, scales), grad @ weight) < 0.05


def test_an_outlier_spoils_its_own_row_only() -> None:
    rows, weight = matrix(4, 64), matrix(32, 64, seed=1)
    packed, scales = fp8.rounded(weight)
    before = fp8.product(rows, packed, scales)
    rows[2, 5] = 1e5
    after = fp8.product(rows, packed, scales)
    assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]])


def test_sizes_that_the_product_does_not_take_stay_as_they_are() -> None:
    assert fp8.fits(nn.Linear(32, 48))
    assert not fp8.fits(nn.Linear(24, 48))
    assert not fp8.fits(nn.Linear(32, 50))


def test_only_embeddings_head_and_odd_sizes_keep_their_dtype() -> None:
    made = adapted(loaded(model_of("llama")), OPTIONS, CPU, bf16=False)
    packed = sum(
        module.packed.numel() * module.packed.element_size()
        for module in made.loaded.model.modules()
        if isinstance(module, fp8.Fp8Linear)
    )
    rest = sum(4 * p.numel() for p in made.loaded.model.parameters() if not p.requires_grad)
    assert packed + rest == frozen_bytes(made.shape, bf16=False, four_bit=False, fp8=True)


def test_a_cpu_is_refused_by_name() -> None:
    fault = fp8.fp8_fault(CPU)
    assert fault is not None
    assert "FP8 needs an NVIDIA GPU" in fault
