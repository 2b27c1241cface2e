"""Attention over short rows: what each token of a line sees, and the way to the kernels.

Needs Triton, which comes with torch on a GPU. `attention.py` takes flash attention where rows are
long, or where there is no Triton.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from msft.engine.accel import triton_attention

TILE = 64
"""Tokens of a tile."""
FEWEST = 16
"""Rows and columns of the smallest matrix product that Triton knows."""
WIDE_HEADS = 64
"""Wider heads than this leave less room for tiles in a GPU's shared memory (99 kB on many)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tokens of a line see, one entry for each of them.

    starts: the first place that it sees; it sees from there up to itself.
    ends: the place before which the last one is that sees it.
    stems: a part of the line that it sees besides, from the one place to before the other.
    """

    starts: Tensor
    ends: Tensor | None = None
    stems: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(bounds: Tensor, tokens: int, padded: bool = False) -> "Sight":
        """Of rows between bounds; if the last one is padding, its tokens see only themselves."""
        place = torch.arange(tokens, dtype=torch.int32, device=bounds.device)
        last = len(bounds) - 2
        row = (torch.searchsorted(bounds, place, right=True) - 1).clamp(max=last)
        starts, ends = bounds[row], bounds[row + 1]
        if padded:
            alone = row == last
            starts, ends = torch.where(alone, place, starts), torch.where(alone, place + 1, ends)
        return Sight(starts, ends)


def line_attention(
    q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of tokens in one line, [heads, tokens, dim]: the answer is [tokens, heads, dim],
    with log-sum-exps [heads, tokens]. Gradients need `sight.ends` and know no stems."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = map(_dense, (q, k, v))
    if torch.is_grad_enabled() and q.requires_grad:
        assert sight.stems is None, "gradients know plain rows only"
        pair: tuple[Tensor, Tensor] = _Line.apply(q, k, v, sight.starts, sight.ends, scale)  # type: ignore[no-untyped-call]
        return pair
    return _line(q, k, v, sight, scale)


def _line(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float) -> tuple[Tensor, Tensor]:
    heads, tokens, dim = q.shape
    o = torch.empty(tokens, heads, dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    starts = (sight.starts, *(sight.stems or (sight.starts, sight.starts)))
    triton_attention.forward[triton.cdiv(tokens, TILE), heads](
        *(q, k, v, o, lse, *starts, scale, tokens),
        *_strides(q, k, v),
        *_sizes(q, k),
        BLOCK_M=TILE,
        BLOCK_N=TILE,
        HAS_STEMS=sight.stems is not None,
        num_stages=_stages(dim),
    )
    return o, lse


class _Line(torch.autograd.Function):
    """`_line` with gradients, which lie as what they are gradients of."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        o, lse = _line(q, k, v, Sight(starts), scale)
        ctx.save_for_backward(q, k, v, o, lse, starts, ends)
        ctx.scale = scale
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Tensor, _: Tensor) -> Any:
        q, k, v, o, lse, starts, ends = ctx.saved_tensors
        tokens, heads = o.shape[:2]
        do = _dense(do)
        delta = torch.empty_like(lse)
        dq, dk, dv = (
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for t in (q, k, v)
        )
        strides = (*_strides(q, k, v), do.stride(1), do.stride(0))
        sizes, stages = _sizes(q, k), _stages(q.shape[-1])
        triton_attention.backward_dq[triton.cdiv(tokens, TILE), heads](
            *(q, k, v, o, do, lse, delta, dq, starts, ctx.scale, tokens),
            *strides,
            *sizes,
            BLOCK_M=TILE,
            BLOCK_N=TILE,
            num_stages=stages,
        )
        tile = _dkdv_tile(q.shape[-1])
        triton_attention.backward_dkdv[triton.cdiv(tokens, tile["BLOCK_N"]), k.shape[0]](
            *(q, k, v, do, lse, delta, dk, dv, starts, ends, ctx.scale, tokens),
            *strides,
            *sizes,
            **tile,
        )
        return dq, dk, dv, None, None, None


def step_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    store: tuple[Tensor, Tensor],
    starts: Tensor,
    lengths: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As many tokens of each row, one row after the other, [heads, tokens, dim], over the row's
    slots in a store of keys and values [slots, heads, dim]: so many are filled, and the next ones
    take theirs. The answer is as of a line."""
    heads, tokens, dim = q.shape
    ahead = tokens // len(starts)
    q, k, v = map(_dense, (q, k, v))
    o = torch.empty(tokens, heads, dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    scale = dim**-0.5 if scale is None else scale
    triton_attention.decode[len(starts), k.shape[0]](
        *(q, k, v, *store, o, lse, starts, lengths, scale, tokens),
        *_strides(q, k, v),
        *_sizes(q, k),
        AHEAD=ahead,
        BLOCK_NEW=max(FEWEST, triton.next_power_of_2(ahead)),
        **_decode_tile(dim, ahead * heads // k.shape[0]),
    )
    return o, lse


def try_out(device: torch.device) -> None:
    """Fail where Triton cannot make a kernel: it needs a C compiler, say."""
    one = torch.zeros(1, 1, 16, dtype=torch.float16, device=device)
    line_attention(one, one, one, Sight(torch.zeros(1, dtype=torch.int32, device=device)))


def _dense(tensor: Tensor) -> Tensor:
    """Numbers of a head lie next to each other."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _stages(dim: int) -> int:
    """Tiles that are on their way at a time."""
    return 2 if dim > WIDE_HEADS else 3


def _dkdv_tile(dim: int) -> dict[str, int]:
    """How the gradients of keys are cut up: smaller tiles, since one of them goes over all heads
    that share a key."""
    if dim > WIDE_HEADS:
        return {"BLOCK_M": TILE, "BLOCK_N": TILE, "num_stages": 2}
    return {"BLOCK_M": TILE // 2, "BLOCK_N": TILE // 2, "num_warps": 2, "num_stages": 2}


def _decode_tile(dim: int, queries: int) -> dict[str, int]:
    """How a row's slots are cut up: a step has few numbers, so it is bound by waiting for them."""
    block_m = max(FEWEST, triton.next_power_of_2(queries))
    if dim > WIDE_HEADS or block_m > FEWEST:
        return {"BLOCK_M": block_m, "BLOCK_N": TILE, "num_stages": 2}
    return {"BLOCK_M": block_m, "BLOCK_N": TILE // 2, "num_warps": 1, "num_stages": 4}


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride(axis) for tensor in tensors for axis in (0, 1))


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    """Heads, those of them that share keys, numbers of a head, and these filled up."""
    heads, _, dim = q.shape
    return heads, heads // k.shape[0], dim, max(FEWEST, triton.next_power_of_2(dim))
