"""Ownership: each rank owns whole tensors, and only their masters and moments are there
(`sharding: optimizer`). Here gradients travel to the owners, and weights from them."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from msft.engine.lanes import Tree, nodes_of
from msft.ranks import Ranks

Gradients = dict[str, Tensor]

AT_ONCE = 2**25
"""Numbers of one owner that travel at a time; a larger tensor travels alone."""


class Ownership:
    """Who owns what, and how it gets there.

    parameters: the model's that are trained, the same on every rank.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], lanes: int, ranks: Ranks) -> None:
        self.ranks = ranks
        self._lanes = lanes
        self._parameters = parameters
        sizes = {name: p.numel() for name, p in parameters.items()}
        self._owners = owners(sizes, ranks.world)
        self.owned = {n: p for n, p in parameters.items() if self._owners[n] == ranks.rank}
        self._rounds = rounds(self._owners, sizes, ranks.world)
        self._nodes = [nodes_of(rank, ranks.world, lanes) for rank in range(ranks.world)]

    def completed(self, parts: Sequence[Gradients]) -> Gradients:
        """The tree's root for what this rank owns, from the parts that each rank has."""
        if self.ranks.world == 1:
            return parts[0]
        mine: Gradients = {}
        for turn, owned in enumerate(self._rounds):
            sent = [
                part[name].reshape(-1).float()
                for names in owned
                for part in parts
                for name in names
            ]
            sizes = [len(parts) * self._size(names) for names in owned]
            here = owned[self.ranks.rank]
            wanted = [len(nodes) * self._size(here) for nodes in self._nodes]
            got = self.ranks.exchange(f"gradients {turn}", torch.cat(sent), sizes, wanted)
            if here:
                whole = self._root(got.split(self._size(here)))
                split = torch.split(whole, [self._parameters[name].numel() for name in here])
                pairs = zip(here, split, strict=True)
                mine |= {name: flat.view_as(self._parameters[name]) for name, flat in pairs}
        return {name: mine[name] for name in self.owned}

    def _root(self, parts: Iterable[Tensor]) -> Tensor:
        tree = Tree[Tensor](self._lanes, lambda first, second: first.add_(second))
        nodes = (node for rank in self._nodes for node in rank)
        for node, part in zip(nodes, parts, strict=True):
            tree.push(node, part)
        return tree.parts[0][1]

    def _size(self, names: Iterable[str]) -> int:
        return sum(self._parameters[name].numel() for name in names)

    def spread(self) -> None:
        """Let every rank have the working weights of their owners."""
        if self.ranks.world > 1:
            self._travel(self._parameters)

    def everywhere(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All tensors of which each rank has its own, in fp32, in every rank."""
        if self.ranks.world == 1:
            return owned
        held = {
            name: owned[name] if name in owned else torch.empty_like(p, dtype=torch.float32)
            for name, p in self._parameters.items()
        }
        self._travel(held)
        return held

    def _travel(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for turn, owned in enumerate(self._rounds):
                for owner, names in enumerate(owned):
                    self._spread(f"weights {turn}", [tensors[name] for name in names], owner)

    def _spread(self, meeting: str, held: Sequence[Tensor], owner: int) -> None:
        if not held:
            return
        sizes = [tensor.numel() for tensor in held]
        if owner == self.ranks.rank:
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in held])
            self.ranks.spread(meeting, flat, owner)
            return
        flat = held[0].new_empty(sum(sizes))
        self.ranks.spread(meeting, flat, owner)
        for tensor, piece in zip(held, torch.split(flat, sizes), strict=True):
            tensor.copy_(piece.view_as(tensor))

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """All tensors of which each rank has its own, in rank 0; None in the others."""
        if self.ranks.world == 1:
            return owned
        found: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            held = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
            if name in owned:
                held.copy_(owned[name])
            self.ranks.spread(f"whole {name}", held, self._owners[name])
            if self.ranks.rank == 0:
                found[name] = held.cpu()
        return found if self.ranks.rank == 0 else None


def owners(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """Whole tensors, the largest first, each to the rank that has least so far."""
    held = [0] * world
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = held.index(min(held))
        found[name] = owner
        held[owner] += sizes[name]
    return {name: found[name] for name in sizes}


def rounds(
    owner_of: Mapping[str, int], sizes: Mapping[str, int], world: int
) -> list[list[list[str]]]:
    """What travels at a time: for each round and owner, the names of some of its tensors."""
    queues: list[list[list[str]]] = [[] for _ in range(world)]
    filled = [AT_ONCE] * world
    for name, owner in owner_of.items():
        if filled[owner] + sizes[name] > AT_ONCE:
            queues[owner].append([])
            filled[owner] = 0
        queues[owner][-1].append(name)
        filled[owner] += sizes[name]
    longest = max(map(len, queues))
    return [
        [queue[turn] if turn < len(queue) else [] for queue in queues] for turn in range(longest)
    ]
