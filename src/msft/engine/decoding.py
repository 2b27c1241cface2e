"""Greedy generation and likelihoods: many rows at once, what they share computed once.

All rows go through the model together. Tokens that all of them start with (few-shot exemplars, a
system prompt) are computed once and their keys and values shared. A row leaves the batch when it
ends, reaches its limit, or can no longer be what it is compared with.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from msft.encoding import Encoded
from msft.engine.attention import Cache, CacheLayout, Layout, RowLayout, layout
from msft.engine.packing import micro_batches, packed
from msft.evaluation import Generated, Likelihoods

WORTH_SHARING = 16
"""A shared prefix of fewer tokens is computed with each row."""

Result = TypeVar("Result", Generated, Likelihoods)

Leaves = Callable[[int, Sequence[int]], bool]
"""leaves(row, tokens generated so far): whether the row may leave the batch."""


class Decoder:
    """Asks a model for text; keeps nothing between calls, since weights may have changed."""

    def __init__(self, model: Any, ends: Sequence[int], bf16: bool, most_tokens: int) -> None:
        self._model = model
        self._ends = frozenset(ends)
        self._bf16 = bf16
        self._most_tokens = most_tokens

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self._model.parameters()).device
        return device

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves = lambda row, tokens: False,
    ) -> Generated:
        """The most likely next tokens of each prompt, one after the other, up to its limit."""
        return self._fitting(lambda: self._all_generated(prompts, limits, leaves))

    def likelihoods(self, rows: Sequence[Encoded]) -> Likelihoods:
        """-log p of each row's answer tokens, given everything before them."""
        return self._fitting(lambda: self._all_likelihoods(rows))

    def _fitting(self, work: Callable[[], Result]) -> Result:
        """Do it; if memory does not hold a batch, halve it for good. The answers are the same."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                if self._most_tokens < 2:
                    raise
            self._most_tokens //= 2
            torch.cuda.empty_cache()

    def _all_generated(
        self, prompts: Sequence[Sequence[int]], limits: Sequence[int], leaves: Leaves
    ) -> Generated:
        self._model.eval()
        with torch.inference_mode():
            shared = shared_prefix(prompts)
            prefix, tokens = self._prefix(prompts[0][:shared]) if shared else (None, 0)
            texts: list[list[int]] = [[] for _ in prompts]
            order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
            rows = [Encoded(tuple(prompts[n][shared:]), ()) for n in order]
            most = max(1, self._most_tokens - shared)
            for group in micro_batches(rows, most):
                numbers = [order[place] for place in group]
                tokens += self._generate(numbers, prompts, shared, prefix, limits, leaves, texts)
        return Generated(texts, tokens)

    def _all_likelihoods(self, rows: Sequence[Encoded]) -> Likelihoods:
        self._model.eval()
        sums: list[float] = []
        with torch.inference_mode():
            shared = shared_prefix([row.prompt for row in rows])
            prefix, tokens = self._prefix(rows[0].tokens[:shared]) if shared else (None, 0)
            rest = [Encoded(row.tokens[shared:], row.answer[shared:]) for row in rows]
            for group in micro_batches(rest, max(1, self._most_tokens - shared)):
                line = packed([rest[number] for number in group], self._device, shared)
                present: Layout
                if prefix is None:
                    present = RowLayout(line.lengths, self._device)
                else:
                    cache = Cache(line.rows, shared + max(line.lengths))
                    cache.share(prefix)
                    starts = [shared] * line.rows
                    present = CacheLayout(cache, line.lengths, starts, self._device)
                logits = self._forward(line.tokens, line.positions, present, line.targets)
                nll = functional.cross_entropy(logits.float(), line.labels, reduction="none")
                total = torch.zeros(line.rows, device=self._device)
                sums += total.index_add_(0, line.owners, nll).tolist()
                tokens += len(line.tokens)
        return Likelihoods(sums, tokens)

    def _prefix(self, tokens: Sequence[int]) -> tuple[Cache, int]:
        cache = Cache(1, len(tokens))
        line = torch.tensor(tokens, device=self._device)
        places = torch.arange(len(tokens), device=self._device)
        present = CacheLayout(cache, [len(tokens)], [0], self._device)
        self._forward(line, places, present, places[-1:])
        return cache, len(tokens)

    def _generate(
        self,
        numbers: list[int],
        prompts: Sequence[Sequence[int]],
        shared: int,
        prefix: Cache | None,
        limits: Sequence[int],
        leaves: Leaves,
        texts: list[list[int]],
    ) -> int:
        """Generate for one batch of rows into `texts`; tokens through the model."""
        longest = max(len(prompts[n]) + limits[n] for n in numbers)
        cache = Cache(len(numbers), longest)
        if prefix is not None:
            cache.share(prefix)
        line = packed(
            [Encoded(tuple(prompts[n][shared:]), ()) for n in numbers], self._device, shared
        )
        lengths, starts = line.lengths, [shared] * len(numbers)
        present = CacheLayout(cache, lengths, starts, self._device)
        last = torch.tensor(lengths, device=self._device).cumsum(0) - 1
        chosen = self._forward(line.tokens, line.positions, present, last).argmax(-1)
        tokens = len(line.tokens)
        alive = list(numbers)
        while True:
            for number, token in zip(alive, chosen.tolist(), strict=True):
                texts[number].append(token)
            staying = [
                place
                for place, number in enumerate(alive)
                if texts[number][-1] not in self._ends
                and len(texts[number]) < limits[number]
                and not leaves(number, texts[number])
            ]
            if not staying:
                return tokens
            if len(staying) < len(alive):
                index = torch.tensor(staying, device=self._device)
                cache.keep(index)
                chosen = chosen.index_select(0, index)
                alive = [alive[place] for place in staying]
            starts = [len(prompts[n]) + len(texts[n]) - 1 for n in alive]
            present = CacheLayout(cache, [1] * len(alive), starts, self._device)
            places = torch.tensor(starts, device=self._device)
            every = torch.arange(len(alive), device=self._device)
            chosen = self._forward(chosen, places, present, every).argmax(-1)
            tokens += len(alive)

    def _forward(self, tokens: Tensor, places: Tensor, present: Layout, keep: Tensor) -> Tensor:
        device = self._device.type
        with layout(present), torch.autocast(device, torch.bfloat16, enabled=self._bf16):
            logits: Tensor = self._model(
                input_ids=tokens[None],
                position_ids=places[None],
                logits_to_keep=keep,
                use_cache=False,
            ).logits[0]
        return logits


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """Tokens that all rows start with, if sharing is worth it; every row keeps one of its own."""
    if len(rows) < 2:
        return 0
    ends = min(map(tuple, rows)), max(map(tuple, rows))  # the two that differ the earliest
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = min(sum(1 for _ in same), min(len(row) for row in rows) - 1)
    return shared if shared >= WORTH_SHARING else 0
