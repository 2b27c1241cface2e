"""Ranks: the processes of one run and how they meet, by torch.distributed, which nobody else
imports.

`Group` is what several processes have in place of `msft.ranks.ALONE`. All ranks run the same
program and come by the same *meetings* in the same order: `gather` (what each rank has to say, as
JSON), `total` (a sum), `exchange` (each rank has something for each) and `spread` (from one to
all). Tensors travel by NCCL where each rank has a GPU of its own, else by gloo, through the host.
Everything else is JSON by gloo: nothing is pickled. What must not depend on the number of ranks is
never summed on the way, but for numbers of which all ranks but one have a zero.

**Every meeting has a name.** If one rank is at "gradients 3" and another at "weights 0", torch
would hang or mix their bytes. So each rank keeps the names of its meetings, `gather` compares a
checksum of them, and a rank that waits longer than a second writes into the store where the
processes have found each other at which meeting it is. Ranks at different meetings end with a
message that names both places. A rank at long work (a checkpoint, compiling) says so there too, and
is waited for longer.

**Signals.** A stop may reach one process and not the others. Each `gather` carries the signal that
a rank was asked to stop by; then all of them stop at the same place.

`Sharded` is what `parallel.py` needs of FSDP2: gradients that are cut into slices while the
backward pass goes on.
"""

import atexit
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any, Protocol
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from msft import process
from msft.engine.kernels import device_here
from msft.errors import FAILED, RankFailed, RanksDisagree, Stopped, UsageError
from msft.process import asked
from msft.ranks import ALONE, LOST, Patience, Ranks

SLICED_TOGETHER = 2**29
"""Numbers of layers whose gradients are cut into slices at a time; a larger layer is alone."""
LOOK = timedelta(seconds=1)
"""How long a rank waits until it looks after the others, and then between two looks."""
SLACK = 60
"""Seconds that gloo itself waits beyond the limits that are kept here."""
BLOCK, COUNT = 256, 8
"""Bytes of the message that every JSON meeting has; those that say how long its text is. What does
not fit in there comes in a second message."""


class Group:
    """This process among several; see `msft.ranks.Ranks`.

    Meetings that wait look at the others once a second, in the store where the processes have found
    each other: there a rank that waits says where it is, and a rank at long work says so.

    device: where the tensors are that travel.
    """

    def __init__(self, device: torch.device, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        direct = device.type == "cuda" and process.local_world() <= torch.cuda.device_count()
        self._host: Any = None  # the group as it is
        until = timedelta(seconds=self._patience.rendezvous)
        try:
            _find_rank0(self._patience.rendezvous)
            dist.init_process_group("nccl" if direct else "gloo", timeout=until)
            if direct:
                self._host = dist.new_group(backend="gloo", timeout=until)
        except (RuntimeError, ConnectionError) as error:
            raise self._not_there() from error
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._direct = direct
        longest = max(self._patience.saving, self._patience.step) + SLACK  # less is seen to here
        _let_wait(self._host or dist.group.WORLD, longest)
        if direct:
            _let_wait(dist.group.WORLD, self._patience.step)
        self._staged = device.type == "cuda" and not direct
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._work: list[str] = []
        """Long work that is under way, the outermost first."""
        self._met: list[str] = []
        """Meetings since the last one at which the ranks found that they agree."""
        self._agreed = 0
        self._stopped = self._excused = False
        atexit.register(self._leave)

    def _leave(self) -> None:
        """End gloo's threads: those that still run when the process ends abort it."""
        dist.destroy_process_group(self._host)

    # Meetings.

    def note(self, what: str) -> None:
        self._met.append(what)

    def gather(self, meeting: str, content: Any) -> list[Any]:
        self._met.append(meeting)
        trace = crc32("\n".join(self._met).encode())
        found = self._laid([trace, asked(), content])
        if any(each[0] != trace for each in found):
            raise self._disagreement(self._laid(self._met))
        self._met.clear()
        self._agreed += 1
        signals = [each[1] for each in found if each[1]]
        told, self._stopped = self._stopped, bool(signals)
        if signals and not told:  # once: what follows is on the way out
            raise Stopped(signals[0])
        return [each[2] for each in found]

    def total(self, meeting: str, numbers: Tensor) -> Tensor:
        held = self._here(numbers)
        self._met.append(meeting)
        self.wait(dist.all_reduce(held, async_op=not self._direct))
        return numbers.copy_(held) if self._staged else held

    def exchange(
        self, meeting: str, given: Tensor, sizes: Sequence[int], wanted: Sequence[int]
    ) -> Tensor:
        held = self._here(given)
        got = held.new_empty(sum(wanted))
        self._met.append(meeting)
        later = not self._direct
        self.wait(dist.all_to_all_single(got, held, [*wanted], [*sizes], async_op=later))
        return got.to(given.device)

    def spread(self, meeting: str, numbers: Tensor, source: int) -> None:
        held = self._here(numbers)
        self._met.append(meeting)
        self.wait(dist.broadcast(held, source, async_op=not self._direct))
        if self._staged:
            numbers.copy_(held)

    def _here(self, numbers: Tensor) -> Tensor:
        """Where the group takes it."""
        return numbers.cpu() if self._staged else numbers

    def _laid(self, content: Any) -> list[Any]:
        """What each rank has, as JSON: short texts travel in one message."""
        text = json.dumps(content).encode()
        heads = self._bytes(len(text).to_bytes(COUNT) + text[: BLOCK - COUNT], BLOCK)
        sizes = [int.from_bytes(head[:COUNT]) for head in heads]
        texts = [head[COUNT:] for head in heads]
        if max(sizes) > BLOCK - COUNT:
            rests = self._bytes(text[BLOCK - COUNT :], max(sizes) - BLOCK + COUNT)
            texts = [head + rest for head, rest in zip(texts, rests, strict=True)]
        return [json.loads(each[:size]) for each, size in zip(texts, sizes, strict=True)]

    def _bytes(self, mine: bytes, size: int) -> list[bytes]:
        sent = torch.frombuffer(bytearray(mine.ljust(size)), dtype=torch.uint8)
        got = [torch.empty_like(sent) for _ in range(self.world)]
        self.wait(dist.all_gather(got, sent, group=self._host, async_op=True), host=True)
        return [each.numpy().tobytes() for each in got]

    # Waiting.

    @contextmanager
    def busy(self, work: str) -> Iterator[None]:
        self._begin(work)
        try:
            yield
        finally:
            self._end()

    def _begin(self, work: str) -> None:
        self._work.append(work)
        self._say("busy", work)

    def _end(self) -> None:
        self._work.pop()
        with suppress(RuntimeError):  # an error of its own may be on its way
            self._say("busy", self._work[-1] if self._work else "")

    def excuse_compiling(self) -> None:
        """From now on the others wait longer while layers are compiled here."""
        if not self._excused:
            from torch._dynamo.callback import callback_handler

            self._excused = True
            callback_handler.register_start_callback(lambda trigger: self._begin("compiling"))
            callback_handler.register_end_callback(lambda trigger: self._end())

    def wait(self, work: Any, host: bool = False) -> None:
        """Until a meeting is over. NCCL's go on beside the host, and it has a watchdog of its own.

        work: as torch gives it; None: NCCL has put it behind what the device has to do.
        """
        if self._direct and not host:
            if work is not None:
                work.wait()
            return
        begun = time.monotonic()
        while True:
            try:
                work.wait(LOOK)
                return
            except RuntimeError as error:
                if "Operation timed out" not in str(error):
                    raise self._lost() from error
            self._look(time.monotonic() - begun)

    def _look(self, waited: float) -> None:
        """Refuse to wait where that is in vain: ranks are at different meetings, or too late."""
        try:
            self._say("at", [self._agreed, self._met])
            found = self._others()
        except RuntimeError as error:
            raise self._lost() from error
        self._refuse_apart(found)
        work = {rank: busy for rank, (_, busy) in found.items() if busy}
        limit = self._patience.saving if work else self._patience.step
        if waited < limit:
            return
        key = "saving_timeout" if work else "ddp_timeout"
        there = [rank for rank, (met, _) in found.items() if met and met[-1:] == self._met[-1:]]
        late = [rank for rank in found if rank not in there]
        doing = [f"rank {rank} is at {busy}" for rank, busy in work.items()]
        raise self._ended(
            f"rank {self.rank} has waited {limit} s for {_ranks(late or list(found))} at "
            f"'{self._met[-1]}'{': ' if doing else ''}{', '.join(doing)}; see whether "
            f"{'they hang' if len(late) > 1 else 'it hangs'}, or give {key} more seconds. Nothing "
            "that was saved is lost, and the same command goes on"
        )

    def _refuse_apart(self, found: Mapping[int, tuple[list[str], str]]) -> None:
        """RanksDisagree where another rank waits at another meeting."""
        for rank, (met, _) in found.items():
            if any(here != there for here, there in zip(self._met, met, strict=False)):
                lists = [self._met] * self.world
                lists[rank] = met
                raise self._disagreement(lists)

    def _others(self) -> dict[int, tuple[list[str], str]]:
        """Where each of the others waits, if it does, and what long work it is at."""
        found: dict[int, tuple[list[str], str]] = {}
        for rank in range(self.world):
            if rank != self.rank:
                said = self._said("at", rank)
                met = said[1] if said and said[0] == self._agreed else []
                found[rank] = met, self._said("busy", rank) or ""
        return found

    def _say(self, what: str, content: Any) -> None:
        self._store.set(f"msft/{what}/{self.rank}", json.dumps(content))

    def _said(self, what: str, rank: int) -> Any:
        key = f"msft/{what}/{rank}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    # Endings.

    def _disagreement(self, lists: Sequence[Sequence[str]]) -> Exception:
        """lists: the meetings of each rank since they last agreed."""
        pairs = (
            (lists[0][place : place + 1], rank, each[place : place + 1])
            for place in range(max(map(len, lists)))
            for rank, each in enumerate(lists)
        )
        here, rank, there = next(pair for pair in pairs if pair[0] != pair[2])
        named = [f"'{each[0]}'" if each else "past it" for each in (here, there)]
        message = (
            f"ranks meet at different places: rank 0 is at {named[0]}, rank {rank} is at "
            f"{named[1]}. Nothing was written from it; the same command goes on from the last line "
            "of the log. This is a fault of msft: please report it"
        )
        if self.rank:
            return RankFailed(message, RanksDisagree.exit_code, said=True)
        return RanksDisagree(message)

    def _lost(self) -> Exception:
        """Another process has gone; if ranks were at different meetings, that is why."""
        with suppress(RuntimeError):
            try:
                self._say("at", [self._agreed, self._met])
                self._refuse_apart(self._others())
            except (RanksDisagree, RankFailed) as error:
                return error
        return self._ended(f"{LOST} (rank {self.rank} waited for it at '{self._met[-1]}')")

    def _not_there(self) -> BaseException:
        signal = asked()
        if signal:
            return Stopped(signal)
        return self._ended(
            f"rank {process.rank()} has waited {self._patience.rendezvous} s for the other "
            f"{process.world() - 1} of {process.world()} processes, and not all are there; see "
            "what they say, or give rendezvous_timeout more seconds. Nothing was started"
        )

    def _ended(self, message: str) -> Exception:
        """Everybody who is left says it: rank 0 may be the one that has gone."""
        return RankFailed(message, FAILED, said=False)


def _let_wait(group: Any, seconds: int) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


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

    def __init__(self, model: Any, reduction: Callable[[], Reduce], ranks: Any) -> None:
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
    each = max(1, SLICED_TOGETHER // numbers)
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


@cache
def _group() -> list[Group]:
    """The group of this process, once it is there: it is made once."""
    return []


def _find_rank0(seconds: float) -> None:
    """Wait until rank 0 can be reached; ConnectionError after so many seconds. torch would wait
    two or three times as long, and print a trace of its C++ code for each attempt."""
    if process.rank() == 0 or "MASTER_PORT" not in os.environ:  # torch says if it is missing
        return
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError as error:
            if asked() or time.monotonic() >= until:
                raise ConnectionError(f"rank 0 cannot be reached: {error}") from error
            time.sleep(0.1)


def joined(patience: Patience) -> Ranks:
    """The processes of this run, once they have met; alone, if there are no others."""
    if process.world() == 1:
        return ALONE
    if not _group():
        _group().append(Group(device_here(), patience))
    return _group()[0]


def excuse_compiling() -> None:
    """The others of this process's group, if there is one, wait while it compiles."""
    for group in _group():
        group.excuse_compiling()
