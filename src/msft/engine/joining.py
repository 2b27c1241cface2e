"""Joined projections: layers that read the same input as one matrix product.

A model asks for queries, keys and values by three products, and for the two halves of its gate by
two; the smaller ones leave most of a GPU idle. Inside `with joined:` the first of them computes
all, and the others hand out their part. What they compute, and the names of weights, stay.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that read the same input, in the order in which models call them."""


class Join:
    """Layers that read the same input."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self._sizes = [layer.out_features for layer in layers]
        self._whole: Tensor | None = None
        self._given: Tensor | None = None
        self._made: tuple[Tensor, ...] = ()

    def lay_together(self) -> None:
        """Let the weights be parts of one tensor, so that without gradients nothing is copied."""
        whole = torch.cat([layer.weight.data for layer in self.layers])
        for layer, part in zip(self.layers, torch.split(whole, self._sizes), strict=True):
            layer.weight.data = part
        self._whole = whole

    def part(self, number: int, given: Tensor) -> Tensor:
        """What one of the layers makes of its input; the first one makes it for all."""
        if number == 0:
            weight = self._whole
            if weight is None or torch.is_grad_enabled():
                weights: list[Tensor] = [layer.weight for layer in self.layers]
                weight = torch.cat(weights)
            biases: list[Tensor] = [layer.bias for layer in self.layers if layer.bias is not None]
            bias = torch.cat(biases) if biases else None
            self._made = torch.split(functional.linear(given, weight, bias), self._sizes, -1)
            self._given = given
        if given is not self._given:
            layer = self.layers[number]
            return functional.linear(given, layer.weight, layer.bias)
        made = self._made[number]
        if number == len(self.layers) - 1:
            self.forget()
        return made

    def forget(self) -> None:
        """Hold nothing of a forward pass, which may have ended in the middle."""
        self._given, self._made = None, ()

    def forwards(self) -> list[Callable[[Tensor], Tensor]]:
        def forward_of(number: int) -> Callable[[Tensor], Tensor]:
            return lambda given: self.part(number, given)

        return [forward_of(number) for number in range(len(self.layers))]


class JoinedProjections(AbstractContextManager[None]):
    """`with joined:` the projections of a model are joined."""

    def __init__(self, model: nn.Module) -> None:
        self._joins = [Join(layers) for layers in together(model)]
        self._forwards: list[tuple[Any, Callable[[Tensor], Tensor]]] = [
            pair for join in self._joins for pair in zip(join.layers, join.forwards(), strict=True)
        ]

    def lay_together(self) -> None:
        """Let joined weights lie together; only where nobody else holds them."""
        for join in self._joins:
            join.lay_together()

    def __enter__(self) -> None:
        for layer, forward in self._forwards:
            layer.__dict__["forward"] = forward

    def __exit__(self, *error: object) -> None:
        for layer, _ in self._forwards:
            layer.__dict__.pop("forward", None)
        for join in self._joins:
            join.forget()


def together(model: nn.Module) -> list[list[nn.Linear]]:
    """Plain layers of one width, all with a bias or all without, under one module."""
    found: list[list[nn.Linear]] = []
    for module in model.modules():
        for names in TOGETHER:
            layers = [getattr(module, name, None) for name in names]
            plain = [layer for layer in layers if type(layer) is nn.Linear]
            kinds = {(layer.in_features, layer.bias is None) for layer in plain}
            if len(plain) == len(names) and len(kinds) == 1:
                found.append(plain)
    return found
