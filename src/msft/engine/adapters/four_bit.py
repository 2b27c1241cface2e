"""Frozen weights in four bits (QLoRA): NF4 of bitsandbytes, whose scales are quantised too.

Weights are quantised once. A product dequantises them into memory that it gives back; its backward
pass dequantises them again, so that only the packed weights are held.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK, NESTED_BLOCK = 64, 256
"""Weights under one scale, and scales under one scale of theirs."""
PARTS = 4
"""Tensors of a packed weight: weights, scales, the scales' scales, and the scales' mean."""


def packed(weight: Tensor) -> list[Tensor]:
    """A weight in NF4, as four tensors."""
    bnb = _library()
    made, state = bnb.quantize_4bit(
        weight.contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
    )
    return [made, state.absmax, state.state2.absmax, state.offset]


def unpacked(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """Write the numbers of a packed weight into `out`, which is returned."""
    bnb = _library()
    made, scales, outer, mean = parts
    absmax = bnb.dequantize_blockwise(
        scales, absmax=outer, code=_codes(made.device)[1], blocksize=NESTED_BLOCK
    )
    state = bnb.QuantState(
        absmax=absmax + mean,
        shape=out.shape,
        code=_codes(made.device)[0],
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=out.dtype,
    )
    if out.is_cuda:
        bnb.dequantize_4bit(made, state, out=out)
    else:
        out.copy_(bnb.dequantize_4bit(made, state))
    return out


def _library() -> Any:
    from bitsandbytes import functional

    return functional


def _codes(device: torch.device) -> tuple[Tensor, Tensor]:
    """The 16 values of NF4, and the 256 of its scales."""
    bnb = _library()
    if device not in _KNOWN:
        dynamic = bnb.create_dynamic_map().to(device)
        _KNOWN[device] = (bnb.get_4bit_type("nf4", device=device), dynamic)
    return _KNOWN[device]


_KNOWN: dict[torch.device, tuple[Tensor, Tensor]] = {}


class _FrozenProduct(torch.autograd.Function):
    """x · Wᵀ with a packed W, which has no gradient."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, size: int, *parts: Tensor) -> Tensor:
        ctx.size, ctx.width = size, given.shape[-1]
        ctx.save_for_backward(*parts)
        return functional.linear(given, unpacked(parts, given.new_empty(size, ctx.width)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight = unpacked(ctx.saved_tensors, grads[0].new_empty(ctx.size, ctx.width))
        return grads[0] @ weight, None, *[None] * PARTS


class FourBitLinear(nn.Module):
    """A linear layer whose weight is packed and frozen."""

    def __init__(self, layer: nn.Linear, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = dtype
        parts = packed(layer.weight.data.to(device=device, dtype=dtype))
        for name, part in zip(("packed", "scales", "outer", "mean"), parts, strict=True):
            self.register_buffer(name, part, persistent=False)
        self.bias = layer.bias

    @property
    def parts(self) -> list[Tensor]:
        return [self.packed, self.scales, self.outer, self.mean]  # type: ignore[list-item]

    @property
    def weight(self) -> Tensor:
        """The numbers that the layer computes with."""
        shape = (self.out_features, self.in_features)
        return unpacked(
            self.parts, torch.empty(shape, dtype=self.dtype, device=self.parts[0].device)
        )

    def forward(self, given: Tensor) -> Tensor:
        made: Tensor = _FrozenProduct.apply(given, self.out_features, *self.parts)  # type: ignore[no-untyped-call]
        return made if self.bias is None else made + self.bias
