"""Torch's flash attention over sequences in one line, and what it computes, said slowly."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


def varlen(
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
    """Attention of sequences in one line, [tokens, heads, dim]; CUDA in half precision only.

    Queries bounds_q[i] to bounds_q[i+1] see keys bounds_k[i] to bounds_k[i+1]; causal: the last
    query sees all of them, the one before all but the last, and so on. Queries outside the bounds
    come back uninitialised, queries without keys as 0. With `lse` also log-sum-exps,
    [heads, tokens], in fp32: infinite (either sign) where there are no keys.
    """
    flash, knows_gqa = _flash()
    options: dict[str, Any] = {"scale": scale, "window_size": (-1, -1)}
    if causal:
        options["window_size"] = (-1 if window is None else window - 1, 0)
    if q.shape[1] != k.shape[1]:
        longest_q = max(2, longest_q)  # told 1, the kernel takes every sequence to have one query
        if knows_gqa:
            options["enable_gqa"] = True
    if lse:
        from torch.nn.attention.varlen import AuxRequest

        options["return_aux"] = AuxRequest(lse=True)
    return flash(q, k, v, bounds_q, bounds_k, longest_q, longest_k, **options)


@cache
def _flash() -> tuple[Callable[..., Any], bool]:
    """Torch's kernel, and whether it must be told of grouped heads (from 2.12 on; not before)."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


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
    """What `varlen` computes, slowly and anywhere; what it leaves uninitialised is NaN here."""
    out = torch.full_like(q, torch.nan)
    sums = torch.full((q.shape[1], q.shape[0]), torch.nan, device=q.device)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    ends_q, ends_k = bounds_q.tolist(), bounds_k.tolist()
    for number in range(len(ends_q) - 1):
        asks, sees = (slice(*ends[number : number + 2]) for ends in (ends_q, ends_k))
        asking, seen = asks.stop - asks.start, sees.stop - sees.start
        if not asking:
            continue
        assert asking <= longest_q, "a sequence is longer than was said"
        assert 0 <= seen <= longest_k, "a sequence is longer than was said"
        keys, values = (t[sees].float().repeat_interleave(groups, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[asks].float(), keys) * scale
        if causal:
            behind = torch.arange(asking)[:, None] + seen - asking - torch.arange(seen)
            hidden = (behind < 0) | (behind >= (window or seen + 1))
            scores = scores.masked_fill(hidden.to(q.device), -torch.inf)
        total = scores.logsumexp(-1)
        weights = (scores - total[..., None]).exp().nan_to_num(0)
        out[asks] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        sums[:, asks] = torch.where(total == -torch.inf, torch.inf, total)
    return (out, sums) if lse else out
