"""Full sharding (`sharding: full`): each rank has a slice of every tensor, by FSDP2, torch's
`fully_shard`.

**Slices.** A rank has a slice of the first dimension of every tensor, in fp32, which is its master.
`owned` has these slices. `names` are the tensors that a rank owns when they are whole, for files
and exports; `gather_owned` and `scatter` go from slices to whole tensors and back.

**Gradients.** FSDP2 cuts the gradients of some layers into slices as soon as the backward pass has
them, so that they are never whole all at once. Its own reduce-scatter adds in an order of its own.
`TreeReduce` takes its place and adds as the tree of `parallel.py` does, so the bits are those of
`sharding: optimizer` (but for the norm that clips gradients). The W ranks work on W lanes at a
time, one lane each. A group of W lanes takes as many passes as its longest lane has micro-batches.
Each pass is a meeting, so a rank with fewer micro-batches computes one row whose loss is divided by
infinity. `PassPlace` says what a pass begins and ends.

**Weights.** FSDP2 usually gathers the weights of a layer before each pass and frees them behind it.
Here they stay: evaluation needs whole working weights, so they are always there, and training has
the same ones. A step moves a rank's rows of them (`broadcast` only notes that). Before the next
pass the rows of all ranks travel to all, those of a group while the group before it is computed
(`Sharded.gather`). The model that predicts is a second one with the same weights, without FSDP2's
hooks.
"""

import copy
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from msft.engine.optimizer import refuse_other_model
from msft.engine.parallel import Backward, Lanes, Row, Split, Tree, sum_in_fp32
from msft.errors import UsageError
from msft.ranks import Ranks

SLICED_TOGETHER = 2**29
"""Numbers of layers whose gradients are cut into slices at a time; a larger layer is alone."""


@dataclass(slots=True)
class PassPlace:
    """A pass in its step: which lanes the ranks compute, and what the pass begins and ends."""

    lanes_from: int = 0
    begins_lane: bool = True
    ends_lane: bool = True
    ends_step: bool = False


class FullSharding(Lanes):
    """Slices of all tensors in every rank, and working weights that are whole."""

    def __init__(self, model: Any, lanes: int, ranks: Ranks, bf16: bool) -> None:
        given = dict(model.named_parameters())
        super().__init__(given, lanes, ranks, bf16)
        self._whole = {name: p.detach().to("meta") for name, p in given.items()}
        self.owned = {
            name: nn.Parameter(self._slice(p.detach(), ranks.rank).clone())
            for name, p in given.items()
        }
        if bf16:
            for parameter in given.values():
                parameter.data = parameter.data.bfloat16()
        shared = {id(p): nn.Parameter(p.new_empty(0), requires_grad=False) for p in given.values()}
        self.evaluated = copy.deepcopy(model, shared)
        self._pass = PassPlace()
        self._sharded = Sharded(model, lanes, ranks, lambda: self._pass)
        self._given = given
        self._rows: list[Tensor] = []
        self._stale = True

    # Gradients.

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: float, split: Split[Row]
    ) -> Tensor:
        """As `DataParallel.gradients`; all ranks take the same number of passes, some of them
        with a row that counts nothing."""
        self._refresh()
        losses = torch.zeros(len(rows) + 1, device=self._device)
        place = 0
        for lane, part, this_pass in self._passes(rows, split):
            self._pass = this_pass
            if this_pass.begins_lane:
                self._seed_lane(lane)
                place = lane
            found = backward(part or rows[:1], targets if part else inf)
            self._sharded.end_pass()
            end = place + self.lanes * len(part)
            losses[place : end : self.lanes] = found[: len(part)]
            place = end
        losses = self._end_step(losses)
        self._optimizer.take(self._sharded.gradients())
        return losses

    def _passes(
        self, rows: Sequence[Row], split: Split[Row]
    ) -> list[tuple[int, Sequence[Row], PassPlace]]:
        """This rank's lane and rows in each pass of a step, and the place of the pass."""
        world, passes = self.ranks.world, list[tuple[int, Sequence[Row], PassPlace]]()
        for first in range(0, self.lanes, world):
            parts = [rows[first + rank :: self.lanes] for rank in range(world)]
            micro = [split(part) if part else [] for part in parts]
            most, mine = max(map(len, micro)), micro[self.ranks.rank]
            for number in range(most):
                part = mine[number] if number < len(mine) else []
                where = PassPlace(first, number == 0, number == most - 1)
                passes.append((first + self.ranks.rank, part, where))
        passes[-1][2].ends_step = True
        return passes

    def add_up(self) -> None:
        """FSDP2 has done so."""

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm over all slices; its rounding depends on the number of ranks."""
        squares = torch.stack(torch._foreach_norm(list(gradients.values()), 2, torch.float32))
        norm: Tensor = self.ranks.total("norm", squares.square_().sum()).sqrt_()
        return norm

    # Working weights.

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

    def wait_for_weights(self) -> None:
        self._refresh()
        self._sharded.wait()

    def _settle(self) -> None:
        """Share the whole weights where they lie: with the model that predicts, and in bf16 with
        the optimizer, which moves this rank's rows in place."""
        weights = self._sharded.settle(self._slice)
        for parameters in (self._given, dict(self.evaluated.named_parameters())):
            for name, parameter in parameters.items():
                parameter.data = weights[name]
        rank = self.ranks.rank
        self._rows = [self._slice(weights[name], rank) for name in self.owned]
        torch._foreach_copy_(self._rows, list(self.owned.values()))
        if self.mixed:
            for parameter, rows in zip(self.owned.values(), self._rows, strict=True):
                parameter.data = rows

    # Slices and whole tensors.

    def load(self, weights: Mapping[str, Tensor]) -> None:
        refuse_other_model(weights, {name: self._whole[name] for name in self.names})
        super().load(weights)

    def gather_owned(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for kind in _kinds(tensors, self._whole):
            for number, owners in enumerate(self._rounds):
                mine = owners[self.ranks.rank]
                sent = [tensors[name + kind].reshape(-1) for names in owners for name in names]
                sizes = [self._size(names, self.ranks.rank) for names in owners]
                wanted = [self._size(mine, rank) for rank in range(self.ranks.world)]
                here = f"whole tensors {number}{kind}"
                flat = self.ranks.exchange(here, torch.cat(sent), sizes, wanted)
                for name in mine:
                    found[name + kind] = tensors[name + kind].new_empty(self._whole[name].shape)
                parts = [
                    self._slice(found[name + kind], rank)
                    for rank in range(self.ranks.world)
                    for name in mine
                ]
                pieces = torch.split(flat, [part.numel() for part in parts])
                for part, piece in zip(parts, pieces, strict=True):
                    part.copy_(piece.view_as(part))
        return found

    def scatter(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        kinds = self.ranks.gather("kinds of tensors", _kinds(tensors, self._whole))
        for kind in sorted(set().union(*kinds)):
            like = tensors[self.names[0] + kind].new_empty(0)  # where this rank has none of a round
            for number, owners in enumerate(self._rounds):
                mine, world = owners[self.ranks.rank], range(self.ranks.world)
                sent = [
                    self._slice(tensors[name + kind], rank).reshape(-1)
                    for rank in world
                    for name in mine
                ]
                sizes = [self._size(mine, rank) for rank in world]
                wanted = [self._size(names, self.ranks.rank) for names in owners]
                flat = torch.cat([like, *sent]).to(self._device)
                flat = self.ranks.exchange(f"slices {number}{kind}", flat, sizes, wanted)
                parts = {name: self.owned[name] for names in owners for name in names}
                pieces = torch.split(flat, [part.numel() for part in parts.values()])
                for (name, part), piece in zip(parts.items(), pieces, strict=True):
                    found[name + kind] = piece.view_as(part)
        return found

    def _slice(self, tensor: Tensor, rank: int) -> Tensor:
        """The rows that FSDP2 gives a rank."""
        each = -(-len(tensor) // self.ranks.world)
        return tensor[min(rank * each, len(tensor)) : (rank + 1) * each]

    def _size(self, names: Sequence[str], rank: int) -> int:
        """Numbers of a rank's slices of these tensors."""
        return sum(self._slice(self._whole[name], rank).numel() for name in names)


def _kinds(tensors: Iterable[str], names: Container[str]) -> list[str]:
    """Suffixes of tensor names: empty for weights, `.exp_avg` or `.exp_avg_sq` for moments."""
    return sorted({"" if key in names else "." + key.rpartition(".")[2] for key in tensors})


class Sharded:
    """A model whose gradients FSDP2 divides between the ranks, group by group, while the backward
    pass goes on: some layers at a time, and the rest. Its weights are brought together once and
    stay so, since the ranks score with all of them; each rank moves its own rows of them.

    pass_now: the place of the present pass.
    """

    def __init__(
        self, model: Any, lanes: int, ranks: Any, pass_now: Callable[[], "PassPlace"]
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = next(model.parameters()).device
        if device.type == "cuda" and dist.get_backend() != "nccl":
            raise UsageError(
                "sharding: full needs a GPU for each process, and two of them have the same; start "
                "fewer, or use sharding: optimizer"
            )
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self._model = model
        self._ranks = ranks
        self._reduced: TreeReduce | None = None
        self._places: dict[str, tuple[TreeReduce, int, torch.Size]] = {}
        self._alone: dict[str, Tensor] = {}
        self._groups = _groups(model)
        self._names = [name for name, _ in model.named_parameters()]
        self._small = {n: p for n, p in model.named_parameters() if p.ndim == 1}
        small = set(self._small.values())

        def reduce() -> TreeReduce:
            return TreeReduce(lanes, ranks, pass_now, self._begin)

        self._reduce_small = reduce()
        for group in self._groups:
            modules = group if len(group) > 1 else group[0]
            fully_shard(modules, mesh=mesh, reshard_after_forward=False, ignored_params=small)
            if mesh.size() > 1:  # one process alone has nothing to sum
                group[0].set_gradient_divide_factor(1.0)
                group[0].set_force_sum_reduction_for_comms(True)  # gloo has no other
                group[0].set_custom_reduce_scatter(reduce())
        named = model.named_parameters()
        slices: dict[str, Any] = {name: p for name, p in named if name not in self._small}
        for group in self._groups:
            group[0].unshard()
        model.set_reshard_after_backward(False)
        whole = dict(model.named_parameters())
        for name, parameter in slices.items():
            held = parameter.to_local().untyped_storage()
            if held.data_ptr() != whole[name].untyped_storage().data_ptr():
                held.resize_(0)  # FSDP2 does not need them again
            parameter.register_post_accumulate_grad_hook(partial(self._take, name))
        self._even: list[tuple[list[Tensor], list[Tensor]]] = []
        self._uneven: list[tuple[Tensor, int]] = []
        self._coming: dict[int, Any] = {}

    # Weights.

    def settle(self, slice_of: Callable[[Tensor, int], Tensor]) -> dict[str, Tensor]:
        """The whole weights, which from now on stay where they lie.

        slice_of: the rows of a tensor that a rank has.
        """
        seen = set[Any]()
        for number, group in enumerate(self._groups):
            held = {p: None for module in group for p in module.parameters() if p not in seen}
            seen |= held.keys()
            whole = [parameter.detach() for parameter in held]
            even = [tensor for tensor in whole if len(tensor) % dist.get_world_size() == 0]
            self._even.append((even, [slice_of(tensor, dist.get_rank()) for tensor in even]))
            for tensor in (each for each in whole if len(each) % dist.get_world_size()):
                parts = (slice_of(tensor, rank) for rank in range(dist.get_world_size()))
                self._uneven += [(part, rank) for rank, part in enumerate(parts) if len(part)]
            group[0].register_forward_pre_hook(partial(self._wait_for, number))
        place = 0
        for name, vector in self._small.items() if dist.get_world_size() > 1 else ():
            size = slice_of(vector, dist.get_rank()).shape
            self._places[name] = (self._reduce_small, place, size)
            place += len(slice_of(vector, 0))  # the last ones may have fewer
        return {name: p.detach() for name, p in self._model.named_parameters()}

    def gather(self) -> None:
        """Let each rank have the rows of all, where they lie; they travel while others are
        computed with, so the model waits for those of a group before it computes it."""
        if dist.get_world_size() == 1:
            return
        self.wait()
        for part, rank in self._uneven:
            self._ranks.spread("rows of a tensor", part, rank)
        world: Any = dist.group.WORLD
        for number in (len(self._groups) - 1, *range(len(self._groups) - 1)):  # embeddings first
            if self._even[number][0]:
                self._ranks.note(f"rows of group {number}")
                self._coming[number] = world.allgather_into_tensor_coalesced(*self._even[number])

    def wait(self) -> None:
        """Until all are there."""
        for number in list(self._coming):
            self._wait_for(number)

    def _wait_for(self, number: int, *call: Any) -> None:
        coming = self._coming.pop(number, None)
        if coming is not None:
            self._ranks.wait(coming)

    # Gradients.

    def end_pass(self) -> None:
        """Sum the gradients of vectors after a backward pass. FSDP2 does not have them: they are
        many, and it takes time for each tensor, however small."""
        world = dist.get_world_size()
        grads = []
        for vector in self._small.values():
            grads.append(torch.zeros_like(vector) if vector.grad is None else vector.grad)
            vector.grad = None
        if world == 1:
            for name, grad in zip(self._small, grads, strict=True):
                self._add_alone(name, grad)
        elif grads:
            flat = torch._chunk_cat(grads, 0, world).view(-1)
            self._reduce_small.add(flat, len(flat) // world)

    def gradients(self) -> dict[str, Tensor]:
        """Of this rank's slices, after the last pass of a step."""
        found, self._alone = self._alone, {}
        for name, (reduce, place, size) in self._places.items():
            assert reduce.total is not None, "the last pass has ended"
            found[name] = reduce.total[place : place + size.numel()].view(size)
        for reduce in {place[0] for place in self._places.values()}:
            reduce.total = None
        return {name: found[name] for name in self._names}

    def _begin(self, reduce: "TreeReduce") -> None:
        self._reduced = reduce

    def _take(self, name: str, parameter: Any) -> None:
        """FSDP2 has the slice of a gradient: note where it is in its group, or take it."""
        if self._reduced is None:
            self._add_alone(name, parameter.grad.to_local())
        elif name not in self._places:
            local = parameter.grad.to_local()
            self._places[name] = (self._reduced, local.storage_offset(), local.shape)
        parameter.grad = None

    def _add_alone(self, name: str, grad: Tensor) -> None:
        held = self._alone.get(name)
        self._alone[name] = grad if held is None else held.float() + grad


def _groups(model: Any) -> list[list[Any]]:
    """Modules whose gradients are cut up together: some layers, and at last the rest."""
    count = getattr(model.config, "num_hidden_layers", 0)
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    layers = [*stacks[0]] if stacks else []
    numbers = max((sum(p.numel() for p in layer.parameters()) for layer in layers), default=1)
    each = max(1, SLICED_TOGETHER // numbers)
    return [*(layers[first : first + each] for first in range(0, len(layers), each)), [model]]


class TreeReduce:
    """Sums what ranks have of a slice's gradient: micro-batches of a lane one after the other, then
    lanes as a tree. One for each of FSDP2's groups, in place of its reduce-scatter.

    begin: told of each sum that begins.
    total: of this rank's slice, after the last pass of a step.
    """

    def __init__(
        self,
        lanes: int,
        ranks: Ranks,
        pass_now: Callable[[], PassPlace],
        begin: Callable[["TreeReduce"], None],
    ) -> None:
        self._lanes = lanes
        self._ranks = ranks
        self._pass_now = pass_now
        self._begin = begin
        self._micro: list[Tensor] = []
        self._tree = Tree[Tensor](lanes, sum_in_fp32)
        self.total: Tensor | None = None

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """As FSDP2 calls it, which never reads what is in the output."""
        self._begin(self)
        self.add(input_tensor, output_tensor.numel())

    def add(self, given: Tensor, slice_size: int) -> None:
        """given: the whole gradients of a pass, cut into slices for the ranks in their order."""
        sizes = [slice_size] * self._ranks.world
        pieces = self._ranks.exchange("gradients of layers", given, sizes, sizes).split(slice_size)
        if self._micro:
            pairs = zip(self._micro, pieces, strict=True)
            pieces = [sum_in_fp32(held, piece) for held, piece in pairs]
        self._micro = list(pieces)
        this_pass = self._pass_now()
        if this_pass.ends_lane:
            for rank, piece in enumerate(self._micro):
                self._tree.push((0, this_pass.lanes_from + rank), piece)
            self._micro = []
        if not this_pass.ends_step:
            return
        for lane in range(this_pass.lanes_from + self._ranks.world, self._lanes):
            self._tree.push((0, lane), given.new_zeros(slice_size))  # lanes without rows
        self.total = self._tree.parts[0][1]
        self._tree = Tree[Tensor](self._lanes, sum_in_fp32)
