"""Threads: as many as this process has cores, and one for a small model.

torch starts a thread for each core of the machine. On a machine that is busy, or in a container
with a share of it, these wait for each other in loops, and a run takes many times the CPU time that
it needs. Waiting threads must be told to sleep before torch is loaded, so this file imports little
and the command line calls it first. A setting of the user's own in the environment wins.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

COUNT, WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
SMALL = 10_000_000
"""Weights below which one thread is as fast as several: its products are too short to share."""

_CGROUP = Path("/sys/fs/cgroup")
_ours = False


def set_threads(cgroup: Path = _CGROUP) -> None:
    """Before torch is loaded: one thread for each core that is ours, and who waits sleeps."""
    global _ours
    if "torch" in sys.modules:
        return
    os.environ.setdefault(WAITING, "passive")
    if COUNT not in os.environ:
        _ours = True
        os.environ[COUNT] = str(usable_cores(cgroup))


def fit(num_weights: int, device: str) -> None:
    """Once a model is there: one thread if it is small, unless the user has said how many."""
    if _ours and device == "cpu" and num_weights < SMALL:
        import torch

        torch.set_num_threads(1)


def for_another(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of another process of ours: it counts its threads itself."""
    return {key: value for key, value in environment.items() if not (_ours and key == COUNT)}


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """The cores that this process may use: by its affinity, and by the quota of its container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, min(cores, round(quota))) if quota else cores


def _quota(cgroup: Path) -> float | None:
    """Cores that a container may use at a time; None: no limit."""
    try:
        allowed, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            allowed = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return int(allowed) / int(period) if int(allowed) > 0 else None
    except ValueError:  # "max"
        return None
