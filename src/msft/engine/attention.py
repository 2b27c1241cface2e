"""Attention over rows that stand in one line, and over a cache when generating.

A model of transformers calls the function registered here for every layer. What it should look at
is not an argument that every model family would have to pass through, but the *layout* that is in
force while the model runs:

    with layout(RowLayout(lengths, device)):
        model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)

`RowLayout`: each token sees its own row up to itself. `CacheLayout`: each token also sees what
the cache holds of its row, and is added to it. On CUDA in half precision the first one is
`varlen_attn`; everywhere else rows are padded for the attention alone, which on a CPU costs little
beside the matrix products, and is exact: padding stands at the end and causality hides it.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

NAME = "msft"


class Layout(Protocol):
    """What the tokens of the present forward pass may look at."""

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: "How") -> Tensor:
        """Tensors are [heads, tokens, dim]; the answer is [tokens, heads, dim]."""


class How:
    """A layer's own way: scale, dropout, window and soft cap."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.scale: float | None = options.get("scaling")
        self.dropout: float = options.get("dropout") or 0.0
        self.window: int | None = options.get("sliding_window")
        self.softcap: float | None = options.get("softcap")


_layouts: list[Layout] = []


@contextmanager
def layout(present: Layout) -> Iterator[None]:
    """The layout of all forward passes inside."""
    _layouts.append(present)
    try:
        yield
    finally:
        _layouts.pop()


def _attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if not _layouts:
        raise RuntimeError("this model runs inside msft's `with layout(...)` only")
    how = How(options)
    return _layouts[-1].attend(module, q[0], k[0], v[0], how)[None], None


AttentionInterface.register(NAME, _attention)


class RowLayout:
    """Each token sees its own row, up to itself."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.longest = max(lengths)
        self._device = device
        self._bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self._bounds = self._bounds.to(device)
        self._padding: Padding | None = None
        self._lengths = lengths

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        plain = how.softcap is None and not how.dropout and q.shape[-1] <= 256
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and plain:
            return self._varlen(q, k, v, how)
        if self._padding is None:
            self._padding = Padding(self._lengths, self._device)
        padding = self._padding
        mask = _window_mask(self.longest, self.longest, 0, how, q.device)
        rows = (padding.spread(q), padding.spread(k), padding.spread(v))
        return padding.gather(_scaled_dot_product(*rows, mask, how))

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (tensor.transpose(0, 1).contiguous() for tensor in (q, k, v))
        options: dict[str, Any] = {"scale": how.scale}
        if q.shape[1] != k.shape[1] and "enable_gqa" in inspect.signature(varlen_attn).parameters:
            options["enable_gqa"] = True  # needed from torch 2.12 on, unknown before
        left = -1 if how.window is None else how.window - 1
        ends = (self._bounds, self._bounds, self.longest, self.longest)
        out = varlen_attn(q, k, v, *ends, window_size=(left, 0), **options)
        assert isinstance(out, Tensor), "log-sum-exp was not asked for"
        return out


class Padding:
    """Between tokens in one line and rows of equal length."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        rows, longest = len(lengths), max(lengths)
        count = torch.tensor(lengths)
        starts = count.cumsum(0) - count
        column = torch.arange(longest)
        inside = column < count[:, None]
        slots = torch.where(inside, starts[:, None] + column, 0)
        self._shape = (rows, longest)
        self._slots = slots.flatten().to(device)
        self._places = inside.flatten().nonzero().squeeze(1).to(device)

    def spread(self, tokens: Tensor) -> Tensor:
        """[heads, tokens, dim] → [rows, heads, longest, dim]"""
        heads, _, dim = tokens.shape
        padded = tokens.index_select(1, self._slots)
        return padded.view(heads, *self._shape, dim).transpose(0, 1)

    def gather(self, rows: Tensor) -> Tensor:
        """[rows, heads, longest, dim] → [tokens, heads, dim]"""
        return rows.transpose(1, 2).flatten(0, 1).index_select(0, self._places)


class Cache:
    """Keys and values of every layer: [rows, heads, columns, dim], columns shared by all rows.

    A row's token at position p stands in column p, so a prefix that all rows share is in columns
    0 to p-1 of each. A cache belongs to one set of weights; whoever changes them drops it.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def store(self, layer: int, row: Tensor, column: Tensor, k: Tensor, v: Tensor) -> None:
        """Put tokens [heads, tokens, dim] where they belong."""
        for held, new in ((self._keys, k), (self._values, v)):
            if layer not in held:
                shape = (self.rows, k.shape[0], self.columns, k.shape[2])
                held[layer] = torch.zeros(shape, dtype=new.dtype, device=new.device)
            held[layer][row, :, column] = new.transpose(0, 1)

    def up_to(self, layer: int, column: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer][:, :, :column], self._values[layer][:, :, :column]

    def share(self, prefix: "Cache") -> None:
        """Start every row with the only row of `prefix`."""
        for mine, theirs in ((self._keys, prefix._keys), (self._values, prefix._values)):
            for layer, tensor in theirs.items():
                _, heads, columns, dim = tensor.shape
                held = tensor.new_zeros((self.rows, heads, self.columns, dim))
                held[:, :, :columns] = tensor
                mine[layer] = held

    def keep(self, rows: Tensor) -> None:
        """Only these rows stay."""
        self.rows = len(rows)
        for held in (self._keys, self._values):
            for layer, tensor in held.items():
                held[layer] = tensor.index_select(0, rows)


class CacheLayout:
    """Each token sees the cache of its row up to its own position.

    lengths: new tokens of each row; starts: the position of each row's first new token.
    """

    def __init__(
        self, cache: Cache, lengths: Sequence[int], starts: Sequence[int], device: torch.device
    ) -> None:
        self._cache = cache
        self._padding = Padding(lengths, device)
        count, first = torch.tensor(lengths), torch.tensor(starts)
        self._row = torch.arange(len(lengths)).repeat_interleave(count).to(device)
        within = torch.cat([torch.arange(length) for length in lengths])
        self._column = (first.repeat_interleave(count) + within).to(device)
        self._end = int((count + first).max())
        self._longest = max(lengths)
        same = len(set(starts)) == 1
        self._starts = first[:1].to(device) if same else first.to(device)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        self._cache.store(layer, self._row, self._column, k, v)
        keys, values = self._cache.up_to(layer, self._end)
        mask = _window_mask(self._longest, self._end, self._starts, how, q.device)
        out = _scaled_dot_product(self._padding.spread(q), keys, values, mask, how)
        return self._padding.gather(out)


def _window_mask(
    queries: int, keys: int, start: int | Tensor, how: How, device: torch.device
) -> Tensor | None:
    """Who may see whom, [rows or 1, 1, queries, keys]; None where plain causality says it all."""
    windowed = how.window is not None and keys > how.window
    if isinstance(start, int) and not windowed and how.softcap is None:
        return None
    first = torch.tensor([start], device=device) if isinstance(start, int) else start
    place = first[:, None, None, None] + torch.arange(queries, device=device)[:, None]
    column = torch.arange(keys, device=device)
    seen = column <= place
    if how.window is not None and windowed:
        seen = seen & (column > place - how.window)
    return seen


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: How) -> Tensor:
    if how.softcap is None:
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=how.dropout,
            is_causal=mask is None,
            scale=how.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    assert mask is not None, "a soft cap is computed with an explicit mask"
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scale = how.scale if how.scale is not None else q.shape[-1] ** -0.5
    scores = torch.tanh(q @ k.transpose(2, 3) * scale / how.softcap) * how.softcap
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = functional.dropout(scores.float().softmax(-1).to(q.dtype), how.dropout)
    return weights @ v
