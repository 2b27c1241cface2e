"""Packing: rows of any length in one line, and attention that keeps them apart.

Rows differ in length. A batch that pads them all to the longest computes on padding: for questions
and answers often more than on tokens. So the rows of a forward pass stand in one *line*, one after
the other, and positions start at 0 in each row. Every layer but attention computes each token by
itself and needs no change. Attention must not look from one row into another; `isolation.py` proves
for each model that nothing does.

**The line.** The host lays out tokens, positions, bounds, targets, labels and owners in one buffer
of integers (`fill`), and weights where rows have some. It goes to the device in one copy
(`PackedRows.over`). Head and loss are
computed at *targets* only: the places whose next token is an answer token. On a GPU a line may be
padded to a shape that comes again, so that a recorded step (`graphs.py`) can be replayed on it:
unused tokens are a row of their own at the end, unused targets carry no loss, and rows that a
smaller batch lacks have no tokens.

**Attention.** A model of transformers calls `_attention`, registered here as "msft", in every
layer. What a token may look at is not an argument that every model family would have to pass
through, but the *layout* that is in force while the model runs:

    with layout(RowLayout(lengths, device)):
        model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)

With `RowLayout` each token sees its own row up to itself. Other layouts add a cache
(`decode/decoder.py`) or what rows share (`decode/step.py`). On CUDA in half precision the kernel is
our own where rows are short, and `varlen`, torch's flash kernel, where they are long. Everywhere
else rows are padded for the attention alone (`Padding`). That costs little beside the matrix
products on a CPU, and it is exact: padding stands at the end and causality hides it. `kernels.py`
says which kernels this machine has.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from msft.engine.kernels import HALF, NO_CUDA, NO_LABEL, KernelChoice, short_rows, varlen
from msft.example import Encoded


def to_device_async(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy numbers from the host to a device without waiting for the device.

    A GPU takes them in turn, behind the work that it was given before. `to` alone would wait for
    that work, and then the GPU would wait for the host to launch the next.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row's tokens; its targets are the places whose next token is trained.

    mass: what the row adds to the number by which a batch divides its loss.
    answers, weights: of each target, whether its token is of an answer, and the weight of its loss;
        None: all are, and weigh 1.
    """

    tokens: Integers
    targets: Integers
    labels: Integers
    mass: float
    answers: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None
    weights: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None

    @staticmethod
    def of(row: Encoded, weighted: bool = False) -> "TrainingRow":
        """weighted: with the weights of its loss."""
        tokens = np.asarray(row.tokens, dtype=np.int64)
        marks = np.asarray(row.answer[1:], dtype=bool)
        targets = np.flatnonzero(marks | (weighted and row.prompt_weight > 0))
        labels = tokens[targets + 1]
        if not weighted:
            return TrainingRow(tokens, targets, labels, len(targets))
        answers = marks[targets]
        weights = row.weight * np.where(answers, 1.0, row.prompt_weight)
        return TrainingRow(tokens, targets, labels, row.mass, answers, weights)


@dataclass(frozen=True, slots=True)
class BufferShape:
    """How many tokens, targets and rows a buffer has room for.

    padded: whether there is a last row for unused tokens.
    weighted: whether targets have weights.
    """

    tokens: int
    targets: int
    rows: int
    padded: bool = False
    weighted: bool = False

    @staticmethod
    def of(rows: Sequence[TrainingRow]) -> "BufferShape":
        tokens, targets = sum(len(r.tokens) for r in rows), sum(len(r.targets) for r in rows)
        weighted = any(row.weights is not None for row in rows)
        return BufferShape(tokens, targets, len(rows), weighted=weighted)

    def rounded(self, tokens: int, targets: int, rows: int) -> "BufferShape":
        """The next shape whose sizes are multiples; at least one token is left for padding."""
        line = (self.tokens // tokens + 1) * tokens
        return BufferShape(line, -(-self.targets // targets) * targets, rows, True, self.weighted)

    @property
    def sizes(self) -> list[int]:
        """How many tokens, positions, bounds, targets, labels and owners there are; and weights,
        with one more number for the mass of all rows."""
        bounds = self.rows + 1 + self.padded
        sizes = [self.tokens, self.tokens, bounds, self.targets, self.targets, self.targets]
        return [*sizes, self.targets + 1] if self.weighted else sizes

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A buffer on the device, seen as a line of rows.

    bounds: where each row starts, and where the last one ends.
    owners: the row that each target belongs to; of a weighted line, -1 at tokens of prompts.
    weights, mass: of the loss of each target, and of all rows, in fp64; None: targets weigh 1.

    All are views of the buffer, which is written anew before a recorded step is replayed.
    """

    tokens: Tensor
    positions: Tensor
    bounds: Tensor
    targets: Tensor
    labels: Tensor
    owners: Tensor
    rows: int
    weights: Tensor | None = None
    mass: Tensor | None = None

    @staticmethod
    def over(buffer: Tensor, shape: BufferShape) -> "PackedRows":
        """A buffer that `fill` has written, or will write."""
        tokens, positions, bounds, targets, labels, owners, *weighted = torch.split(
            buffer[: shape.size], shape.sizes
        )
        line = (tokens, positions, bounds, targets, labels, owners, shape.rows)
        if not weighted:
            return PackedRows(*line)
        numbers = weighted[0].view(torch.float64)
        return PackedRows(*line, numbers[:-1], numbers[-1])


def fill(buffer: Integers, rows: Sequence[TrainingRow], shape: BufferShape) -> None:
    """Write rows into a buffer of `shape.size` integers."""
    ends = np.cumsum(shape.sizes)
    tokens, positions, bounds, targets, labels, owners, *weighted = np.split(buffer, ends[:-1])
    lengths = np.fromiter((len(row.tokens) for row in rows), np.int64, len(rows))
    counts = np.fromiter((len(row.targets) for row in rows), np.int64, len(rows))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    used, answered = int(edges[-1]), int(counts.sum())
    tokens[:used] = np.concatenate([row.tokens for row in rows])
    positions[:used] = np.arange(used) - np.repeat(edges[:-1], lengths)
    bounds[: len(edges)] = edges
    targets[:answered] = np.concatenate([row.targets for row in rows])
    targets[:answered] += np.repeat(edges[:-1], counts)
    labels[:answered] = np.concatenate([row.labels for row in rows])
    owners[:answered] = np.repeat(np.arange(len(rows)), counts)
    if weighted:  # floating-point numbers, bit by bit in integers
        numbers = weighted[0].view(np.float64)
        numbers[:answered] = np.concatenate([row.weights for row in rows])
        numbers[answered:-1] = 0.0
        numbers[-1] = sum(row.mass for row in rows)
        owners[:answered][~np.concatenate([row.answers for row in rows])] = -1
    if shape.padded:
        tokens[used:] = 0
        positions[used:] = 0  # a place that every model has
        bounds[len(edges) : -1] = used
        bounds[-1] = shape.tokens
        targets[answered:] = used
        labels[answered:] = NO_LABEL
        owners[answered:] = 0


def packed(rows: Sequence[TrainingRow], device: torch.device) -> PackedRows:
    """Rows without any padding, on the device."""
    shape = BufferShape.of(rows)
    buffer = np.empty(shape.size, dtype=np.int64)
    fill(buffer, rows, shape)
    return PackedRows.over(to_device_async(torch.from_numpy(buffer), device), shape)


def row_means(nll: Tensor, line: PackedRows) -> Tensor:
    """Mean loss of each row over its answers, always added in one order; 0 without answers."""
    mine = (line.owners == torch.arange(line.rows, device=nll.device)[:, None]) & (
        line.labels != NO_LABEL
    )
    return (mine * nll).sum(1) / mine.sum(1).clamp(min=1)


# Attention.

NAME = "msft"
SHORT = 1024
"""The most tokens of a row that counts as short."""


class Layout(Protocol):
    """What the tokens of the present forward pass may look at."""

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: "How") -> Tensor:
        """Tensors are [heads, tokens, dim]; the answer is [tokens, heads, dim]."""


class How:
    """The options of a layer's attention: scale, dropout, window and soft cap."""

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
    q, k, v = (_Unbatch.apply(tensor) for tensor in (q, k, v))  # type: ignore[no-untyped-call]
    return _layouts[-1].attend(module, q, k, v, How(options))[None], None


class _Unbatch(torch.autograd.Function):
    """[1, heads, tokens, dim] → [heads, tokens, dim]. The gradient gets the strides of the batch:
    compiled layers would copy it if only the stride of the first dimension differed."""

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


def attention_way(model: Any, longest: int) -> KernelChoice:
    """The attention kernel of training for rows of up to `longest` tokens, by the config."""
    from msft.engine.model.shape import largest  # which loads models, and so this file

    config, weight = model.config.get_text_config(), next(model.parameters())
    dim = largest(config, "head_dim") or config.hidden_size // largest(
        config, "num_attention_heads"
    )
    names = {"dropout": "attention_dropout", "softcap": "attn_logit_softcapping"}
    names["sliding_window"] = "sliding_window"
    how = How({option: largest(config, name) for option, name in names.items()})
    return _kernel_for(weight, dim, how, longest)


def _kernel_for(tensor: Tensor, dim: int, how: How, longest: int) -> KernelChoice:
    """The kernel for heads of `dim` numbers; the tensor gives device and precision."""
    if not tensor.is_cuda or tensor.dtype not in HALF:
        return KernelChoice("sdpa", "fp32" if tensor.is_cuda else NO_CUDA)
    if how.softcap is not None or how.dropout or dim > 256:
        return KernelChoice("sdpa", "a soft cap, dropout or wide heads in attention")
    if varlen().item is None:
        return KernelChoice("sdpa", varlen().reason)
    if longest > SHORT or (how.window is not None and how.window < longest):
        return KernelChoice("varlen", f"rows longer than {SHORT} tokens or than the window")
    if dim > 128:
        return KernelChoice("varlen", "heads wider than 128")
    return KernelChoice("triton short rows" if short_rows().item else "varlen", short_rows().reason)


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
        if _kernel_for(q, q.shape[-1], how, self.longest).path != "sdpa":
            if self._packed is None:
                ends = torch.tensor([0, *self._lengths]).cumsum(0, dtype=torch.int32)
                self._packed = PackedLayout(
                    to_device_async(ends, self._device), q.shape[1], self.longest
                )
            return self._packed.attend(module, q, k, v, how)
        if self._padding is None:
            self._padding = Padding(self._lengths, self._device)
        padding = self._padding
        mask = window_mask(self.longest, self.longest, 0, how, q.device)
        rows = (padding.spread(q), padding.spread(k), padding.spread(v))
        return padding.gather(scaled_dot_product(*rows, mask, how))


class Padding:
    """Turns tokens in one line into padded rows of equal length, and back."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        rows, longest = len(lengths), max(lengths)
        count = torch.tensor(lengths)
        starts = count.cumsum(0) - count
        column = torch.arange(longest)
        inside = column < count[:, None]
        slots = torch.where(inside, starts[:, None] + column, 0)
        self._shape = (rows, longest)
        self._slots = to_device_async(slots.flatten(), device)
        self._places = to_device_async(inside.flatten().nonzero().squeeze(1), device)

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
