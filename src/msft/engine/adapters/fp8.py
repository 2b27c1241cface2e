"""Frozen weights in FP8: products with them take the GPU's FP8 units, at twice the rate of bf16.

A number in FP8 has eight bits: e4m3 has four for the exponent and three for the fraction, so it
reaches 448 and keeps a relative error of at most 1/16. What is larger or much smaller needs a
scale. Here every row of a matrix has its own scale, amax/448, so one outlier spoils one row only:

    weights      rounded once, a scale for each output            W  ≈ W8 · s
    forward      x rounded row by row, a scale sx for each token  y  = sx · (x8 · W8ᵀ) · s
    backward     the gradient takes s, then is rounded likewise   dx = sg · ((dy · s)8 · W8)

The products add up in fp32 and give bf16. The GPU multiplies a row-major matrix with a column-major
one, so the backward pass transposes W8, a pass over one byte a weight; a second copy would cost as
much memory as bf16 does. Gradients are rounded to e4m3, too, not to e5m2: with a scale for each
token the range of e4m3 is enough, and the relative error of the product is 0.038 instead of 0.059
(docs/results/speed.md).

Compiled layers call `product` and `input_gradient` through `accel/joined_adapters.py`, once for
layers that read the same input. `Fp8Linear.forward` serves the rest: DoRA, dropout, layers without
an adapter. An adapter's own products stay in bf16, and its weights in fp32. Evaluation and `msft
merge` use the rounded weights, which are those that the adapter was trained beside.

torchao and Transformer Engine train all weights in FP8, with modules, dispatch tensors and delayed
scales. Frozen weights need none of that: three functions and a module are enough.
"""

from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.kernels import fp8_kernels

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
SMALLEST = 1e-12
"""The least amax: a row of zeros has a scale, too."""
MULTIPLE = 16
"""Inputs and outputs of a layer are multiples of it, as the GPU's product asks; others stay as
they are."""


def fp8_fault(device: torch.device) -> str | None:
    """Why a device cannot train beside FP8; None where it can."""
    if device.type != "cuda":
        return "FP8 needs an NVIDIA GPU that computes in it (Ada, Hopper or newer)"
    try:
        one = torch.zeros(MULTIPLE, MULTIPLE, device=device, dtype=torch.bfloat16)
        input_gradient(product(one, *rounded(one)), *rounded(one))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has errors of its own for a GPU that is too old
        name, reason = torch.cuda.get_device_name(device), str(error).strip().split("\n")[0]
        return f"{name} does not compute in FP8 ({reason[:200]})"
    return None


def fits(layer: nn.Linear) -> bool:
    """Whether the sizes of a layer suit the GPU's product."""
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


def rounded(matrix: Tensor, by: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A matrix in FP8 and the scale of each row. by: factors of its columns, put in before."""
    if matrix.is_cuda and (kernels := fp8_kernels().item) is not None:
        return kernels.rounded(matrix, by, LARGEST, SMALLEST)  # type: ignore[no-any-return]
    numbers = matrix.float() if by is None else matrix.float() * by
    largest = numbers.new_full((), LARGEST)  # by a number CUDA would divide inexactly
    scales = numbers.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST) / largest
    return (numbers / scales).to(FP8), scales[:, 0]


def widened(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of a rounded weight."""
    return (weight.float() * scales[:, None]).to(dtype)


def product(rows: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """rows · Wᵀ, for a rounded W."""
    rows8, row_scales = rounded(rows)
    return _multiplied(rows8, weight.t(), row_scales, scales, rows.dtype)


def input_gradient(grad: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """grad · W, for a rounded W: the gradient of `rows` in `product`."""
    grad8, row_scales = rounded(grad, scales)
    transposed = _transposed(weight)
    ones = scales.new_ones(len(transposed))
    return _multiplied(grad8, transposed.t(), row_scales, ones, grad.dtype)


def _multiplied(
    left: Tensor, right: Tensor, row_scales: Tensor, column_scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """left · right, whose row i is multiplied by row_scales[i] and column j by column_scales[j].

    A CPU, which is there for tests, multiplies in fp32: torch 2.11 has no such product for it.
    """
    if not left.is_cuda:
        return (left.float() @ right.float() * row_scales[:, None] * column_scales).to(dtype)
    scales = {"scale_a": row_scales[:, None], "scale_b": column_scales[None]}
    return torch._scaled_mm(left, right, **scales, out_dtype=dtype, use_fast_accum=True)


def _transposed(weight: Tensor) -> Tensor:
    """The transpose of a matrix, contiguous in memory."""
    if weight.is_cuda and (kernels := fp8_kernels().item) is not None:
        return kernels.transposed(weight)  # type: ignore[no-any-return]
    return weight.t().contiguous()


class _FrozenProduct(torch.autograd.Function):
    """`product`, with `input_gradient` as its gradient; the weight has none."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scales)
        made = product(given.reshape(-1, given.shape[-1]), weight, scales)
        return made.view(*given.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, scales = ctx.saved_tensors
        grad = grads[0].reshape(-1, len(weight))
        made = input_gradient(grad, weight, scales)
        return made.view(*grads[0].shape[:-1], weight.shape[1]), None, None


class Fp8Linear(nn.Module):
    """A linear layer whose weight is rounded to FP8 and frozen."""

    def __init__(self, layer: nn.Linear, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = dtype
        packed, scales = rounded(layer.weight.data.to(device=device, dtype=dtype))
        self.packed: Tensor
        self.scales: Tensor
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The numbers that it computes with."""
        return widened(self.packed, self.scales, self.dtype)

    def forward(self, given: Tensor) -> Tensor:
        made: Tensor = _FrozenProduct.apply(given, self.packed, self.scales)  # type: ignore[no-untyped-call]
        return made if self.bias is None else made + self.bias
