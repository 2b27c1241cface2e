"""Lanes: a step's rows are dealt out to L lanes, and its gradient is a balanced tree over them.

Lane l has rows l, l+L, … of the batch. The tree is a matter of the recipe, not of the machine: a
node (k, i) is the sum of lanes i·2^k up to (i+1)·2^k, and a node without a sibling stands for its
parent. A process sums what it can of the lanes it has. The owner of a tensor gets the nodes of all
processes and completes the tree. So the bits do not depend on how many processes there are.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Node = tuple[int, int]
"""Level and number."""


class Tree(Generic[Item]):
    """Sums items in the tree's order; they are pushed from the first lane to the last.

    add: the sum of two items; it may be made in place of the first.
    """

    def __init__(self, lanes: int, add: Callable[[Item, Item], Item]) -> None:
        self._lanes = lanes
        self._add = add
        self.parts: list[tuple[Node, Item]] = []
        """What cannot be summed further without lanes that are not here."""

    def push(self, node: Node, item: Item) -> None:
        level, number = node
        while 1 << level < self._lanes:
            if number % 2 == 0 and (number + 1) << level < self._lanes:
                break  # its sibling is still to come
            if number % 2:
                if not self.parts or self.parts[-1][0] != (level, number - 1):
                    break  # its sibling is elsewhere
                item = self._add(self.parts.pop()[1], item)
            level, number = level + 1, number // 2
        self.parts.append(((level, number), item))


def lanes_of(rank: int, world: int, lanes: int) -> range:
    """The lanes of one process: a block, since neighbours are summed first."""
    return range(rank * lanes // world, (rank + 1) * lanes // world)


def nodes_of(rank: int, world: int, lanes: int) -> list[Node]:
    """What a process can sum by itself: the parts of its gradient that travel."""
    tree = Tree[None](lanes, lambda first, second: None)
    for lane in lanes_of(rank, world, lanes):
        tree.push((0, lane), None)
    return [node for node, _ in tree.parts]


def units(prompts: Sequence[Sequence[int]], groups: Sequence[int]) -> list[int]:
    """The number of each row's unit: rows that follow each other in a group with the same prompt
    (the choices of a question) are one, so that a lane computes the prompt once."""
    numbers: list[int] = []
    for place, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        same = place > 0 and group == groups[place - 1] and prompt == prompts[place - 1]
        numbers.append(0 if not place else numbers[-1] + (not same))
    return numbers
