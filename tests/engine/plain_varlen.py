"""The kernel `accel/varlen.py`, slowly and on any device."""

from typing import Any

import torch
from torch import Tensor


def plain_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds_q: Tensor,
    bounds_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    lse: bool = False,
) -> Any:
    """What `accel/varlen.py` computes, slowly and anywhere; what that leaves undefined is NaN."""
    out = torch.full_like(q, torch.nan)
    sums = torch.full((q.shape[1], q.shape[0]), torch.nan, device=q.device)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    asked = q.float().transpose(0, 1) * scale
    keys, values = (t.float().repeat_interleave(groups, 1).transpose(0, 1) for t in (k, v))
    ends_q, ends_k = bounds_q.tolist(), bounds_k.tolist()
    for number in range(len(ends_q) - 1):
        rows, columns = (slice(*ends[number : number + 2]) for ends in (ends_q, ends_k))
        m, n = rows.stop - rows.start, columns.stop - columns.start
        if not m:
            continue
        assert m <= longest_q, "a sequence is longer than was said"
        assert 0 <= n <= longest_k, "a sequence is longer than was said"
        scores = asked[:, rows] @ keys[:, columns].mT
        if causal and (m > 1 or window):  # one query sees all before it
            distance = torch.arange(m)[:, None] + n - m - torch.arange(n)
            hidden = (distance < 0) | (distance >= (window or n + 1))
            scores = scores.masked_fill(hidden.to(q.device), -torch.inf)
        total = scores.logsumexp(-1)
        weights = (scores - total[..., None]).exp().nan_to_num(0)
        out[rows] = (weights @ values[:, columns]).transpose(0, 1).to(q.dtype)
        sums[:, rows] = torch.where(total == -torch.inf, torch.inf, total)
    return (out, sums) if lse else out
