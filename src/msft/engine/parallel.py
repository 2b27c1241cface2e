"""Parallel training: one gradient in several lanes and processes, and a model divided between them.

**Why lanes.** A sum of floating-point numbers depends on its order. The usual all-reduce adds in
another order on 2 ranks than on 8: losses part, then scores, and a method that decides by scores
excludes another sub-dataset. Such a run can neither be repeated on other machines nor go on there
after a stop. So the recipe says into how many *lanes* a batch is dealt, and processes share the
lanes. Lane l of L has rows l, l+L, … of a batch. Its gradient is computed by one process, and how
lanes are added is fixed: a balanced binary tree whose shape depends on L alone. Node (k, i) is the
sum of lanes i·2^k up to (i+1)·2^k, and a node without a sibling stands for its parent:

    (3, 0)                 0+1+2+3+4
    (2, 0), (2, 1)      0+1+2+3      4
    (1, 0), …, (1, 2)   0+1   2+3    4
    (0, 0), …, (0, 4)   0  1  2  3   4

A process sums the nodes whose lanes it has; the owner of a tensor gets the nodes of all processes
and completes the tree (`Tree`). So 1, 2 or 8 processes get the same bits. Dropout is seeded by
lane. Evaluation deals its rows out to the same lanes (`LanePredictor`).

**`sharding: optimizer`** (`DataParallel`) is ZeRO stage 1 (https://arxiv.org/abs/1910.02054). Every
rank has all working weights. Each tensor has one owner, who alone has its fp32 master and its
moments (`Ownership`). Gradients travel to owners, updated weights travel to all. A tensor is never
cut, so a step rounds as it does in one process.

**`sharding: full`** (`FullSharding`) uses FSDP2, torch's `fully_shard`. A rank has a slice of the
first dimension of every tensor, in fp32, which is its master. FSDP2 cuts the gradients of some
layers into slices as soon as the backward pass has them, so that they are never whole all at once.
Its own reduce-scatter adds in an order of its own; `TreeReduce` takes its place and adds as the
tree does, so the bits are those of `sharding: optimizer` (but for the norm that clips gradients).
In pass j the ranks compute lanes j·W to (j+1)·W - 1 side by side.

FSDP2 usually gathers the weights of a layer before each pass and frees them behind it. Here they
stay: evaluation needs whole working weights, so they are always there, and training has the same
ones. A step moves a rank's rows of them; before the next pass the rows of all ranks travel to all.
The model that predicts is a second one with the same weights, without FSDP2's hooks.

**Outside of training** a rank has the full tensors that it owns, in both cases: `gather_owned`
makes them of slices, `scatter` goes back, `whole` brings all of them to rank 0 for an export.
`bind` lets the optimizer of what a rank owns know of the others, and `broadcast` lets every rank
have the weights that owners have moved. `OneLane` in `fast.py` has the same verbs for one process,
which has nothing to divide. How ranks meet is in `ranks.py`.
"""

import copy
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from msft.engine.decode.decoder import question
from msft.engine.optimizer import TrainingSettings, refuse_other_model
from msft.engine.ranks import Sharded
from msft.errors import UsageError
from msft.example import Encoded
from msft.ranks import Ranks
from msft.run.engine import Generated, Likelihoods, Predictor, StopRow
from msft.search.draws import number

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


class LanePredictor:
    """Asks a predictor lane by lane; see `msft.run.engine.Predictor`.

    refresh: called before every question, in all ranks, since they meet there: also in one that
        has no row of it.
    """

    def __init__(
        self, predictor: Predictor, lanes: int, ranks: Ranks, refresh: Callable[[], None] | None
    ) -> None:
        self._predictor = predictor
        self._lanes = lanes
        self._ranks = ranks
        self._refresh = refresh or (lambda: None)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        self._refresh()
        found: list[tuple[list[int], list[list[int]], int]] = []
        for numbers in self._mine([*range(len(prompts))]):
            said = self._predictor.generate(
                [prompts[n] for n in numbers],
                [limits[n] for n in numbers],
                lambda row, tokens, known, numbers=numbers: leaves(numbers[row], tokens, known),  # type: ignore[misc]
                [groups[n] for n in numbers],
            )
            found.append((numbers, said.rows, said.tokens))
        rows: dict[int, list[int]] = {}
        tokens = 0
        for part in self._ranks.gather("answers", found):
            for numbers, texts, took in part:
                rows |= dict(zip(numbers, texts, strict=True))
                tokens += took
        return Generated([rows[n] for n in range(len(prompts))], tokens)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self._refresh()
        asked = [
            (
                numbers,
                self._predictor.measure([rows[n] for n in numbers], [groups[n] for n in numbers]),
            )
            for numbers in self._mine(units([question(row) for row in rows], groups))
        ]

        def gathered() -> Likelihoods:
            found = [(numbers, part.rows, part.tokens) for numbers, part in _known(asked)]
            sums: dict[int, float] = {}
            tokens = 0
            for part in self._ranks.gather("likelihoods", found):
                for numbers, losses, took in part:
                    sums |= dict(zip(numbers, losses, strict=True))
                    tokens += took
            return Likelihoods([sums[n] for n in range(len(rows))], tokens)

        return gathered

    def _mine(self, unit: Sequence[int]) -> list[list[int]]:
        """The rows of each lane of this process that has any."""
        mine = lanes_of(self._ranks.rank, self._ranks.world, self._lanes)
        lanes = [[n for n, u in enumerate(unit) if u % self._lanes == lane] for lane in mine]
        return [numbers for numbers in lanes if numbers]


def _known(
    asked: Sequence[tuple[list[int], Callable[[], Likelihoods]]],
) -> list[tuple[list[int], Likelihoods]]:
    return [(numbers, likelihoods()) for numbers, likelihoods in asked]


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

    def broadcast(self) -> None:
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
                    self._send_from(f"weights {turn}", [tensors[name] for name in names], owner)

    def _send_from(self, meeting: str, held: Sequence[Tensor], owner: int) -> None:
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

    def gather_owned(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The full tensors that this rank owns, gathered from all slices."""
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

    def scatter(self, whole: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The slices of this rank, from the full tensors that each rank owns.

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
    """Suffixes of tensor names: empty for weights, `.exp_avg` or `.exp_avg_sq` for moments."""
    ends = ("" if key in names else "." + key.rpartition(".")[2] for key in tensors)
    return sorted(set(ends))


Row = TypeVar("Row")
Backward = Callable[[Sequence[Row], float], Tensor]
Split = Callable[[Sequence[Row]], list[list[Row]]]


class Average(Protocol):
    """A moving average of weights; see `MovingAverage` in `optimizer.py`."""

    told: Callable[[], None]


class Optimizer(Protocol):
    """What an optimizer is told; see `optimizer.py`."""

    bad: Tensor
    norm_of: Callable[[Mapping[str, Tensor]], Tensor]
    reseed: Callable[[int, str], None] | None

    @property
    def average(self) -> Average | None: ...
    def load(self, weights: Mapping[str, Tensor]) -> None: ...
    def add_up(self) -> None: ...
    def take(self, gradients: Mapping[str, Tensor]) -> None: ...
    def forget(self) -> None: ...


class DataParallel:
    """Who owns what, and how gradients and weights get there.

    parameters: the model's that are trained, the same on every rank.
    """

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, nn.Parameter],
        lanes: int,
        ranks: Ranks,
        bf16: bool,
    ) -> None:
        self.evaluated = model
        self.mixed = bf16
        self.lanes = lanes
        self.ranks = ranks
        self._parameters = parameters
        self._ownership = ownership = Ownership(parameters, lanes, ranks)
        self.owned: Mapping[str, nn.Parameter] = ownership.owned
        self.names: Collection[str] = ownership.owned
        self.broadcast, self.whole = ownership.broadcast, ownership.whole
        self.everywhere = ownership.everywhere
        self._sums: Gradients = {}
        self._places: Tensor | None = None
        self._seed = 0
        self._step = self._tried_at = 0

    def bind(self, optimizer: Optimizer) -> None:
        """Let an optimizer of what this rank owns know of the others."""
        self._optimizer = optimizer
        optimizer.norm_of = self.norm
        optimizer.reseed = self._reseed
        if optimizer.average is not None:
            optimizer.average.told = self.broadcast
        if self.mixed:
            for parameter in self._parameters.values():
                parameter.data = parameter.data.bfloat16()

    def predictor(self, predictor: Predictor, refresh: Callable[[], None] | None) -> Predictor:
        return LanePredictor(predictor, self.lanes, self.ranks, refresh)

    def gather_owned(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The full tensors that this rank owns: it has them already."""
        return tensors

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._optimizer.load(weights)
        self.broadcast()

    def scatter(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors

    # Rows.

    def mine(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
        """This rank's lanes with their rows; of a small batch some have none."""
        mine = lanes_of(self.ranks.rank, self.ranks.world, self.lanes)
        return [(lane, rows[lane :: self.lanes]) for lane in mine]

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        """Losses of all rows, each lane measured by the rank that has it."""
        losses = torch.zeros(len(rows), device=self._optimizer.bad.device)
        for lane, part in self.mine(rows):
            if part:
                losses[lane :: self.lanes] = measured(part)
        every: Tensor = self.ranks.total("losses of rows", losses)
        return every

    # Randomness: dropout is seeded by lane, so it does not depend on the rank that computes it.

    def seed(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def __enter__(self) -> None:
        """A step that is only tried draws what the next one will draw."""
        self._tried_at = self._step

    def __exit__(self, *error: object) -> None:
        self._step = self._tried_at

    def _reseed(self, step: int, name: str) -> None:
        torch.manual_seed(number(self._seed, "rounding", step, name))

    # Gradients.

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: float, split: Split[Row]
    ) -> Tensor:
        """Losses of all rows; the gradients of what this rank owns go to its optimizer, in fp32.

        backward: leaves the gradient of some rows, over so many targets, in the parameters; their
            losses. If one is not a number in any rank, `bad` is 1 in all.
        split: the micro-batches that `backward` will make of rows.
        """
        bad = self._optimizer.bad
        losses = torch.zeros(len(rows) + 1, device=bad.device)
        tree = Tree[Gradients](self.lanes, _add)
        mine = self.mine(rows)
        for lane, part in mine:
            if part:
                torch.manual_seed(number(self._seed, "lane", self._step, lane))
                losses[lane : len(rows) : self.lanes] = backward(part, targets)
            tree.push((0, lane), self._taken(alone=len(mine) == 1))
        losses[-1] = bad
        self.ranks.total(f"losses of step {self._step}", losses)
        self._step += 1
        bad.copy_(losses[-1].clamp(max=1))
        self._optimizer.take(self._ownership.completed([item for _, item in tree.parts]))
        return losses[:-1]

    def add_up(self) -> None:
        """Add a micro-batch's gradients in fp32; fp32 models do so by themselves."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None or parameter.dtype == torch.float32:
                continue
            if name in self._sums:
                self._sums[name] += parameter.grad
            else:
                self._sums[name] = parameter.grad.float()
            parameter.grad = None

    def forget(self) -> None:
        """No gradients."""
        self._optimizer.forget()
        self._sums = {}
        for parameter in self._parameters.values():
            parameter.grad = None

    def _taken(self, alone: bool) -> Gradients:
        """A lane's gradients, which are no longer the parameters'; zeros where there are none.

        alone: no other lane follows, which might overwrite those in bf16 (`graphs.py`).
        """
        taken: Gradients = {}
        for name, parameter in self._parameters.items():
            if name in self._sums:
                taken[name] = self._sums[name]
            elif parameter.grad is None:
                taken[name] = torch.zeros_like(parameter)
            else:
                taken[name] = parameter.grad if alone else parameter.grad.float()
        self.forget()
        return taken

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm over all ranks: of each tensor by its owner, then of these."""
        held = list(gradients.values())
        if self._places is None:  # the same at every step
            places = {name: place for place, name in enumerate(self._parameters)}
            numbers = [places[name] for name in gradients]
            self._places = torch.tensor(numbers, device=held[0].device)
        norms = torch.zeros(len(self._parameters), device=held[0].device)
        norms[self._places] = torch.stack(torch._foreach_norm(held, 2, torch.float32))
        norm: Tensor = torch.linalg.vector_norm(self.ranks.total("norm", norms))
        return norm


def _add(first: Gradients, second: Gradients) -> Gradients:
    """Sums in fp32, in place of the first where it is fp32 already."""
    for name, gradient in second.items():
        held = first[name]
        first[name] = (
            held.add_(gradient) if held.dtype == torch.float32 else held.float() + gradient
        )
    return first


class TreeReduce:
    """Sums what ranks have of a slice's gradient: micro-batches of a lane one after the other, then
    lanes as a tree. One for each of FSDP2's groups; the sum is there after the last pass."""

    def __init__(self, lanes: int, ranks: Ranks, turn: Callable[[], "Turn"]) -> None:
        self._lanes = lanes
        self._ranks = ranks
        self._turn = turn
        self._micro: list[Tensor] = []
        self._tree = Tree[Tensor](lanes, _sum_in_fp32)
        self.total: Tensor | None = None

    def __call__(self, given: Tensor, slice_size: int) -> None:
        sizes = [slice_size] * self._ranks.world
        pieces = self._ranks.exchange("gradients of layers", given, sizes, sizes).split(slice_size)
        if self._micro:
            pairs = zip(self._micro, pieces, strict=True)
            pieces = [_sum_in_fp32(held, piece) for held, piece in pairs]
        self._micro = list(pieces)
        turn = self._turn()
        if turn.ends_lane:
            for rank, piece in enumerate(self._micro):
                self._tree.push((0, turn.lanes_from + rank), piece)
            self._micro = []
        if not turn.ends_step:
            return
        for lane in range(turn.lanes_from + self._ranks.world, self._lanes):
            self._tree.push((0, lane), given.new_zeros(slice_size))  # lanes without rows
        self.total = self._tree.parts[0][1]
        self._tree = Tree[Tensor](self._lanes, _sum_in_fp32)


@dataclass(slots=True)
class Turn:
    """Where a step stands: which lanes the ranks compute, and what this pass begins and ends."""

    lanes_from: int = 0
    begins_lane: bool = True
    ends_lane: bool = True
    ends_step: bool = False


class FullSharding:
    """See `DataParallel`, which does the same for whole weights in every rank."""

    def __init__(self, model: Any, lanes: int, ranks: Ranks, bf16: bool) -> None:
        self.lanes = lanes
        self.ranks = ranks
        given = dict(model.named_parameters())
        self._whole = {name: p.shape for name, p in given.items()}
        self._slices = Slices(self._whole, ranks)
        self.names, self.gather_owned = self._slices.names, self._slices.gather_owned
        self.owned = {
            name: nn.Parameter(self._slices.slice(p.detach(), ranks.rank).clone())
            for name, p in given.items()
        }
        if bf16:
            for parameter in given.values():
                parameter.data = parameter.data.bfloat16()
        shared = {id(p): nn.Parameter(p.new_empty(0), requires_grad=False) for p in given.values()}
        self.evaluated = copy.deepcopy(model, shared)
        self._turn = Turn()
        self._sharded = Sharded(model, lambda: TreeReduce(lanes, ranks, lambda: self._turn), ranks)
        self._given = given
        self._rows: list[Tensor] = []
        self.mixed = bf16
        self._stale = True
        self._seed = 0
        self._step = self._tried_at = 0

    def bind(self, optimizer: Any) -> None:
        self._optimizer: Any = optimizer
        optimizer.norm_of = self.norm
        if optimizer.average is not None:
            optimizer.average.told = self.broadcast

    # Rows.

    def gradients(
        self,
        rows: Sequence[Row],
        backward: Callable[[Sequence[Row], float], Tensor],
        targets: float,
        split: Callable[[Sequence[Row]], list[list[Row]]],
    ) -> Tensor:
        """As `DataParallel.gradients`; all ranks take the same number of passes, some of them
        with a row that counts nothing."""
        self._refresh()
        losses = torch.zeros(len(rows) + 1, device=self._optimizer.bad.device)
        place = 0
        for lane, part, turn in self._passes(rows, split):
            self._turn = turn
            if turn.begins_lane:
                torch.manual_seed(number(self._seed, "lane", self._step, lane))
                place = lane
            found = backward(part or rows[:1], targets if part else inf)
            self._sharded.end_pass()
            end = place + self.lanes * len(part)
            losses[place : end : self.lanes] = found[: len(part)]
            place = end
        losses[-1] = self._optimizer.bad
        self.ranks.total(f"losses of step {self._step}", losses)
        self._step += 1
        self._optimizer.bad.copy_(losses[-1].clamp(max=1))
        self._optimizer.take(self._sharded.gradients())
        return losses[:-1]

    def _passes(
        self, rows: Sequence[Row], split: Callable[[Sequence[Row]], list[list[Row]]]
    ) -> list[tuple[int, list[Row], Turn]]:
        """This rank's lane, rows and turn of each pass of a step."""
        world, passes = self.ranks.world, list[tuple[int, list[Row], Turn]]()
        for first in range(0, self.lanes, world):
            parts = [rows[first + rank :: self.lanes] for rank in range(world)]
            micro = [split(part) if part else [] for part in parts]
            most, mine = max(map(len, micro)), micro[self.ranks.rank]
            for turn in range(most):
                part = mine[turn] if turn < len(mine) else []
                where = Turn(first, turn == 0, turn == most - 1)
                passes.append((first + self.ranks.rank, part, where))
        passes[-1][2].ends_step = True
        return passes

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        """Losses of all rows, each lane measured by one rank."""
        self._refresh_all()
        losses = torch.zeros(len(rows), device=self._optimizer.bad.device)
        for lane in range(self.ranks.rank, min(self.lanes, len(rows)), self.ranks.world):
            losses[lane :: self.lanes] = measured(rows[lane :: self.lanes])
        every: Tensor = self.ranks.total("losses of rows", losses)
        return every

    def predictor(self, predictor: Predictor, refresh: Callable[[], None] | None) -> Predictor:
        def refresh_all() -> None:
            if refresh is not None:
                refresh()
            self._refresh_all()

        return LanePredictor(predictor, self.lanes, self.ranks, refresh_all)

    def seed(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def __enter__(self) -> None:
        self._tried_at = self._step

    def __exit__(self, *error: object) -> None:
        self._step = self._tried_at

    def add_up(self) -> None:
        """FSDP2 has done so."""

    def forget(self) -> None:
        self._optimizer.forget()

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm over all slices; its rounding depends on the number of ranks."""
        squares = torch.stack(torch._foreach_norm(list(gradients.values()), 2, torch.float32))
        norm: Tensor = self.ranks.total("norm", squares.square_().sum()).sqrt_()
        return norm

    # Weights.

    def broadcast(self) -> None:
        """The model that predicts is brought up to date when it is asked."""
        self._stale = True

    def _refresh(self) -> None:
        """Let weights come together if they have moved: with `ema_decay` the raw ones in training,
        else the average."""
        if not self._stale:
            return
        self._stale = False
        with torch.no_grad():
            if not self._rows:
                self._settle()
            if not self.mixed:
                torch._foreach_copy_(self._rows, list(self.owned.values()))
            self._sharded.gather()

    def _refresh_all(self) -> None:
        self._refresh()
        self._sharded.wait()

    def _settle(self) -> None:
        """Share the whole weights where they lie: with the model that predicts, and in bf16 with
        the optimizer, which moves this rank's rows in place."""
        weights = self._sharded.settle(self._slices.slice)
        for parameters in (self._given, dict(self.evaluated.named_parameters())):
            for name, parameter in parameters.items():
                parameter.data = weights[name]
        rank = self.ranks.rank
        self._rows = [self._slices.slice(weights[name], rank) for name in self.owned]
        torch._foreach_copy_(self._rows, list(self.owned.values()))
        if self.mixed:
            for parameter, rows in zip(self.owned.values(), self._rows, strict=True):
                parameter.data = rows

    def load(self, weights: Mapping[str, Tensor]) -> None:
        shapes = {name: torch.empty(self._whole[name], device="meta") for name in self.names}
        refuse_other_model(weights, shapes)
        self._optimizer.load(self.scatter(weights))
        self.broadcast()

    def scatter(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The slices of this rank, from the full tensors that each rank owns."""
        return self._slices.scatter(whole, self.owned)

    def everywhere(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """For adapters, which are refused with `sharding: full`."""
        return owned

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """All tensors in rank 0; None in the others."""
        found: dict[str, Tensor] = {}
        device = self._optimizer.bad.device
        for name, shape in self._whole.items():
            held = torch.empty(shape, device=device)
            if name in owned:
                held.copy_(owned[name])
            self.ranks.spread(f"whole {name}", held, self._slices.owner[name])
            found[name] = held.cpu() if self.ranks.rank == 0 else held
        return found if self.ranks.rank == 0 else None


def _sum_in_fp32(first: Tensor, second: Tensor) -> Tensor:
    """In fp32, in place of the first where it is fp32 already."""
    return first.add_(second) if first.dtype == torch.float32 else first.float().add_(second)


def lanes_over(
    model: Any, parameters: Mapping[str, nn.Parameter], settings: TrainingSettings, ranks: Ranks
) -> DataParallel | FullSharding:
    """For the lanes of a recipe, by its `sharding`.

    UsageError where there is not a tensor for each process to own.
    """
    if ranks.world > len(parameters):
        raise UsageError(
            f"{ranks.world} processes were started, but only {len(parameters)} tensors are "
            f"trained, and each process needs one; start at most {len(parameters)}"
        )
    if settings.full_sharding:
        return FullSharding(model, settings.lanes, ranks, settings.bf16)
    return DataParallel(model, parameters, settings.lanes, ranks, settings.bf16)
