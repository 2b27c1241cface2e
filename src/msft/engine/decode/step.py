"""One decoding step: every row gets its next tokens, in place and without waiting for the host.

**KV cache.** The keys of a row lie in slots of their own in a `Store`, one after the other, and
never move. Everything that changes from step to step is a tensor on the device. So on CUDA a step
is one CUDA graph, captured once and replayed for every token of every evaluation; elsewhere the
same code runs eagerly.

**Shared prefixes.** Keys that many rows see are computed and kept once. A token's attention over
the prefix and its attention over its own row are two kernel calls. Their results, weighted by
their log-sum-exps, are the attention over both (Hydragen, https://arxiv.org/abs/2402.05099).

**Speculative drafts.** A step takes as long for few rows as for many. When rows have ended, the
rows that stay give several tokens to a step: the last token and guesses of what follows. A guess
that the model would have chosen itself is a token gained; the first wrong guess and all after it
are dropped (speculative decoding, https://arxiv.org/abs/2211.17192). There is no draft model: the
guess is what followed when the row had the same last two tokens before (prompt lookup,
https://arxiv.org/abs/2304.04487). Small models and calculations repeat themselves, so this is
often right. In exact arithmetic drafts change no token. In bf16 a wider product rounds otherwise,
and texts part where two logits are level.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from msft.engine.decode.plans import AHEAD, SPARE, Line, RowStates
from msft.engine.kernels import HALF, PLAIN_LAYERS, Layers, Recorder, Varlen
from msft.engine.packing import SHORT, How, layout, suits
from msft.errors import Unsuited

WIDTH, WIDTH_OF_SMALL = 256, 512
"""Tokens of a step that take hardly longer than one; small models are bound by launches."""
QUERIES = 128
"""Heads that share a key, times tokens ahead: more do not fit into a kernel's memory."""


def tokens_ahead(rows: int, width: int, repeats: int) -> int:
    """The number of tokens that each of `rows` rows gives to a step of `width` tokens.

    repeats: query heads of each key head.
    """
    return max(1, min(AHEAD, width // rows, QUERIES // repeats))


def drafted(slot_tokens: Tensor, start: Tensor, length: Tensor, ahead: int, span: int) -> Tensor:
    """The last token of each row and guesses of the tokens that follow it, [rows, ahead].

    The guesses are the tokens that followed the latest place where the row had its last two tokens
    before, or else its last token alone. If the row ends before there are enough guesses, they
    begin again at that place.

    slot_tokens: the token of each slot; a row's first one is at `start`, the last one `length`
        later.
    span: more tokens than any row has.
    """
    place = torch.arange(span, device=slot_tokens.device)
    row = slot_tokens[(start[:, None] + place).clamp(max=len(slot_tokens) - 1)]
    last, before = (row.gather(1, (length - back).clamp(min=0)[:, None]) for back in (0, 1))
    one = (row == last) & (place < length[:, None])
    two = one & (row.roll(1, 1) == before) & (place > 0)
    at = torch.where(two, place + span, torch.where(one, place, 0)).amax(1) % span
    round_trip = (length - at).clamp(min=1)[:, None]
    turn = torch.arange(ahead - 1, device=slot_tokens.device) % round_trip
    following = torch.minimum(at[:, None] + 1 + turn, length[:, None])
    return torch.cat([last, row.gather(1, following)], 1)


def accepted(fed: Tensor, chosen: Tensor) -> Tensor:
    """The number of right guesses of each row before the first wrong one.

    fed: as `drafted` returns it; chosen: the model's next token after each of these.
    """
    return (fed[:, 1:] == chosen[:, :-1]).long().cumprod(1).sum(1)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Attention kernels: `varlen` for any rows, `own` for short ones (the module
    `accel/short_rows.py`)."""

    varlen: Varlen
    own: Any | None = None


def refuse_odd(how: How, q: Tensor, v: Tensor, reach: int) -> None:
    """Unsuited where the kernels cannot compute this attention over rows of `reach` tokens."""
    if how.softcap is not None or how.dropout:
        raise Unsuited("a soft cap or dropout")
    if how.window is not None and how.window < reach:
        raise Unsuited("a window")
    if q.shape[-1] != v.shape[-1]:
        raise Unsuited("values of another width than queries")
    if q.is_cuda and (q.dtype not in HALF or q.shape[-1] > 256):
        raise Unsuited("not half precision, or wide heads")


class Store:
    """The KV cache: keys and values of every layer, [slots, heads, dim]. Plans say which token has
    which slot.

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


class LineLayout:
    """Attention over a line: each token sees its own piece up to itself, and the line's parts.

    reach: tokens of the longest row, with its prefix and stem.
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


AT_ONCE = 8
"""Steps between two looks of the host."""


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations for which the host waits; a step with one cannot be recorded."""

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
    """Graphs of steps over one store, and whether a model's steps can be recorded at all.

    recorder: makes graphs; None: there are none.
    watched: `HostWaits` has seen a whole step, so `possible` is certain.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.possible = recorder is not None
        self.watched = False
        self._recorder = recorder

    def captured(self, work: Callable[[], None]) -> Any | None:
        """A graph of `work`, which is not executed now; None: it cannot be captured."""
        return None if self._recorder is None else self._recorder.recorded(work)


class Stepper:
    """A decoding step for `rows` rows in `groups` groups, in the order of their slots.

    Where steps can be recorded, the first step of a stepper runs eagerly and is then captured as a
    CUDA graph; every later step is a replay.

    span: more tokens than any row has; read only where there are guesses.
    ahead: tokens of each row in a step: the last one and guesses of those that follow (a draft).
    slot_tokens: the token of each slot.
    states: of each row. A row that is done repeats its last slot until the host takes it out.
        Padding rows fill up the number; each has one slot, and spare ones for guesses.
    history: for the last steps and each row, the number of tokens gained, then `ahead` tokens, of
        which only the gained ones count, [steps, rows, 1 + ahead].
    """

    def __init__(
        self,
        model: Any,
        store: Store,
        slot_tokens: Tensor,
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
        self._slot_tokens = slot_tokens
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
        """Take up the rows of a table of states. Slots of padding rows begin at `end`."""
        rows, states = table.shape[1], self.states
        states.table[:, :rows] = table
        states.table[:, rows:] = 0
        padding = torch.arange(self.rows - rows, device=table.device)
        states.start[rows:] = end + padding * (1 + SPARE)
        states.most[rows:] = 1
        self._slot_tokens.index_copy_(0, states.start + states.length, states.token)

    def see_prefixes(self, members: list[int], slots: list[int]) -> None:
        """Let the first rows see the first prefix, the next ones the second; padding rows see the
        last one.

        members: rows of each group. slots: the first slot of each prefix, and the last one's end.
        """
        ends = torch.tensor([0, *members]).cumsum(0)
        ends[-1] = self.rows
        self._prefix_q.copy_(ends * self.ahead)
        self._prefix_k.copy_(torch.tensor(slots))

    def run(self, steps: int) -> Tensor:
        """Take `steps` steps; their tokens, as in `history`."""
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
        """Take a step eagerly, and capture it for the steps that follow."""
        if not self._graphs.watched:
            self._watch()
        self._step_in_layers()
        if self._graphs.possible:
            self._graph = self._graphs.captured(self._step_in_layers)
            self._graphs.possible = self._graph is not None

    def _watch(self) -> None:
        """Find out whether a step waits for the host, and undo that step: it runs without fused
        layers, and rows of the first evaluation must round as those of all later ones."""
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
        """One step, on the device alone: no shape and no address changes, so it can be captured."""
        states = self.states
        token, start, length = states.token, states.start, states.length
        fed = token[:, None]
        if self.ahead > 1:
            fed = drafted(self._slot_tokens, start, length, self.ahead, self._span)
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
        right = accepted(fed, chosen)
        self._slot_tokens.index_copy_(0, self._slot + 1, chosen.flatten())
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
