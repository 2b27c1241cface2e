"""Looks: the loss of every row, once an epoch, for feeds that compare epochs."""

from collections.abc import Sequence
from typing import Any

from msft.search.feeds import Row
from msft.search.mixture import Mixture


class Looks:
    """The losses of each row over the epochs in which it was seen.

    A weight in the recipe may let a row come more than once in an epoch: its last loss counts.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._repeats = any(part.rows > part.size for part in mixture.parts)
        self._seen = set[Row]()  # in this epoch; kept where rows come more than once
        self.losses = dict[Row, list[float]]()

    def begin_epoch(self) -> None:
        self._seen.clear()

    def add(self, rows: Sequence[Row], losses: Sequence[float]) -> None:
        for row, loss in zip(rows, losses, strict=True):
            looks = self.losses.setdefault(row, [])
            if row in self._seen:
                looks[-1] = loss
            else:
                looks.append(loss)
            if self._repeats:
                self._seen.add(row)

    def state(self) -> dict[str, Any]:
        """As JSON, a copy."""
        losses = [[name, number, list(seen)] for (name, number), seen in self.losses.items()]
        return {"losses": losses, **({"seen": sorted(self._seen)} if self._repeats else {})}

    def restore(self, state: Any) -> None:
        self.losses = {(name, number): list(seen) for name, number, seen in state["losses"]}
        self._seen = {(name, number) for name, number in state.get("seen", ())}
