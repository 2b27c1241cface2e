"""Several processes of one run, by torch.distributed, which nobody else imports.

Gradients and weights travel by NCCL where each rank has a GPU of its own, else by gloo, through
the host. Everything else is JSON by gloo: nothing is pickled. What must not depend on the number
of ranks is never summed on the way, but for numbers of which all ranks but one have a zero.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from msft import launch
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
