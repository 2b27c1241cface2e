"""Long lists in a page: their first and last items are shown, the rest is folded away."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Folded(Generic[Item]):
    """A list in three parts; of a short one all is in `first`."""

    first: Sequence[Item]
    rest: Sequence[Item] = ()
    last: Sequence[Item] = ()


def folded(items: Sequence[Item], ends: int) -> Folded[Item]:
    """`ends` items from each end, and the rest if there is enough of it to be in the way."""
    if len(items) <= 3 * ends:
        return Folded(items)
    return Folded(items[:ends], items[ends:-ends], items[-ends:])
