"""The plain way to evaluate: padded rows with a cache, exact on every device and for any attention.

Groups that share a prefix go one after the other, each prefix once; generation takes all rows
without a prefix together. A batch is as large as its cache may be: every row has a copy of the
prefix, and room for what it will say.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from msft.data.encoding import Encoded
from msft.engine.accel.fused_layers import answer_losses
from msft.engine.attention import Layout, RowLayout, layout
from msft.engine.decode.cache import Cache, CacheLayout
from msft.engine.decode.prefix_lines import Group, LineBuilder, grouped, question
from msft.engine.decode.texts import Texts
from msft.engine.packing import batches
from msft.scoring.predictor import Likelihoods


class PlainDecoder:
    """Keeps nothing between calls."""

    def __init__(self, model: Any, most_tokens: int, device: torch.device) -> None:
        self._model = model
        self._most_tokens = most_tokens
        self._device = device

    def generate(
        self, prompts: Sequence[Sequence[int]], groups: Sequence[int] | None, texts: Texts
    ) -> int:
        """Generate into `texts`; tokens through the model."""
        found = grouped(prompts, groups)
        alone = tuple(chain.from_iterable(group.rows for group in found if not group.prefix))
        work = [group for group in found if group.prefix]
        if alone:
            work.append(Group(alone, (), 0))
        return sum(self._group(group, prompts, texts) for group in work)

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None
    ) -> Callable[[], Likelihoods]:
        """As the fast way has it; here it is done at once."""
        found = Likelihoods(*self.likelihoods(rows, groups))
        return lambda: found

    def likelihoods(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None
    ) -> tuple[list[float], int]:
        """-log p of each row's answer, and tokens through the model."""
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
                    for index in range(shared + 1, len(row.tokens)):
                        if row.answer[index]:
                            builder.target(start + index - 1, row.tokens[index], number)
                line = builder.line(self._device)
                present: Layout
                if prefix is None:
                    present = RowLayout(line.lengths, self._device)
                else:
                    cache = Cache(len(line.lengths), shared + line.longest)
                    cache.share(prefix)
                    starts = [shared] * len(line.lengths)
                    present = CacheLayout(cache, line.lengths, starts, self._device)
                logits = self._forward(line.tokens, line.positions, present, line.targets)
                nll = answer_losses(logits, line.labels)
                sums.index_add_(0, line.owners, nll.cpu())
                tokens += len(line.tokens)
        return sums.tolist(), tokens

    def _prefix(self, group: Group) -> Cache | None:
        if not group.prefix:
            return None
        cache = Cache(1, len(group.prefix))
        line = torch.tensor(group.prefix, device=self._device)
        places = torch.arange(len(line), device=self._device)
        present = CacheLayout(cache, [len(line)], [0], self._device)
        self._forward(line, places, present, places[-1:])
        return cache

    def _group(self, group: Group, prompts: Sequence[Sequence[int]], texts: Texts) -> int:
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
        texts: Texts,
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
        chosen = self._forward(line.tokens, line.positions, present, line.targets).argmax(-1)
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
            chosen = self._forward(chosen, places, present, every).argmax(-1)
            tokens += len(numbers)

    def _forward(self, tokens: Tensor, places: Tensor, present: Layout, keep: Tensor) -> Tensor:
        with layout(present):
            logits: Tensor = self._model(
                input_ids=tokens[None],
                position_ids=places[None],
                logits_to_keep=keep,
                use_cache=False,
            ).logits[0]
        return logits
