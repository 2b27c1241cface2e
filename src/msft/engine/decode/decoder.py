"""Decoding: greedy texts and likelihoods of many rows at once, what they share computed once.

An evaluation asks a model two questions. `measure`: how likely is this answer (-log p, summed over
its tokens)? `generate`: which tokens follow this prompt, the most likely one at a time, until an
end token, a limit, or until nothing that may still come can change the score (`StopRow`)?

Rows come in groups (a task with its few-shot exemplars). All rows of a group start with the same
tokens, the *prefix*. Its keys and values are computed once and then read by every row, so an
evaluation with five exemplars costs little more than one without.

`Decoder` is the door. It takes one of two paths, which give the same answers but for rounding:

- `PlainDecoder`, in this file, is exact on every device and for any attention. Groups that share a
  prefix go one after the other. Rows are padded for the attention alone, and a KV cache holds one
  line of columns for each row: a token at position p stands in column p.
- `FastDecoder` (`fast.py`, with `plans.py` and `step.py`) needs CUDA in half precision. It keeps
  prefixes once for all rows, packs rows without padding, replays decoding steps as CUDA graphs,
  and guesses tokens ahead. docs/results/evaluation.md compares it with `generate` of transformers.

If memory does not hold a batch, the decoder halves it for good; the answers stay the same. No
answer is kept between calls, since weights may have changed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from msft.engine import kernels
from msft.engine.kernels import (
    PLAIN_LAYERS,
    KernelChoice,
    Layers,
    answer_losses,
    recorder_of,
    say_once,
)
from msft.engine.model.shape import shape_of
from msft.engine.packing import (
    How,
    Layout,
    Padding,
    RowLayout,
    TrainingRow,
    logits_of,
    packed,
    scaled_dot_product,
    window_mask,
)
from msft.errors import Unsuited, is_out_of_memory
from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods, StopRow

if TYPE_CHECKING:
    from msft.engine.decode.fast import FastDecoder
    from msft.engine.decode.step import Kernels

MEMORY_OF_KEYS = 1 / 8
"""The share of the device's memory that keys and values may take."""
SLOTS_ELSEWHERE = 2**20
"""Tokens whose keys may be kept where the device does not say how much memory it has."""
WORTH_SHARING = 16
"""A shared prefix of fewer tokens is computed with each row; a stem needs half as many."""

Span = tuple[int, int]
"""First, and one behind the last."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows that start with the same tokens, the prefix, whose keys are in slots from `slot` on."""

    rows: tuple[int, ...]
    prefix: tuple[int, ...]
    slot: int

    @property
    def slots(self) -> Span:
        return self.slot, self.slot + len(self.prefix)


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """The number of tokens that all rows start with, 0 if sharing them is not worth it. Every row
    keeps at least one token of its own."""
    if len(rows) < 2:
        return 0
    ends = min(map(tuple, rows)), max(map(tuple, rows))  # the two rows that differ the earliest
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = min(sum(1 for _ in same), min(len(row) for row in rows) - 1)
    return shared if shared >= WORTH_SHARING else 0


def grouped(starts: Sequence[Sequence[int]], groups: Sequence[int] | None) -> list[PrefixGroup]:
    """The groups of rows, by the tokens that they start with; None: all rows are one group."""
    members: dict[int, list[int]] = {}
    for number, group in enumerate(groups or [0] * len(starts)):
        members.setdefault(group, []).append(number)
    found: list[PrefixGroup] = []
    slot = 0
    for rows in members.values():
        shared = shared_prefix([starts[number] for number in rows])
        found.append(PrefixGroup(tuple(rows), tuple(starts[rows[0]][:shared]), slot))
        slot += shared
    return found


def question(row: Encoded) -> tuple[int, ...]:
    """Everything before the first answer token."""
    return row.tokens[: row.answer.index(True)] if True in row.answer else row.tokens


class GeneratedRows:
    """The generated tokens of each row: up to an end token, to the row's limit, or to where
    `leaves` ended it."""

    def __init__(self, ends: frozenset[int], limits: Sequence[int], leaves: StopRow) -> None:
        self.rows: list[list[int]] = [[] for _ in limits]
        self.limits = limits
        self._ends = ends
        self._leaves = leaves
        self._done = [False] * len(limits)

    def add(self, number: int, tokens: Sequence[int]) -> None:
        """Add the next tokens of a row; tokens after the row's end are dropped."""
        if self._done[number]:
            return
        row = self.rows[number]
        before, room = len(row), self.limits[number] - len(row)
        row += tokens[:room]
        if not self._ends.isdisjoint(row[before:]):
            del row[next(n for n in range(before, len(row)) if row[n] in self._ends) + 1 :]
        over = row[-1] in self._ends or len(row) == self.limits[number]
        text = row[:-1] if over else row
        end = self._leaves(number, text, before) if len(text) > before else None
        if end is not None:
            del row[end:]
        self._done[number] = over or end is not None

    def open(self, number: int) -> bool:
        return not self._done[number]


class Cache:
    """Keys and values of every layer: [rows, heads, columns, dim], columns shared by all rows.

    A row's token at position p stands in column p, so a prefix that all rows share is in columns
    0 to p-1 of each. A cache belongs to one set of weights: drop it when they change.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def store(self, layer: int, row: Tensor, column: Tensor, k: Tensor, v: Tensor) -> None:
        """Keep keys and values [heads, tokens, dim] of tokens at these rows and columns."""
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
        """Drop all other rows."""
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
        mask = window_mask(self._longest, self._end, self._starts, how, q.device)
        out = scaled_dot_product(self._padding.spread(q), keys, values, mask, how)
        return self._padding.gather(out)


def batches(sizes: Iterable[int], most: int) -> list[list[int]]:
    """Indices of `sizes` in batches whose sizes add up to at most `most`; a larger one is a batch
    of its own."""
    groups: list[list[int]] = []
    filled = most
    for place, size in enumerate(sizes):
        if filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += size
    return groups


class PlainDecoder:
    """The path for every device and any attention. It keeps nothing between calls."""

    def __init__(self, model: Any, most_tokens: int, device: torch.device) -> None:
        self._model = model
        self._most_tokens = most_tokens
        self._device = device

    def generate(
        self, prompts: Sequence[Sequence[int]], groups: Sequence[int] | None, texts: GeneratedRows
    ) -> Generated:
        """Generate into `texts`."""
        every, tokens = grouped(prompts, groups), 0
        alone = tuple(chain.from_iterable(group.rows for group in every if not group.prefix))
        for group in [*filter(lambda group: group.prefix, every), PrefixGroup(alone, (), 0)]:
            prefix, shared = self._prefix(group), len(group.prefix)
            order = sorted(group.rows, key=lambda number: len(prompts[number]))
            tokens += shared
            sizes = (len(prompts[number]) + texts.limits[number] for number in order)
            for places in batches(sizes, self._most_tokens):
                numbers = [order[place] for place in places]
                tokens += self._batch(numbers, prompts, shared, prefix, texts)
        return Generated(texts.rows, tokens)

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None
    ) -> Callable[[], Likelihoods]:
        """-log p of each row's answer: computed now, handed out when it is called for."""
        sums = torch.zeros(len(rows))
        tokens = 0
        for group in grouped([question(row) for row in rows], groups):
            shared = len(group.prefix)
            prefix = self._prefix(group)
            tokens += shared
            sizes = (len(rows[number].tokens) for number in group.rows)  # each has its own prefix
            for places in batches(sizes, self._most_tokens):
                numbers = [group.rows[place] for place in places]
                own = [_without(rows[number], shared) for number in numbers]
                lengths = [len(row.tokens) for row in own]
                present: Layout
                if prefix is None:
                    present = RowLayout(lengths, self._device)
                else:
                    cache = Cache(len(own), shared + max(lengths))
                    cache.share(prefix)
                    present = CacheLayout(cache, lengths, [shared] * len(own), self._device)
                line = packed([TrainingRow.of(row) for row in own], self._device)
                where = (line.tokens, line.positions + shared, present, line.targets)
                nll = answer_losses(logits_of(self._model, *where), line.labels)
                sums.index_add_(0, torch.tensor(numbers)[line.owners.cpu()], nll.cpu())
                tokens += len(line.tokens)
        likelihoods = Likelihoods(sums.tolist(), tokens)
        return lambda: likelihoods

    def _prefix(self, group: PrefixGroup) -> Cache | None:
        if not group.prefix:
            return None
        cache = Cache(1, len(group.prefix))
        line = torch.tensor(group.prefix, device=self._device)
        places = torch.arange(len(line), device=self._device)
        present = CacheLayout(cache, [len(line)], [0], self._device)
        logits_of(self._model, line, places, present, places[-1:])
        return cache

    def _batch(
        self,
        numbers: list[int],
        prompts: Sequence[Sequence[int]],
        shared: int,
        prefix: Cache | None,
        texts: GeneratedRows,
    ) -> int:
        """Generate for one batch of rows; the number of tokens that went through the model."""
        cache = Cache(len(numbers), max(len(prompts[n]) + texts.limits[n] for n in numbers))
        if prefix is not None:
            cache.share(prefix)
        lengths = [len(prompts[n]) - shared for n in numbers]
        line = [token for n in numbers for token in prompts[n][shared:]]
        places = [shared + place for length in lengths for place in range(length)]
        lasts = [end - 1 for end in accumulate(lengths)]
        given, positions, targets = (
            torch.tensor(each, device=self._device) for each in (line, places, lasts)
        )
        present = CacheLayout(cache, lengths, [shared] * len(numbers), self._device)
        chosen = logits_of(self._model, given, positions, present, targets).argmax(-1)
        tokens = len(line)
        while True:
            for number, token in zip(numbers, chosen.tolist(), strict=True):
                texts.add(number, [token])
            staying = [place for place, number in enumerate(numbers) if texts.open(number)]
            if not staying:
                return tokens
            if len(staying) < len(numbers):
                index = torch.tensor(staying, device=self._device)
                cache.keep(index)
                chosen = chosen.index_select(0, index)
                numbers = [numbers[place] for place in staying]
            starts = [len(prompts[n]) + len(texts.rows[n]) - 1 for n in numbers]
            present = CacheLayout(cache, [1] * len(numbers), starts, self._device)
            positions = torch.tensor(starts, device=self._device)
            every = torch.arange(len(numbers), device=self._device)
            chosen = logits_of(self._model, chosen, positions, present, every).argmax(-1)
            tokens += len(numbers)


def _without(row: Encoded, shared: int) -> Encoded:
    """A row without its first `shared` tokens."""
    return Encoded(row.tokens[shared:], row.answer[shared:]) if shared else row


class Decoder:
    """Asks a model for texts and likelihoods, by the fast path where it can.

    most_tokens: tokens of one forward pass.
    kernels: of the fast path, to take it on any device; None: those of this machine.
    layers: the model's layers, compiled for the fast path.
    most_slots: tokens whose keys are kept; None: as many as an eighth of the device's memory holds.
    refresh: called before every question; brings the model's weights up to date.
    way: the path of the last question; before the first question, the path that it will take.
    fast: the fast path; None: no question has taken it.
    """

    def __init__(
        self,
        model: Any,
        ends: Sequence[int],
        most_tokens: int,
        kernels: "Kernels | None" = None,
        layers: Layers = PLAIN_LAYERS,
        most_slots: int | None = None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        self._model = model
        self._layers = layers
        self._ends = frozenset(ends)
        self.most_tokens = most_tokens
        self._halved = 0
        self._most_slots = most_slots
        self._kernels = kernels
        self.refresh = refresh
        self.fast: FastDecoder | None = None
        found, reason = self._kernels_now()
        self.way = KernelChoice("fast" if found else "plain", reason)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow = lambda row, tokens, known: None,
        groups: Sequence[int] | None = None,
    ) -> Generated:
        """The most likely next tokens of each prompt, one after the other, up to its limit.

        A row ends with an end token, at its limit, or where `leaves` says so.
        groups: a number for each row; None: all rows are one group.
        """
        return self._with_retry(
            lambda way: way.generate(prompts, groups, GeneratedRows(self._ends, limits, leaves))
        )

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None = None
    ) -> Callable[[], Likelihoods]:
        """-log p of each row's answer tokens, given everything before them; it may go on beside a
        generation until it is asked for."""
        return self._with_retry(lambda way: way.measure(rows, groups))

    def _with_retry(self, work: Callable[["PlainDecoder | FastDecoder"], Result]) -> Result:
        """Answer a question; if memory does not hold a batch, halve batches for good. The answers
        are the same."""
        if self.refresh is not None:
            self.refresh()
        self._model.eval()
        while True:
            try:
                with torch.inference_mode():
                    return self._by_path(work)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self.most_tokens >> 1:
                    raise
            self.fast = None
            self._halved += 1
            self.most_tokens >>= 1
            torch.cuda.empty_cache()

    def _by_path(self, work: Callable[["PlainDecoder | FastDecoder"], Result]) -> Result:
        device = next(self._model.parameters()).device
        found, reason = self._kernels_now()
        if found is not None:
            try:
                result = work(self.fast or self._fast(found, device))
            except Unsuited as error:
                reason = f"{error} in attention"
                say_once(f"evaluation goes the plain way, which is slower: {reason}")
            else:
                self.way = KernelChoice("fast")
                return result
        self.way = KernelChoice("plain", reason)
        return work(PlainDecoder(self._model, self.most_tokens, device))

    def _fast(self, found: "Kernels", device: torch.device) -> "FastDecoder":
        from msft.engine.decode.fast import FastDecoder  # which builds on this file

        slots = (self._most_slots or slots_of(self._model, device)) >> self._halved
        sizes = (self.most_tokens, slots, device)
        recorder = recorder_of(device).item
        self.fast = FastDecoder(self._model, found, *sizes, self._layers, recorder)
        return self.fast

    def _kernels_now(self) -> tuple["Kernels | None", str]:
        """The kernels of the fast path; None: it cannot be taken, for this reason."""
        if self._kernels is not None:
            return self._kernels, ""
        parameter = next(self._model.parameters())
        if not parameter.is_cuda or parameter.dtype not in kernels.HALF:
            return None, "fp32" if parameter.is_cuda else kernels.NO_CUDA
        flash = kernels.varlen()
        if flash.item is None:
            return None, flash.reason
        from msft.engine.decode.step import Kernels

        return Kernels(flash.item, kernels.short_rows().item), flash.reason


def slots_of(model: Any, device: torch.device) -> int:
    """Tokens whose keys and values may be kept."""
    if device.type != "cuda":
        return SLOTS_ELSEWHERE
    width: int = next(model.parameters()).element_size()
    memory = int(torch.cuda.mem_get_info(device)[1] * MEMORY_OF_KEYS)
    return memory // (shape_of(model).keys * width)
