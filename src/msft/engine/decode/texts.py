"""What rows have said so far, and when each of them is done."""

from collections.abc import Sequence

from msft.run.engine import StopRow


class Texts:
    """The tokens of each row: up to an end token, its limit, or where `leaves` said so."""

    def __init__(self, ends: frozenset[int], limits: Sequence[int], leaves: StopRow) -> None:
        self.rows: list[list[int]] = [[] for _ in limits]
        self.limits = limits
        self._ends = ends
        self._leaves = leaves
        self._done = [False] * len(limits)

    def add(self, number: int, tokens: Sequence[int]) -> None:
        """The next tokens of a row, which may be done; those after its end are dropped."""
        if self._done[number]:
            return
        row = self.rows[number]
        before, room = len(row), self.limits[number] - len(row)
        row += tokens[:room]
        if not self._ends.isdisjoint(row[before:]):
            del row[next(n for n in range(before, len(row)) if row[n] in self._ends) + 1 :]
        over = row[-1] in self._ends or len(row) == self.limits[number]
        text = row[:-1] if over else row
        end = self._leaves(number, text, before) if len(text) > before else None
        if end is not None:
            del row[end:]
        self._done[number] = over or end is not None

    def open(self, number: int) -> bool:
        return not self._done[number]
