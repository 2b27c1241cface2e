"""Joined projections: layers that read the same input as one matrix product.

A model asks for queries, keys and values by three products, and for the two halves of its gate by
two; the smaller ones leave most of a GPU idle. Inside `with joined:` the first of them computes
all, and the others hand out their part. What they compute, and the names of weights, stay.

Once their weights lie together, the whole takes the gradient and hands parts of it to the layers.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.accel.gated_layers import gated, is_gated
from msft.engine.accel.joined_adapters import AdaptedWeights, adapted_together, lying_together

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that read the same input, in the order in which models call them."""
MANY = 3
"""Gradients of so many parts are laid side by side as they are."""


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
    """The weights of layers that read the same input; see `Weights`."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.sizes = [layer.out_features for layer in layers]
        self._whole: Tensor | None = None

    @property
    def modules(self) -> Sequence[nn.Module]:
        return self.layers

    def fuse_projections(self) -> None:
        whole = lying_together([layer.weight.data for layer in self.layers])
        for layer, part in zip(self.layers, torch.split(whole, self.sizes), strict=True):
            layer.weight.data = part
        self._whole = whole
        if self.layers[0].weight.requires_grad:
            whole.requires_grad_().register_post_accumulate_grad_hook(self._hand_out)  # type: ignore[no-untyped-call]

    def _hand_out(self, whole: Tensor) -> None:
        """The gradient of the whole is that of its layers."""
        assert whole.grad is not None, "called when there is one"
        grads = torch.split(whole.grad, self.sizes)
        whole.grad = None
        for layer, grad in zip(self.layers, grads, strict=True):
            layer.weight.grad = grad if layer.weight.grad is None else layer.weight.grad + grad

    def product(self, given: Tensor) -> Tensor:
        weights: list[Tensor] = [layer.weight for layer in self.layers]
        weight = torch.cat(weights) if self._whole is None else self._whole
        biases: list[Tensor] = [layer.bias for layer in self.layers if layer.bias is not None]
        return functional.linear(given, weight, torch.cat(biases) if biases else None)

    def alone(self, number: int, given: Tensor) -> Tensor:
        layer = self.layers[number]
        return functional.linear(given, layer.weight, layer.bias)


class Weights(Protocol):
    """The weights of some layers as one matrix.

    modules: the layers, in the order in which a model calls them. sizes: what each makes.
    """

    sizes: list[int]

    @property
    def modules(self) -> Sequence[nn.Module]: ...

    def fuse_projections(self) -> None:
        """Let the weights be parts of one tensor, so that nothing is copied."""

    def product(self, given: Tensor) -> Tensor:
        """What all layers make of their input, side by side."""

    def alone(self, number: int, given: Tensor) -> Tensor:
        """What one layer makes of its input."""


class Join:
    """Layers that read the same input."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._given: Tensor | None = None
        self._made: tuple[Tensor, ...] = ()

    def part(self, number: int, given: Tensor) -> Tensor:
        """What one of the layers makes of its input; the first one makes it for all."""
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
        """Hold nothing of a forward pass, which may have ended in the middle."""
        self._given, self._made = None, ()

    def forwards(self) -> list[Callable[[Tensor], Tensor]]:
        def forward_of(number: int) -> Callable[[Tensor], Tensor]:
            return lambda given: self.part(number, given)

        return [forward_of(number) for number in range(len(self.weights.sizes))]


class JoinedProjections(AbstractContextManager[None]):
    """`with joined:` the projections of a model are joined."""

    def __init__(self, model: nn.Module) -> None:
        self._joins = [Join(PlainWeights(layers)) for layers in together(model)]
        adapted = adapted_together(model, TOGETHER)
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
        """Let joined weights lie together; only where nobody else holds them."""
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


def together(model: nn.Module) -> list[list[nn.Linear]]:
    """Plain layers of one width under one module, all with a bias and trained, or none of them."""
    groups: list[list[nn.Linear]] = []
    for module in model.modules():
        for names in TOGETHER:
            layers = [getattr(module, name, None) for name in names]
            plain = [layer for layer in layers if type(layer) is nn.Linear]
            kinds = {
                (layer.in_features, layer.bias is None, layer.weight.requires_grad)
                for layer in plain
            }
            if len(plain) == len(names) and len(kinds) == 1:
                groups.append(plain)
    return groups
