"""What this machine has free, and refusals where a run cannot fit into it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from msft import launch
from msft.errors import NoRoom

UNKNOWN_MEMORY = 4 * 2**30
"""Free bytes of a host that does not say: a modest guess."""


@dataclass(frozen=True, slots=True)
class Room:
    """Free and all bytes where training is, and free ones in host memory."""

    kind: str
    free: int
    total: int
    host: int


def room_of(device: torch.device) -> Room:
    """What is free on this machine now, for each of the processes that do a run here."""
    host = _kernel_says(Path("/proc/meminfo"), "MemAvailable:", UNKNOWN_MEMORY)
    host //= launch.local_world()
    if device.type != "cuda":
        return Room("cpu", host, host, host)
    free, total = torch.cuda.mem_get_info(device)
    sharing = -(-launch.local_world() // torch.cuda.device_count())
    return Room("cuda", free // sharing, total // sharing, host)


def used_memory() -> int:
    """Bytes that this process has now; 0 where the system does not say."""
    return _kernel_says(Path("/proc/self/status"), "VmRSS:", 0)


def _kernel_says(file: Path, key: str, default: int) -> int:
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), default)


def free_disk(folder: Path) -> int:
    """Bytes left on the disk that a folder is on, or will be on."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def no_room(name: str, least: int, room: Room, cures: Mapping[str, int]) -> NoRoom:
    """Fewer bytes are free than the run needs at least.

    cures: changes of the recipe, and what it would need at least with each.
    """
    where = "the GPU" if room.kind == "cuda" else "this machine"
    better = [
        f"{cure} ({_gb(needed)}{'' if needed <= room.free else ', which is still too much'})"
        for cure, needed in cures.items()
        if needed < least
    ]
    return NoRoom(
        f"{name} needs {_gb(least)} of memory at least, but {where} has {_gb(room.free)} free. "
        "That is weights, moments, gradients and one row; smaller batches do not make it less. "
        f"Use {', or '.join([*better, 'a smaller model'])}, or a larger machine"
    )


def refuse_full_disk(folder: Path, needed: int, cure: str = "") -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than the run can need at once.

    cure: what helps this method, besides what helps every one.
    """
    free = free_disk(folder)
    if free < needed:
        raise NoRoom(
            f"{folder} has {_gb(free)} free, but this run can need {_gb(needed)} on disk "
            "at once; free some space, use another --out, "
            + (f"{cure}, a machine with more memory, " if cure else "")
            + "optim: adamw_bf16 (smaller moments), or a smaller model"
        )


def refuse_no_space(folder: Path, needed: int) -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than a model takes."""
    free = free_disk(folder)
    if free < needed:
        raise NoRoom(
            f"{folder} has {_gb(free)} free, but the model takes {_gb(needed)} on disk; free some "
            "space, or use another --out"
        )


def _gb(size: int) -> str:
    if size < 1e8:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e11 else f"{size / 1e9:,.0f} GB"
