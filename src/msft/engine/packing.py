"""Packing: rows of different lengths in one line, without padding and without leakage.

A packed batch is one sequence of tokens. `lengths` says where the rows are, positions start again
at each row, and the attention (see `attention.py`) looks only inside a row. Everything else in a
transformer works token by token, so it needs to know nothing of rows.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from msft.encoding import Encoded


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows in one line.

    tokens, positions: one entry per token.
    lengths: tokens of each row.
    targets: indices of the tokens whose next token is an answer token.
    labels: that next token, one per target.
    owners: the row that each target belongs to.
    """

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    targets: Tensor
    labels: Tensor
    owners: Tensor

    @property
    def rows(self) -> int:
        return len(self.lengths)


def packed(rows: Sequence[Encoded], device: torch.device, offset: int = 0) -> Packed:
    """One line of rows; `offset` is the position of their first tokens, after a shared prefix."""
    tokens: list[int] = []
    positions: list[int] = []
    targets: list[int] = []
    labels: list[int] = []
    owners: list[int] = []
    for owner, row in enumerate(rows):
        first = len(tokens)
        tokens += row.tokens
        positions += range(offset, offset + len(row.tokens))
        for index in range(1, len(row.answer)):
            if row.answer[index]:
                targets.append(first + index - 1)
                labels.append(row.tokens[index])
                owners.append(owner)
    lengths = tuple(len(row.tokens) for row in rows)
    lists = (tokens, positions, targets, labels, owners)
    on_device = [torch.tensor(numbers, dtype=torch.long).to(device) for numbers in lists]
    return Packed(on_device[0], on_device[1], lengths, *on_device[2:])


class HasTokens(Protocol):
    """A row, whoever laid it out."""

    @property
    def tokens(self) -> Sized: ...


def micro_batches(rows: Sequence[HasTokens], most_tokens: int) -> list[list[int]]:
    """Row numbers in groups of at most `most_tokens` tokens (a longer row stands alone)."""
    groups: list[list[int]] = []
    filled = most_tokens
    for number, row in enumerate(rows):
        if filled + len(row.tokens) > most_tokens:
            groups.append([])
            filled = 0
        groups[-1].append(number)
        filled += len(row.tokens)
    return groups
