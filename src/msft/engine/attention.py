"""Attention over rows that stand in one line, and over a cache when generating.

A model of transformers calls the function registered here for every layer. What it should look at
is not an argument that every model family would have to pass through, but the *layout* that is in
force while the model runs:

    with layout(RowLayout(lengths, device)):
        model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)

`RowLayout`: each token sees its own row up to itself. Other layouts add a cache
(`decode/plain.py`) or what rows share (`decode/step.py`). On CUDA in half precision it
is our own kernel where rows are short, and `varlen`, torch's flash kernel, where they are long;
everywhere else rows are padded for the attention alone, which on a CPU costs little beside the
matrix products, and is exact: padding stands at the end and causality hides it. `kernels.py` says
which of them there are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from msft.engine.kernels import HALF, NO_CUDA, Way, short_rows, varlen
from msft.engine.model.kinds import largest
from msft.engine.packing import sent

NAME = "msft"
SHORT = 1024
"""Rows of up to so many tokens are short."""


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


def logits_of(
    model: Any, tokens: Tensor, positions: Tensor, present: Layout, targets: Tensor
) -> Tensor:
    """What a model predicts at the targets of a line."""
    with layout(present):
        logits: Tensor = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            logits_to_keep=targets,
            use_cache=False,
        ).logits
    return logits[0]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # layouts change; fused layers do not
def _attention(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,  # some models give it by this name
    **options: Any,
) -> tuple[Tensor, None]:
    if not _layouts:
        raise RuntimeError("this model runs inside msft's `with layout(...)` only")
    q, k, v = (_Only.apply(tensor) for tensor in (q, k, v))  # type: ignore[no-untyped-call]
    return _layouts[-1].attend(module, q, k, v, How(options))[None], None


class _Only(torch.autograd.Function):
    """The only one of a batch. Its gradient lies in memory as the batch does: compiled layers would
    copy it else, if only the stride of that one differs."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor) -> Tensor:
        ctx.strides = batch.stride()
        return batch.squeeze(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if grad.stride() == ctx.strides[1:]:
            return grad.as_strided((1, *grad.shape), ctx.strides)
        return grad[None]


AttentionInterface.register(NAME, _attention)


def suits(q: Tensor, v: Tensor) -> bool:
    """Whether heads are of a kind that our kernels are made for."""
    return q.shape[-1] == v.shape[-1] <= 128


def attention_way(model: Any, longest: int) -> Way:
    """The path that training's attention takes over rows of up to so many tokens, by the config."""
    config, weight = model.config.get_text_config(), next(model.parameters())
    dim = largest(config, "head_dim") or config.hidden_size // largest(
        config, "num_attention_heads"
    )
    names = {"dropout": "attention_dropout", "softcap": "attn_logit_softcapping"}
    names["sliding_window"] = "sliding_window"
    how = How({option: largest(config, name) for option, name in names.items()})
    return _way(weight, dim, how, longest)


def _way(tensor: Tensor, dim: int, how: How, longest: int) -> Way:
    """For heads of so many numbers; tensor: says on which device and in which precision."""
    if not tensor.is_cuda or tensor.dtype not in HALF:
        return Way("sdpa", "fp32" if tensor.is_cuda else NO_CUDA)
    if how.softcap is not None or how.dropout or dim > 256:
        return Way("sdpa", "a soft cap, dropout or wide heads in attention")
    if varlen().item is None:
        return Way("sdpa", varlen().reason)
    if longest > SHORT or (how.window is not None and how.window < longest):
        return Way("varlen", f"rows longer than {SHORT} tokens or than the window")
    if dim > 128:
        return Way("varlen", "heads wider than 128")
    return Way("triton short rows" if short_rows().item else "varlen", short_rows().reason)


class PackedLayout:
    """Each token sees its own row, up to itself; CUDA in half precision only.

    bounds: where rows start, known to the device alone; and where the last one ends.
    longest: no row is longer.
    padded: the last row is padding.
    """

    def __init__(self, bounds: Tensor, tokens: int, longest: int, padded: bool = False) -> None:
        self._bounds = bounds
        self._longest = longest
        self._own = short_rows().item if longest <= SHORT else None
        self._varlen = varlen().item
        self._sight = self._own and self._own.Sight.of(bounds, tokens, padded)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        out: Tensor
        if self._own and suits(q, v) and (how.window is None or how.window >= self._longest):
            out, _ = self._own.line_attention(q, k, v, self._sight, how.scale)
            return out
        q, k, v = (tensor.transpose(0, 1).contiguous() for tensor in (q, k, v))
        ends = (self._bounds, self._bounds, self._longest, self._longest)
        assert self._varlen is not None, "who packs rows has asked for it"
        out = self._varlen(q, k, v, *ends, window=how.window, scale=how.scale)
        return out


class RowLayout:
    """Each token sees its own row, up to itself."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.longest = max(lengths)
        self._device = device
        self._padding: Padding | None = None
        self._packed: PackedLayout | None = None
        self._lengths = lengths

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        if _way(q, q.shape[-1], how, self.longest).path != "sdpa":
            if self._packed is None:
                ends = torch.tensor([0, *self._lengths]).cumsum(0, dtype=torch.int32)
                self._packed = PackedLayout(sent(ends, self._device), q.shape[1], self.longest)
            return self._packed.attend(module, q, k, v, how)
        if self._padding is None:
            self._padding = Padding(self._lengths, self._device)
        padding = self._padding
        mask = window_mask(self.longest, self.longest, 0, how, q.device)
        rows = (padding.spread(q), padding.spread(k), padding.spread(v))
        return padding.gather(scaled_dot_product(*rows, mask, how))


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
        self._slots = sent(slots.flatten(), device)
        self._places = sent(inside.flatten().nonzero().squeeze(1), device)

    def spread(self, tokens: Tensor) -> Tensor:
        """[heads, tokens, dim] → [rows, heads, longest, dim]"""
        heads, _, dim = tokens.shape
        padded = tokens.index_select(1, self._slots)
        return padded.view(heads, *self._shape, dim).transpose(0, 1)

    def gather(self, rows: Tensor) -> Tensor:
        """[rows, heads, longest, dim] → [tokens, heads, dim]"""
        return rows.transpose(1, 2).flatten(0, 1).index_select(0, self._places)


def window_mask(
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


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: How) -> Tensor:
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
