"""A disk that the ranks of a run write together: each writes what it owns, rank 0 removes.

A checkpoint part of W ranks is W folders, `r0-t3.weights.1-of-2` and so on, each with its own
manifest; it is there when all of them are. One process writes one folder, as ever. Any number of
ranks reads what any other number wrote.

Ranks call this in the same order, from the thread that trains. The thread that writes meets
nobody, so a removal waits until all ranks have written what was put before it: then nothing is
removed before what made it superfluous is on disk in all its parts.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msft.files import FOLDER, kind_of, remove
from msft.ranks import Ranks, all_or_fail, from_rank0, least
from msft.store.store import BackgroundDisk, DiskTier

_PART = re.compile(r"(?P<key>.+\.(?:weights|training))(?:\.(?P<number>\d+)-of-(?P<world>\d+))?")


class SharedCodec(Protocol):
    """Reads a checkpoint part back from the folders of all ranks."""

    def collect(self, folders: Sequence[Path]) -> Any: ...


class RankedDisk:
    """A disk tier of several ranks, or of one that may read what several wrote.

    disk: the tier for this rank's own parts.
    writer: what `disk` is written by: itself, or a thread.
    """

    name = DiskTier.name

    def __init__(
        self,
        folder: Path,
        disk: DiskTier,
        writer: DiskTier | BackgroundDisk,
        codec: SharedCodec,
        ranks: Ranks,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._writer = writer
        self._codec = codec
        self._ranks = ranks
        self._ordered: set[str] = set()
        """What was put by this process and not dropped since."""
        self._open: dict[str, int] = {}
        """What this rank may still have to write, with the number of the order."""
        self._doomed: dict[str, int] = {}
        """What is to be removed, once all orders up to a number are done everywhere."""
        self._orders = 0

    def __contains__(self, key: str) -> bool:
        return key in self._ordered or bool(self._found(key))

    def put(self, key: str, payload: Any) -> None:
        self._orders += 1
        self._ordered.add(key)
        self._open[self._mine(key)] = self._orders
        self._doomed.pop(key, None)
        with self._ranks.busy("writing"):
            self._writer.put(self._mine(key), payload)

    def get(self, key: str) -> Any | None:
        """The payload; None in all ranks, if one of them does not have its part as written."""
        if key in self._ordered:
            with self._ranks.busy("reading"):
                payload = self._writer.get(self._mine(key))
            if not least(self._ranks, f"own part of {key}", payload is not None):
                self.drop(key)  # what is left of it
        else:
            parts = self._found(key)
            whole = bool(parts) and self._are_whole(parts)
            payload = self._read(parts) if whole else None
        return payload if least(self._ranks, f"content of {key}", payload is not None) else None

    def is_whole(self, key: str) -> bool:
        """Whether all parts are on disk as they were written; damaged ones are set aside."""
        if key in self._ordered:
            waits = self._mine(key) in self._writer.waiting()
            with self._ranks.busy("reading"):
                whole = waits or self._writer.is_whole(self._mine(key))
            found = self._ranks.gather(f"own parts of {key}", [waits, whole])
            if not all(whole for _, whole in found):
                self.drop(key)  # what is left of it
                return False
            return not any(waiting for waiting, _ in found)
        parts = self._found(key)
        return bool(parts) and self._are_whole(parts)

    def drop(self, key: str) -> None:
        """Have rank 0 remove a part, once all ranks have written what was put before."""
        self._ordered.discard(key)
        self._doomed[key] = self._orders

    def folders(self, key: str) -> list[Path]:
        """The folders of its parts."""
        ordered = key in self._ordered
        parts = _names(key, self._ranks.world) if ordered else self._found(key)
        return [self._folder / name for name in parts]

    def listed(self) -> list[str]:
        """The checkpoint parts that are complete; what a crash left of others is removed."""
        self.flush()
        return from_rank0(self._ranks, "checkpoints on disk", self._cleaned)

    def flush(self) -> None:
        """Wait until everything is done in all ranks, removals too."""
        all_or_fail(self._ranks, "writing", self._writer.flush)
        self.prune()
        self._ranks.gather("removals", None)  # rank 0 has removed

    def prune(self) -> None:
        """Remove what was dropped, once every rank has written what was put before; ranks meet."""
        waiting = {*self._writer.waiting()}
        self._open = {name: order for name, order in self._open.items() if name in waiting}
        mine = min(self._open.values(), default=self._orders + 1) - 1
        done = least(self._ranks, "orders that are done", mine)
        for key in [key for key, order in self._doomed.items() if order <= done]:
            del self._doomed[key]
            if self._ranks.rank == 0:
                self._remove(key)

    def _mine(self, key: str) -> str:
        return _names(key, self._ranks.world)[self._ranks.rank]

    def _found(self, key: str) -> list[str]:
        """The parts of a checkpoint that an earlier process wrote, whatever its ranks were."""
        return from_rank0(
            self._ranks,
            f"parts of {key}",
            lambda: [] if key in self._doomed else self._complete(key),
        )

    def _complete(self, key: str) -> list[str]:
        for name in (key, *sorted(path.name for path in self._folder.glob(f"{key}.*-of-*"))):
            match = _PART.fullmatch(name)
            if match is not None:
                parts = _names(key, int(match["world"] or 1))
                if all(kind_of(self._folder / part) == FOLDER for part in parts):
                    return parts
        return []

    def _are_whole(self, parts: Sequence[str]) -> bool:
        """Each rank looks at its share of the parts."""
        mine = parts[self._ranks.rank :: self._ranks.world]
        with self._ranks.busy("reading"):
            whole = all(self._disk.is_whole(part) for part in mine)
        return bool(least(self._ranks, f"whole {parts[0]}", whole))

    def _read(self, parts: Sequence[str]) -> Any | None:
        try:
            with self._ranks.busy("reading"):
                return self._codec.collect([self._folder / part for part in parts])
        except OSError:
            return None

    def _cleaned(self) -> list[str]:
        keys: dict[str, None] = {}
        for name in self._disk.listed():
            match = _PART.fullmatch(name)
            key = match["key"] if match else ""
            if key and not key.startswith(".") and name in self._complete(key):
                keys[key] = None
            elif _PART.match(name.removeprefix(".")):  # a crash came before the other parts
                remove(self._folder / name)
        return list(keys)

    def _remove(self, key: str) -> None:
        names = {path.name for path in self._folder.glob(f"{key}.*-of-*")} | {key}
        for name in sorted(names):
            if _PART.fullmatch(name):
                self._disk.drop(name)


def _names(key: str, world: int) -> list[str]:
    """The folders of a checkpoint part, one for each of `world` ranks."""
    if world == 1:
        return [key]
    return [f"{key}.{number}-of-{world}" for number in range(1, world + 1)]
