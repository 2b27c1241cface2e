"""Manifests: whose files a folder holds, with the size and hash of each.

A folder is whole if it holds exactly the files of its manifest, each a regular file with the bytes
that were written, and if the manifest names the folder. Manifests of earlier versions name nobody.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msft.files import FILE, FOLDER, kind_of, open_to_read, read_bytes

MANIFEST = "manifest.json"
HASHED_AT_ONCE = 2**26

SETTLED_NS = 50_000_000
"""A file that changed later than this before its hash was done may change again unseen: clocks of
file systems move in steps of some milliseconds."""

Digest = tuple[int, str]
"""Size and SHA-256."""

_Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was written. owner: the name of its checkpoint; None: an earlier version wrote it.

    beside: files of a result folder that are of no checkpoint, such as its config.
    """

    files: Mapping[str, Digest]
    owner: str | None = None
    beside: Mapping[str, Digest] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        content: dict[str, Any] = {"checkpoint": self.owner}
        for key, files in (("files", self.files), ("beside", self.beside)):
            if files or key == "files":
                content[key] = {name: list(digest) for name, digest in files.items()}
        return json.dumps(content, indent=1).encode()

    @staticmethod
    def from_bytes(text: bytes) -> "Manifest":
        """ValueError if it is none."""
        try:
            raw = dict(json.loads(text))
            named = isinstance(raw.get("files"), dict)
            files = raw["files"] if named else raw
            owner = str(raw["checkpoint"]) if named else None
            beside = raw.get("beside", {}) if named else {}
            known, others = (
                {name: _digest(pair) for name, pair in part.items()} for part in (files, beside)
            )
            return Manifest(known, owner, others)
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a manifest: {error}") from error


class Hashes:
    """Digests of files. One that has not changed since it was hashed is not hashed again, so a
    checkpoint is linked and handed out for the price of a look at its inode.

    at_once: bytes that are read at a time.
    strict: a file whose time of writing was set back is another one, and so is one that was linked.
    """

    def __init__(self, at_once: int = HASHED_AT_ONCE, strict: bool = False) -> None:
        self._at_once = at_once
        self._strict = strict
        self._known: dict[_Identity, Digest] = {}

    def identity(self, path: Path) -> _Identity:
        """Changes with whatever is written to a file; hard links have the same one."""
        found = path.lstat()
        times = (found.st_mtime_ns, found.st_ctime_ns) if self._strict else (found.st_mtime_ns,)
        return found.st_dev, found.st_ino, found.st_size, *times

    def fresh(self, path: Path) -> Digest:
        """In large pieces: a thread that trains waits at every border of two."""
        digest = hashlib.sha256()
        before = self.identity(path)
        with open_to_read(path) as file:
            while piece := file.read(self._at_once):
                digest.update(piece)
        found = before[2], digest.hexdigest()
        if before == self.identity(path) and time.time_ns() - before[-1] > SETTLED_NS:
            self._known[before] = found
        else:
            self._known.pop(before, None)
        return found

    def of(self, path: Path) -> Digest:
        """The same, from memory where nothing has touched the file since."""
        return self._known.get(self.identity(path)) or self.fresh(path)

    def known(self, path: Path) -> list[int] | None:
        """By what a file will be known again; None: it is too young for that."""
        identity = self.identity(path)
        return [*identity] if identity in self._known else None

    def remember(self, identity: Iterable[int], digest: Digest) -> None:
        """What was hashed by another process."""
        self._known[tuple(identity)] = digest

    def fault(self, folder: Path, owner: str | None, others: bool = False) -> str | None:
        """What is wrong with a folder, or None.

        owner: None: any, and what stands beside the files of its checkpoint is looked at, too.
        others: it may hold files besides those of its manifest.
        """
        if kind_of(folder) != FOLDER:
            return f"it is {kind_of(folder)}, not a folder"
        try:
            manifest = Manifest.from_bytes(read_bytes(folder / MANIFEST))
        except (OSError, ValueError):
            return "its manifest cannot be read"
        if owner is not None and manifest.owner not in (None, owner):
            return f"it is that of {manifest.owner}"
        try:
            there = {path.name for path in folder.iterdir()} - {MANIFEST}
            if there != set(manifest.files) and not (others and there > set(manifest.files)):
                return f"files are {sorted(there)}, the manifest says {sorted(manifest.files)}"
            looked_at = {**manifest.files, **({} if owner is not None else manifest.beside)}
            for name, digest in looked_at.items():
                if (kind := kind_of(folder / name)) != FILE:
                    return f"{name} is {kind or 'not there'}"
                if self.of(folder / name) != digest:
                    return f"{name} is not what was written"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        return None


def _digest(pair: Any) -> Digest:
    size, digest = pair
    return int(size), str(digest)
