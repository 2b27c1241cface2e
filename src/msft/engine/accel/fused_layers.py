"""Fused layers: a model's decoder layers compiled, so that their small kernels become a few.

All layers share one compiled code: it is compiled for one layer with the number of tokens left
open. Attention stays as it is, between two compiled halves; projections are joined. The losses
behind the head are compiled too: they read bf16 predictions once, without a copy in fp32.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.accel.joined_linears import JoinedProjections

Fused = AbstractContextManager[None]
"""Layers run compiled inside it, or as they are."""
NOT_FUSED: Fused = nullcontext()


Losses = Callable[[Tensor, Tensor], Tensor]


def answer_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of each label, in fp32."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


class FusedLayers(AbstractContextManager[None]):
    """`with fused:` the layers run compiled.

    losses: `answer_losses`, compiled.
    """

    def __init__(self, model: nn.Module, backend: str = "inductor") -> None:
        torch._dynamo.config.suppress_errors = True  # without a compiler: as they are
        torch._functorch.config.guess_tangent_strides_as_outputs = True  # as attention has them
        self._layers = decoder_layers(model)
        self._joined = JoinedProjections(model)
        self._plain: list[Any] = [layer._compiled_call_impl for layer in self._layers]
        self._compiled: list[Callable[..., Any]] = [
            torch.compile(layer._call_impl, dynamic=True, backend=backend) for layer in self._layers
        ]
        self.losses: Losses = torch.compile(answer_losses, dynamic=True, backend=backend)

    def lay_together(self) -> None:
        """Let joined weights lie together; only where nobody else holds them."""
        self._joined.lay_together()

    def __enter__(self) -> None:
        self._joined.__enter__()
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer._compiled_call_impl = compiled

    def __exit__(self, *error: object) -> None:
        self._joined.__exit__()
        for layer, plain in zip(self._layers, self._plain, strict=True):
            layer._compiled_call_impl = plain


def losses_of(fused: Fused) -> Losses:
    """As layers run, so do losses."""
    return fused.losses if isinstance(fused, FusedLayers) else answer_losses


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one kind: a language model's layers."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList)]
    uniform = [layers for layers in lists if len(set(map(type, layers))) == 1]
    return max(uniform, key=len, default=[])
