"""Several processes of one run, by torch.distributed, which nobody else imports.

Gradients and weights travel by NCCL where each rank has a GPU of its own, else by gloo, through
the host. Everything else is JSON by gloo: nothing is pickled. What must not depend on the number
of ranks is never summed on the way, but for numbers of which all ranks but one have a zero.
"""

import atexit
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from msft import launch
from msft.engine.slices import TOGETHER
from msft.errors import UsageError
from msft.ranks import ALONE, Ranks

PATIENCE = timedelta(hours=2)
"""How long a rank waits for the others at a meeting: one may be writing a large file."""


class Group:
    """This process among several; see `msft.ranks.Ranks`.

    device: where the tensors are that travel.
    """

    def __init__(self, device: torch.device) -> None:
        direct = device.type == "cuda" and launch.local_world() <= torch.cuda.device_count()
        dist.init_process_group("nccl" if direct else "gloo", timeout=PATIENCE)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._host: Any = None  # the group as it is
        if direct:
            self._host = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._staged = device.type == "cuda" and not direct
        atexit.register(self._leave)

    def _leave(self) -> None:
        """End gloo's threads: those that still run when the process ends abort it."""
        dist.destroy_process_group(self._host)

    def gather(self, content: Any) -> list[Any]:
        text = json.dumps(content).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(text)]), group=self._host)
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        texts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(texts, padded, group=self._host)
        return [json.loads(text.numpy().tobytes()) for text in texts]

    def total(self, numbers: Tensor) -> Tensor:
        held = self._here(numbers)
        dist.all_reduce(held)
        return numbers.copy_(held) if self._staged else held

    def exchange(self, given: Tensor, sizes: Sequence[int], wanted: Sequence[int]) -> Tensor:
        held = self._here(given)
        got = held.new_empty(sum(wanted))
        dist.all_to_all_single(got, held, [*wanted], [*sizes])
        return got.to(given.device)

    def spread(self, numbers: Tensor, source: int) -> None:
        held = self._here(numbers)
        dist.broadcast(held, source)
        if self._staged:
            numbers.copy_(held)

    def _here(self, numbers: Tensor) -> Tensor:
        """Where the group takes it."""
        return numbers.cpu() if self._staged else numbers


class Reduce(Protocol):
    """Sums a group's gradients over ranks and passes."""

    total: Tensor | None
    """Of this rank's slice, after the last pass of a step."""

    def __call__(self, given: Tensor, slice_size: int) -> None:
        """given: the whole gradients of a pass, cut into slices for the ranks in their order."""


class Sharded:
    """A model whose gradients FSDP2 divides between the ranks, group by group, while the backward
    pass goes on: some layers at a time, and the rest. Its weights are brought together once and
    stay so, since the ranks score with all of them; each rank moves its own rows of them.

    reduction: makes what sums the gradients of a group, in place of FSDP2's reduce-scatter, in
        which the order of the sum is not ours. One process alone has nothing to sum.
    """

    def __init__(self, model: Any, reduction: Callable[[], Reduce]) -> None:
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
        self._reduced: Reduce | None = None
        self._places: dict[str, tuple[Reduce, int, torch.Size]] = {}
        self._alone: dict[str, Tensor] = {}
        self._groups = _groups(model)
        self._names = [name for name, _ in model.named_parameters()]
        self._small = {n: p for n, p in model.named_parameters() if p.ndim == 1}
        small = set(self._small.values())
        self._reduce_small = reduction()
        for group in self._groups:
            modules = group if len(group) > 1 else group[0]
            fully_shard(modules, mesh=mesh, reshard_after_forward=False, ignored_params=small)
            if mesh.size() > 1:
                group[0].set_gradient_divide_factor(1.0)
                group[0].set_force_sum_reduction_for_comms(True)  # gloo has no other
                group[0].set_custom_reduce_scatter(_Reduction(reduction(), self._begin))
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
            dist.broadcast(part, rank)
        world: Any = dist.group.WORLD
        for number in (len(self._groups) - 1, *range(len(self._groups) - 1)):  # embeddings first
            if self._even[number][0]:
                self._coming[number] = world.allgather_into_tensor_coalesced(*self._even[number])

    def wait(self) -> None:
        """Until all are there."""
        for number in list(self._coming):
            self._wait_for(number)

    def _wait_for(self, number: int, *call: Any) -> None:
        coming = self._coming.pop(number, None)
        if coming is not None:
            coming.wait()

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
            self._reduce_small(flat, len(flat) // world)

    def gradients(self) -> dict[str, Tensor]:
        """Of this rank's slices, after the last pass of a step."""
        found, self._alone = self._alone, {}
        for name, (reduce, place, size) in self._places.items():
            assert reduce.total is not None, "the last pass has ended"
            found[name] = reduce.total[place : place + size.numel()].view(size)
        for reduce in {place[0] for place in self._places.values()}:
            reduce.total = None
        return {name: found[name] for name in self._names}

    def _begin(self, reduce: Reduce) -> None:
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
    each = max(1, TOGETHER // numbers)
    return [*(layers[first : first + each] for first in range(0, len(layers), each)), [model]]


class _Reduction:
    """FSDP2's reduce-scatter, in an order of our own; what it gives back is never read."""

    def __init__(self, reduce: Reduce, begin: Callable[[Reduce], None]) -> None:
        self._reduce = reduce
        self._begin = begin

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
        self._begin(self._reduce)
        self._reduce(input_tensor, output_tensor.numel())


def device_here() -> torch.device:
    """The device of this process."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if launch.world() == 1:
        return torch.device("cuda")
    torch.cuda.set_device(launch.local_rank() % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


@cache
def joined() -> Ranks:
    """The processes of this run, once they have met; alone, if there are no others."""
    return ALONE if launch.world() == 1 else Group(device_here())
