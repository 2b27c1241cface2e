"""The gate of a decoder layer, silu(g) * u, and its gradients, in Triton; `gated_layers.py` has it.

g and u lie side by side, as one matrix product leaves them. With adapters, what the product lacks,
low rank times high rank, is added on the way, so that it is never written. A program goes down a
strip of columns, and holds the high ranks of its columns meanwhile.

M counts tokens, N numbers of g or u, RANK those of an adapter; low is what A matrices make, high
are B matrices.
"""

import triton
import triton.language as tl


@triton.jit
def _high(high_ptr, n, mask_n, stride_n, stride_r, RANK: tl.constexpr, BLOCK_R: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some columns of high ranks."""
    r = tl.arange(0, BLOCK_R)
    mask = (r < RANK)[:, None] & mask_n[None, :]
    return tl.load(high_ptr + r[:, None] * stride_r + n[None, :] * stride_n, mask=mask, other=0.0)


@triton.jit
def _added(  # type: ignore[no-untyped-def]
    tile, low_ptr, high, m, mask_m, stride_m, by, RANK: tl.constexpr, BLOCK_R: tl.constexpr
):  # fmt: skip
    """tile + by * low @ high."""
    r = tl.arange(0, BLOCK_R)
    mask = mask_m[:, None] & (r < RANK)[None, :]
    low = tl.load(low_ptr + m[:, None] * stride_m + r[None, :], mask=mask, other=0.0)
    return tile + by * tl.dot(low, high)


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    base_ptr, low_ptr, up_ptr, by, act_ptr, tokens,
    N: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """silu(g) * u of a strip."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = n < N
    if RANK:
        high_g = _high(up_ptr, n, mask_n, RANK, 1, RANK, BLOCK_R)
        high_u = _high(up_ptr + N * RANK, n, mask_n, RANK, 1, RANK, BLOCK_R)
    for step in range(STRIP):
        m = (tl.program_id(1) * STRIP + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        mask_m = m < tokens
        mask = mask_m[:, None] & mask_n[None, :]
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        base = base_ptr + m.to(tl.int64)[:, None] * (2 * N) + n[None, :]
        g = tl.load(base, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(base + N, mask=mask, other=0.0).to(tl.float32)
        if RANK:
            g = _added(g, low_ptr, high_g, m, mask_m, 2 * RANK, by, RANK, BLOCK_R)
            u = _added(u, low_ptr + RANK, high_u, m, mask_m, 2 * RANK, by, RANK, BLOCK_R)
        act = g * tl.sigmoid(g) * u
        tl.store(act_ptr + at, act.to(act_ptr.dtype.element_ty), mask=mask)


@triton.jit
def backward(  # type: ignore[no-untyped-def]
    base_ptr, low_ptr, up_ptr, by, grad_ptr, back_ptr, down_ptr, slope_ptr, act_ptr, tokens,
    N: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """The gradients of g and u, side by side; with adapters also silu(g) * u once more."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = n < N
    kind = slope_ptr.dtype.element_ty
    if RANK:
        high_g = _high(up_ptr, n, mask_n, RANK, 1, RANK, BLOCK_R)
        high_u = _high(up_ptr + N * RANK, n, mask_n, RANK, 1, RANK, BLOCK_R)
        high_d = _high(down_ptr, n, mask_n, 1, N, RANK, BLOCK_R)
    for step in range(STRIP):
        m = (tl.program_id(1) * STRIP + step) * BLOCK_M + tl.arange(0, BLOCK_M)
        mask_m = m < tokens
        mask = mask_m[:, None] & mask_n[None, :]
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        both = m.to(tl.int64)[:, None] * (2 * N) + n[None, :]
        g = tl.load(base_ptr + both, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(base_ptr + both + N, mask=mask, other=0.0).to(tl.float32)
        d = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if RANK:
            g = _added(g, low_ptr, high_g, m, mask_m, 2 * RANK, by, RANK, BLOCK_R)
            u = _added(u, low_ptr + RANK, high_u, m, mask_m, 2 * RANK, by, RANK, BLOCK_R)
            d = _added(d, back_ptr, high_d, m, mask_m, RANK, 1.0, RANK, BLOCK_R)
        s = tl.sigmoid(g)
        tl.store(slope_ptr + both, (d * u * s * (1 + g * (1 - s))).to(kind), mask=mask)
        tl.store(slope_ptr + both + N, (d * g * s).to(kind), mask=mask)
        if RANK:
            tl.store(act_ptr + at, (g * s * u).to(kind), mask=mask)
