"""An update of all weights by one kernel.

Torch's step on the fp32 masters of a bf16 model takes three passes: gradients are copied to fp32,
weights and moments are moved, and the weights are copied to bf16. Here every number is read and
written once, and no second copy of the gradients is needed. Gradients lie somewhere else at every
step, so the kernel finds them by a table of addresses.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from msft.engine.accel import triton_attention

BLOCK = 4096
"""Numbers that one program moves."""
EVEN = 16
"""Where all sizes and addresses are multiples of it, memory is read in wide pieces."""


class Update:
    """AdamW's update of fp32 masters, their moments and a working copy in bf16.

    masters, means, squares, working: in the same order, without gaps; they stay where they are.
        Moments in bf16 are rounded at random.
    """

    def __init__(
        self,
        masters: Mapping[str, Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        working: Sequence[Tensor],
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        held = [*masters.values(), *means, *squares, *working]
        self._names = list(masters)
        self._device = held[0].device
        self._betas = betas
        self._epsilon = epsilon
        self._halved = means[0].dtype == torch.bfloat16
        sizes = [tensor.numel() for tensor in masters.values()]
        blocks = [(owner, n) for owner, size in enumerate(sizes) for n in range(-(-size // BLOCK))]
        self._owners = self._numbers([owner for owner, _ in blocks])
        self._turns = self._numbers([turn for _, turn in blocks])
        self._sizes = self._numbers(sizes)
        addresses = [tensor.data_ptr() for tensor in held]
        self._places = self._numbers(addresses)
        self._even = not any(number % EVEN for number in (*addresses, *sizes))
        self._table: Tensor | None = None
        self._recorded: list[Tensor] = []
        nothing = torch.zeros(4, device=self._device)
        self._launch([0] * len(sizes), False, nothing, 0.0, nothing)  # compiled before a recording

    def ready(self) -> None:
        """Have host memory for the next table: a step that is being recorded cannot get any."""
        if self._table is None:
            cuda = self._device.type == "cuda"
            self._table = torch.empty(len(self._names), dtype=torch.int64, pin_memory=cuda)

    def take(
        self, gradients: Mapping[str, Tensor], numbers: Tensor, decay: float, bad: Tensor
    ) -> None:
        """Move what has a gradient, all of them bf16 or all fp32; nothing where `bad` is 1.

        numbers: rate, rate over the first moment's correction, root of the second one's, and what
            gradients are multiplied by.
        """
        found = {name: gradient.contiguous() for name, gradient in gradients.items()}
        addresses = [found[n].data_ptr() if n in found else 0 for n in self._names]
        wide = any(gradient.dtype == torch.float32 for gradient in found.values())
        seed = torch.randint(2**62, (1,), device=self._device) if self._halved else None
        self._launch(addresses, wide, numbers, decay, bad, seed)

    def _launch(
        self,
        addresses: Sequence[int],
        wide: bool,
        numbers: Tensor,
        decay: float,
        bad: Tensor,
        seed: Tensor | None = None,
    ) -> None:
        """An address of 0: no gradient."""
        even = self._even and not any(address % EVEN for address in addresses)
        triton_attention.update[(len(self._owners),)](
            *(self._sent(addresses), self._places, self._sizes, self._owners, self._turns),
            *(numbers, self._owners if seed is None else seed, bad, decay),
            *(len(self._names), *self._betas, self._epsilon),
            *(wide, self._halved, EVEN if even else 1, BLOCK),
            num_warps=8,
        )

    def _sent(self, addresses: Sequence[int]) -> Tensor:
        """The table on the device; one that a recorded step sends again must stay."""
        self.ready()
        table, self._table = self._table, None
        assert table is not None
        table.copy_(torch.tensor(addresses))
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._recorded.append(table)
        return table.to(self._device, non_blocking=True)

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
