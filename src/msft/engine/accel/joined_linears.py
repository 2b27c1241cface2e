"""Joined projections: layers that read the same input as one matrix product.

A model computes queries, keys and values by three products, and the two halves of its gate by two;
the smaller products leave most of a GPU idle. Inside `with joined:` the first layer of a group
computes one product for all, and the others return their part of it. The numbers and the names of
weights stay what they were.

`joined.fuse_projections()` lets the weights of a group be parts of one tensor. Then a product needs
no copy of the weights; autograd gives the gradient to the whole tensor, and a hook gives its parts
to the layers.

Three files have the pieces: this one plain layers, `joined_adapters.py` layers with adapters, and
`gated_layers.py` the gate behind a joined product. `fused_layers.py` compiles a decoder layer with
all of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.accel.gated_layers import gated, is_gated
from msft.engine.accel.joined_adapters import (
    SAME_INPUT,
    AdaptedWeights,
    adapter_groups,
    in_one_tensor,
)

MANY = 3
"""The gradients of this many parts, or more, are put side by side by `side_by_side`."""


@torch.library.custom_op("msft::side_by_side", mutates_args=())
def side_by_side(parts: list[Tensor]) -> Tensor:
    """`torch.cat` that the compiler leaves alone.

    It would compute each part everywhere to choose one of them: for the gradients of three
    projections that takes four times as long as to copy them.
    """
    return torch.cat(parts, -1)


@side_by_side.register_fake
def _(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -1)


class _Parted(torch.autograd.Function):
    """`torch.split` with `side_by_side` as its gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return torch.split(whole, sizes, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return side_by_side(list(grads)), None


def parted(whole: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Parts of the last axis."""
    if len(sizes) < MANY or not torch.is_grad_enabled():
        return torch.split(whole, sizes, -1)
    made: tuple[Tensor, ...] = _Parted.apply(whole, sizes)  # type: ignore[no-untyped-call]
    return made


class PlainWeights:
    """The weights of layers that read the same input, as one matrix.

    `AdaptedWeights` has the same methods for layers with adapters.

    modules: the layers, in the order in which a model calls them. sizes: the outputs of each.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.modules = layers
        self.sizes = [layer.out_features for layer in layers]
        self._whole: Tensor | None = None

    def fuse_projections(self) -> None:
        """Let the weights be parts of one tensor, so that a product needs no copy of them."""
        self._whole = whole = in_one_tensor(self.modules)
        if self.modules[0].weight.requires_grad:
            whole.requires_grad_().register_post_accumulate_grad_hook(self._hand_out)  # type: ignore[no-untyped-call]

    def _hand_out(self, whole: Tensor) -> None:
        """Give each layer its part of the whole's gradient."""
        assert whole.grad is not None, "called when there is one"
        grads = torch.split(whole.grad, self.sizes)
        whole.grad = None
        for layer, grad in zip(self.modules, grads, strict=True):
            layer.weight.grad = grad if layer.weight.grad is None else layer.weight.grad + grad

    def product(self, given: Tensor) -> Tensor:
        """The outputs of all layers, side by side."""
        weights: list[Tensor] = [layer.weight for layer in self.modules]
        weight = torch.cat(weights) if self._whole is None else self._whole
        biases: list[Tensor] = [layer.bias for layer in self.modules if layer.bias is not None]
        return functional.linear(given, weight, torch.cat(biases) if biases else None)

    def alone(self, number: int, given: Tensor) -> Tensor:
        """The output of one layer."""
        layer = self.modules[number]
        return functional.linear(given, layer.weight, layer.bias)


class Join:
    """Layers that read the same input."""

    def __init__(self, weights: PlainWeights | AdaptedWeights) -> None:
        self.weights = weights
        self._given: Tensor | None = None
        self._made: tuple[Tensor, ...] = ()

    def part(self, number: int, given: Tensor) -> Tensor:
        """The output of one layer; the first layer computes those of all."""
        if number == 0:
            self._made = parted(self.weights.product(given), self.weights.sizes)
            self._given = given
        if given is not self._given:
            return self.weights.alone(number, given)
        made = self._made[number]
        if number == len(self.weights.sizes) - 1:
            self.forget()
        return made

    def forget(self) -> None:
        """Let go of the tensors of a forward pass, which an error may have ended."""
        self._given, self._made = None, ()

    def forwards(self) -> list[Callable[[Tensor], Tensor]]:
        def forward_of(number: int) -> Callable[[Tensor], Tensor]:
            return lambda given: self.part(number, given)

        return [forward_of(number) for number in range(len(self.weights.sizes))]


class JoinedProjections(AbstractContextManager[None]):
    """`with joined:` the projections of a model are joined."""

    def __init__(self, model: nn.Module) -> None:
        self._joins = [Join(PlainWeights(layers)) for layers in plain_groups(model)]
        adapted = adapter_groups(model)
        self._joins += [Join(AdaptedWeights(layers)) for layers in adapted]
        self.with_adapters = bool(adapted)
        self._forwards: list[tuple[Any, Callable[[Tensor], Tensor]]] = [
            pair
            for join in self._joins
            for pair in zip(join.weights.modules, join.forwards(), strict=True)
        ]
        weights = {id(join.weights.modules[0]): join.weights for join in self._joins}
        for module in filter(is_gated, model.modules()):
            wide, narrow = (weights.get(id(each)) for each in (module.gate_proj, module.down_proj))
            if wide is not None and module.up_proj in wide.modules:
                self._forwards.append((module, gated(module, wide, narrow)))

    def fuse_projections(self) -> None:
        """Let the weights of each group be parts of one tensor; only where nobody else holds the
        parameters' memory."""
        for join in self._joins:
            join.weights.fuse_projections()

    def __enter__(self) -> None:
        for layer, forward in self._forwards:
            layer.__dict__["forward"] = forward

    def __exit__(self, *error: object) -> None:
        for layer, _ in self._forwards:
            layer.__dict__.pop("forward", None)
        for join in self._joins:
            join.forget()


def plain_groups(model: nn.Module) -> list[list[nn.Linear]]:
    """Groups of plain layers that read the same input under one module: of one width, and either
    all with a bias or none, either all trained or none."""
    groups: list[list[nn.Linear]] = []
    for module in model.modules():
        for names in SAME_INPUT:
            layers = [getattr(module, name, None) for name in names]
            plain = [layer for layer in layers if type(layer) is nn.Linear]
            kinds = {
                (layer.in_features, layer.bias is None, layer.weight.requires_grad)
                for layer in plain
            }
            if len(plain) == len(names) and len(kinds) == 1:
                groups.append(plain)
    return groups
