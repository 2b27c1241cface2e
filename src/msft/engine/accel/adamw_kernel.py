"""AdamW's update of all weights by one kernel, in Triton.

Torch's step on the fp32 masters of a bf16 model takes three passes: gradients are copied to fp32,
weights and moments are moved, and the weights are copied to bf16. Here every number is read and
written once, and no second copy of the gradients is needed. Gradients lie somewhere else at every
step, so the kernel finds them by a table of addresses.
"""

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_SIZE = 4096
"""Numbers that one program moves."""
ALIGNMENT = 16
"""Where all sizes and addresses are multiples of it, memory is read in wide pieces."""


@triton.jit
def update(  # type: ignore[no-untyped-def]
    grads, tensors, sizes, owners, blocks, step_ptr, seed_ptr, bad_ptr, weight_decay, share,
    COUNT: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    GRAD_FP32: tl.constexpr, MOMENTS_BF16: tl.constexpr, AVERAGED: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """One block of one weight; tables of addresses say where it lies with its moments."""
    owner = tl.load(owners + tl.program_id(0))
    grad_address = tl.load(grads + owner)
    if (grad_address != 0) & (tl.load(bad_ptr) == 0):
        offs = tl.load(blocks + tl.program_id(0)) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        mask = offs < tl.multiple_of(tl.load(sizes + owner), ALIGNED)
        grad_dtype = tl.float32 if GRAD_FP32 else tl.bfloat16
        moment_dtype = tl.bfloat16 if MOMENTS_BF16 else tl.float32
        g_ptrs = tl.multiple_of(grad_address.to(tl.pointer_type(grad_dtype)), ALIGNED) + offs
        w_ptrs = _pointer(tensors, owner, ALIGNED, tl.float32) + offs
        m_ptrs = _pointer(tensors + COUNT, owner, ALIGNED, moment_dtype) + offs
        v_ptrs = _pointer(tensors + 2 * COUNT, owner, ALIGNED, moment_dtype) + offs
        working_ptrs = _pointer(tensors + 3 * COUNT, owner, ALIGNED, tl.bfloat16) + offs

        lr, step_size = tl.load(step_ptr), tl.load(step_ptr + 1)
        bias_correction2_sqrt, grad_scale = tl.load(step_ptr + 2), tl.load(step_ptr + 3)
        g = tl.load(g_ptrs, mask=mask, other=0.0).to(tl.float32) * grad_scale
        w = tl.load(w_ptrs, mask=mask, other=0.0)
        m = tl.load(m_ptrs, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptrs, mask=mask, other=0.0).to(tl.float32)
        if AVERAGED:
            a_ptrs = _pointer(tensors + 4 * COUNT, owner, ALIGNED, tl.float32) + offs
            a = tl.load(a_ptrs, mask=mask, other=0.0)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        w -= lr * weight_decay * w
        w -= step_size * m / (tl.sqrt(v) / bias_correction2_sqrt + EPS)
        tl.store(w_ptrs, w, mask=mask)
        tl.store(working_ptrs, w.to(tl.bfloat16), mask=mask)
        if AVERAGED:  # as torch's lerp: exact at both ends
            a = tl.where(share < 0.5, a + share * (w - a), w - (w - a) * (1 - share))
            tl.store(a_ptrs, a, mask=mask)
        if MOMENTS_BF16:
            noise = tl.randint(tl.load(seed_ptr) + owner, offs.to(tl.int32))
            m = _stochastic_round(m, noise)
            v = _stochastic_round(v, noise >> 16)
        tl.store(m_ptrs, m.to(moment_dtype), mask=mask)
        tl.store(v_ptrs, v.to(moment_dtype), mask=mask)


@triton.jit
def _pointer(table, owner, ALIGNED: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.multiple_of(tl.load(table + owner).to(tl.pointer_type(dtype)), ALIGNED)


@triton.jit
def _stochastic_round(x, noise):  # type: ignore[no-untyped-def]
    """To what bf16 can hold, up or down with the chances that keep the mean."""
    bits = x.to(tl.int32, bitcast=True) + (noise & 0xFFFF).to(tl.int32)
    return (bits & -65536).to(tl.float32, bitcast=True)


class Update:
    """AdamW's update of fp32 masters, their moments and a working copy in bf16.

    masters, exp_avgs, exp_avg_sqs, working: contiguous tensors in the same order, whose memory is
        not moved. Moments in bf16 are rounded at random.
    averages: of the masters; after the update each goes `share` of the way to its master. (): none.
    """

    def __init__(
        self,
        masters: Mapping[str, Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        working: Sequence[Tensor],
        betas: tuple[float, float],
        eps: float,
        averages: Sequence[Tensor] = (),
        share: float = 0.0,
    ) -> None:
        tensors = [*masters.values(), *exp_avgs, *exp_avg_sqs, *working, *averages]
        self._averaged = bool(averages)
        self._share: float = torch.tensor(share).item()  # in fp32, as a GPU has it
        self._names = list(masters)
        self._device = tensors[0].device
        self._betas = betas
        self._eps = eps
        self._moments_bf16 = exp_avgs[0].dtype == torch.bfloat16
        sizes = [tensor.numel() for tensor in masters.values()]
        blocks = [
            (owner, n) for owner, size in enumerate(sizes) for n in range(-(-size // BLOCK_SIZE))
        ]
        self._owners = self._table([owner for owner, _ in blocks])
        self._blocks = self._table([number for _, number in blocks])
        self._sizes = self._table(sizes)
        addresses = [tensor.data_ptr() for tensor in tensors]
        self._tensors = self._table(addresses)
        self._aligned = not any(number % ALIGNMENT for number in (*addresses, *sizes))
        self._host: Tensor | None = None
        self._sources: list[Tensor] = []
        zeros = torch.zeros(4, device=self._device)
        self._launch([0] * len(sizes), False, zeros, 0.0, zeros)  # compiled before a recording

    def ready(self) -> None:
        """Take host memory for the next table, since a step that is being recorded cannot."""
        if self._host is None:
            cuda = self._device.type == "cuda"
            self._host = torch.empty(len(self._names), dtype=torch.int64, pin_memory=cuda)

    def take(
        self, grads: Mapping[str, Tensor], numbers: Tensor, weight_decay: float, bad: Tensor
    ) -> None:
        """Update the weights that have a gradient; no weight where `bad` is 1.

        grads: all bf16 or all fp32.
        numbers: the learning rate, the rate over the first moment's bias correction, the root of
            the second moment's, and the factor of all gradients.
        """
        dense = {name: grad.contiguous() for name, grad in grads.items()}
        addresses = [dense[n].data_ptr() if n in dense else 0 for n in self._names]
        fp32 = any(grad.dtype == torch.float32 for grad in dense.values())
        seed = torch.randint(2**62, (1,), device=self._device) if self._moments_bf16 else None
        self._launch(addresses, fp32, numbers, weight_decay, bad, seed)

    def _launch(
        self,
        addresses: Sequence[int],
        fp32: bool,
        numbers: Tensor,
        weight_decay: float,
        bad: Tensor,
        seed: Tensor | None = None,
    ) -> None:
        """Launch the kernel. An address of 0: no gradient."""
        aligned = self._aligned and not any(address % ALIGNMENT for address in addresses)
        update[(len(self._owners),)](
            *(self._sent(addresses), self._tensors, self._sizes, self._owners, self._blocks),
            *(numbers, self._owners if seed is None else seed, bad, weight_decay, self._share),
            *(len(self._names), *self._betas, self._eps),
            *(fp32, self._moments_bf16, self._averaged, ALIGNMENT if aligned else 1, BLOCK_SIZE),
            num_warps=8,
        )

    def _sent(self, addresses: Sequence[int]) -> Tensor:
        """The table of addresses on the device. A recorded step copies from host memory again at
        each replay, so its host memory is kept."""
        self.ready()
        table, self._host = self._host, None
        assert table is not None
        table.copy_(torch.tensor(addresses))
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._sources.append(table)
        return table.to(self._device, non_blocking=True)

    def _table(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
