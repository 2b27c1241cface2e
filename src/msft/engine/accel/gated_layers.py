"""Gated layers: down(silu(gate(x)) * up(x)), where gate and up are one product and what is between
the products is one kernel (`gate.py`).

With adapters on all three layers the gate's result is computed again in the backward pass instead
of being kept.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from msft.engine.accel.adapted_products import (
    flat,
    frozen_product,
    gradients,
    product,
    whole_of,
)
from msft.engine.accel.gate import Gate, opened, slopes
from msft.engine.accel.joined_adapters import AdaptedWeights

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
    """What the layer makes of its input; and for its backward pass the frozen product of gate and
    up, and what the A matrices make in both products.

    wide: of gate and up, the frozen weights, then the A matrices as one, and the B matrices.
    narrow: the same of down. sizes: what gate, up and down make. scales: of wide and narrow.
    """
    (*frozen, down, up), (*last, last_down, last_up) = wide, narrow
    rows = flat(given)
    base, low = frozen_product(rows, frozen, wide_biases, sizes[:2]), rows @ down.t()
    act = opened(base, low, up, scales[0])
    made, inner = product(act, last, narrow_biases, last_down, last_up, sizes[2:], scales[1])
    return made.view(*given.shape[:-1], sizes[2]), base, low, inner


@adapted_gate.register_fake
def _(
    given: Tensor,
    wide: list[Tensor],
    wide_biases: list[Tensor],
    narrow: list[Tensor],
    narrow_biases: list[Tensor],
    sizes: list[int],
    scales: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    of_act = grad @ whole_of(last, sizes[2:], sizes[0], grad)
    slope, act = slopes(base, low, up, scales[0], of_act, back, last_down)
    of_last_down = back.t() @ act
    del act, of_act
    rest = (frozen, down, up, sizes[:2], scales[0])
    of_given, of_down, of_up = gradients(slope, flat(given), low, *rest)
    return of_given.view(given.shape), of_down, of_up, of_last_down, of_last_up


@adapted_gate_grads.register_fake
def _(
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
    found = (given, wide[-2], wide[-1], narrow[-2], narrow[-1])
    return tuple(each.new_empty(each.shape) for each in found)  # type: ignore[return-value]


class _AdaptedGate(torch.autograd.Function):
    """The two above. A and B matrices come one by one, for their gradients, and as one."""

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
    """A module's forward pass by one product of its gate and up layers.

    wide, narrow: the weights of these two layers, and of down (see `joined_linears.Weights`); None:
        they are nobody's.
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
