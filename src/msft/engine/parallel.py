"""Parallel training: one gradient in several lanes and processes.

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

**Who has what.** Each tensor has one owner, the same for both values of `sharding`. `Lanes` is what
both have in common, and `lanes_over` in `fast.py` makes the one that a recipe asks for:

- `sharding: optimizer` (`DataParallel`, here) is ZeRO stage 1 (https://arxiv.org/abs/1910.02054).
  Every rank has all working weights. The owner of a tensor alone has its fp32 master and its
  moments. Gradients travel to owners, updated weights travel to all. A tensor is never cut, so a
  step rounds as it does in one process.
- `sharding: full` (`FullSharding` in `sharding.py`) gives each rank a slice of every tensor.

**Outside of training** a rank has the full tensors that it owns, in both cases: `gather_owned`
makes them of slices, `scatter` goes back, `whole` brings all of them to rank 0 for an export.
`bind` lets the optimizer of what a rank owns know of the others, and `broadcast` lets every rank
have the weights that owners have moved. `OneLane` in `fast.py` has the same verbs for one process,
which has nothing to divide. How ranks meet is in `ranks.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from msft.engine.decode.decoder import question
from msft.engine.optimizer import AdamW, add_up
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
        self, predictor: Predictor, lanes: int, ranks: Ranks, refresh: Callable[[], None]
    ) -> None:
        self._predictor = predictor
        self._lanes = lanes
        self._ranks = ranks
        self._refresh = refresh

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
        return Generated(*self._gathered("answers", found, len(prompts)))

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self._refresh()
        asked: list[tuple[list[int], Callable[[], Likelihoods]]] = []
        for numbers in self._mine(units([question(row) for row in rows], groups)):
            part = [rows[n] for n in numbers], [groups[n] for n in numbers]
            asked.append((numbers, self._predictor.measure(*part)))

        def gathered() -> Likelihoods:
            known = [(numbers, measured()) for numbers, measured in asked]
            found = [(numbers, part.rows, part.tokens) for numbers, part in known]
            return Likelihoods(*self._gathered("likelihoods", found, len(rows)))

        return gathered

    def _gathered(
        self, meeting: str, found: Sequence[tuple[list[int], list[Item], int]], count: int
    ) -> tuple[list[Item], int]:
        """What all ranks have found of each row, in the rows' order; and the sum of tokens.

        found: of each lane of this rank its rows' numbers, what was found, and tokens.
        """
        rows: dict[int, Item] = {}
        tokens = 0
        for part in self._ranks.gather(meeting, found):
            for numbers, each, took in part:
                rows |= dict(zip(numbers, each, strict=True))
                tokens += took
        return [rows[n] for n in range(count)], tokens

    def _mine(self, unit: Sequence[int]) -> list[list[int]]:
        """The rows of each lane of this process that has any."""
        mine = lanes_of(self._ranks.rank, self._ranks.world, self._lanes)
        lanes = [[n for n, u in enumerate(unit) if u % self._lanes == lane] for lane in mine]
        return [numbers for numbers in lanes if numbers]


AT_ONCE = 2**25
"""Numbers of one owner that travel at a time; a larger tensor travels alone."""


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
        [queue[index] if index < len(queue) else [] for queue in queues] for index in range(longest)
    ]


Gradients = dict[str, Tensor]
Row = TypeVar("Row")
Backward = Callable[[Sequence[Row], float], Tensor]
Split = Callable[[Sequence[Row]], list[list[Row]]]


class Lanes(ABC):
    """What both ways to share a step have in common: who owns which tensor, evaluation in lanes,
    and randomness that depends on the lane and not on the rank that computes it.

    parameters: the model's that are trained, the same on every rank.
    mixed: the model computes in bf16.
    evaluated: the model that predicts.
    owned: the parameters that this rank's optimizer updates: whole tensors, or with full sharding a
        slice of every tensor.
    names: the whole tensors that this rank writes to files and exports; each has one such rank.
    """

    evaluated: Any
    owned: Mapping[str, nn.Parameter]

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], lanes: int, ranks: Ranks, mixed: bool
    ) -> None:
        self.lanes, self.ranks, self.mixed = lanes, ranks, mixed
        self._device = next(iter(parameters.values())).device
        self._shapes = {name: p.shape for name, p in parameters.items()}
        sizes = {name: p.numel() for name, p in parameters.items()}
        self._owner = owners(sizes, ranks.world)
        self._rounds = rounds(self._owner, sizes, ranks.world)
        self.names = [name for name, owner in self._owner.items() if owner == ranks.rank]
        self._seed = 0
        self._step = self._tried_at = 0

    def bind(self, optimizer: AdamW) -> None:
        """Let the optimizer of what this rank owns know of the others."""
        self._optimizer = optimizer
        optimizer.norm_of = self.norm
        if optimizer.average is not None:
            optimizer.average.told = self.broadcast

    @abstractmethod
    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm of the gradients of all ranks."""

    @abstractmethod
    def broadcast(self) -> None:
        """Let every rank have the working weights that their owners have moved."""

    @abstractmethod
    def wait_for_weights(self) -> None:
        """Until the model that predicts has the weights that were moved last."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Masters from the full tensors that this rank owns."""
        self._optimizer.load(self.scatter(weights))
        self.broadcast()

    def gather_owned(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The full tensors that this rank owns, from what its optimizer has of all."""
        return tensors

    def scatter(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the optimizer of this rank has, from the full tensors that each rank owns."""
        return tensors

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """All tensors of which each rank has its own, in rank 0; None in the others."""
        if self.ranks.world == 1:
            return owned
        found: dict[str, Tensor] = {}
        for name, shape in self._shapes.items():
            held = torch.empty(shape, dtype=torch.float32, device=self._device)
            if name in owned:
                held.copy_(owned[name])
            self.ranks.spread(f"whole {name}", held, self._owner[name])
            if self.ranks.rank == 0:
                found[name] = held.cpu()
        return found if self.ranks.rank == 0 else None

    def everywhere(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """All trained tensors, gathered in every rank. Only adapters need them, and an adapter with
        `sharding: full` is refused."""
        raise NotImplementedError

    # Rows.

    def mine(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
        """This rank's lanes with their rows; of a small batch some have none."""
        mine = lanes_of(self.ranks.rank, self.ranks.world, self.lanes)
        return [(lane, rows[lane :: self.lanes]) for lane in mine]

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        """Losses of all rows, each lane measured by the rank that has it."""
        self.wait_for_weights()
        losses = torch.zeros(len(rows), device=self._device)
        for lane, part in self.mine(rows):
            if part:
                losses[lane :: self.lanes] = measured(part)
        every: Tensor = self.ranks.total("losses of rows", losses)
        return every

    def predictor(self, predictor: Predictor, refresh: Callable[[], None] | None) -> Predictor:
        def up_to_date() -> None:
            if refresh is not None:
                refresh()
            self.wait_for_weights()

        return LanePredictor(predictor, self.lanes, self.ranks, up_to_date)

    def forget(self) -> None:
        """Drop all gradients."""
        self._optimizer.forget()

    def _end_step(self, losses: Tensor) -> Tensor:
        """Losses of all rows in every rank, of which each rank has some and zeros. If one is not a
        number in any rank, `bad` is 1 in all.

        losses: with one more number, for `bad`.
        """
        bad = self._optimizer.bad
        losses[-1] = bad
        self.ranks.total(f"losses of step {self._step}", losses)
        self._step += 1
        bad.copy_(losses[-1].clamp(max=1))
        return losses[:-1]

    # Randomness.

    def seed(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def _seed_lane(self, lane: int) -> None:
        torch.manual_seed(number(self._seed, "lane", self._step, lane))

    def __enter__(self) -> None:
        """A step that is only tried draws what the next one will draw."""
        self._tried_at = self._step

    def __exit__(self, *error: object) -> None:
        self._step = self._tried_at


class DataParallel(Lanes):
    """All working weights in every rank; masters and moments of whole tensors with their owners."""

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, nn.Parameter],
        lanes: int,
        ranks: Ranks,
        bf16: bool,
    ) -> None:
        super().__init__(parameters, lanes, ranks, bf16)
        self.evaluated = model
        self.owned = {name: parameters[name] for name in self.names}
        self._parameters = parameters
        self._nodes = [nodes_of(rank, ranks.world, lanes) for rank in range(ranks.world)]
        self._sums: Gradients = {}
        self._places: Tensor | None = None

    def bind(self, optimizer: AdamW) -> None:
        super().bind(optimizer)
        optimizer.reseed = self._reseed
        if self.mixed:
            for parameter in self._parameters.values():
                parameter.data = parameter.data.bfloat16()

    def _reseed(self, step: int, name: str) -> None:
        torch.manual_seed(number(self._seed, "rounding", step, name))

    # Gradients.

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: float, split: Split[Row]
    ) -> Tensor:
        """Losses of all rows; the gradients of what this rank owns go to its optimizer, in fp32.

        backward: leaves the gradient of some rows, over so many targets, in the parameters; their
            losses.
        split: the micro-batches that `backward` will make of rows.
        """
        losses = torch.zeros(len(rows) + 1, device=self._device)
        tree = Tree[Gradients](self.lanes, _add)
        mine = self.mine(rows)
        for lane, part in mine:
            if part:
                self._seed_lane(lane)
                losses[lane : len(rows) : self.lanes] = backward(part, targets)
            tree.push((0, lane), self._taken(alone=len(mine) == 1))
        losses = self._end_step(losses)
        self._optimizer.take(self._completed([item for _, item in tree.parts]))
        return losses

    def add_up(self) -> None:
        """Add a micro-batch's gradients in fp32; fp32 models do so by themselves."""
        add_up(self._parameters, self._sums)

    def forget(self) -> None:
        super().forget()
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

    def _completed(self, parts: Sequence[Gradients]) -> Gradients:
        """The tree's root for what this rank owns, from the parts that each rank has."""
        if self.ranks.world == 1:
            return parts[0]
        mine: Gradients = {}
        for index, owned in enumerate(self._rounds):
            sent = [
                part[name].reshape(-1).float()
                for names in owned
                for part in parts
                for name in names
            ]
            sizes = [len(parts) * self._size(names) for names in owned]
            here = owned[self.ranks.rank]
            wanted = [len(nodes) * self._size(here) for nodes in self._nodes]
            got = self.ranks.exchange(f"gradients {index}", torch.cat(sent), sizes, wanted)
            if here:
                whole = self._root(got.split(self._size(here)))
                split = torch.split(whole, [self._parameters[name].numel() for name in here])
                pairs = zip(here, split, strict=True)
                mine |= {name: flat.view_as(self._parameters[name]) for name, flat in pairs}
        return {name: mine[name] for name in self.owned}

    def _root(self, parts: Iterable[Tensor]) -> Tensor:
        tree = Tree[Tensor](self.lanes, sum_in_fp32)
        nodes = (node for rank in self._nodes for node in rank)
        for node, part in zip(nodes, parts, strict=True):
            tree.push(node, part)
        return tree.parts[0][1]

    def _size(self, names: Iterable[str]) -> int:
        return sum(self._parameters[name].numel() for name in names)

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm of each tensor by its owner, then of these."""
        held = list(gradients.values())
        if self._places is None:  # the same at every step
            places = {name: place for place, name in enumerate(self._parameters)}
            numbers = [places[name] for name in gradients]
            self._places = torch.tensor(numbers, device=self._device)
        norms = torch.zeros(len(self._parameters), device=self._device)
        norms[self._places] = torch.stack(torch._foreach_norm(held, 2, torch.float32))
        norm: Tensor = torch.linalg.vector_norm(self.ranks.total("norm", norms))
        return norm

    # Weights.

    def broadcast(self) -> None:
        if self.ranks.world > 1:
            self._travel(self._parameters)

    def wait_for_weights(self) -> None:
        """`broadcast` has waited."""

    def everywhere(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self.ranks.world == 1:
            return owned
        held = {
            name: owned[name] if name in owned else torch.empty_like(p, dtype=torch.float32)
            for name, p in self._parameters.items()
        }
        self._travel(held)
        return held

    @torch.no_grad()
    def _travel(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy each tensor from its owner to all ranks, in place."""
        for index, owned in enumerate(self._rounds):
            for owner, names in enumerate(owned):
                if not names:
                    continue
                held, mine = [tensors[name] for name in names], owner == self.ranks.rank
                flat = (
                    torch.cat([tensor.detach().reshape(-1) for tensor in held])
                    if mine
                    else held[0].new_empty(self._size(names))
                )
                self.ranks.spread(f"weights {index}", flat, owner)
                pieces = torch.split(flat, [tensor.numel() for tensor in held])
                for tensor, piece in zip(held, pieces, strict=True) if not mine else ():
                    tensor.copy_(piece.view_as(tensor))


def _add(first: Gradients, second: Gradients) -> Gradients:
    """Sums in place of the first."""
    for name, gradient in second.items():
        first[name] = sum_in_fp32(first[name], gradient)
    return first


def sum_in_fp32(first: Tensor, second: Tensor) -> Tensor:
    """In fp32, in place of the first where it is fp32 already."""
    return first.add_(second) if first.dtype == torch.float32 else first.float().add_(second)
