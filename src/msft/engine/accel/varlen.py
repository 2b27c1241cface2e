"""Torch's flash attention over sequences in one line, for CUDA in half precision."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

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
