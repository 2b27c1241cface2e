"""Rows in one line for evaluation: what rows share stands in it once.

Rows of a group (a task with its few-shot exemplars) start with the same tokens, the *prefix*; it
is computed before them and its keys stay in a store. Below it, rows that ask the same question
with different answers share a *stem*, which stands once in the line, the answers after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

import torch

from msft.engine.decode.shared_attention import Line, SharedKeys
from msft.engine.packing import batches
from msft.example import Encoded

WORTH_SHARING = 16
"""A shared prefix of fewer tokens is computed with each row; a stem needs half as many."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows that start with the same tokens; keys of these are in the slots from `slot` on."""

    rows: tuple[int, ...]
    prefix: tuple[int, ...]
    slot: int

    @property
    def slots(self) -> Span:
        return self.slot, self.slot + len(self.prefix)


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
        """Add tokens that see each other; where they start in the line."""
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
        lengths = tuple(b - a for a, b in pairwise(self._bounds))
        kinds = ((self._stems, False), (self._prefixes, True))
        parts = (self._part(spans, stored, device) for spans, stored in kinds if spans)
        numbers = (self.tokens, self._positions, self._targets, self._labels)
        firsts = [
            first for first, size in zip(self._bounds, lengths, strict=False) for _ in range(size)
        ]
        tokens, positions, targets, labels = (
            torch.tensor(n, dtype=torch.long, device=device) for n in numbers
        )
        return Line(
            tokens,
            positions,
            lengths,
            torch.tensor(self._bounds, dtype=torch.int32, device=device),
            max(lengths),
            tuple(parts),
            torch.tensor(firsts, dtype=torch.int32, device=device),
            self._stem_places(device),
            torch.tensor(self._slots, device=device) if self._slots else None,
            targets,
            labels,
            torch.tensor(self._owners, dtype=torch.long),
        )

    def _stem_places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Where the stem of each token begins and ends; without one, at the line's end and at 0."""
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
    """Bounds of queries and of keys. Queries between the spans see no keys, and keys between them
    are seen by no queries, so that every query is inside the bounds."""
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


def shared_prefix(rows: Sequence[Sequence[int]]) -> int:
    """Tokens that all rows start with, if sharing is worth it; every row keeps one of its own."""
    if len(rows) < 2:
        return 0
    ends = min(map(tuple, rows)), max(map(tuple, rows))  # the two that differ the earliest
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = min(sum(1 for _ in same), min(len(row) for row in rows) - 1)
    return shared if shared >= WORTH_SHARING else 0


def grouped(starts: Sequence[Sequence[int]], groups: Sequence[int] | None) -> list[PrefixGroup]:
    """The groups of rows that start like this; None: all rows are one."""
    members: dict[int, list[int]] = {}
    for number, group in enumerate(groups or [0] * len(starts)):
        members.setdefault(group, []).append(number)
    whole: list[PrefixGroup] = []
    for rows in members.values():
        shared = shared_prefix([starts[number] for number in rows])
        slot = whole[-1].slots[1] if whole else 0
        whole.append(PrefixGroup(tuple(rows), tuple(starts[rows[0]][:shared]), slot))
    return whole


def prefix_lines(
    groups: Sequence[PrefixGroup], most_tokens: int, device: torch.device
) -> list[Line]:
    """The prefixes themselves, to be kept in their slots; a line predicts what nobody uses."""
    shared = [group for group in groups if group.prefix]
    lines = []
    for places in batches((len(group.prefix) for group in shared), most_tokens):
        builder = LineBuilder()
        for place in places:
            builder.piece(shared[place].prefix, 0, shared[place].slot)
        builder.target(0, 0, 0)
        lines.append(builder.line(device))
    return lines


def question(row: Encoded) -> tuple[int, ...]:
    """Everything before the first answer token."""
    return row.tokens[: row.answer.index(True)] if True in row.answer else row.tokens


def answer_lines(
    rows: Sequence[Encoded], groups: Sequence[PrefixGroup], most_tokens: int, device: torch.device
) -> list[Line]:
    """Lines whose targets are all answer tokens of all rows; a last token predicts nothing, so it
    is left out."""
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
    """Rows of a group: first the stems and the rows without one, then what follows the stems."""
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
    """Tokens from `begin` on that predict an answer token, and those between."""
    end = len(row.tokens)
    while end > begin and not row.answer[end - 1]:
        end -= 1
    return row.tokens[begin : max(begin, end - 1)]


def add_targets(builder: LineBuilder, row: Encoded, number: int, offset: int, begin: int) -> None:
    """Answer tokens that are predicted by tokens from `begin` on; token i stands at i + offset."""
    for index in range(begin + 1, len(row.tokens)):
        if row.answer[index]:
            builder.target(index - 1 + offset, row.tokens[index], number)
