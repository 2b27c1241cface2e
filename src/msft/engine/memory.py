"""How much fits: rows per forward pass, checkpoints in memory, bytes on disk."""

import shutil
from pathlib import Path
from typing import Any

import torch

from msft.tiers import MemoryTier

CPU_TOKENS = 8192
BYTES_PER_PARAMETER = 16
UNKNOWN_MEMORY = 4 * 2**30
SHARE_OF_MEMORY = 0.25
"""Of the free memory, what checkpoints may take."""


class NoRoom(Exception):
    """The run cannot fit; nothing was started."""


def micro_batch_tokens(model: Any, device: torch.device) -> int:
    """Tokens that fit into one forward and backward pass.

    An estimate from the activations that a layer keeps; if it is too bold, the engine halves it.
    """
    if device.type != "cuda":
        return CPU_TOKENS
    per_token = int(model.config.num_hidden_layers) * int(model.config.hidden_size) * 64
    free, _ = torch.cuda.mem_get_info(device)
    return max(1024, int(free * 0.6) // per_token)


def memory_tiers(bytes_per_checkpoint: int, device: torch.device, most: int) -> list[MemoryTier]:
    """Device memory first, then host memory, for at most `most` checkpoints in all."""
    tiers: list[MemoryTier] = []
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        fits = min(most, int(free * SHARE_OF_MEMORY) // bytes_per_checkpoint)
        if fits:
            tiers.append(MemoryTier("device", fits))
        most -= fits
    fits = min(most, int(free_host_memory() * SHARE_OF_MEMORY) // bytes_per_checkpoint)
    if fits:
        tiers.append(MemoryTier("host", fits, copy=on_host))
    return tiers


def on_host(payload: Any) -> Any:
    """A copy of a nested payload in host memory."""
    if isinstance(payload, torch.Tensor):
        return payload.to("cpu", copy=payload.device.type == "cpu")
    if isinstance(payload, dict):
        return {key: on_host(part) for key, part in payload.items()}
    return payload


def free_host_memory() -> int:
    """Bytes of memory that can be had now; a modest guess where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return UNKNOWN_MEMORY


def refuse_small_memory(num_parameters: int, device: torch.device, name: str) -> None:
    """NoRoom if weights, gradients and moments (16 bytes a parameter) cannot fit."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_memory()
    needed = BYTES_PER_PARAMETER * num_parameters
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
