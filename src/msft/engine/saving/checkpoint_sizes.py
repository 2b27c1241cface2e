"""What a run needs at once: memory where it trains, checkpoints in memory and on disk."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from msft.engine.decode.decoder import MEMORY_OF_KEYS
from msft.engine.decode.likelihoods import HEAD_TOKENS
from msft.engine.machine import Room, room_of
from msft.engine.memory_model import (
    BASE_ON_DEVICE,
    BF16,
    CPU_TOKENS,
    FP32,
    Demand,
    Fit,
    Shape,
    best_fit,
    gradient_bytes,
    held_bytes,
    step_bytes,
    token_bytes,
)
from msft.engine.saving.host_copies import Copies
from msft.store.tiers import MemoryTier

SHARE_OF_MEMORY = 0.25
"""Of the free memory where training is, what checkpoints may take."""
SHARE_BESIDE_DEVICE = 0.5
"""Of the free host memory, where training is on a device."""
LIBRARIES = {"cuda": 650_000_000, "cpu": 140_000_000}
"""What torch and the report take for themselves, as measured."""
ROOMY_COPIES, ROOMY_MOMENTS = 4, 2
"""Sets on disk at a time while memory holds the others: start, newest, best, and one on its way
out; moments are of the newest and of the one before."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Bytes of a run's checkpoints.

    restored: their moments are kept with them.
    most: that are needed at a time.
    """

    weights: int
    moments: int
    restored: bool
    most: int

    @staticmethod
    def of(parameters: int, optim: str, on_rollback: str, datasets: int) -> "Checkpoints":
        weights = FP32 * parameters
        moments = weights if optim == "adamw_bf16" else 2 * weights
        return Checkpoints(weights, moments, on_rollback == "restore", datasets + 3)

    @property
    def each(self) -> int:
        return self.weights + (self.moments if self.restored else 0)

    @property
    def aside(self) -> int:
        """Of the newest one's moments, and what is on its way to the disk."""
        return self.weights + self.moments

    def held(self, room: Room) -> tuple[int, int]:
        """How many memory may hold: where training is, and on a host beside a device."""
        return held_in(self.each, self.aside, self.most, room)

    def disk(self, roomy: bool) -> int:
        """Bytes on disk at a time, at most; `roomy`: memory holds all that are needed."""
        copies = ROOMY_COPIES if roomy else self.most + 1
        moments = ROOMY_MOMENTS
        if self.restored:
            moments = ROOMY_MOMENTS + 1 if roomy else self.most
        return copies * self.weights + moments * self.moments


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes where training is, by what they are for.

    held: weights, moments and the working copy. base: the base model's weights, if they are here.
    step: gradients and what the optimizer's step needs. backward: activations of a batch.
    row: the same of the longest row alone, recomputed where that is allowed, and what micro-batches
        add up in where there are some.
    evaluation: keys, activations and predictions. snapshot: a copy of weights and moments.
    checkpoints: that wait in memory, with the newest one's moments.
    recorded: steps are, so what a batch and a step need stays theirs.
    """

    held: int
    base: int
    libraries: int
    step: int
    backward: int
    row: int
    evaluation: int
    snapshot: int
    checkpoints: int
    recorded: bool

    @property
    def least(self) -> int:
        """What the run cannot do without, however small its micro-batches are."""
        return self.held + self.base + self.libraries + max(self.step, self.row)

    @property
    def peak(self) -> int:
        """The most at a time."""
        return self.held + self.base + self.libraries + self.work + self.checkpoints

    @property
    def work(self) -> int:
        """What is done comes after each other: a batch, a step, an evaluation, a snapshot."""
        training, other = max(self.backward, self.step), max(self.evaluation, self.snapshot)
        return training + other if self.recorded else max(training, other)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run has to hold beside its state, as far as the data says.

    batch_tokens, longest: tokens of the largest batch, and of the longest row.
    micro_batch_tokens: as the recipe has them; None: what fits.
    checkpointing: as the recipe has it.
    points: that can be kept at a time, since a roll-out has no more.
    slots, read, predicted: of an evaluation, tokens whose keys are kept, tokens of a forward pass,
        and those of them whose prediction is wanted.
    """

    batch_tokens: int
    longest: int
    micro_batch_tokens: int | None
    checkpointing: Any
    points: int
    slots: int = 0
    read: int = 0
    predicted: int = 0


def memory_of(
    shape: Shape, demand: Demand, work: Work, checkpoints: Checkpoints, room: Room
) -> Memory:
    """The forecast for one run on this machine."""
    held, step = held_bytes(shape, demand), step_bytes(shape, demand)
    base = FP32 * shape.parameters
    if room.kind == "cuda" and base > BASE_ON_DEVICE * room.total:
        base = 0
    fit = Fit(CPU_TOKENS, work.checkpointing is True, recorded=False)
    if room.kind == "cuda":
        fit = best_fit(shape, room.free, demand, work.checkpointing)
    again, most = fit.gradient_checkpointing, work.micro_batch_tokens or fit.micro_batch_tokens
    tokens = max(work.longest, min(work.batch_tokens, most))
    kept = token_bytes(shape, demand, again)
    sums = gradient_bytes(shape, demand, parts=True) if work.batch_tokens > most else 0
    allowed = work.checkpointing is not False and room.kind == "cuda"
    least = token_bytes(shape, demand, again or allowed)
    state = held + base + LIBRARIES[room.kind]
    left = replace(room, free=max(0, room.free - state))
    before = min(work.points, checkpoints.held(left)[0]) - 1  # when the next one is made
    newest = 0 if checkpoints.restored else checkpoints.moments
    return Memory(
        held=held,
        base=base,
        libraries=LIBRARIES[room.kind],
        step=step,
        backward=round(tokens * kept) + sums,
        row=round(work.longest * least) + sums,
        evaluation=evaluation_bytes(shape, demand, work, room),
        snapshot=checkpoints.aside,
        checkpoints=before * checkpoints.each + newest if before > 0 else 0,
        recorded=fit.recorded and demand.bf16 and work.batch_tokens <= most,
    )


def evaluation_bytes(shape: Shape, demand: Demand, work: Work, room: Room) -> int:
    """Keys that are kept, activations of a forward pass, and predictions, part of them in fp32."""
    width = BF16 if demand.bf16 else FP32
    keys = work.slots * shape.keys * width
    if room.kind == "cuda":
        keys = min(keys, int(room.total * MEMORY_OF_KEYS))
    passing = work.read * width * (3 * shape.inner + 4 * shape.hidden)
    wide = min(work.predicted, HEAD_TOKENS) if demand.bf16 else work.predicted
    predictions = shape.vocabulary * (work.predicted * width + 2 * wide * FP32)
    return keys + passing + predictions


def held_in(each: int, aside: int, most: int, room: Room) -> tuple[int, int]:
    """How many checkpoints of `each` bytes fit where training is, and on a host beside it.

    aside: bytes that must be free besides, for the newest one's moments and what is on its way.
    """

    def fits(free: float, wanted: int) -> int:
        return min(wanted, max(0, int(free) - aside) // each)

    here = fits(room.free * SHARE_OF_MEMORY, most)
    if room.kind != "cuda":
        return here, 0
    return here, fits(room.host * SHARE_BESIDE_DEVICE, most - here)


def memory_tiers(
    each: int, aside: int, most: int, device: torch.device, copies: Copies
) -> list[MemoryTier]:
    """Device memory first, then host memory, for at most `most` checkpoints in all."""
    here, there = held_in(each, aside, most, room_of(device))
    if device.type != "cuda":
        tiers = [MemoryTier("host", here)]
    else:
        tiers = [
            MemoryTier("device", here, lambda payload: on_device(payload, device)),
            MemoryTier("host", there, copies.to_host, copies.arrive),
        ]
    return [tier for tier in tiers if tier.capacity]


def on_device(payload: Any, device: torch.device) -> Any:
    """A nested payload on a device: as it is, unless it comes from the disk."""
    if isinstance(payload, torch.Tensor):
        return payload.to(device)
    if isinstance(payload, dict):
        return {key: on_device(part, device) for key, part in payload.items()}
    return payload
