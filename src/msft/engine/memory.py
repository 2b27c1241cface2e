"""How much fits: rows per forward pass, checkpoints in memory, bytes on disk."""

import shutil
from pathlib import Path
from typing import Any

import torch

from msft.engine.copies import Copies
from msft.tiers import MemoryTier

BYTES_PER_PARAMETER = {"adamw": 16, "adamw_bf16": 12}
"""Weights, gradients and moments, at the least."""
UNKNOWN_MEMORY = 4 * 2**30
SHARE_OF_MEMORY = 0.25
"""Of the free memory where training is, what checkpoints may take."""
SHARE_BESIDE_DEVICE = 0.5
"""Of the free host memory, where training is on a device."""


class NoRoom(Exception):
    """The run cannot fit; nothing was started."""


def memory_tiers(
    each: int, aside: int, most: int, device: torch.device, copies: Copies
) -> list[MemoryTier]:
    """Device memory first, then host memory, for at most `most` checkpoints in all.

    each: bytes of a checkpoint that is held.
    aside: bytes that must be free besides, for the newest one's moments and what is on its way.
    """

    def fits(room: float) -> int:
        return min(most, max(0, int(room) - aside) // each)

    if device.type != "cuda":
        tiers = [MemoryTier("host", fits(free_host_memory() * SHARE_OF_MEMORY))]
    else:
        free, _ = torch.cuda.mem_get_info(device)
        here = fits(free * SHARE_OF_MEMORY)
        most -= here
        there = fits(free_host_memory() * SHARE_BESIDE_DEVICE)
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


def free_host_memory() -> int:
    """Bytes of memory that can be had now; a modest guess where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return UNKNOWN_MEMORY


def refuse_small_memory(
    num_parameters: int, device: torch.device, name: str, optim: str = "adamw"
) -> None:
    """NoRoom if weights, gradients and moments cannot fit."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()
    needed = BYTES_PER_PARAMETER[optim] * num_parameters
    if free < needed:
        raise NoRoom(
            f"{name} has {num_parameters / 1e9:.2f} billion parameters and needs "
            f"{needed / 1e9:.1f} GB for weights, gradients and moments, but {device.type} has "
            f"{free / 1e9:.1f} GB free; use a smaller model or a larger machine"
        )


def refuse_full_disk(folder: Path, needed: int, free: int | None = None) -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than the run can need at once."""
    free = shutil.disk_usage(folder).free if free is None else free
    if free < needed:
        raise NoRoom(
            f"{folder} has {free / 1e9:.2f} GB free, but this run can need {needed / 1e9:.2f} GB "
            "for its checkpoints; free some space, use another --out, or a smaller model"
        )
