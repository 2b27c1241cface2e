"""Bytes of a run's checkpoints, and how many of them memory holds."""

from dataclasses import dataclass
from typing import Any

import torch

from msft.engine.memory import FP32, Room, room_of
from msft.engine.model.folders import is_ours
from msft.engine.saving.weight_files import Copies
from msft.recipe.recipe import Recipe
from msft.search.rollout import LEAN, DiskPolicy
from msft.store.disk import MemoryTier

SHARE_OF_MEMORY = 0.25
"""Of the free memory where training is, what checkpoints may take."""
SHARE_BESIDE_DEVICE = 0.5
"""Of the free host memory, where training is on a device."""
ROOMY_COPIES, ROOMY_MOMENTS = 4, 2
"""Sets on disk at a time while memory holds the others: start, newest, best, and one on its way
out; moments are of the newest and of the one before."""
NEWEST = 2
"""Checkpoints in memory where the others are on disk: the newest, and the one before while the
newest is made."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Bytes of a run's checkpoints, and of what is on disk beside them.

    moments: with the raw weights beside them, where what is kept is an average.
    restored: their moments are kept with them.
    most: that are needed at a time.
    models: whole models that a run writes beside them.
    policy: which of them are on disk, whatever memory has room for.
    """

    weights: int
    moments: int
    restored: bool
    most: int
    models: int = 0
    policy: DiskPolicy = LEAN

    @staticmethod
    def of(
        parameters: int,
        optim: str,
        on_rollback: str,
        datasets: int,
        most: int | None = None,
        averaged: bool = False,
        models: int = 0,
        policy: DiskPolicy = LEAN,
    ) -> "Checkpoints":
        """most: where a method says how many it needs; else what its sub-datasets' peaks need.
        averaged: moments have the raw weights beside them (`ema_decay`)."""
        weights = FP32 * parameters
        moments = weights if optim == "adamw_bf16" else 2 * weights
        moments += weights if averaged else 0
        restored = on_rollback == "restore"
        return Checkpoints(weights, moments, restored, most or datasets + 3, models, policy)

    @property
    def each(self) -> int:
        return self.weights + (self.moments if self.restored else 0)

    @property
    def aside(self) -> int:
        """Of the newest one's moments, and what is on its way to the disk."""
        return self.weights + self.moments

    @property
    def in_memory(self) -> int:
        """How many memory is to hold."""
        return self.most if self.policy == LEAN else min(NEWEST, self.most)

    def held(self, room: Room) -> tuple[int, int]:
        """How many memory may hold: where training is, and on a host beside a device."""
        return held_in(self.each, self.aside, self.in_memory, room)

    def disk(self, roomy: bool) -> int:
        """Bytes on disk at a time, at most; `roomy`: memory holds all that it is to hold."""
        few = self.most <= ROOMY_COPIES  # a method that never goes back has no others
        lean = roomy and self.policy == LEAN
        copies = ROOMY_COPIES if lean or few else self.most + (0 if roomy else 1)
        moments = ROOMY_MOMENTS
        if self.restored:
            moments = ROOMY_MOMENTS + 1 if lean else self.most
        return copies * self.weights + moments * self.moments + self.models


def models_beside(recipe: Recipe, parameters: int, links: bool, bytes_a_weight: int) -> int:
    """Bytes of the whole models in a run's folder, at most: results, the new one written before the
    old one goes; or the base of an adapter, where others do not know its name.

    links: the result is a checkpoint's own file. bytes_a_weight: of one that is written.
    """
    if recipe.use_peft and not recipe.merge_adapter:
        return int(is_ours(recipe.model())) * FP32 * parameters
    return 0 if links else 2 * bytes_a_weight * parameters


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
