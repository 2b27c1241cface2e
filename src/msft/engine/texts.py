"""What rows have said so far, and when each of them is done."""

from collections.abc import Callable, Iterable, Sequence

Leaves = Callable[[int, Sequence[int]], bool]
"""leaves(row, tokens generated so far): whether the row may leave the batch."""


class Texts:
    """The tokens of each row: up to an end token, its limit, or where `leaves` said so."""

    def __init__(self, ends: frozenset[int], limits: Sequence[int], leaves: Leaves) -> None:
        self.rows: list[list[int]] = [[] for _ in limits]
        self.limits = limits
        self._ends = ends
        self._leaves = leaves
        self._done = [False] * len(limits)

    def add(self, number: int, token: int) -> bool:
        """Another token of a row that is not done; whether the row goes on."""
        row = self.rows[number]
        row.append(token)
        done = token in self._ends or len(row) >= self.limits[number] or self._leaves(number, row)
        self._done[number] = done
        return not done

    def add_all(self, number: int, tokens: Iterable[int]) -> None:
        """The next tokens of a row; those after its end are dropped."""
        if not self._done[number]:
            for token in tokens:
                if not self.add(number, token):
                    return

    def open(self, number: int) -> bool:
        return not self._done[number]
