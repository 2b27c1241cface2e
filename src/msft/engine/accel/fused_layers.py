"""Fused layers: a model's decoder layers, compiled so that many small kernels become a few.

All layers share one compiled code: it is compiled for one layer, with the number of tokens left
open. Attention is not compiled; it runs between two compiled halves of the layer. Projections are
joined (`joined_linears.py`). The losses behind the head are compiled too: they read bf16 logits
once, without a copy in fp32.

With an adapter, most of the memory is what layers keep for their backward pass. Then the compiler
may compute everything but matrix products again: norms, and the gate's product.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from msft.engine.accel.joined_linears import JoinedProjections
from msft.engine.kernels import KernelChoice, answer_losses, cause_of, say_once
from msft.engine.ranks import excuse_compiling

RECOMPUTED = {"ban_recompute_materialized_backward": False, "ban_recompute_used_far_apart": False}
"""Limits of torch's partitioner that are lifted, so that it computes more again."""
Backend = str | Callable[..., Any]
"""A backend of the compiler, by its name or as a function."""


class FusedLayers:
    """`with fused:` the layers run compiled, as far as the compiler can; see `kernels.Layers`."""

    def __init__(self, model: nn.Module, backend: Backend = "inductor") -> None:
        torch._functorch.config.guess_tangent_strides_as_outputs = True  # as attention has them
        excuse_compiling()
        self.way = KernelChoice("fused")
        self._joined = JoinedProjections(model)
        if self._joined.with_adapters:
            backend = recomputing(backend)
        self._layers = decoder_layers(model)
        self._compiled = [self._guarded(layer.forward, backend) for layer in self._layers]
        self._losses = self._guarded(answer_losses, backend)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        nll: Tensor = self._losses(logits, labels)
        return nll

    def fuse_projections(self) -> None:
        """See `JoinedProjections.fuse_projections`."""
        self._joined.fuse_projections()

    def __enter__(self) -> None:
        self._joined.__enter__()
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.__dict__["forward"] = compiled  # hooks stay outside

    def __exit__(self, *error: object) -> None:
        self._joined.__exit__()
        for layer in self._layers:
            layer.__dict__.pop("forward", None)

    def _guarded(self, plain: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
        """A function, compiled. After the first failure of the compiler, this function and all
        others run as they are."""
        compiled = torch.compile(plain, dynamic=True, backend=backend)

        def call(*args: Any, **options: Any) -> Any:
            if self.way.path == "fused":
                try:
                    return compiled(*args, **options)
                except TorchDynamoException as error:  # no compiler, a model it does not know
                    cause = cause_of(getattr(error, "inner_exception", error))
                    reason = f"layers cannot be compiled: {cause}"
                    self.way = KernelChoice("plain", reason)
                    say_once(f"{reason}; they run as they are, which is slower")
            return plain(*args, **options)

        return call


def recomputing(backend: Backend) -> Callable[..., Any]:
    """The same backend, which keeps less for the backward pass."""
    compile_graph = torch._dynamo.lookup_backend(backend)

    def compiled(graph: Any, inputs: Any) -> Any:
        with torch._functorch.config.patch(RECOMPUTED):
            return compile_graph(graph, inputs)

    return compiled


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """A language model's layers: the longest list of modules of one class."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList)]
    uniform = [layers for layers in lists if len(set(map(type, layers))) == 1]
    return max(uniform, key=len, default=[])
