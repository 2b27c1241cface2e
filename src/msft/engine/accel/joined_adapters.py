"""Joined projections with adapters: layers that read the same input as a few products.

A layer with an adapter computes x·Wᵀ + s·(x·Aᵀ)·Bᵀ. For layers that read the same x, one product is
with the frozen weights W of all layers, one with all their A matrices, and one batched product with
the B matrices of each size, added to the columns of its layers. Frozen weights have no gradient, so
the backward pass needs x and x·Aᵀ only. Weights in four bits are unpacked for each product, those
in FP8 are multiplied as they are. Only plain LoRA without dropout comes here: the other kinds run
as peft has them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.adapters import fp8
from msft.engine.adapters.four_bit import PARTS, FourBitLinear, unpacked
from msft.engine.model.folders import ADAPTER

SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that read the same input, in the order in which models call them."""


class Operands(NamedTuple):
    """What layers with adapters compute with.

    frozen: the frozen weights as one matrix, in FP8 with its scales; or the parts of each weight in
        four bits.
    down, up: all A matrices below each other, and all B matrices; downs, ups: one by one.
    sizes: the outputs of each layer.
    """

    frozen: list[Tensor]
    biases: list[Tensor]
    down: Tensor
    up: Tensor
    downs: list[Tensor]
    ups: list[Tensor]
    sizes: list[int]
    scale: float


def product(
    given: Tensor,
    frozen: list[Tensor],
    biases: list[Tensor],
    down: Tensor,
    up: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The outputs of layers with adapters, side by side, and the outputs of their A matrices."""
    rows = flat(given)
    made = frozen_product(rows, frozen, biases, sizes)
    inner = rows @ down.t()
    rank = up.shape[1]
    for count, size, first, begin in _runs_of_equal(sizes):
        part = _columns(made, begin, count, size)
        low = _columns(inner, first * rank, count, rank)
        high = up[begin : begin + count * size].view(count, size, rank).transpose(1, 2)
        part.baddbmm_(low, high, alpha=scale)
    shape = given.shape[:-1]
    return made.view(*shape, made.shape[-1]), inner.view(*shape, inner.shape[-1])


def frozen_product(
    rows: Tensor, frozen: Sequence[Tensor], biases: Sequence[Tensor], sizes: Sequence[int]
) -> Tensor:
    """The outputs of the same layers without their adapters."""
    bias = torch.cat(list(biases)) if biases else None
    if frozen[0].dtype == fp8.FP8:
        made = fp8.product(rows, *frozen)
        return made if bias is None else made.add_(bias)
    return functional.linear(rows, _matrix_of(frozen, sizes, rows.shape[-1], rows), bias)


def frozen_input_gradient(
    grad: Tensor, frozen: Sequence[Tensor], sizes: Sequence[int], width: int
) -> Tensor:
    """The gradient of `rows` in `frozen_product`. width: numbers of a row."""
    if frozen[0].dtype == fp8.FP8:
        return fp8.input_gradient(grad, *frozen)
    return grad @ _matrix_of(frozen, sizes, width, grad)


def gradients(
    grad: Tensor,
    given: Tensor,
    inner: Tensor,
    frozen: list[Tensor],
    down: Tensor,
    up: Tensor,
    sizes: list[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input, of all A matrices, and of all B matrices.

    grad: of the outputs; inner: the outputs of the A matrices.
    """
    grad, rows, inner = flat(grad), flat(given), flat(inner)
    back, of_up, rank = torch.empty_like(inner), torch.empty_like(up), up.shape[1]
    for count, size, first, begin in _runs_of_equal(sizes):
        part = _columns(grad, begin, count, size)
        low, low_back = (_columns(each, first * rank, count, rank) for each in (inner, back))
        high, slope = (
            each[begin : begin + count * size].view(count, size, rank) for each in (up, of_up)
        )
        torch.baddbmm(low_back, part, high, beta=0, alpha=scale, out=low_back)
        torch.baddbmm(slope, part.transpose(1, 2), low, beta=0, alpha=scale, out=slope)
    of_rows = frozen_input_gradient(grad, frozen, sizes, rows.shape[-1])
    of_rows.addmm_(back, down)
    return of_rows.view(given.shape), back.t() @ rows, of_up


def flat(tensor: Tensor) -> Tensor:
    """A tensor as a matrix, whose rows are its last axis."""
    return tensor.reshape(-1, tensor.shape[-1])


def _matrix_of(frozen: Sequence[Tensor], sizes: Sequence[int], width: int, like: Tensor) -> Tensor:
    """The frozen weights as one matrix of `width` columns; packed ones in the dtype of `like`."""
    if frozen[0].is_floating_point():
        return frozen[0]
    whole = like.new_empty(sum(sizes), width)
    for number, part in enumerate(torch.split(whole, list(sizes))):
        unpacked(frozen[PARTS * number : PARTS * (number + 1)], part)
    return whole


def _runs_of_equal(sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Runs of layers of one size, each of which is one batched product: number of layers, size,
    number of the first layer, and the column where the first layer begins."""
    runs: list[tuple[int, int, int, int]] = []
    begin = 0
    for number, size in enumerate(sizes):
        if runs and runs[-1][1] == size:
            count, _, first, start = runs[-1]
            runs[-1] = (count + 1, size, first, start)
        else:
            runs.append((1, size, number, begin))
        begin += size
    return runs


def _columns(matrix: Tensor, begin: int, count: int, size: int) -> Tensor:
    """Columns of a matrix as `count` matrices of `size` columns, without a copy."""
    columns = matrix[:, begin : begin + count * size]
    return columns.view(len(matrix), count, size).transpose(0, 1)


# The compiler takes both as they are, and knows only the shapes of what they make.
adapted = torch.library.custom_op("msft::adapted", product, mutates_args=())
adapted_grads = torch.library.custom_op("msft::adapted_grads", gradients, mutates_args=())


@adapted.register_fake
def _(
    given: Tensor, frozen: Any, biases: Any, down: Tensor, up: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    shape = given.shape[:-1]
    return given.new_empty(*shape, up.shape[0]), given.new_empty(*shape, down.shape[0])


@adapted_grads.register_fake
def _(
    grad: Tensor, given: Tensor, inner: Any, frozen: Any, down: Tensor, up: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in (given, down, up))


class _Adapted(torch.autograd.Function):
    """`adapted`, with `adapted_grads` as its gradient. A and B matrices come as one for the
    products, and one by one for their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        down: Tensor,
        up: Tensor,
        sizes: list[int],
        scale: float,
        biases: int,
        *tensors: Tensor,
    ) -> Tensor:
        held = len(tensors) - biases - 2 * len(sizes)
        frozen, added = list(tensors[:held]), list(tensors[held : held + biases])
        made: Tensor
        made, inner = adapted(given, frozen, added, down, up, sizes, scale)
        ctx.save_for_backward(given, inner, down, up, *frozen)
        ctx.sizes, ctx.scale, ctx.others = sizes, scale, held + biases
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        given, inner, down, up, *frozen = ctx.saved_tensors
        found = adapted_grads(grads[0], given, inner, frozen, down, up, ctx.sizes, ctx.scale)
        downs = torch.split(found[1], up.shape[1])
        ups = torch.split(found[2], ctx.sizes)
        none = [None] * ctx.others
        return found[0], None, None, None, None, None, *none, *downs, *ups


def as_one_matrix(parts: Sequence[Tensor]) -> Tensor:
    """Matrices of one width as one: a view if they follow each other in memory, else a copy."""
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
    """The weights of layers that read the same input and have adapters; see `PlainWeights`."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.modules: Sequence[nn.Module] = layers
        self.sizes = [layer.base_layer.out_features for layer in layers]
        self.rank = int(layers[0].r[ADAPTER])
        self._bases = [layer.base_layer for layer in layers]
        self._downs = [layer.lora_A[ADAPTER] for layer in layers]
        self._ups = [layer.lora_B[ADAPTER] for layer in layers]
        self.scale = float(layers[0].scaling[ADAPTER])
        self._held = type(self._bases[0])
        self._whole: list[Tensor] | None = None
        self._down: Tensor | None = None
        self._up: Tensor | None = None

    def fuse_projections(self) -> None:
        """Let the frozen weights be parts of one tensor; so the A matrices, and the B matrices."""
        self._down, self._up = in_one_tensor(self._downs), in_one_tensor(self._ups)
        if self._held is nn.Linear:
            self._whole = [in_one_tensor(self._bases)]
        elif self._held is fp8.Fp8Linear:
            self._whole = self._in_fp8()
            for name, whole in zip(("packed", "scales"), self._whole, strict=True):
                for base, part in zip(self._bases, torch.split(whole, self.sizes), strict=True):
                    setattr(base, name, part)

    def product(self, given: Tensor) -> Tensor:
        by = self.operands()
        made: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
            *(given, by.down, by.up, by.sizes, by.scale, len(by.biases)),
            *(*by.frozen, *by.biases, *by.downs, *by.ups),
        )
        return made

    def alone(self, number: int, given: Tensor) -> Tensor:
        return AdaptedWeights(self.modules[number : number + 1]).product(given)

    def operands(self) -> Operands:
        if self._held is FourBitLinear:
            frozen = [part for base in self._bases for part in base.parts]
        elif self._whole is not None:
            frozen = self._whole
        elif self._held is fp8.Fp8Linear:
            frozen = self._in_fp8()
        else:
            frozen = [torch.cat([base.weight for base in self._bases])]
        biases = [base.bias for base in self._bases if base.bias is not None]
        downs = [each.weight for each in self._downs]
        ups = [each.weight for each in self._ups]
        down, up = self._down, self._up
        down = torch.cat([each.detach() for each in downs]) if down is None else down
        up = torch.cat([each.detach() for each in ups]) if up is None else up
        return Operands(frozen, biases, down, up, downs, ups, self.sizes, self.scale)

    def _in_fp8(self) -> list[Tensor]:
        """The frozen weights in FP8 as one matrix, and its scales."""
        packed = [base.packed for base in self._bases]
        scales = [base.scales for base in self._bases]
        return [
            torch.cat([part.view(torch.uint8) for part in packed]).view(fp8.FP8),
            torch.cat(scales),
        ]


def in_one_tensor(layers: Sequence[Any]) -> Tensor:
    """Let the weights of layers be parts of one tensor, which is returned."""
    whole = as_one_matrix([layer.weight.data for layer in layers])
    sizes = [len(layer.weight) for layer in layers]
    for layer, part in zip(layers, torch.split(whole, sizes), strict=True):
        layer.weight.data = part
    return whole


def adapter_groups(model: nn.Module) -> list[list[Any]]:
    """Groups of layers with plain adapters that read the same input under one module; a layer
    without such a group is a group of one."""
    found: list[list[Any]] = []
    for module in model.modules():
        children = {n: child for n, child in module.named_children() if _is_plain(child)}
        for names in SAME_INPUT:
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
    return plain and type(layer.base_layer) in (nn.Linear, FourBitLinear, fp8.Fp8Linear)


def _kind(layer: Any) -> tuple[Any, ...]:
    base = layer.base_layer
    rank = layer.r[ADAPTER]
    return type(base), base.in_features, base.bias is None, layer.scaling[ADAPTER], rank
