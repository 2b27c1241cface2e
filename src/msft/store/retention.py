"""Which checkpoints must be kept, as a pure function.

Per stage the paper keeps each active sub-dataset's present peak, the stage's start and the best so
far; we keep the same, plus the newest tick with its optimizer moments. While memory has room, at
most two sets of weights are on disk (`lean`), or all that the paper has there (`paper`). What only
memory holds is trained again if the process dies, from the stage's start at worst.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from msft.search.rollout import BASE, LEAN, CheckpointId, DiskPolicy, Keep

Part = Literal["weights", "training"]

WEIGHTS: tuple[Part] = ("weights",)
PARTS: tuple[Part, Part] = ("weights", "training")
"""A checkpoint's weights, and its optimizer's moments with the feed's state."""

MOST_DURABLE = 2
"""Sets of weights on disk at a time, as long as memory holds the others (`lean`)."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Checkpoints that must be there; of those, which on disk, and which with their moments.

    moved: what is on disk leaves memory, and what is not needed goes before what is new comes.
    """

    weights: frozenset[CheckpointId]
    durable: frozenset[CheckpointId]
    training: frozenset[CheckpointId]
    moved: bool = False


def wanted(
    keep: Keep, ticks: Sequence[CheckpointId], contenders: Collection[int]
) -> frozenset[CheckpointId]:
    """The ticks of a roll-out that its method may still ask for, besides the best.

    ticks: those there are, its start first.
    contenders: numbers of those that could still become a peak. The first of them never moves
        back, so a span that ends at the peaks needs nothing before it.
    """
    match keep:
        case "contenders":
            return frozenset(ticks[tick] for tick in contenders)
        case "span":
            return frozenset(ticks[min(contenders, default=0) :])
        case "best":
            return frozenset()
        case "all":
            return frozenset(ticks)
    return frozenset(checkpoint for tick, checkpoint in enumerate(ticks) if tick in keep)


def retained(
    *,
    start: CheckpointId,
    latest: CheckpointId,
    contenders: Iterable[CheckpointId],
    best: CheckpointId | None,
    keep_start: bool,
    moments: Literal["none", "start", "contenders"],
    policy: DiskPolicy = LEAN,
) -> Retained:
    """What must be kept once `latest` is safe. The base model needs no copy: it can be loaded.

    contenders: every tick that the method may still ask for: those that could become an active
        sub-dataset's peak, or what `wanted` says.
    keep_start: the start must stay even when nobody's peak is there any more, because something
        is only in memory and would be trained again from it. Then the best and the start are on
        disk, and the newest tick where that makes no third set. Without it everything is.
    moments: whose optimizer moments are needed besides the latest tick's: none (`on_rollback:
        reset`), the start's (an optimizer that is kept), or every contender's (`restore`).
    policy: with `paper` the start stays as long as its roll-out goes on, and contenders, start and
        best are on disk; the newest tick is only where it is one of them, or memory has no room.
    """
    peaks, paper = set(contenders), policy == "paper"
    keep_start = keep_start or paper
    lasting = {*([best] if best else []), *([start] if keep_start else [])}
    training = {latest} if latest != start else set()
    if moments == "contenders":
        training |= peaks
    if moments != "none" and (latest == start or start in peaks or keep_start):
        training.add(start)
    weights = peaks | lasting | {latest}
    if paper:
        durable = peaks | lasting
    elif not keep_start:
        durable = weights
    else:
        more = lasting | {latest}
        durable = more if len(more - {BASE}) <= MOST_DURABLE else lasting
    return Retained(
        frozenset(weights - {BASE}),
        frozenset(durable - {BASE}),
        frozenset(training - {BASE}),
        moved=paper,
    )


def parts_of(checkpoint: CheckpointId, with_moments: Collection[CheckpointId]) -> Sequence[Part]:
    """What is kept of a checkpoint."""
    return PARTS if checkpoint in with_moments else WEIGHTS
