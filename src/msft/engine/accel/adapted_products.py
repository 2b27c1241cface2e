"""Products of layers with adapters: one with the frozen weights of all layers, one with all their A
matrices, and one with the B matrices of each size, added where it belongs.

Frozen weights have no gradient. Those in four bits are unpacked for each product.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from msft.engine.adapters.four_bit import PARTS, unpacked


class Operands(NamedTuple):
    """What layers with adapters compute with.

    frozen: their weights as one matrix, or the parts of their packed weights.
    down, up: their A matrices below each other, and their B matrices; downs, ups: one by one.
    sizes: what each makes.
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
    rows: Tensor,
    frozen: Sequence[Tensor],
    biases: Sequence[Tensor],
    down: Tensor,
    up: Tensor,
    sizes: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """What layers with adapters make of rows, side by side, and what their A matrices make."""
    made = frozen_product(rows, frozen, biases, sizes)
    inner = rows @ down.t()
    rank = up.shape[1]
    for count, size, first, begin in _runs(sizes):
        part = _apart(made, begin, count, size)
        low = _apart(inner, first * rank, count, rank)
        high = up[begin : begin + count * size].view(count, size, rank).transpose(1, 2)
        part.baddbmm_(low, high, alpha=scale)
    return made, inner


def frozen_product(
    rows: Tensor, frozen: Sequence[Tensor], biases: Sequence[Tensor], sizes: Sequence[int]
) -> Tensor:
    """The same without adapters."""
    bias = torch.cat(list(biases)) if biases else None
    return functional.linear(rows, whole_of(frozen, sizes, rows.shape[-1], rows), bias)


def gradients(
    grad: Tensor,
    rows: Tensor,
    inner: Tensor,
    frozen: Sequence[Tensor],
    down: Tensor,
    up: Tensor,
    sizes: Sequence[int],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the rows, of all A matrices, and of all B matrices."""
    back, of_up, rank = torch.empty_like(inner), torch.empty_like(up), up.shape[1]
    for count, size, first, begin in _runs(sizes):
        part = _apart(grad, begin, count, size)
        low, low_back = (_apart(each, first * rank, count, rank) for each in (inner, back))
        high, slope = (
            each[begin : begin + count * size].view(count, size, rank) for each in (up, of_up)
        )
        torch.baddbmm(low_back, part, high, beta=0, alpha=scale, out=low_back)
        torch.baddbmm(slope, part.transpose(1, 2), low, beta=0, alpha=scale, out=slope)
    of_rows = grad @ whole_of(frozen, sizes, rows.shape[-1], rows)
    of_rows.addmm_(back, down)
    return of_rows, back.t() @ rows, of_up


def flat(tensor: Tensor) -> Tensor:
    """Rows of numbers."""
    return tensor.reshape(-1, tensor.shape[-1])


def whole_of(frozen: Sequence[Tensor], sizes: Sequence[int], width: int, like: Tensor) -> Tensor:
    """The frozen weights as one matrix, so wide."""
    if frozen[0].is_floating_point():
        return frozen[0]
    whole = like.new_empty(sum(sizes), width)
    for number, part in enumerate(torch.split(whole, list(sizes))):
        unpacked(frozen[PARTS * number : PARTS * (number + 1)], part)
    return whole


def _runs(sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Layers of one size that follow each other, which are one batched product: how many, their
    size, the first one's number, and where it begins."""
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


def _apart(matrix: Tensor, begin: int, count: int, size: int) -> Tensor:
    """Some columns of a matrix as several matrices, where they lie."""
    columns = matrix[:, begin : begin + count * size]
    return columns.view(len(matrix), count, size).transpose(0, 1)
