"""One step of a generation: every row gets its next tokens, in place and without the host.

The keys of a row lie in slots of their own in a `Store`, after each other and never moved. All
that changes from step to step are tensors on the device, so on CUDA a step is one graph, captured
once and replayed for every token of every evaluation; elsewhere the same code runs as it stands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from msft.engine.attention import How, layout, suits
from msft.engine.decode.draft import SPARE, came_true, guessed
from msft.engine.decode.shared_attention import Kernels, Store, merged
from msft.engine.paths import PLAIN_LAYERS, Layers, Recorder

AT_ONCE = 8
"""Steps between two looks of the host."""


@dataclass(frozen=True, slots=True)
class RowStates:
    """Where each row of a generation stands; all are views of one table, [5, rows].

    token: its last token, whose keys are not stored yet.
    start: its first slot.
    length: slots that it has filled.
    most: slots that it may fill; then it is done.
    prefix: tokens before its own, which lie in slots of their group.
    """

    table: Tensor
    token: Tensor
    start: Tensor
    length: Tensor
    most: Tensor
    prefix: Tensor

    @staticmethod
    def over(table: Tensor) -> "RowStates":
        return RowStates(table, *table.unbind())


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how often the host waits for the device; a step with a wait cannot be recorded."""

    SIGNS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        self.count += func in self.SIGNS
        return func(*args, **(kwargs or {}))


class DecodeGraphs:
    """Graphs of steps over one store, and whether a model lets graphs be made at all.

    recorder: makes them; None: there are none.
    watched: a step was seen from end to end, so `possible` is certain.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.possible = recorder is not None
        self.watched = False
        self._recorder = recorder

    def captured(self, work: Callable[[], None]) -> Any | None:
        """A graph of `work`, which is not done now; None: it cannot be captured."""
        return None if self._recorder is None else self._recorder.recorded(work)


class Stepper:
    """A step for `rows` rows in `groups` groups, in the order of their slots.

    span: more tokens than any row has; not asked for without guesses.
    ahead: tokens of each row in a step: its last one and guesses of what follows (`draft.py`).
    said: the token of each slot.
    states: of each row. A row that is done goes on at its end until the host takes it out. Padding
    rows make up the number; each has one slot, and spare ones for guesses.
    history: of the last steps and each row, how many tokens it said and which; then what would
    have followed wrong guesses, [steps, rows, 1 + ahead].
    """

    def __init__(
        self,
        model: Any,
        store: Store,
        said: Tensor,
        kernels: Kernels,
        graphs: DecodeGraphs,
        rows: int,
        groups: int,
        span: int,
        ahead: int,
        layers: Layers = PLAIN_LAYERS,
    ) -> None:
        device = next(model.parameters()).device
        self._model = model
        self._layers = layers
        self._store = store
        self._said = said
        self._kernels = kernels
        self._graphs = graphs
        self.rows = rows
        self.groups = groups
        self.ahead = ahead
        self._span = span
        self.states = RowStates.over(torch.zeros(5, rows, dtype=torch.long, device=device))
        self.history = torch.zeros(AT_ONCE, rows, 1 + ahead, dtype=torch.long, device=device)
        self._steps = torch.zeros(1, dtype=torch.long, device=device)
        self._turn = torch.arange(ahead, device=device)
        self._slot = torch.zeros(rows * ahead, dtype=torch.long, device=device)
        self._seen = torch.zeros(rows * ahead, dtype=torch.bool, device=device)
        # Alone, a token's queries are the heads that share a key head. Between two rows stands a
        # sequence without queries: slots that are not filled yet, or belong to rows that have left.
        queries = ahead if ahead > 1 else store.repeats
        ends = torch.arange(rows + 1).repeat_interleave(2)[1:-1] * queries
        self._own_q = ends.to(device, torch.int32)
        self._own_k = torch.zeros_like(self._own_q)
        bounds = torch.zeros(2, groups + 1, dtype=torch.int32, device=device)
        self._prefix_q, self._prefix_k = bounds
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self, table: Tensor, end: int) -> None:
        """Take up the rows of a table of states. Padding rows have the slots from `end` on."""
        rows, states = table.shape[1], self.states
        states.table[:, :rows] = table
        states.table[:, rows:] = 0
        padding = torch.arange(self.rows - rows, device=table.device)
        states.start[rows:] = end + padding * (1 + SPARE)
        states.most[rows:] = 1
        self._said.index_copy_(0, states.start + states.length, states.token)

    def see_prefixes(self, members: list[int], slots: list[int]) -> None:
        """The first rows see the first prefix, and so on; padding rows see the last one."""
        ends = torch.tensor([0, *members]).cumsum(0)
        ends[-1] = self.rows
        self._prefix_q.copy_(ends * self.ahead)
        self._prefix_k.copy_(torch.tensor(slots))

    def run(self, steps: int) -> Tensor:
        """So many steps; what was said in them, as `history` has it."""
        self._steps.zero_()
        for _ in range(steps):
            if self._graph is not None:
                self._graph.replay()
            elif self._graphs.possible:
                self._prepare()
            else:
                self._step_in_layers()
        return self.history[:steps]

    def _prepare(self) -> None:
        """A step as it stands, then a graph of it for all that follow."""
        if not self._graphs.watched:
            self._watch()
        self._step_in_layers()
        if self._graphs.possible:
            self._graph = self._graphs.captured(self._step_in_layers)
            self._graphs.possible = self._graph is not None

    def _watch(self) -> None:
        """See whether a step waits for the host, and take it back: to be seen it is not fused, and
        rows of the first evaluation must not round otherwise than those of all that follow."""
        before = self.states.table.clone(), self._steps.clone()
        with HostWaits() as waits:
            self.step()
        self.states.table.copy_(before[0])
        self._steps.copy_(before[1])
        self._graphs.watched, self._graphs.possible = True, not waits.count

    def _step_in_layers(self) -> None:
        with self._layers:
            self.step()

    def step(self) -> None:
        """What the graph is made of: no shape and no address changes."""
        states = self.states
        token, start, length = states.token, states.start, states.length
        fed = token[:, None]
        if self.ahead > 1:
            fed = guessed(self._said, start, length, self.ahead, self._span)
        place = length[:, None] + self._turn
        slot = start[:, None] + place
        self._slot.copy_(slot.flatten())
        self._own_k.view(-1, 2).copy_(torch.stack([start, slot[:, -1] + 1], 1))
        self._seen.view(self.rows, -1).copy_((states.prefix > 0)[:, None])
        position = states.prefix[:, None] + torch.minimum(place, states.most[:, None] - 1)
        with layout(self):
            logits = self._model(
                input_ids=fed.reshape(1, -1), position_ids=position.reshape(1, -1), use_cache=False
            ).logits[0]
        chosen = logits.argmax(-1).view(self.rows, -1)
        right = came_true(fed, chosen)
        self._said.index_copy_(0, self._slot + 1, chosen.flatten())
        now = torch.cat([right[:, None] + 1, chosen], 1)
        self.history.index_copy_(0, self._steps, now[None])
        token.copy_(chosen.gather(1, right[:, None])[:, 0])
        torch.minimum(length + 1 + right, states.most, out=length)
        self._steps += 1

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        out, lse = self._over_own(layer, q, k, v, how)
        if self.groups:
            keys, values = self._store.of(layer)
            ends = (self._prefix_q, self._prefix_k, len(self._slot), self._store.slots)
            options = {"causal": False, "scale": how.scale, "lse": True}
            queries = q.transpose(0, 1).contiguous()
            more, more_lse = self._kernels.varlen(queries, keys, values, *ends, **options)
            out = merged(out, lse, more, more_lse, self._seen)
        return out.to(q.dtype)

    def _over_own(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How
    ) -> tuple[Tensor, Tensor]:
        """Attention of each row over its own slots, the last of which are new."""
        own = self._kernels.own
        pair: tuple[Tensor, Tensor]
        if own is not None and suits(q, v):
            rows = (self.states.start, self.states.length)
            pair = own.step_attention(q, k, v, self._store.of(layer), *rows, how.scale)
            return pair
        heads, repeats, dim = k.shape[0], self._store.repeats, q.shape[-1]
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        self._store.put(layer, self._slot, q, k, v)
        keys, values = self._store.of(layer)
        if self.ahead > 1:
            ends = (self._own_q, self._own_k, self.ahead, self._store.slots)
            pair = self._kernels.varlen(
                q.contiguous(), keys, values, *ends, scale=how.scale, lse=True
            )
            return pair
        queries = q.reshape(self.rows, heads, repeats, dim).transpose(1, 2).reshape(-1, heads, dim)
        ends = (self._own_q, self._own_k, repeats, self._store.slots)
        options = {"causal": False, "scale": how.scale, "lse": True}
        out, lse = self._kernels.varlen(queries, keys, values, *ends, **options)
        by_head = out.view(self.rows, repeats, heads, dim).transpose(1, 2).flatten(1, 2)
        return by_head, lse.view(heads, self.rows, repeats).transpose(1, 2).flatten(0, 1)
