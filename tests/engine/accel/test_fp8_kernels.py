"""Rows are rounded to FP8, and matrices transposed, as torch does it. On a GPU as it is, elsewhere
by Triton's interpreter."""

import pytest
import torch

from msft.engine.adapters import fp8

kernels = pytest.importorskip(
    "msft.engine.accel.fp8_kernels", reason="Triton is not installed", exc_type=ImportError
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def matrix(rows: int, columns: int) -> torch.Tensor:
    torch.manual_seed(rows + columns)
    spread = torch.linspace(-8, 8, rows).exp()[:, None]
    return (torch.randn(rows, columns) * spread).bfloat16().to(DEVICE)


@pytest.mark.parametrize("shape", [(3, 16), (5, 100), (2, 4096), (1, 28672)])
@pytest.mark.parametrize("with_factors", [False, True])
def test_rows_are_rounded_as_torch_rounds_them(shape: tuple[int, int], with_factors: bool) -> None:
    given = matrix(*shape)
    given[0] = 0
    by = torch.rand(shape[1], device=DEVICE) if with_factors else None
    made, scales = kernels.rounded(given, by, fp8.LARGEST, fp8.SMALLEST)
    expected, own = fp8.rounded(given.cpu(), None if by is None else by.cpu())
    assert torch.equal(scales.cpu(), own)
    if DEVICE == "cuda":
        assert torch.equal(made.cpu().float(), expected.float())
    else:  # the interpreter cuts off, and loses a carry
        near = torch.isclose(made.float(), expected.float(), rtol=1 / 8, atol=2**-9)
        assert near.float().mean() > 0.9


@pytest.mark.parametrize("shape", [(16, 16), (64, 128), (100, 48), (1, 300)])
def test_a_transposed_matrix_has_the_columns_as_rows(shape: tuple[int, int]) -> None:
    weight = fp8.rounded(matrix(*shape))[0]
    made = kernels.transposed(weight)
    assert made.is_contiguous()
    assert torch.equal(made.float(), weight.float().t())


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU that computes in FP8")
def test_on_a_gpu_products_are_those_of_a_cpu_and_the_same_again() -> None:
    assert fp8.fp8_fault(torch.device(DEVICE)) is None
    rows, weight = matrix(130, 256), matrix(96, 256)
    grad = matrix(130, 96)
    for work, left in ((fp8.product, rows), (fp8.input_gradient, grad)):
        made = work(left, *fp8.rounded(weight))
        expected = work(left.cpu().float(), *(part.cpu() for part in fp8.rounded(weight)))
        assert torch.allclose(
            made.cpu().float(), expected, rtol=2**-6, atol=1e-3 * float(expected.abs().max())
        )
        assert torch.equal(made, work(left, *fp8.rounded(weight)))
