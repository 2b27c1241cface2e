"""Kernels: which fast ones this machine has, which path each part of the engine takes, and why.

This is the only file that imports `msft.engine.accel`. Any part of `accel` may be missing: the
folder itself, Triton, a C compiler. The engine asks here for an `OptionalKernel`. Where that has no
item, the part takes the plain path, whose numbers are the same but for rounding. A `KernelChoice`
is the path of one part with the reason why it takes no faster one; `Paths` has all of them.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft import process

NO_CUDA = "no CUDA device"
NO_LABEL = -100
"""The label of a target that carries no loss, as `cross_entropy` knows it."""
HALF = (torch.bfloat16, torch.float16)

Item = TypeVar("Item")
Varlen = Callable[..., Any]
"""Attention of sequences in one line; see `accel/varlen.py`."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The path that one part takes; reason: why it takes no faster one, "" where there is none."""

    path: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Paths:
    """The path of each part of the engine, for people to read.

    attention: "triton short rows", "varlen" or "sdpa", in training.
    steps: "recorded" (CUDA graphs) or "eager".
    layers: "fused" (compiled) or "plain".
    optimizer: "kernel" (one for all weights) or "torch".
    decoding: "fast" or "plain", in evaluation.
    reason: why these and no faster ones.
    """

    attention: str
    steps: str
    layers: str
    optimizer: str
    decoding: str
    reason: str

    @staticmethod
    def of(*ways: KernelChoice) -> "Paths":
        """ways: of the five parts, in the order of the fields."""
        reasons = dict.fromkeys(way.reason for way in ways if way.reason)
        return Paths(*[*(way.path for way in ways), "; ".join(reasons)])

    def __str__(self) -> str:
        parts = [f"{part} {path}" for part, path in asdict(self).items() if part != "reason"]
        return f"fast engine: {', '.join(parts)}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class OptionalKernel(Generic[Item]):
    """A part of `accel`; item: None where this machine cannot have it, for this reason."""

    item: Item | None
    reason: str = ""


class Recorder(Protocol):
    """Records the device's work; see `accel/cuda_graphs.py`."""

    stream: Any

    def renew(self) -> None: ...
    def rehearsing(self) -> AbstractContextManager[None]: ...
    def recorded(self, work: Callable[[], None]) -> Any | None: ...


class Layers(Protocol):
    """How a model's layers run inside `with layers:`, and the losses behind its head."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor: ...
    def fuse_projections(self) -> None: ...
    @property
    def way(self) -> KernelChoice: ...


def answer_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of each label, in fp32; 0 for NO_LABEL."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


class PlainLayers:
    """Layers that run as they are."""

    def __init__(self, reason: str = "") -> None:
        self.way = KernelChoice("plain", reason)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return answer_losses(logits, labels)

    def fuse_projections(self) -> None: ...


PLAIN_LAYERS = PlainLayers()


def device_here() -> torch.device:
    """The device of this process."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if process.world() == 1:
        return torch.device("cuda")
    torch.cuda.set_device(process.local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@cache
def say_once(message: str) -> None:
    """Tell the user that a part takes a slower path from now on."""
    logging.getLogger("msft").warning(message)


@cache
def varlen() -> OptionalKernel[Varlen]:
    """Torch's flash attention over rows in one line, for CUDA in half precision."""
    try:
        from msft.engine.accel.varlen import varlen as kernel
    except ImportError as error:
        return OptionalKernel(None, cause_of(error))
    return OptionalKernel(kernel)


@cache
def short_rows() -> OptionalKernel[Any]:
    """The module `accel/short_rows.py`, where Triton can make its kernels for this device."""
    try:
        from msft.engine.accel import short_rows as module

        module.try_out(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no Triton, no C compiler, no headers, an old GPU: all differ
        return OptionalKernel(None, cause_of(error))
    return OptionalKernel(module)


@cache
def fp8_kernels() -> OptionalKernel[Any]:
    """The module `accel/fp8_kernels.py`, where Triton can make kernels for this device."""
    if short_rows().item is None:
        return OptionalKernel(None, short_rows().reason)
    try:
        from msft.engine.accel import fp8_kernels as module
    except ImportError as error:
        return OptionalKernel(None, cause_of(error))
    return OptionalKernel(module)


def recorder_of(device: torch.device) -> OptionalKernel[Callable[[], Recorder]]:
    """What makes recorders of a device's work."""
    if device.type != "cuda":
        return OptionalKernel(None, NO_CUDA)
    try:
        from msft.engine.accel.cuda_graphs import Recorder as Graphs
    except ImportError as error:
        return OptionalKernel(None, cause_of(error))
    return OptionalKernel(Graphs)


def layers_of(model: nn.Module, fused: bool) -> Layers:
    """A model's layers; fused: compiled, where that is possible, and their projections joined."""
    if not fused:
        return PlainLayers("layers are compiled for long runs on CUDA only")
    try:
        from msft.engine.accel.fused_layers import FusedLayers
    except ImportError as error:
        return PlainLayers(cause_of(error))
    return FusedLayers(model)


def optimizer_way(device: torch.device, bf16: bool) -> KernelChoice:
    """Whether one kernel takes AdamW's step on fp32 masters: for bf16 working weights on CUDA."""
    if device.type != "cuda" or not bf16:
        return KernelChoice("torch", NO_CUDA if device.type != "cuda" else "fp32")
    try:
        kernels = short_rows()
    except torch.OutOfMemoryError:  # of a device that somebody else has filled
        return KernelChoice("torch", "no memory left to try the kernels")
    return (
        KernelChoice("kernel")
        if kernels.item is not None
        else KernelChoice("torch", kernels.reason)
    )


def update_of(*tensors: Any) -> Any:
    """That kernel; see `accel/adamw_kernel.py`."""
    from msft.engine.accel.adamw_kernel import Update

    return Update(*tensors)


def machine_paths() -> Paths:
    """The paths of a long run here: a small model in bf16 on CUDA, rows short, nothing odd."""
    device = device_here()
    if device.type != "cuda":
        plain = ("sdpa", "eager", "plain", "torch", "plain")
        return Paths.of(*(KernelChoice(path, NO_CUDA) for path in plain))
    long, short, graphs = varlen(), short_rows(), recorder_of(device)
    attention = KernelChoice("triton short rows" if short.item else "varlen", short.reason)
    return Paths.of(
        attention if long.item else KernelChoice("sdpa", long.reason),
        KernelChoice("recorded" if graphs.item else "eager", graphs.reason),
        layers_of(nn.Module(), fused=True).way,
        optimizer_way(device, bf16=True),
        KernelChoice("fast" if long.item else "plain", long.reason),
    )


def cause_of(error: Exception) -> str:
    """Why something failed, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
