"""Tiers: the places that hold checkpoints; `get` gives None for what is not there (any more).

The disk's promise: a checkpoint is there under its final name only when complete and hashed. It
is written to a temporary folder, synced, given a manifest with sizes and hashes, synced, renamed,
and the parent synced.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msft.files import FOLDER, kind_of, refuse_other_kind, remove, sync
from msft.store.manifests import MANIFEST, Hashes, Manifest
from msft.system_errors import explaining


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
        self,
        folder: Path,
        codec: Codec,
        notice: Callable[[str], None] = lambda text: None,
        hashes: Hashes | None = None,
        part_bytes: int = 0,
    ) -> None:
        """part_bytes: of the largest part, to say how much a full disk lacks."""
        self._folder = folder
        self._codec = codec
        self._notice = notice
        self._hashes = hashes or Hashes()
        self._part_bytes = part_bytes
        refuse_other_kind(folder, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, key: str) -> bool:
        return kind_of(self._folder / key) == FOLDER

    def put(self, key: str, payload: Any) -> None:
        temporary = self._folder / f".{key}.tmp"
        remove(temporary)
        try:
            with explaining(self._folder / key, self._part_bytes):
                temporary.mkdir()
                self._codec.write(payload, temporary)
                files = {p.name: self._hashes.fresh(p) for p in sorted(temporary.iterdir())}
                for name in files:
                    sync(temporary / name)
                (temporary / MANIFEST).write_bytes(Manifest(files, key).to_bytes())
                sync(temporary / MANIFEST)
                sync(temporary)
                self._take_away(key)
                temporary.rename(self._folder / key)
                sync(self._folder)
                remove(self._folder / f".{key}.old")
        except BaseException:
            remove(temporary)
            raise

    def get(self, key: str) -> Any | None:
        """The payload; one that does not match its manifest is set aside, never loaded."""
        if not self.is_whole(key):
            return None
        try:
            return self._codec.read(self._folder / key)
        except OSError as error:  # the disk gave it once and does not give it again
            self._set_aside(key, f"it cannot be read: {error.strerror or error}")
            return None

    def is_whole(self, key: str) -> bool:
        """Whether it is there as it was written; else what is there is set aside."""
        folder = self._folder / key
        if kind_of(folder) is None:
            return False
        fault = self._hashes.fault(folder, key)
        if fault is not None:
            self._set_aside(key, fault)
        return fault is None

    def _set_aside(self, key: str, fault: str) -> None:
        aside = self._folder / f"{key}.bad"
        remove(aside)
        (self._folder / key).rename(aside)
        self._notice(f"checkpoint {key} is damaged ({fault}); set aside as {aside.name}")

    def drop(self, key: str) -> None:
        if key.startswith("."):  # what a crash left of another write or removal
            remove(self._folder / key)
        else:
            self._take_away(key)
            remove(self._folder / f".{key}.old")

    def _take_away(self, key: str) -> None:
        """Let nothing have this name any more: a folder that is half removed would look damaged."""
        old = self._folder / f".{key}.old"
        remove(old)
        if kind_of(self._folder / key):
            (self._folder / key).rename(old)

    def listed(self) -> list[str]:
        """Everything there that could be a checkpoint, unfinished ones too."""
        return sorted(path.name for path in self._folder.iterdir() if path.suffix != ".bad")

    def flush(self) -> None:
        """Nothing to wait for: here `put` returns when it is done."""

    def waiting(self) -> list[str]:
        """What is still to be done: nothing."""
        return []

    def folders(self, key: str) -> list[Path]:
        """Where a part is, or would be."""
        return [self._folder / key]


class NoDisk:
    """A disk's place in a ledger, with nothing behind it."""

    name = DiskTier.name

    def __contains__(self, key: str) -> bool:
        return False

    def put(self, key: str, payload: Any) -> None: ...

    def get(self, key: str) -> Any | None:
        return None

    def is_whole(self, key: str) -> bool:
        return True

    def drop(self, key: str) -> None: ...

    def listed(self) -> list[str]:
        return []

    def folders(self, key: str) -> list[Path]:
        return []

    def flush(self) -> None: ...
