"""Slices: each rank has some rows of every tensor, as FSDP2 divides them. Here they become whole
tensors in the ranks that own them, and slices again."""

from collections.abc import Container, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from msft.engine.ownership import owners, rounds
from msft.ranks import Ranks

TOGETHER = 2**29
"""Numbers of layers whose gradients are cut into slices at a time; a larger layer is alone."""


class Slices:
    """The tensors of a model in slices.

    whole: the shape of each tensor.
    names: of the tensors that this rank owns when they are whole.
    """

    def __init__(self, whole: Mapping[str, torch.Size], ranks: Ranks) -> None:
        self.ranks = ranks
        self._whole = whole
        sizes = {name: shape.numel() for name, shape in whole.items()}
        self.owner = owners(sizes, ranks.world)
        self.rounds = rounds(self.owner, sizes, ranks.world)
        self.names = [name for name, owner in self.owner.items() if owner == ranks.rank]

    def out(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of tensors of which each rank has a slice, those that this one owns, whole."""
        found: dict[str, Tensor] = {}
        for kind in _kinds(slices, self._whole):
            for place, turn in enumerate(self.rounds):
                mine = turn[self.ranks.rank]
                sent = [slices[name + kind].reshape(-1) for names in turn for name in names]
                sizes = [self._numbers(names, self.ranks.rank) for names in turn]
                wanted = [self._numbers(mine, rank) for rank in range(self.ranks.world)]
                here = f"whole tensors {place}{kind}"
                flat = self.ranks.exchange(here, torch.cat(sent), sizes, wanted)
                got = torch.split(flat, wanted)
                for name in mine:
                    found[name + kind] = slices[name + kind].new_empty(self._whole[name])
                for rank, flat in enumerate(got):
                    parts = [self.slice(found[name + kind], rank) for name in mine]
                    pieces = torch.split(flat, [part.numel() for part in parts])
                    for part, piece in zip(parts, pieces, strict=True):
                        part.copy_(piece.view_as(part))
        return found

    def back(self, whole: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The slices of this rank, from tensors that are whole in their owners.

        here: slices of the same shapes.
        """
        found: dict[str, Tensor] = {}
        kinds = _kinds(whole, self._whole)
        for kind in sorted(set().union(*self.ranks.gather("kinds of tensors", kinds))):
            for place, turn in enumerate(self.rounds):
                mine, world = turn[self.ranks.rank], range(self.ranks.world)
                sent = [
                    self.slice(whole[name + kind], rank).reshape(-1)
                    for rank in world
                    for name in mine
                ]
                sizes = [self._numbers(mine, rank) for rank in world]
                wanted = [self._numbers(names, self.ranks.rank) for names in turn]
                device = next(iter(here.values())).device
                flat = torch.cat(sent).to(device) if sent else torch.empty(0, device=device)
                flat = self.ranks.exchange(f"slices {place}{kind}", flat, sizes, wanted)
                got = torch.split(flat, wanted)
                for names, piece in zip(turn, got, strict=True):
                    pieces = torch.split(piece, [here[name].numel() for name in names])
                    for name, part in zip(names, pieces, strict=True):
                        found[name + kind] = part.view_as(here[name])
        return found

    def slice(self, tensor: Tensor, rank: int) -> Tensor:
        """The rows that FSDP2 gives a rank."""
        each = -(-len(tensor) // self.ranks.world)
        return tensor[min(rank * each, len(tensor)) : (rank + 1) * each]

    def _numbers(self, names: Sequence[str], rank: int) -> int:
        total = 0
        for name in names:
            first, *rest = self._whole[name]
            each = -(-first // self.ranks.world)
            rows = min(first, (rank + 1) * each) - min(first, rank * each)
            total += rows * torch.Size(rest).numel()
        return total


def _kinds(tensors: Iterable[str], names: Container[str]) -> list[str]:
    """What stands behind the names of weights: nothing, or what a moment is called."""
    ends = ("" if key in names else "." + key.rpartition(".")[2] for key in tensors)
    return sorted(set(ends))
