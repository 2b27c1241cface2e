"""Packing: the rows of a training step in one buffer of integers, laid out on the host.

A buffer goes to the device in one copy, where it is seen as a line of rows. On a GPU it may be
padded to a shape that comes again, so that a recorded step can be replayed on it: unused tokens
are a row of their own at the end, unused targets carry no loss, and rows that a smaller batch
lacks have no tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from msft.example import Encoded


def sent(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host on a device.

    A GPU takes them in turn, behind the work that it was given before. `to` alone would wait for
    that work, and then the GPU would wait for the host to launch the next.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


NO_LABEL = -100
"""The label of a target that carries no loss, as `cross_entropy` knows it."""

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row's tokens; its targets are the places whose next token is an answer token."""

    tokens: Integers
    targets: Integers
    labels: Integers

    @staticmethod
    def of(row: Encoded) -> "TrainingRow":
        tokens = np.asarray(row.tokens, dtype=np.int64)
        answers = np.flatnonzero(np.asarray(row.answer[1:], dtype=bool))
        return TrainingRow(tokens, answers, tokens[answers + 1])


@dataclass(frozen=True, slots=True)
class BufferShape:
    """How many tokens, targets and rows a buffer has room for.

    padded: whether there is a last row for unused tokens.
    """

    tokens: int
    targets: int
    rows: int
    padded: bool = False

    @staticmethod
    def of(rows: Sequence[TrainingRow]) -> "BufferShape":
        tokens, targets = sum(len(r.tokens) for r in rows), sum(len(r.targets) for r in rows)
        return BufferShape(tokens, targets, len(rows))

    def rounded(self, tokens: int, targets: int, rows: int) -> "BufferShape":
        """The next shape whose sizes are multiples; at least one token is left for padding."""
        return BufferShape(
            (self.tokens // tokens + 1) * tokens, -(-self.targets // targets) * targets, rows, True
        )

    @property
    def sizes(self) -> list[int]:
        """Of tokens, positions, bounds, targets, labels and owners."""
        bounds = self.rows + 1 + self.padded
        return [self.tokens, self.tokens, bounds, self.targets, self.targets, self.targets]

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A buffer on the device, seen as a line of rows.

    bounds: where each row starts, and where the last one ends.
    owners: the row that each target belongs to.
    """

    tokens: Tensor
    positions: Tensor
    bounds: Tensor
    targets: Tensor
    labels: Tensor
    owners: Tensor
    rows: int

    @staticmethod
    def over(buffer: Tensor, shape: BufferShape) -> "PackedRows":
        """A buffer that `fill` has written, or will write."""
        tokens, positions, bounds, targets, labels, owners = torch.split(
            buffer[: shape.size], shape.sizes
        )
        return PackedRows(tokens, positions, bounds, targets, labels, owners, shape.rows)


def fill(buffer: Integers, rows: Sequence[TrainingRow], shape: BufferShape) -> None:
    """Write rows into a buffer of `shape.size` integers."""
    ends = np.cumsum(shape.sizes)
    tokens, positions, bounds, targets, labels, owners = np.split(buffer, ends[:-1])
    lengths = np.fromiter((len(row.tokens) for row in rows), np.int64, len(rows))
    counts = np.fromiter((len(row.targets) for row in rows), np.int64, len(rows))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    used, answered = int(edges[-1]), int(counts.sum())
    tokens[:used] = np.concatenate([row.tokens for row in rows])
    positions[:used] = np.arange(used) - np.repeat(edges[:-1], lengths)
    bounds[: len(edges)] = edges
    targets[:answered] = np.concatenate([row.targets for row in rows])
    targets[:answered] += np.repeat(edges[:-1], counts)
    labels[:answered] = np.concatenate([row.labels for row in rows])
    owners[:answered] = np.repeat(np.arange(len(rows)), counts)
    if shape.padded:
        tokens[used:] = 0
        positions[used:] = 0  # a place that every model has
        bounds[len(edges) : -1] = used
        bounds[-1] = shape.tokens
        targets[answered:] = used
        labels[answered:] = NO_LABEL
        owners[answered:] = 0


def packed(rows: Sequence[TrainingRow], device: torch.device) -> PackedRows:
    """Rows without any padding, on the device."""
    shape = BufferShape.of(rows)
    buffer = np.empty(shape.size, dtype=np.int64)
    fill(buffer, rows, shape)
    return PackedRows.over(sent(torch.from_numpy(buffer), device), shape)


def answer_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p of each label, in fp32; 0 for NO_LABEL."""
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def batches(sizes: Iterable[int], most: int) -> list[list[int]]:
    """Places in batches of at most `most` in size (a larger one stands alone)."""
    groups: list[list[int]] = []
    filled = most
    for place, size in enumerate(sizes):
        if filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += size
    return groups


def even_batches(sizes: Sequence[int], most: int) -> list[list[int]]:
    """As few batches as `batches` makes, the largest of them as small as it can be."""
    count = len(batches(sizes, most))
    least = max(sizes) if count > 1 else most
    while least < most:
        middle = (least + most) // 2
        if len(batches(sizes, middle)) > count:
            least = middle + 1
        else:
            most = middle
    return batches(sizes, most)


def row_means(nll: Tensor, line: PackedRows) -> Tensor:
    """Mean over each row's targets, summed in one order always; 0 for a row without any."""
    mine = (line.owners == torch.arange(line.rows, device=nll.device)[:, None]) & (
        line.labels != NO_LABEL
    )
    return (mine * nll).sum(1) / mine.sum(1).clamp(min=1)
