"""Places: where runs beside each other compute, as `--devices` names them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from msft.app.variants import listed_words, refuse_twice
from msft.errors import UsageError

CPU = "cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_UNIQUE = ("GPU-", "MIG-")
"""How the driver's own names of a device begin."""


@dataclass(frozen=True, slots=True)
class Place:
    """One process at a time computes here.

    name: as a person is told; empty where there is only one place.
    visible: the CUDA devices that the process sees; None: those that this one sees.
    """

    name: str = ""
    visible: str | None = None


def places_named(devices: str | Sequence[str | int] | None) -> list[Place]:
    """`0,1` as places, or `cpu,cpu`; by default every CUDA device if there are several.

    Numbers count the devices that this process sees, from 0, as torch does.
    """
    if devices is None:
        seen = _seen()
        every = [Place(f"device {number}", name) for number, name in enumerate(seen)]
        return every if len(every) > 1 else [Place()]
    listed = devices if isinstance(devices, str) else [str(each) for each in devices]
    words = listed_words(listed, "--devices", "0,1,2 or cpu,cpu")
    gpus = [word for word in words if word != CPU]
    refuse_twice(gpus, "--devices")
    seen = _seen() if gpus else []
    return [Place("CPU", "") if word == CPU else _gpu(word, seen) for word in words]


def _gpu(word: str, seen: Sequence[str]) -> Place:
    if word.startswith(_UNIQUE):
        return Place(f"device {word}", word)
    if not (word.isascii() and word.isdigit()):
        raise UsageError(
            f"--devices has {word!r}; expected numbers of CUDA devices such as 0,1,2, their names "
            "(GPU-…, MIG-…), or cpu for each process on the CPU"
        )
    if int(word) >= len(seen):
        known = f"it sees {len(seen)}, counted from 0" if seen else "it sees no CUDA device"
        limit = os.environ.get(VISIBLE)
        raise UsageError(
            f"--devices has {word}, which this process does not see: {known}"
            + (f" ({VISIBLE} is {limit!r})" if limit is not None else "")
            + "; name devices that are there, or cpu"
        )
    return Place(f"device {int(word)}", seen[int(word)])


def _seen() -> list[str]:
    """The CUDA devices that this process sees, as another process is told of them."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]
