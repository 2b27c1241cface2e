"""Tiers: the places that hold checkpoints; `get` gives None for what is not there (any more).

The disk's promise: a checkpoint is there under its final name only when complete and hashed. It
is written to a temporary folder, synced, given a manifest with sizes and hashes, synced, renamed,
and the parent synced.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

HASHED_AT_ONCE = 2**26


class Codec(Protocol):
    """How an engine's state becomes files and back."""

    def write(self, payload: Any, folder: Path) -> None: ...

    def read(self, folder: Path) -> Any: ...


class MemoryTier:
    """Device or host memory, for at most `capacity` checkpoints.

    copy: brings a payload there; it may still be under way when it returns.
    arrive: is called before a payload is used, so that its copy is whole by then.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        copy: Callable[[Any], Any] = lambda payload: payload,
        arrive: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self._copy = copy
        self._arrive = arrive
        self._held: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def put(self, key: str, payload: Any) -> None:
        self._held[key] = self._copy(payload)

    def get(self, key: str) -> Any | None:
        self._arrive()
        return self._held.get(key)

    def lend(self, key: str) -> Any | None:
        """A payload for a writer, who waits for the copy by itself: the training need not."""
        return self._held.get(key)

    def drop(self, key: str) -> None:
        self._held.pop(key, None)


class DiskTier:
    """A folder per checkpoint part, there under its final name only when complete and hashed."""

    name = "disk"

    def __init__(
        self, folder: Path, codec: Codec, notice: Callable[[str], None] = lambda text: None
    ) -> None:
        self._folder = folder
        self._codec = codec
        self._notice = notice
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, key: str) -> bool:
        return (self._folder / key).is_dir()

    def put(self, key: str, payload: Any) -> None:
        temporary = self._folder / f".{key}.tmp"
        _remove(temporary)
        temporary.mkdir()
        try:
            self._codec.write(payload, temporary)
            manifest = {path.name: _digest(path) for path in sorted(temporary.iterdir())}
            for name in manifest:
                _sync(temporary / name)
            (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
            _sync(temporary / "manifest.json")
            _sync(temporary)
            _remove(self._folder / key)
            temporary.rename(self._folder / key)
            _sync(self._folder)
        except BaseException:
            _remove(temporary)
            raise

    def get(self, key: str) -> Any | None:
        """The payload; one that does not match its manifest is set aside, never loaded."""
        folder = self._folder / key
        if not folder.is_dir():
            return None
        fault = _fault(folder)
        if fault is None:
            return self._codec.read(folder)
        aside = self._folder / f"{key}.bad"
        _remove(aside)
        folder.rename(aside)
        self._notice(f"checkpoint {key} is damaged ({fault}); set aside as {aside.name}")
        return None

    def drop(self, key: str) -> None:
        _remove(self._folder / key)

    def listed(self) -> list[str]:
        """Everything there that could be a checkpoint, unfinished ones too."""
        return sorted(path.name for path in self._folder.iterdir() if path.suffix != ".bad")

    def flush(self) -> None:
        """Nothing to wait for: here `put` returns when it is done."""


class NoDisk:
    """A disk's place in a ledger, with nothing behind it."""

    name = DiskTier.name

    def __contains__(self, key: str) -> bool:
        return False

    def put(self, key: str, payload: Any) -> None: ...

    def get(self, key: str) -> Any | None:
        return None

    def drop(self, key: str) -> None: ...

    def listed(self) -> list[str]:
        return []

    def flush(self) -> None: ...


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        manifest: dict[str, list[Any]] = dict(json.loads((folder / "manifest.json").read_text()))
    except (OSError, TypeError, ValueError):
        return "its manifest cannot be read"
    there = {path.name for path in folder.iterdir()} - {"manifest.json"}
    if there != set(manifest):
        return f"files are {sorted(there)}, the manifest says {sorted(manifest)}"
    for name, digest in manifest.items():
        if _digest(folder / name) != digest:
            return f"{name} is not what was written"
    return None


def _digest(path: Path) -> list[Any]:
    """Size and hash. In large pieces: a thread that trains waits at every border of two."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASHED_AT_ONCE):
            digest.update(piece)
    return [path.stat().st_size, digest.hexdigest()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Delete a checkpoint; a symbolic link is removed, never followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
