"""Rounding rows to FP8, and transposing a matrix of FP8, in Triton; see `adapters/fp8.py`.

torch would read and write the rows several times: for the largest magnitude, the quotient and the
cast. Here a program reads a row once and writes it once. Quotients are rounded as torch rounds
them, so that weights which are rounded on a CPU, to be merged, are the same. M counts rows, N
columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn
TILE = 64
"""Rows and columns of a square that one program transposes."""


@triton.jit
def _round(  # type: ignore[no-untyped-def]
    given_ptr, by_ptr, made_ptr, scale_ptr, N, largest, smallest,
    HAS_BY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    mask = n < N
    row = tl.load(given_ptr + m * N + n, mask=mask, other=0.0).to(tl.float32)
    if HAS_BY:
        row *= tl.load(by_ptr + n, mask=mask, other=0.0)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(row), 0), smallest), largest)
    tl.store(scale_ptr + m, scale)
    tl.store(made_ptr + m * N + n, tl.div_rn(row, scale).to(made_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _transpose(given_ptr, made_ptr, M, N, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One square."""
    m = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    n = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    mask = (m < M)[:, None] & (n < N)[None, :]
    square = tl.load(given_ptr + m[:, None] * N + n[None, :], mask=mask, other=0)
    tl.store(made_ptr + n[:, None] * M + m[None, :], tl.trans(square), mask=tl.trans(mask))


def rounded(
    matrix: Tensor, by: Tensor | None, largest: float, smallest: float
) -> tuple[Tensor, Tensor]:
    """A matrix in FP8 and the scale of each row. by: factors of its columns, put in before."""
    matrix = matrix.contiguous()
    rows, columns = matrix.shape
    made = torch.empty_like(matrix, dtype=FP8)
    scales = torch.empty(rows, dtype=torch.float32, device=matrix.device)
    block = triton.next_power_of_2(columns)
    warps = min(16, max(1, block // 512))
    _round[(rows,)](
        matrix, matrix if by is None else by, made, scales, columns, largest, smallest,
        HAS_BY=by is not None, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return made, scales


def transposed(weight: Tensor) -> Tensor:
    """The transpose of a matrix of FP8, contiguous in memory."""
    rows, columns = weight.shape
    made = torch.empty(columns, rows, dtype=weight.dtype, device=weight.device)
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _transpose[grid](weight.view(torch.uint8), made.view(torch.uint8), rows, columns, TILE=TILE)
    return made
