"""What goes through the model in an evaluation: packed lines, batches, and the rows they answer.

An evaluation asks for the same rows at every tick, so their layout is worked out once, as a plan,
and only the device's part is done again. Rows are packed into *lines* without padding, and tokens
that rows share stand in a line once:

- The *prefix* of a group (a task with its few-shot exemplars) is what all its rows start with. Its
  keys and values are computed before the rows and stay in slots of the KV cache.
- A *stem* is a question that several rows ask with different answers (multiple choice). The stem
  stands once in the line, and the answers follow it.

`answer_plan` lays out rows whose answers are measured (log-likelihoods), `prompt_plan` rows that
are generated. Every token of a generated row has a *slot* of the KV cache, known beforehand: those
of the prefixes, then prompt, answer and spare slots for drafts of each row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from msft.engine.decode.decoder import WORTH_SHARING, PrefixGroup, Span, batches, grouped, question
from msft.example import Encoded


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys that tokens see beside those of their own piece.

    bounds_q, bounds_k, longest_q, longest_k: for the kernel; all tokens are inside the bounds.
    seen: for each token, whether it sees any of these keys.
    stored: True: the keys are in the store; False: in the line itself.
    """

    bounds_q: Tensor
    bounds_k: Tensor
    longest_q: int
    longest_k: int
    seen: Tensor
    stored: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Pieces of rows, ready for the model.

    tokens, positions: one entry per token.
    bounds, longest: ends of the pieces, and tokens of the longest; a token sees its piece up to
        itself.
    parts: keys that tokens see beside their piece.
    starts, stems: the same pieces and stems, one entry per token (see `short_rows.Sight`).
    slots: the slot of each token's keys in the store; None: the keys are not kept.
    targets: indices of the tokens whose predictions are wanted.
    labels: the token to be predicted at each target, where it is known.
    owners: the row of each target, always in host memory.
    """

    tokens: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int
    parts: tuple[SharedKeys, ...]
    starts: Tensor
    stems: tuple[Tensor, Tensor] | None
    slots: Tensor | None
    targets: Tensor
    labels: Tensor
    owners: Tensor


class LineBuilder:
    """A line in the making."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._positions: list[int] = []
        self._bounds = [0]
        self._slots: list[int] = []
        self._prefixes: list[tuple[Span, Span]] = []
        self._stems: list[tuple[Span, Span]] = []
        self._targets: list[int] = []
        self._labels: list[int] = []
        self._owners: list[int] = []

    def piece(self, tokens: Sequence[int], position: int, slot: int | None = None) -> int:
        """Add tokens that see each other; the index of the first one in the line."""
        start = len(self.tokens)
        if tokens:
            self.tokens += tokens
            self._positions += range(position, position + len(tokens))
            self._bounds.append(len(self.tokens))
            if slot is not None:
                self._slots += range(slot, slot + len(tokens))
        return start

    def target(self, index: int, label: int, owner: int) -> None:
        self._targets.append(index)
        self._labels.append(label)
        self._owners.append(owner)

    def see_prefix(self, start: int, slots: Span) -> None:
        """Everything from `start` on sees these slots of the store."""
        _add(self._prefixes, (start, len(self.tokens)), slots)

    def see_stem(self, start: int, stem: Span) -> None:
        """Everything from `start` on sees this part of the line."""
        _add(self._stems, (start, len(self.tokens)), stem)

    def line(self, device: torch.device) -> Line:
        bounds = torch.tensor(self._bounds, dtype=torch.int32)
        lengths = bounds.diff()
        kinds = ((self._stems, False), (self._prefixes, True))
        parts = (self._part(spans, stored, device) for spans, stored in kinds if spans)
        numbers = (self.tokens, self._positions, self._targets, self._labels)
        tokens, positions, targets, labels = (
            torch.tensor(n, dtype=torch.long, device=device) for n in numbers
        )
        return Line(
            tokens,
            positions,
            bounds.to(device),
            int(lengths.max()),
            tuple(parts),
            bounds[:-1].repeat_interleave(lengths).to(device),
            self._stem_places(device),
            torch.tensor(self._slots, device=device) if self._slots else None,
            targets,
            labels,
            torch.tensor(self._owners, dtype=torch.long),
        )

    def _stem_places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Begin and end of each token's stem; of a token without one, the line's end and 0."""
        if not self._stems:
            return None
        places = torch.zeros(2, len(self.tokens), dtype=torch.int32)
        places[0] = len(self.tokens)
        for (first, last), stem in self._stems:
            places[:, first:last] = torch.tensor(stem, dtype=torch.int32)[:, None]
        begin, end = places.to(device)
        return begin, end

    def _part(
        self, spans: list[tuple[Span, Span]], stored: bool, device: torch.device
    ) -> SharedKeys:
        seen = torch.zeros(len(self.tokens), dtype=torch.bool)
        for (first, last), _ in spans:
            seen[first:last] = True
        asks, sees = bounds_of(spans, len(self.tokens))
        longest_q, longest_k = (max(b - a for a, b in pairwise(ends)) for ends in (asks, sees))
        bounds_q, bounds_k = (
            torch.tensor(ends, dtype=torch.int32, device=device) for ends in (asks, sees)
        )
        return SharedKeys(bounds_q, bounds_k, longest_q, longest_k, seen.to(device), stored)


def _add(spans: list[tuple[Span, Span]], asks: Span, sees: Span) -> None:
    if asks[0] < asks[1] and sees[0] < sees[1]:
        spans.append((asks, sees))


def bounds_of(spans: Iterable[tuple[Span, Span]], queries: int) -> tuple[list[int], list[int]]:
    """Bounds of queries and of keys for the kernel, which asks that every query is inside them.
    Queries between two spans get an empty set of keys, keys between two spans get no queries."""
    asks, sees = [0], [0]
    for (first, last), (low, high) in spans:
        if first > asks[-1]:
            asks.append(first)
            sees.append(sees[-1])
        if low > sees[-1]:
            asks.append(asks[-1])
            sees.append(low)
        assert (first, low) == (asks[-1], sees[-1]), "spans go one way"
        asks.append(last)
        sees.append(high)
    if queries > asks[-1]:
        asks.append(queries)
        sees.append(sees[-1])
    return asks, sees


def prefix_lines(
    groups: Sequence[PrefixGroup], most_tokens: int, device: torch.device
) -> list[Line]:
    """Lines of the prefixes, whose keys are kept in slots; their one target is used by nobody."""
    shared = [group for group in groups if group.prefix]
    lines = []
    for places in batches((len(group.prefix) for group in shared), most_tokens):
        builder = LineBuilder()
        for place in places:
            builder.piece(shared[place].prefix, 0, shared[place].slot)
        builder.target(0, 0, 0)
        lines.append(builder.line(device))
    return lines


def answer_lines(
    rows: Sequence[Encoded], groups: Sequence[PrefixGroup], most_tokens: int, device: torch.device
) -> list[Line]:
    """Lines whose targets are all answer tokens of all rows. The last token of a row predicts
    nothing, so it is left out."""
    units: list[tuple[PrefixGroup, list[int], int]] = []
    for group in groups:
        answered = (number for number in group.rows if True in rows[number].answer)
        for start, same in groupby(answered, lambda number: question(rows[number])):
            numbers = list(same)
            stem = len(start) - len(group.prefix)
            if 2 * stem < WORTH_SHARING or len(numbers) == 1:
                units += [(group, [number], 0) for number in numbers]
            else:
                units.append((group, numbers, stem))
    sizes = (
        stem + sum(len(rows[n].tokens) - len(group.prefix) - stem for n in numbers)
        for group, numbers, stem in units
    )
    lines = []
    for places in batches(sizes, most_tokens):
        builder = LineBuilder()
        for group, members in groupby((units[place] for place in places), lambda unit: unit[0]):
            _add_answers(builder, rows, group, [unit[1:] for unit in members])
        if builder.tokens:
            lines.append(builder.line(device))
    return lines


def _add_answers(
    builder: LineBuilder,
    rows: Sequence[Encoded],
    group: PrefixGroup,
    units: list[tuple[list[int], int]],
) -> None:
    """Add rows of a group: first the stems and the rows without one, then the answers that follow
    the stems."""
    first, shared = len(builder.tokens), len(group.prefix)
    stems: list[int] = []
    for numbers, stem in units:
        row = rows[numbers[0]]
        stems.append(
            builder.piece(row.tokens[shared : shared + stem] if stem else _fed(row, shared), shared)
        )
        if not stem:
            add_targets(builder, row, numbers[0], stems[-1] - shared, shared)
    for start, (numbers, stem) in zip(stems, units, strict=True):
        if not stem:
            continue
        begun = len(builder.tokens)
        for number in numbers:
            tail = builder.piece(_fed(rows[number], shared + stem), shared + stem)
            builder.target(start + stem - 1, rows[number].tokens[shared + stem], number)
            add_targets(builder, rows[number], number, tail - shared - stem, shared + stem)
        builder.see_stem(begun, (start, start + stem))
    builder.see_prefix(first, group.slots)


def _fed(row: Encoded, begin: int) -> tuple[int, ...]:
    """The tokens of a row from `begin` to the last one that predicts an answer token."""
    end = len(row.tokens)
    while end > begin and not row.answer[end - 1]:
        end -= 1
    return row.tokens[begin : max(begin, end - 1)]


def add_targets(builder: LineBuilder, row: Encoded, number: int, offset: int, begin: int) -> None:
    """Add the answer tokens that tokens from `begin` on predict; token i of the row is at index
    i + offset of the line."""
    for index in range(begin + 1, len(row.tokens)):
        if row.answer[index]:
            builder.target(index - 1 + offset, row.tokens[index], number)


@dataclass(frozen=True, slots=True)
class RowStates:
    """The state of each row of a generation; all are views of one table, [5, rows].

    token: the row's last token, whose keys are not stored yet.
    start: the row's first slot.
    length: slots that the row has filled.
    most: slots that the row may fill; then it is done.
    prefix: tokens of the shared prefix, whose keys are in slots of the group.
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


AHEAD = 8
"""Tokens of a row in a step, at most."""
SPARE = AHEAD + 1
"""Slots of a row beyond its limit, for guesses that lead there."""
FEWEST_ROWS = 16
BUCKET = 64
SPANS = 256
"""Spans are multiples of this, since each span needs a graph of its own."""
SPARE_OF_ROW = SPARE + (1 + SPARE) // 2
"""Slots of a row for guesses, and the row's share of the slots of padding rows."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Lines that measure answers.

    prefix_slots: the first slot of each group's prefix, and the end of the last one.
    owners: the row of each measured token.
    reach: tokens of the longest row.
    """

    prefix_slots: tuple[int, ...]
    prefixes: list[Line]
    lines: list[Line]
    owners: Tensor
    reach: int

    @property
    def slots(self) -> int:
        return self.prefix_slots[-1]

    @property
    def tokens(self) -> int:
        return sum(len(line.tokens) for line in self.prefixes + self.lines)


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Rows that are generated together.

    rows: numbers of the rows, in the order of their groups.
    group: the index of each row's group.
    states: of the rows, without their first tokens.
    span: more tokens than any row will have, without its prefix.
    end: the first slot after those of all rows; slots of padding rows begin there.
    """

    rows: list[int]
    group: list[int]
    lines: list[Line]
    states: RowStates
    span: int
    end: int


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """Batches that generate; a batch's keys are in the slots after those of the prefixes."""

    prefix_slots: tuple[int, ...]
    prefixes: list[Line]
    batches: list[PromptBatch]
    reach: int

    @property
    def slots(self) -> int:
        return max(
            batch.end + (1 + SPARE) * padding_rows(len(batch.rows)) for batch in self.batches
        )

    @property
    def tokens(self) -> int:
        lines = self.prefixes + [line for batch in self.batches for line in batch.lines]
        return sum(len(line.tokens) for line in lines)


def bucket_of(rows: int) -> int:
    """Rows of the first step: few different numbers, since each needs a graph of its own."""
    return -(-rows // BUCKET) * BUCKET if rows > BUCKET else smaller_bucket(rows)


def smaller_bucket(rows: int) -> int:
    """Rows of a step when only `rows` are left."""
    return int(max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def padding_rows(rows: int) -> int:
    """The most padding rows that any step has in a generation of `rows` rows."""
    first = bucket_of(rows)
    return max(FEWEST_ROWS, first - rows, first // 2)


def answer_plan(
    rows: Sequence[Encoded], groups: Sequence[int] | None, most_tokens: int, device: torch.device
) -> AnswerPlan:
    shared = grouped([question(row) for row in rows], groups)
    lines = answer_lines(rows, shared, most_tokens, device)
    owners = torch.cat([line.owners for line in lines] or [torch.zeros(0, dtype=torch.long)])
    reach = max(len(row.tokens) for row in rows)
    prefixes = prefix_lines(shared, most_tokens, device)
    return AnswerPlan(_prefix_slots(shared), prefixes, lines, owners, reach)


def prompt_plan(
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    groups: Sequence[int] | None,
    most_tokens: int,
    most_slots: int,
    device: torch.device,
) -> PromptPlan:
    """Batches by their slots: a row needs one for each of its own tokens but the last generated
    one, and spare ones. No batch has more rows than tokens may go through the model at once."""
    shared = grouped(prompts, groups)
    prefix_slots = _prefix_slots(shared)
    order = [(number, place) for place, group in enumerate(shared) for number in group.rows]
    least = -(-most_slots // most_tokens)
    sizes = (
        max(least, len(prompts[n]) - len(shared[place].prefix) + limits[n] - 1 + SPARE_OF_ROW)
        for n, place in order
    )
    made = []
    for places in batches(sizes, max(1, most_slots - prefix_slots[-1])):
        members = [order[place] for place in places]
        made.append(_batch(members, shared, prompts, limits, most_tokens, device))
    reach = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    return PromptPlan(prefix_slots, prefix_lines(shared, most_tokens, device), made, reach)


def _batch(
    members: list[tuple[int, int]],
    groups: list[PrefixGroup],
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    most_tokens: int,
    device: torch.device,
) -> PromptBatch:
    rows, group = [number for number, _ in members], [place for _, place in members]
    prefix = torch.tensor([len(groups[place].prefix) for place in group])
    length = torch.tensor([len(prompts[number]) for number in rows]) - prefix
    most = length + torch.tensor([limits[number] for number in rows]) - 1
    ends = groups[-1].slots[1] + (most + SPARE).cumsum(0)
    start = ends - most - SPARE
    table = torch.stack([torch.zeros_like(start), start, length, most, prefix])
    starts = start.tolist()
    lines = []
    for places in batches(length.tolist(), most_tokens):
        pieces = [(groups[group[p]], prompts[rows[p]], starts[p]) for p in places]
        lines.append(_prompt_line(pieces, device))
    span = -(-(int(most.max()) + SPARE) // SPANS) * SPANS
    states = RowStates.over(table.to(device))
    return PromptBatch(rows, group, lines, states, span, int(ends[-1]))


def _prompt_line(
    pieces: list[tuple[PrefixGroup, Sequence[int], int]], device: torch.device
) -> Line:
    """A line of prompts without their prefixes, whose targets are the last tokens.

    pieces: group, prompt and first slot of each row.
    """
    builder = LineBuilder()
    begun = 0
    for place, (group, prompt, slot) in enumerate(pieces):
        shared = len(group.prefix)
        builder.piece(prompt[shared:], shared, slot)
        builder.target(len(builder.tokens) - 1, 0, 0)
        if place + 1 == len(pieces) or pieces[place + 1][0] is not group:
            builder.see_prefix(begun, group.slots)
            begun = len(builder.tokens)
    return builder.line(device)


def _prefix_slots(groups: list[PrefixGroup]) -> tuple[int, ...]:
    return (*(group.slot for group in groups), groups[-1].slots[1])
