"""What goes through the model in an evaluation, worked out once for all evaluations of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from msft.engine.decode.draft import SPARE
from msft.engine.decode.prefix_lines import (
    LineBuilder,
    PrefixGroup,
    answer_lines,
    grouped,
    prefix_lines,
    question,
)
from msft.engine.decode.shared_attention import Line
from msft.engine.decode.step import RowStates
from msft.engine.packing import batches
from msft.example import Encoded

FEWEST_ROWS = 16
BUCKET = 64
SPANS = 256
"""Spans are multiples of it, since each makes a graph."""
SPARE_OF_ROW = SPARE + (1 + SPARE) // 2
"""Slots of a row for guesses, and its share of those for padding rows."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Lines that measure answers.

    prefix_slots: where keys of the prefixes are kept, group after group.
    owners: the row of each measured token.
    reach: the longest row.
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

    rows: their numbers, in the order of their groups.
    group: the place of each row's group.
    states: the first tokens are still missing.
    span: more tokens than any row will have, without its prefix.
    end: the first slot after all rows; padding rows take theirs from there on.
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
    """Rows of the first step: few different numbers, since each makes a graph."""
    return -(-rows // BUCKET) * BUCKET if rows > BUCKET else smaller_bucket(rows)


def smaller_bucket(rows: int) -> int:
    """Rows of a step when so few are left."""
    return int(max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


def padding_rows(rows: int) -> int:
    """The most padding rows that a step has, until so many rows have left."""
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
    """A row needs a slot for each of its own tokens but the last one that it says, and spare ones;
    and no batch has more rows than tokens may go through the model at once."""
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
    """Prompts without their prefixes, each with its first slot; targets are their last tokens."""
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
