"""The plain cache of a generation: padded rows, exact on every device and for every attention."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from msft.engine.attention import How, Padding, scaled_dot_product, window_mask


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
        mask = window_mask(self._longest, self._end, self._starts, how, q.device)
        out = scaled_dot_product(self._padding.spread(q), keys, values, mask, how)
        return self._padding.gather(out)
