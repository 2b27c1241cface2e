"""Losses that are still on their way from the device, so that nobody waits for them now."""

from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from msft.errors import NotANumber
from msft.search.feeds import Row


class PendingNumbers:
    """Numbers that a device hands over when it comes to them; the first look waits for it."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = torch.empty(numbers.shape, pin_memory=numbers.is_cuda)
        self._host.copy_(numbers, non_blocking=True)
        self._done = torch.cuda.Event() if numbers.is_cuda else None  # type: ignore[no-untyped-call]
        if self._done is not None:
            self._done.record()

    def look(self) -> Any:
        """A list, or a number."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.tolist()


class PendingLosses(Sequence[float]):
    """The losses of a step's rows.

    where: the rows, to name one whose loss is not a number.
    """

    def __init__(self, losses: Tensor, where: Sequence[Row]) -> None:
        self._where = where
        self._numbers = PendingNumbers(losses[: len(where)])

    @cached_property
    def _values(self) -> list[float]:
        values: list[float] = self._numbers.look()
        refuse_not_numbers(values, self._where)
        return values

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]


def refuse_not_numbers(losses: Sequence[float], where: Sequence[Row]) -> None:
    """NotANumber, with the first row whose loss is none."""
    for (name, number), loss in zip(where, losses, strict=True):
        if not isfinite(loss):
            raise NotANumber(
                f"the loss of row {number} of {name} is not a number; lower learning_rate or set "
                "max_grad_norm"
            )
