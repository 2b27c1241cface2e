"""The gate of a decoder layer, silu(g) * u, where one product makes g and u, side by side.

The compiler makes several kernels of it, and puts its two gradients together by computing both
everywhere. Here one kernel does each way (`triton_gate.py`). With adapters it also adds their
low-rank parts, which else would be one more pass over the widest tensors of a model.

Where there is no kernel, torch computes the same.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msft.engine.accel.adapted_products import flat
from msft.engine.kernels import HALF, short_rows

TILE = {"BLOCK_M": 16, "BLOCK_N": 128, "STRIP": 8, "num_warps": 2}
FEWEST = 16
"""Ranks of the smallest matrix product that Triton knows."""


def opened(base: Tensor, low: Tensor | None, up: Tensor | None, scale: float) -> Tensor:
    """silu(g) * u, where [g, u] is base + scale * low @ up, of two layers side by side."""
    kernels = _kernels(base)
    if kernels is None:
        g, u = _halves(base, low, up, scale)
        return (functional.silu(g) * u).to(base.dtype)
    tokens, n = base.shape[0], base.shape[1] // 2
    act = base.new_empty(tokens, n)
    kernels.forward[_grid(tokens, n)](
        base, base if low is None else low, base if up is None else up, scale, act, tokens,
        n, **_ranks(up), **TILE,
    )  # fmt: skip
    return act


def slopes(
    base: Tensor,
    low: Tensor | None,
    up: Tensor | None,
    scale: float,
    grad: Tensor,
    back: Tensor | None,
    down: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradient of [g, u], and with adapters silu(g) * u; the gradient of the latter is grad +
    back @ down."""
    kernels = _kernels(base)
    tokens, n = base.shape[0], base.shape[1] // 2
    if kernels is None:
        g, u = _halves(base, low, up, scale)
        wide = grad.float() if back is None or down is None else grad.float() + (back @ down)
        s = g.sigmoid()
        slope = torch.cat([wide * u * s * (1 + g * (1 - s)), wide * g * s], -1)
        return slope.to(base.dtype), (g * s * u).to(base.dtype)
    slope, act = torch.empty_like(base), base.new_empty(0 if up is None else tokens, n)
    kernels.backward[_grid(tokens, n)](
        base, base if low is None else low, base if up is None else up, scale,
        grad.contiguous(), base if back is None else back, base if down is None else down,
        slope, act, tokens, n, **_ranks(up), **TILE,
    )  # fmt: skip
    return slope, act


def _halves(
    base: Tensor, low: Tensor | None, up: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """g and u in fp32."""
    halves = base.float().chunk(2, -1)
    if low is None or up is None:
        return halves[0], halves[1]
    parts = zip(halves, low.float().chunk(2, -1), up.float().chunk(2), strict=True)
    g, u = (half + scale * (part @ high.t()) for half, part, high in parts)
    return g, u


def _grid(tokens: int, n: int) -> tuple[int, int]:
    return -(-n // TILE["BLOCK_N"]), -(-tokens // (TILE["BLOCK_M"] * TILE["STRIP"]))


def _ranks(up: Tensor | None) -> dict[str, int]:
    rank = 0 if up is None else up.shape[1]
    return {"RANK": rank, "BLOCK_R": max(FEWEST, 1 << (rank - 1).bit_length() if rank else 0)}


def _kernels(base: Tensor) -> Any:
    """The module `triton_gate.py`, where it serves these numbers."""
    if not base.is_cuda or base.dtype not in HALF or short_rows().item is None:
        return None
    from msft.engine.accel import triton_gate

    return triton_gate


@torch.library.custom_op("msft::gate", mutates_args=())
def gate(whole: Tensor) -> Tensor:
    """silu of the first half of the last axis, times the second half."""
    made = opened(flat(whole), None, None, 0.0)
    return made.view(*whole.shape[:-1], made.shape[-1])


@gate.register_fake
def _(whole: Tensor) -> Tensor:
    return whole.new_empty(*whole.shape[:-1], whole.shape[-1] // 2)


@torch.library.custom_op("msft::gate_grads", mutates_args=())
def gate_grads(whole: Tensor, grad: Tensor) -> Tensor:
    """The gradient of both halves."""
    slope, _ = slopes(flat(whole), None, None, 0.0, flat(grad), None, None)
    return slope.view(whole.shape)


@gate_grads.register_fake
def _(whole: Tensor, grad: Tensor) -> Tensor:
    return whole.new_empty(whole.shape)


class Gate(torch.autograd.Function):
    """The two above."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        ctx.save_for_backward(whole)
        made: Tensor = gate(whole)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gate_grads(*ctx.saved_tensors, grads[0])
