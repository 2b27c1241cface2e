"""Gated layers: down(silu(gate(x)) * up(x)), with one product for gate and up and one kernel for
silu(g) * u.

The product makes g and u side by side, as one tensor [g, u]. The compiler would make several
kernels of silu(g) * u, and would compute both of its gradients everywhere to put them side by side.
Here one kernel computes the forward pass and one the backward pass (`triton_gate.py`). With
adapters these kernels also add the low-rank parts of gate and up, which would otherwise be one more
pass over the widest tensors of a model. Without Triton, torch computes the same.

With adapters on gate, up and down, the whole layer is one custom operator (`adapted_gate`). The
operator keeps the frozen product [g, u] and the outputs of the A matrices. Its backward pass
computes silu(g) * u again, which is as wide as the layer's inner size, instead of keeping it.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msft.engine.accel.joined_adapters import (
    AdaptedWeights,
    flat,
    frozen_input_gradient,
    frozen_product,
    gradients,
    product,
)
from msft.engine.kernels import HALF, short_rows

WIDEST = 64
"""Adapters of a higher rank are added by torch."""
GATED = re.compile(
    r"def forward\(self, (\w+)[^)]*\)[^:]*:\s*"
    r"(?:return|(\w+) =) self\.down_proj\(self\.act_fn\(self\.gate_proj\(\1\)\) \* "
    r"self\.up_proj\(\1\)\)(?:\s*return \2)?\s*"
)
"""The forward pass of a gated layer, as transformers writes it."""


def is_gated(module: Any) -> bool:
    """Whether a module computes down(silu(gate(x)) * up(x)), and nothing else."""
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return False
    numbers = torch.linspace(-3, 3, 7)
    return _has_gated_source(type(module).forward) and torch.equal(
        module.act_fn(numbers), functional.silu(numbers)
    )


@cache
def _has_gated_source(forward: Callable[..., Any]) -> bool:
    try:
        source = inspect.getsource(forward)
    except (OSError, TypeError):
        return False
    return GATED.fullmatch(source.strip()) is not None


@torch.library.custom_op("msft::adapted_gate", mutates_args=())
def adapted_gate(
    given: Tensor,
    wide: list[Tensor],
    wide_biases: list[Tensor],
    narrow: list[Tensor],
    narrow_biases: list[Tensor],
    sizes: list[int],
    scales: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The layer's output; and for its backward pass the frozen product of gate and up, and the
    outputs of the A matrices in both products.

    wide: of gate and up, the frozen weights, then the A matrices as one, and the B matrices.
    narrow: the same of down. sizes: outputs of gate, up and down. scales: of wide and narrow.
    """
    (*frozen, down, up), (*last, last_down, last_up) = wide, narrow
    rows = flat(given)
    base, low = frozen_product(rows, frozen, wide_biases, sizes[:2]), rows @ down.t()
    act = gate_forward(base, low, up, scales[0])
    made, inner = product(act, last, narrow_biases, last_down, last_up, sizes[2:], scales[1])
    return made.view(*given.shape[:-1], sizes[2]), base, low, inner


@adapted_gate.register_fake
def _(
    given: Tensor, wide: Any, biases: Any, narrow: Any, more: Any, sizes: list[int], scales: Any
) -> tuple[Tensor, ...]:
    rows = flat(given).shape[0]
    widths = (sizes[0] + sizes[1], wide[-2].shape[0], narrow[-2].shape[0])
    base, low, inner = (given.new_empty(rows, width) for width in widths)
    return given.new_empty(*given.shape[:-1], sizes[2]), base, low, inner


@torch.library.custom_op("msft::adapted_gate_grads", mutates_args=())
def adapted_gate_grads(
    grad: Tensor,
    given: Tensor,
    base: Tensor,
    low: Tensor,
    inner: Tensor,
    wide: list[Tensor],
    narrow: list[Tensor],
    sizes: list[int],
    scales: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the input, of A and B of gate and up, and of A and B of down."""
    (*frozen, down, up), (*last, last_down, last_up) = wide, narrow
    grad = flat(grad)
    back = (grad @ last_up).mul_(scales[1])
    of_last_up = (grad.t() @ inner).mul_(scales[1])
    of_act = frozen_input_gradient(grad, last, sizes[2:], sizes[0])
    slope, act = gate_backward(base, low, up, scales[0], of_act, back, last_down)
    of_last_down = back.t() @ act
    del act, of_act
    rest = (frozen, down, up, sizes[:2], scales[0])
    return *gradients(slope, given, low, *rest), of_last_down, of_last_up


@adapted_gate_grads.register_fake
def _(
    grad: Any, given: Tensor, base: Any, low: Any, inner: Any, wide: Any, narrow: Any, *rest: Any
) -> tuple[Tensor, ...]:
    found = (given, wide[-2], wide[-1], narrow[-2], narrow[-1])
    return tuple(each.new_empty(each.shape) for each in found)


class _AdaptedGate(torch.autograd.Function):
    """`adapted_gate`, with `adapted_gate_grads` as its gradient. A and B matrices come as one for
    the products, and one by one for their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        matrices: list[Tensor],
        counts: list[int],
        sizes: list[int],
        scales: list[float],
        *tensors: Tensor,
    ) -> Tensor:
        """matrices: A and B of wide as one, then of narrow. counts: of frozen tensors and biases,
        of wide and of narrow; tensors: these, and then what has a gradient."""
        parts, begin = [], 0
        for count in counts:
            parts.append(list(tensors[begin : begin + count]))
            begin += count
        wide, narrow = [*parts[0], *matrices[:2]], [*parts[2], *matrices[2:]]
        made: Tensor
        made, base, low, inner = adapted_gate(
            given, wide, parts[1], narrow, parts[3], sizes, scales
        )
        ctx.save_for_backward(given, base, low, inner, *wide, *narrow)
        ctx.sizes, ctx.scales, ctx.wide, ctx.held = sizes, scales, len(wide), begin
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        given, base, low, inner, *weights = ctx.saved_tensors
        wide, narrow = list(weights[: ctx.wide]), list(weights[ctx.wide :])
        of_given, *found = adapted_gate_grads(
            grads[0], given, base, low, inner, wide, narrow, ctx.sizes, ctx.scales
        )
        downs = torch.split(found[0], wide[-1].shape[1])
        ups = torch.split(found[1], ctx.sizes[:2])
        return of_given, *[None] * (4 + ctx.held), *downs, *ups, found[2], found[3]


def gated(module: Any, wide: Any, narrow: Any) -> Callable[[Tensor], Tensor]:
    """A module's forward pass, with one product for its gate and up layers.

    wide: the weights of gate and up, of either kind in `joined_linears.py`.
    narrow: the weights of down; None: down is a plain layer.
    """
    both = isinstance(wide, AdaptedWeights) and isinstance(narrow, AdaptedWeights)
    if both and wide.rank == narrow.rank <= WIDEST:
        return lambda given: _adapted_gate(given, wide, narrow)

    def forward(given: Tensor) -> Tensor:
        made: Tensor = module.down_proj(Gate.apply(wide.product(given)))  # type: ignore[no-untyped-call]
        return made

    return forward


def _adapted_gate(given: Tensor, wide: AdaptedWeights, narrow: AdaptedWeights) -> Tensor:
    first, last = wide.operands(), narrow.operands()
    frozen = (first.frozen, first.biases, last.frozen, last.biases)
    made: Tensor = _AdaptedGate.apply(  # type: ignore[no-untyped-call]
        given,
        [first.down, first.up, last.down, last.up],
        [len(part) for part in frozen],
        [*first.sizes, *last.sizes],
        [first.scale, last.scale],
        *(tensor for part in frozen for tensor in part),
        *(*first.downs, *first.ups, *last.downs, *last.ups),
    )
    return made


# The gate.
TILE = {"BLOCK_M": 16, "BLOCK_N": 128, "STRIP": 8, "num_warps": 2}
FEWEST = 16
"""Ranks of the smallest matrix product that Triton knows."""


def gate_forward(base: Tensor, low: Tensor | None, up: Tensor | None, scale: float) -> Tensor:
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


def gate_backward(
    base: Tensor,
    low: Tensor | None,
    up: Tensor | None,
    scale: float,
    grad: Tensor,
    back: Tensor | None,
    down: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradient of [g, u], and with adapters silu(g) * u.

    grad: the gradient of silu(g) * u; with adapters on down, grad + back @ down is.
    """
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
    made = gate_forward(flat(whole), None, None, 0.0)
    return made.view(*whole.shape[:-1], made.shape[-1])


@gate.register_fake
def _(whole: Tensor) -> Tensor:
    return whole.new_empty(*whole.shape[:-1], whole.shape[-1] // 2)


@torch.library.custom_op("msft::gate_grads", mutates_args=())
def gate_grads(whole: Tensor, grad: Tensor) -> Tensor:
    """The gradient of both halves."""
    slope, _ = gate_backward(flat(whole), None, None, 0.0, flat(grad), None, None)
    return slope.view(whole.shape)


@gate_grads.register_fake
def _(whole: Tensor, grad: Tensor) -> Tensor:
    return whole.new_empty(whole.shape)


class Gate(torch.autograd.Function):
    """`gate`, with `gate_grads` as its gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        ctx.save_for_backward(whole)
        made: Tensor = gate(whole)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gate_grads(*ctx.saved_tensors, grads[0])
