"""Joined projections with adapters: one product with the frozen weights of all layers, one with all
their A matrices, and a small one with each B, added where it belongs.

Frozen weights have no gradient, so nothing is kept for one; weights in four bits are unpacked
anew in the backward pass. Only plain LoRA without dropout comes here: the other kinds run as peft
has them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.model.adapter_folders import ADAPTER
from msft.engine.model.four_bit import PARTS, FourBitLinear, unpacked


@torch.library.custom_op("msft::adapted", mutates_args=())
def adapted(
    given: Tensor,
    frozen: list[Tensor],
    biases: list[Tensor],
    down: Tensor,
    ups: list[Tensor],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """What layers with adapters make of their input, side by side, and what their A matrices do.

    frozen: their weights as one matrix, or the parts of their packed weights.
    down: their A matrices as one. ups: their B matrices.
    """
    rows = given.reshape(-1, given.shape[-1])
    bias = torch.cat(biases) if biases else None
    made = torch.nn.functional.linear(rows, _whole(frozen, ups, rows), bias)
    inner = rows @ down.t()
    at = _places(ups)
    for (begin, end, low, high), up in zip(at, ups, strict=True):
        made[:, begin:end].addmm_(inner[:, low:high], up.t(), alpha=scale)
    shape = given.shape[:-1]
    return made.view(*shape, made.shape[-1]), inner.view(*shape, inner.shape[-1])


@adapted.register_fake
def _(
    given: Tensor,
    frozen: list[Tensor],
    biases: list[Tensor],
    down: Tensor,
    ups: list[Tensor],
    scale: float,
) -> tuple[Tensor, Tensor]:
    shape = given.shape[:-1]
    wide = sum(up.shape[0] for up in ups)
    return given.new_empty(*shape, wide), given.new_empty(*shape, down.shape[0])


@torch.library.custom_op("msft::adapted_grads", mutates_args=())
def adapted_grads(
    grad: Tensor,
    given: Tensor,
    inner: Tensor,
    frozen: list[Tensor],
    down: Tensor,
    ups: list[Tensor],
    scale: float,
) -> list[Tensor]:
    """The gradients of the input, of all A matrices, and of each B."""
    grad = grad.reshape(-1, grad.shape[-1])
    rows, inner = given.reshape(-1, given.shape[-1]), inner.reshape(-1, inner.shape[-1])
    back = torch.empty_like(inner)
    of_ups = []
    for (begin, end, low, high), up in zip(_places(ups), ups, strict=True):
        part, at = grad[:, begin:end], back[:, low:high]
        torch.addmm(at, part, up, beta=0, alpha=scale, out=at)
        slope = torch.empty_like(up)
        of_ups.append(
            torch.addmm(slope, part.t(), inner[:, low:high], beta=0, alpha=scale, out=slope)
        )
    of_given = grad @ _whole(frozen, ups, rows)
    of_given.addmm_(back, down)
    return [of_given.view(given.shape), back.t() @ rows, *of_ups]


@adapted_grads.register_fake
def _(
    grad: Tensor,
    given: Tensor,
    inner: Tensor,
    frozen: list[Tensor],
    down: Tensor,
    ups: list[Tensor],
    scale: float,
) -> list[Tensor]:
    of_ups = [up.new_empty(up.shape) for up in ups]
    return [given.new_empty(given.shape), down.new_empty(down.shape), *of_ups]


def _whole(frozen: Sequence[Tensor], ups: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The frozen weights as one matrix."""
    if frozen[0].is_floating_point():
        return frozen[0]
    whole = rows.new_empty(sum(len(up) for up in ups), rows.shape[-1])
    for number, part in enumerate(torch.split(whole, [len(up) for up in ups])):
        unpacked(frozen[PARTS * number : PARTS * (number + 1)], part)
    return whole


def _places(ups: Sequence[Tensor]) -> list[tuple[int, int, int, int]]:
    """Where each layer's part begins and ends: in what is made, and in what A matrices make."""
    places, out, rank = [], 0, 0
    for up in ups:
        places.append((out, out + up.shape[0], rank, rank + up.shape[1]))
        out, rank = out + up.shape[0], rank + up.shape[1]
    return places


class _Adapted(torch.autograd.Function):
    """The two products above. A matrices come one by one, for their gradients, and as one."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        down: Tensor,
        scale: float,
        counts: tuple[int, int],
        *tensors: Tensor,
    ) -> Tensor:
        biases, each = counts
        frozen = list(tensors[: len(tensors) - biases - 2 * each])
        ups = list(tensors[len(tensors) - each :])
        added = list(tensors[len(frozen) : len(frozen) + biases])
        made: Tensor
        made, inner = adapted(given, frozen, added, down, ups, scale)
        ctx.save_for_backward(given, inner, down, *frozen, *ups)
        ctx.scale, ctx.counts, ctx.ranks = scale, counts, [up.shape[1] for up in ups]
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        given, inner, down, *rest = ctx.saved_tensors
        biases, each = ctx.counts
        frozen, ups = rest[: len(rest) - each], rest[len(rest) - each :]
        found = adapted_grads(grads[0], given, inner, frozen, down, ups, ctx.scale)
        downs = torch.split(found[1], ctx.ranks)
        none = [None] * (len(frozen) + biases)
        return found[0], None, None, None, *none, *downs, *found[2:]


def lying_together(parts: Sequence[Tensor]) -> Tensor:
    """Matrices of one width as one: where they lie, if one follows the other there, else a copy."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return torch.cat(list(parts))
        end += part.numel() * part.element_size()
    if len({part.untyped_storage().data_ptr() for part in parts}) > 1:
        return torch.cat(list(parts))
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, first.shape[1]), first.stride())


class AdaptedWeights:
    """The weights of layers that read the same input and have adapters; see `Weights`."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.modules: Sequence[nn.Module] = layers
        self.sizes = [layer.base_layer.out_features for layer in layers]
        self._bases = [layer.base_layer for layer in layers]
        self._downs = [layer.lora_A[ADAPTER] for layer in layers]
        self._ups = [layer.lora_B[ADAPTER] for layer in layers]
        self._scale = float(layers[0].scaling[ADAPTER])
        self._packed = isinstance(self._bases[0], FourBitLinear)
        self._whole: Tensor | None = None
        self._down: Tensor | None = None

    def lay_together(self) -> None:
        """The frozen weights, and the A matrices."""
        ranks = [len(down.weight) for down in self._downs]
        self._down = lying_together([down.weight.data for down in self._downs])
        for down, part in zip(self._downs, torch.split(self._down, ranks), strict=True):
            down.weight.data = part
        if self._packed:
            return
        self._whole = lying_together([base.weight.data for base in self._bases])
        for base, part in zip(self._bases, torch.split(self._whole, self.sizes), strict=True):
            base.weight.data = part

    def product(self, given: Tensor) -> Tensor:
        whole = [] if self._whole is None else [self._whole]
        return self._computed(given, slice(None), whole, self._down)

    def alone(self, number: int, given: Tensor) -> Tensor:
        return self._computed(given, slice(number, number + 1), [], None)

    def _computed(
        self, given: Tensor, which: slice, frozen: list[Tensor], down: Tensor | None
    ) -> Tensor:
        bases = self._bases[which]
        if not frozen:
            frozen = [part for base in bases for part in base.parts] if self._packed else []
            frozen = frozen or [torch.cat([base.weight for base in bases])]
        biases = [base.bias for base in bases if base.bias is not None]
        downs = [each.weight for each in self._downs[which]]
        ups = [each.weight for each in self._ups[which]]
        down = torch.cat([each.detach() for each in downs]) if down is None else down
        tensors = (*frozen, *biases, *downs, *ups)
        counts = (len(biases), len(ups))
        made: Tensor = _Adapted.apply(given, down, self._scale, counts, *tensors)  # type: ignore[no-untyped-call]
        return made


def adapted_together(model: nn.Module, groups: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Layers with plain adapters under one module that read the same input, and those that are
    alone.

    groups: names of layers that read the same input.
    """
    found: list[list[Any]] = []
    for module in model.modules():
        children = {n: child for n, child in module.named_children() if _is_plain(child)}
        for names in groups:
            layers = [children.get(name) for name in names]
            kinds = {_kind(layer) for layer in layers if layer is not None}
            if None not in layers and len(kinds) == 1:
                found.append([children.pop(name) for name in names])
        found += [[child] for child in children.values()]
    return found


def _is_plain(layer: Any) -> bool:
    """LoRA on a linear layer, without dropout and whatever else peft has."""
    if not hasattr(layer, "lora_A") or ADAPTER not in getattr(layer, "lora_A", ()):
        return False
    plain = type(layer.lora_dropout[ADAPTER]) is nn.Identity and not layer.lora_variant
    return plain and type(layer.base_layer) in (nn.Linear, FourBitLinear)


def _kind(layer: Any) -> tuple[Any, ...]:
    base = layer.base_layer
    return type(base), base.in_features, base.bias is None, layer.scaling[ADAPTER]
