"""Whole vectors: a CPU takes several numbers at a time, and rounds what is left over otherwise."""

from collections.abc import Sequence

from torch import Tensor, nn

VECTOR = 64
"""A multiple of the numbers that a CPU computes at a time."""


def in_whole_vectors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same, flat and with zeros behind them where they lie on the CPU and do not fill vectors.

    torch's fused AdamW takes what does not fill a vector number by number, and that rounds
    differently: a slice of a tensor would not get the bits that the whole gets.
    """
    return [
        nn.functional.pad(tensor.reshape(-1), (0, -tensor.numel() % VECTOR))
        if tensor.device.type == "cpu" and tensor.numel() % VECTOR
        else tensor
        for tensor in tensors
    ]


def take_back(tensors: Sequence[Tensor], whole: Sequence[Tensor]) -> None:
    """Into the tensors what became of them in whole vectors."""
    for tensor, padded in zip(tensors, whole, strict=True):
        if padded is not tensor:
            tensor.copy_(padded[: tensor.numel()].view_as(tensor))
