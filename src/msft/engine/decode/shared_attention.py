"""Attention over a row's own tokens and over what it shares with others, merged.

Keys that many rows see are computed and kept once. Each token's attention over them and over its
own piece are two calls of the kernel, and the two are weighed by their log-sum-exps, which is the
attention over both (Hydragen, https://arxiv.org/abs/2402.05099).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.attention import SHORT, How, suits
from msft.engine.paths import HALF, Varlen
from msft.errors import Unsuited


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes attention: `varlen` anything, `own` short rows (the module
    `accel/short_rows.py`)."""

    varlen: Varlen
    own: Any | None = None


def refuse_odd(how: How, q: Tensor, v: Tensor, reach: int) -> None:
    """Unsuited, if some of `reach` tokens in a row may not see each other as usual."""
    if how.softcap is not None or how.dropout:
        raise Unsuited("a soft cap or dropout")
    if how.window is not None and how.window < reach:
        raise Unsuited("a window")
    if q.shape[-1] != v.shape[-1]:
        raise Unsuited("values of another width than queries")
    if q.is_cuda and (q.dtype not in HALF or q.shape[-1] > 256):
        raise Unsuited("not half precision, or wide heads")


class Store:
    """Keys and values of every layer, [slots, heads, dim]; who lies where is told from outside.

    repeats: query heads of each key head, known once a layer has been stored.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.repeats = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def put(self, layer: int, slots: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Keep keys and values [tokens, heads, dim]."""
        if layer not in self._layers:
            self._layers[layer] = tuple(  # type: ignore[assignment]
                t.new_zeros((self.slots, *t.shape[1:])) for t in (k, v)
            )
        repeats = q.shape[1] // k.shape[1]
        if self.repeats not in (0, repeats):
            raise Unsuited("layers of different shapes")
        self.repeats = repeats
        for held, new in zip(self._layers[layer], (k, v), strict=True):
            held.index_copy_(0, slots, new)

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys that tokens see beside those of their own piece.

    bounds_q, bounds_k, longest_q, longest_k: for the kernel; all tokens are inside the bounds.
    seen: for each token, whether it sees any.
    stored: whether the keys are in the store, or in the line itself.
    """

    bounds_q: Tensor
    bounds_k: Tensor
    longest_q: int
    longest_k: int
    seen: Tensor
    stored: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Pieces of rows, ready for the model.

    tokens, positions: one entry per token.
    lengths: tokens of each piece, which sees itself up to each token.
    bounds, longest: the same for the kernel.
    parts: what tokens see beside their piece.
    starts, stems: pieces and stems again, for each token (see `short_rows.Sight`).
    slots: where the keys of each token are kept; None: nowhere.
    targets: indices of the tokens whose prediction is wanted.
    labels: the token to be predicted there, where it is known.
    owners: the row it belongs to, always in host memory.
    """

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    bounds: Tensor
    longest: int
    parts: tuple[SharedKeys, ...]
    starts: Tensor
    stems: tuple[Tensor, Tensor] | None
    slots: Tensor | None
    targets: Tensor
    labels: Tensor
    owners: Tensor


class LineLayout:
    """Each token sees its own piece up to itself, and the parts.

    reach: the longest row, counted with everything that it sees.
    """

    def __init__(self, kernels: Kernels, line: Line, store: Store, reach: int) -> None:
        self._kernels = kernels
        self._line = line
        self._store = store
        self._reach = reach
        own = kernels.own if line.longest <= SHORT else None
        self._sight = own and own.Sight(line.starts, None, line.stems)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        refuse_odd(how, q, v, self._reach)
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        parts, own = self._line.parts, self._kernels.own
        out: Tensor
        if own is not None and self._sight is not None and suits(q, v):
            out, lse = own.line_attention(q, k, v, self._sight, how.scale)
            parts = tuple(part for part in parts if part.stored)
            q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
            q = q.contiguous() if parts else q
        else:
            q, k, v = (tensor.transpose(0, 1).contiguous() for tensor in (q, k, v))
            ends = (self._line.bounds, self._line.bounds, self._line.longest, self._line.longest)
            out, lse = self._kernels.varlen(q, k, v, *ends, scale=how.scale, lse=True)
        if self._line.slots is not None:
            self._store.put(layer, self._line.slots, q, k, v)
        for part in parts:
            keys, values = self._store.of(layer) if part.stored else (k, v)
            ends = (part.bounds_q, part.bounds_k, part.longest_q, part.longest_k)
            more, more_lse = self._kernels.varlen(
                q, keys, values, *ends, causal=False, scale=how.scale, lse=True
            )
            out = merged(out, lse, more, more_lse, part.seen)
            lse = torch.where(part.seen, torch.logaddexp(lse, more_lse), lse)
        return out.to(q.dtype)


def merged(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor, seen: Tensor) -> Tensor:
    """Attention over two sets of keys from that over each, in fp32.

    [tokens, heads, dim] with log-sum-exps [heads, tokens]; `more` counts where `seen` [tokens].
    """
    share = torch.where(seen, torch.sigmoid(more_lse - lse), 0.0)
    weight = share.t()[:, :, None]
    return torch.addcmul(out * (1 - weight), more, weight)
