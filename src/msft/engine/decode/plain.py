"""The plain way to evaluate: padded rows with a cache, exact on every device and for any attention.

Groups that share a prefix go one after the other, each prefix once; generation takes all rows
without a prefix together. A batch is as large as its cache may be: every row has a copy of the
prefix, and room for what it will say.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.attention import (
    How,
    Layout,
    Padding,
    RowLayout,
    logits_of,
    scaled_dot_product,
    window_mask,
)
from msft.engine.decode.plans import (
    GeneratedRows,
    LineBuilder,
    PrefixGroup,
    add_targets,
    grouped,
    question,
)
from msft.engine.packing import answer_losses, batches
from msft.example import Encoded
from msft.run.engine import Likelihoods


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


class PlainDecoder:
    """Keeps nothing between calls."""

    def __init__(self, model: Any, most_tokens: int, device: torch.device) -> None:
        self._model = model
        self._most_tokens = most_tokens
        self._device = device

    def generate(
        self, prompts: Sequence[Sequence[int]], groups: Sequence[int] | None, texts: GeneratedRows
    ) -> int:
        """Generate into `texts`; tokens through the model."""
        every = grouped(prompts, groups)
        alone = tuple(chain.from_iterable(group.rows for group in every if not group.prefix))
        work = [group for group in every if group.prefix]
        if alone:
            work.append(PrefixGroup(alone, (), 0))
        return sum(self._group(group, prompts, texts) for group in work)

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None
    ) -> Callable[[], Likelihoods]:
        """-log p of each row's answer, as the fast way has it; here it is done at once."""
        sums = torch.zeros(len(rows))
        tokens = 0
        for group in grouped([question(row) for row in rows], groups):
            shared = len(group.prefix)
            prefix = self._prefix(group)
            tokens += shared
            sizes = (len(rows[number].tokens) for number in group.rows)  # each has its own prefix
            for places in batches(sizes, self._most_tokens):
                builder = LineBuilder()
                for number in (group.rows[place] for place in places):
                    row = rows[number]
                    start = builder.piece(row.tokens[shared:], shared) - shared
                    add_targets(builder, row, number, start, shared)
                line = builder.line(self._device)
                present: Layout
                if prefix is None:
                    present = RowLayout(line.lengths, self._device)
                else:
                    cache = Cache(len(line.lengths), shared + line.longest)
                    cache.share(prefix)
                    starts = [shared] * len(line.lengths)
                    present = CacheLayout(cache, line.lengths, starts, self._device)
                logits = logits_of(self._model, line.tokens, line.positions, present, line.targets)
                nll = answer_losses(logits, line.labels)
                sums.index_add_(0, line.owners, nll.cpu())
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

    def _group(
        self, group: PrefixGroup, prompts: Sequence[Sequence[int]], texts: GeneratedRows
    ) -> int:
        shared = len(group.prefix)
        prefix = self._prefix(group)
        order = sorted(group.rows, key=lambda number: len(prompts[number]))
        tokens = shared
        sizes = (len(prompts[number]) + texts.limits[number] for number in order)
        for places in batches(sizes, self._most_tokens):
            numbers = [order[place] for place in places]
            tokens += self._batch(numbers, prompts, shared, prefix, texts)
        return tokens

    def _batch(
        self,
        numbers: list[int],
        prompts: Sequence[Sequence[int]],
        shared: int,
        prefix: Cache | None,
        texts: GeneratedRows,
    ) -> int:
        """Generate for one batch of rows; tokens through the model."""
        cache = Cache(len(numbers), max(len(prompts[n]) + texts.limits[n] for n in numbers))
        if prefix is not None:
            cache.share(prefix)
        builder = LineBuilder()
        for number in numbers:
            start = builder.piece(prompts[number][shared:], shared)
            builder.target(start + len(prompts[number]) - shared - 1, 0, number)
        line = builder.line(self._device)
        present = CacheLayout(cache, line.lengths, [shared] * len(numbers), self._device)
        where = (line.tokens, line.positions, present, line.targets)
        chosen = logits_of(self._model, *where).argmax(-1)
        tokens = len(line.tokens)
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
            places = torch.tensor(starts, device=self._device)
            every = torch.arange(len(numbers), device=self._device)
            chosen = logits_of(self._model, chosen, places, present, every).argmax(-1)
            tokens += len(numbers)


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
