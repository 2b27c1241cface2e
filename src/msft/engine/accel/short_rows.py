"""Flash attention over short rows, in Triton, which comes with torch on a GPU.

Flash attention is made for long rows: it gives each row of ninety tokens a tile of its own, most
of it empty, and its backward pass copies what heads share. Here a tile is a piece of the *line*,
wherever rows begin in it; each token says itself what it sees (`Sight`). Heads that share keys add
up their gradients in one place and in one order, so the result is the same bits every time.
`packing.py` takes torch's flash attention where rows are long, or where there is no Triton.

Names in the kernels are those of the papers and of Triton's tutorial: tiles q, k, v, o, do, dq, dk,
dv; the running maximum m_i, sum l_i and output acc of the softmax; lse its log-sum-exp; delta the
row sums of o * do. M counts queries, N keys; H is the number of query heads, GROUP those that share
a key.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
"""Tokens of a tile."""
FEWEST = 16
"""Rows and columns of the smallest matrix product that Triton knows."""
WIDE_HEADS = 64
"""Wider heads than this leave less room for tiles in a GPU's shared memory (99 kB on many)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tokens of a line see: places in the line, one entry per token.

    starts: a token sees the places from here up to itself.
    ends: a token is seen by the places from itself up to before this one.
    stems: a token also sees the places from the first tensor's up to before the second one's.
    """

    starts: Tensor
    ends: Tensor | None = None
    stems: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(bounds: Tensor, tokens: int, padded: bool = False) -> "Sight":
        """The sight of rows between bounds.

        padded: the last row is padding, and each of its tokens sees only itself.
        """
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
    """Attention of tokens in one line, [heads, tokens, dim]: outputs [tokens, heads, dim], with
    log-sum-exps [heads, tokens]. For gradients, `sight` needs `ends` and may not have stems."""
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
    forward[triton.cdiv(tokens, TILE), heads](
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
    """`_line` with gradients, which have the strides of q, k and v."""

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
        backward_dq[triton.cdiv(tokens, TILE), heads](
            *(q, k, v, o, do, lse, delta, dq, starts, ctx.scale, tokens),
            *strides,
            *sizes,
            BLOCK_M=TILE,
            BLOCK_N=TILE,
            num_stages=stages,
        )
        tile = _dkdv_tile(q.shape[-1])
        backward_dkdv[triton.cdiv(tokens, tile["BLOCK_N"]), k.shape[0]](
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
    """Attention of a decoding step. Keys and values of the new tokens are written to the store.

    q, k, v: the new tokens, the same number of each row, one row after the other, [heads, tokens,
        dim].
    store: keys and values of all rows, [slots, heads, dim].
    starts, lengths: each row's first slot, and the number of slots that it has filled.

    Outputs are as of `line_attention`.
    """
    heads, tokens, dim = q.shape
    ahead = tokens // len(starts)
    q, k, v = map(_dense, (q, k, v))
    o = torch.empty(tokens, heads, dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    scale = dim**-0.5 if scale is None else scale
    decode[len(starts), k.shape[0]](
        *(q, k, v, *store, o, lse, starts, lengths, scale, tokens),
        *_strides(q, k, v),
        *_sizes(q, k),
        AHEAD=ahead,
        BLOCK_NEW=max(FEWEST, triton.next_power_of_2(ahead)),
        **_decode_tile(dim, ahead * heads // k.shape[0]),
    )
    return o, lse


def try_out(device: torch.device) -> None:
    """Raise an error where Triton cannot make a kernel, for want of a C compiler, say."""
    one = torch.zeros(1, 1, 16, dtype=torch.float16, device=device)
    line_attention(one, one, one, Sight(torch.zeros(1, dtype=torch.int32, device=device)))


def _dense(tensor: Tensor) -> Tensor:
    """The tensor with the numbers of a head next to each other."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _stages(dim: int) -> int:
    """Stages of the software pipeline: tiles that are loaded at a time."""
    return 2 if dim > WIDE_HEADS else 3


def _dkdv_tile(dim: int) -> dict[str, int]:
    """The tile for gradients of keys: small, since one program goes over all heads that share a
    key."""
    if dim > WIDE_HEADS:
        return {"BLOCK_M": TILE, "BLOCK_N": TILE, "num_stages": 2}
    return {"BLOCK_M": TILE // 2, "BLOCK_N": TILE // 2, "num_warps": 2, "num_stages": 2}


def _decode_tile(dim: int, queries: int) -> dict[str, int]:
    """The tile of a row's slots: a step reads few numbers, so it is bound by memory latency."""
    block_m = max(FEWEST, triton.next_power_of_2(queries))
    if dim > WIDE_HEADS or block_m > FEWEST:
        return {"BLOCK_M": block_m, "BLOCK_N": TILE, "num_stages": 2}
    return {"BLOCK_M": block_m, "BLOCK_N": TILE // 2, "num_warps": 1, "num_stages": 4}


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride(axis) for tensor in tensors for axis in (0, 1))


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    """Query heads, query heads that share a key head, numbers of a head, and the power of 2 that
    holds these."""
    heads, _, dim = q.shape
    return heads, heads // k.shape[0], dim, max(FEWEST, triton.next_power_of_2(dim))


# Kernels.
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _tile(base, offs, stride, offs_d, mask):  # type: ignore[no-untyped-def]
    return tl.load(base + offs[:, None] * stride + offs_d[None, :], mask=mask, other=0.0)


@triton.jit
def _attend(q, k, v, visible, m_i, l_i, acc, qk_scale):  # type: ignore[no-untyped-def]
    """One more tile of keys in the running softmax, in powers of two."""
    qk = tl.where(visible, tl.dot(q, tl.trans(k)) * qk_scale, LOWEST)
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.exp2(qk - m_ij[:, None])
    alpha = tl.exp2(m_i - m_ij)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
    return m_ij, l_i * alpha + tl.sum(p, 1), acc


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, starts_ptr, stem_starts_ptr, stem_ends_ptr,
    sm_scale, tokens, stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn,
    H: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_STEMS: tl.constexpr,
):  # fmt: skip
    """o and lse of a tile of queries of one head."""
    start_m, off_h = tl.program_id(0), tl.program_id(1)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < tokens
    mask_q = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    starts = tl.load(starts_ptr + offs_m, mask=mask_m, other=tokens)
    q = _tile(q_ptr + off_h * stride_qh, offs_m, stride_qm, offs_d, mask_q)
    k_base, v_base = k_ptr + (off_h // GROUP) * stride_kh, v_ptr + (off_h // GROUP) * stride_vh
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    qk_scale = sm_scale * LOG2_E
    end_n = tl.minimum((start_m + 1) * BLOCK_M, tokens)
    for start_n in range(tl.min(starts) // BLOCK_N * BLOCK_N, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < tokens)[:, None] & (offs_d < HEAD_DIM)[None, :]
        k = _tile(k_base, offs_n, stride_kn, offs_d, mask_k)
        v = _tile(v_base, offs_n, stride_vn, offs_d, mask_k)
        visible = (offs_n[None, :] >= starts[:, None]) & (offs_n[None, :] <= offs_m[:, None])
        m_i, l_i, acc = _attend(q, k, v, visible, m_i, l_i, acc, qk_scale)
    if HAS_STEMS:
        stem_starts = tl.load(stem_starts_ptr + offs_m, mask=mask_m, other=tokens)
        stem_ends = tl.load(stem_ends_ptr + offs_m, mask=mask_m, other=0)
        for start_n in range(tl.min(stem_starts) // BLOCK_N * BLOCK_N, tl.max(stem_ends), BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            mask_k = (offs_n < tokens)[:, None] & (offs_d < HEAD_DIM)[None, :]
            k = _tile(k_base, offs_n, stride_kn, offs_d, mask_k)
            v = _tile(v_base, offs_n, stride_vn, offs_d, mask_k)
            after = offs_n[None, :] >= stem_starts[:, None]
            visible = after & (offs_n[None, :] < stem_ends[:, None])
            m_i, l_i, acc = _attend(q, k, v, visible, m_i, l_i, acc, qk_scale)
    acc = acc / l_i[:, None]
    o_ptrs = o_ptr + (offs_m[:, None] * H + off_h) * HEAD_DIM + offs_d[None, :]
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_q)
    tl.store(lse_ptr + off_h * tokens + offs_m, (m_i + tl.log2(l_i)) / LOG2_E, mask=mask_m)


@triton.jit
def backward_dq(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, starts_ptr, sm_scale, tokens,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_doh, stride_dom,
    H: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of a tile of queries of one head; delta is left for `backward_dkdv`."""
    start_m, off_h = tl.program_id(0), tl.program_id(1)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < tokens
    mask_q = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    starts = tl.load(starts_ptr + offs_m, mask=mask_m, other=tokens)
    q = _tile(q_ptr + off_h * stride_qh, offs_m, stride_qm, offs_d, mask_q)
    o = _tile(o_ptr + off_h * HEAD_DIM, offs_m, H * HEAD_DIM, offs_d, mask_q)
    do = _tile(do_ptr + off_h * stride_doh, offs_m, stride_dom, offs_d, mask_q)
    lse = tl.load(lse_ptr + off_h * tokens + offs_m, mask=mask_m, other=0.0) * LOG2_E
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_ptr + off_h * tokens + offs_m, delta, mask=mask_m)
    k_base, v_base = k_ptr + (off_h // GROUP) * stride_kh, v_ptr + (off_h // GROUP) * stride_vh
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end_n = tl.minimum((start_m + 1) * BLOCK_M, tokens)
    for start_n in range(tl.min(starts) // BLOCK_N * BLOCK_N, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < tokens)[:, None] & (offs_d < HEAD_DIM)[None, :]
        k = _tile(k_base, offs_n, stride_kn, offs_d, mask_k)
        v = _tile(v_base, offs_n, stride_vn, offs_d, mask_k)
        visible = (offs_n[None, :] >= starts[:, None]) & (offs_n[None, :] <= offs_m[:, None])
        p = tl.exp2(tl.dot(q, tl.trans(k)) * (sm_scale * LOG2_E) - lse[:, None])
        p = tl.where(visible, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    dq_ptrs = dq_ptr + off_h * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :]
    tl.store(dq_ptrs, (dq * sm_scale).to(dq_ptr.dtype.element_ty), mask=mask_q)


@triton.jit
def backward_dkdv(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, starts_ptr, ends_ptr,
    sm_scale, tokens,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_doh, stride_dom,
    H: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys of one head, summed over the query heads that share it."""
    start_n, off_h = tl.program_id(0), tl.program_id(1)
    offs_n = start_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_n = offs_n < tokens
    mask_k = mask_n[:, None] & (offs_d < HEAD_DIM)[None, :]
    end_m = tl.max(tl.load(ends_ptr + offs_n, mask=mask_n, other=0))
    k = _tile(k_ptr + off_h * stride_kh, offs_n, stride_kn, offs_d, mask_k)
    v = _tile(v_ptr + off_h * stride_vh, offs_n, stride_vn, offs_d, mask_k)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for off_qh in range(off_h * GROUP, (off_h + 1) * GROUP):
        for start_m in range(start_n * BLOCK_N // BLOCK_M * BLOCK_M, end_m, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            mask_m = offs_m < tokens
            mask_q = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
            q = _tile(q_ptr + off_qh * stride_qh, offs_m, stride_qm, offs_d, mask_q)
            do = _tile(do_ptr + off_qh * stride_doh, offs_m, stride_dom, offs_d, mask_q)
            lse = tl.load(lse_ptr + off_qh * tokens + offs_m, mask=mask_m, other=0.0) * LOG2_E
            delta = tl.load(delta_ptr + off_qh * tokens + offs_m, mask=mask_m, other=0.0)
            starts = tl.load(starts_ptr + offs_m, mask=mask_m, other=tokens)
            visible = (offs_n[:, None] >= starts[None, :]) & (offs_n[:, None] <= offs_m[None, :])
            p_t = tl.exp2(tl.dot(k, tl.trans(q)) * (sm_scale * LOG2_E) - lse[None, :])
            p_t = tl.where(visible, p_t, 0.0)
            dv += tl.dot(p_t.to(do.dtype), do)
            ds_t = p_t * (tl.dot(v, tl.trans(do)) - delta[None, :])
            dk += tl.dot(ds_t.to(q.dtype), q)
    dk_ptrs = dk_ptr + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :]
    tl.store(dk_ptrs, (dk * sm_scale).to(dk_ptr.dtype.element_ty), mask=mask_k)
    dv_ptrs = dv_ptr + off_h * stride_vh + offs_n[:, None] * stride_vn + offs_d[None, :]
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=mask_k)


@triton.jit
def decode(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, o_ptr, lse_ptr, starts_ptr, lengths_ptr,
    sm_scale, tokens, stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn,
    H: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    AHEAD: tl.constexpr, BLOCK_NEW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write a row's new k and v into the cache slots after those that it has filled, and attend
    over all of them: each of its AHEAD tokens up to itself. A tile of queries is all tokens of the
    row, of all query heads that share a key head."""
    row, off_h = tl.program_id(0), tl.program_id(1)
    key_heads = H // GROUP
    offs_d = tl.arange(0, BLOCK_D)
    offs_m = tl.arange(0, BLOCK_M)
    turn, head = offs_m // GROUP, off_h * GROUP + offs_m % GROUP
    token = row * AHEAD + turn
    mask_q = (turn < AHEAD)[:, None] & (offs_d < HEAD_DIM)[None, :]
    start = tl.load(starts_ptr + row)
    end = start + tl.load(lengths_ptr + row)
    q_ptrs = q_ptr + head[:, None] * stride_qh + token[:, None] * stride_qm + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask_q, other=0.0)
    qk_scale = sm_scale * LOG2_E
    slot = (end * key_heads + off_h) * HEAD_DIM
    k_base, v_base = k_ptr + off_h * stride_kh, v_ptr + off_h * stride_vh
    if AHEAD == 1:
        k = tl.load(k_base + row * stride_kn + offs_d, mask=offs_d < HEAD_DIM, other=0.0)
        v = tl.load(v_base + row * stride_vn + offs_d, mask=offs_d < HEAD_DIM, other=0.0)
        tl.store(k_cache_ptr + slot + offs_d, k, mask=offs_d < HEAD_DIM)
        tl.store(v_cache_ptr + slot + offs_d, v, mask=offs_d < HEAD_DIM)
        m_i = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * qk_scale
        l_i = tl.full([BLOCK_M], 1.0, tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32) + v.to(tl.float32)[None, :]
    else:
        new = tl.arange(0, BLOCK_NEW)
        mask_new = (new < AHEAD)[:, None] & (offs_d < HEAD_DIM)[None, :]
        k = _tile(k_base, row * AHEAD + new, stride_kn, offs_d, mask_new)
        v = _tile(v_base, row * AHEAD + new, stride_vn, offs_d, mask_new)
        slots_new = slot + new[:, None] * key_heads * HEAD_DIM + offs_d[None, :]
        tl.store(k_cache_ptr + slots_new, k, mask=mask_new)
        tl.store(v_cache_ptr + slots_new, v, mask=mask_new)
        visible_new = (new[None, :] <= turn[:, None]) & (new < AHEAD)[None, :]
        m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        m_i, l_i, acc = _attend(q, k, v, visible_new, m_i, l_i, acc, qk_scale)
    for start_n in range(start, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < end)[:, None] & (offs_d < HEAD_DIM)[None, :]
        slots = (offs_n[:, None] * key_heads + off_h) * HEAD_DIM + offs_d[None, :]
        k_old = tl.load(k_cache_ptr + slots, mask=mask_k, other=0.0)
        v_old = tl.load(v_cache_ptr + slots, mask=mask_k, other=0.0)
        visible = (offs_n < end)[None, :] & (offs_m >= 0)[:, None]
        m_i, l_i, acc = _attend(q, k_old, v_old, visible, m_i, l_i, acc, qk_scale)
    acc = acc / l_i[:, None]
    o_ptrs = o_ptr + (token * H + head)[:, None] * HEAD_DIM + offs_d[None, :]
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_q)
    lse = (m_i + tl.log2(l_i)) / LOG2_E
    tl.store(lse_ptr + head * tokens + token, lse, mask=turn < AHEAD)
