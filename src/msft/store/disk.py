"""The places that hold checkpoints: memory, a disk, and a disk that a thread writes to.

The disk's promise: a checkpoint is there under its final name only when complete and hashed. It is
written to a temporary folder, synced, given a manifest with sizes and hashes, synced, renamed, and
the parent synced. A folder is whole if it holds exactly the files of its manifest, each a regular
file with the bytes that were written, and if the manifest names the folder. Manifests of earlier
versions name nobody.

`BackgroundDisk` writes off the training path. Its disk is always as it was, or could have been, at
some earlier moment of the run: nothing is removed before what made it superfluous is written. So a
crash costs training, never a result.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msft.errors import explaining
from msft.files import (
    FILE,
    FOLDER,
    kind_of,
    open_to_read,
    read_bytes,
    refuse_other_kind,
    remove,
    sync,
)

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
        """The manifest in a file; ValueError where the content is no manifest."""
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


@dataclass(slots=True, eq=False)
class Hashes:
    """Digests of files. One that has not changed since it was hashed is not hashed again, so a
    checkpoint is linked and handed out for the price of a look at its inode.

    at_once: bytes that are read at a time.
    strict: a file whose time of writing was set back is another one, and so is one that was linked.
    """

    at_once: int = HASHED_AT_ONCE
    strict: bool = False
    _known: dict[_Identity, Digest] = field(default_factory=dict)

    def identity(self, path: Path) -> _Identity:
        """A key that changes with every write to a file; hard links of a file share the key."""
        found = path.lstat()
        times = (found.st_mtime_ns, found.st_ctime_ns) if self.strict else (found.st_mtime_ns,)
        return found.st_dev, found.st_ino, found.st_size, *times

    def fresh(self, path: Path) -> Digest:
        """Hash a file, in large pieces: the training thread waits between two pieces."""
        digest = hashlib.sha256()
        before = self.identity(path)
        with open_to_read(path) as file:
            while piece := file.read(self.at_once):
                digest.update(piece)
        found = before[2], digest.hexdigest()
        if before == self.identity(path) and time.time_ns() - before[-1] > SETTLED_NS:
            self._known[before] = found
        else:
            self._known.pop(before, None)
        return found

    def of(self, path: Path) -> Digest:
        """The digest of a file, from memory where nothing has touched the file since."""
        return self._known.get(self.identity(path)) or self.fresh(path)

    def known(self, path: Path) -> list[int] | None:
        """The identity by which a file is recognised later; None: the file changed too recently."""
        identity = self.identity(path)
        return [*identity] if identity in self._known else None

    def remember(self, identity: Iterable[int], digest: Digest) -> None:
        """Take over a digest that another process computed."""
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


class Codec(Protocol):
    """How an engine's state becomes files and back."""

    def write(self, payload: Any, folder: Path) -> None: ...

    def read(self, folder: Path) -> Any: ...


@dataclass(slots=True, eq=False)
class MemoryTier:
    """Device or host memory, for at most `capacity` checkpoints.

    copy: brings a payload there; it may still be under way when it returns.
    arrive: is called before a payload is used, so that its copy is whole by then.
    """

    name: str
    capacity: int
    copy: Callable[[Any], Any] = lambda payload: payload
    arrive: Callable[[], None] = lambda: None
    _held: dict[str, Any] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def put(self, key: str, payload: Any) -> None:
        self._held[key] = self.copy(payload)

    def get(self, key: str) -> Any | None:
        self.arrive()
        return self._held.get(key)

    def lend(self, key: str) -> Any | None:
        """A payload for a writer. The writer waits for the copy, so training does not."""
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
        """part_bytes: size of the largest part, to say how much a full disk lacks."""
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
        """Whether a part is there as it was written; a damaged part is set aside."""
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
        """Rename a folder before it is removed: a half removed one would look damaged."""
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
        """Keys that wait to be written or removed: none."""
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


MOST_WAITING = 4
"""Payloads that may wait: two checkpoints with their moments, besides the one being written."""

_REMOVAL = object()


class BackgroundDisk:
    """A disk tier whose `put` and `drop` return at once; one thread does them in order.

    hand_over: is called with a payload as it is put, in the thread that puts it.
    """

    name = DiskTier.name

    def __init__(
        self,
        disk: DiskTier,
        hand_over: Callable[[Any], Any] = lambda payload: payload,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._disk = disk
        self._hand_over = hand_over
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: dict[str, Any] = {}
        self._current: tuple[str, Any] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __contains__(self, key: str) -> bool:
        with self._changed:
            known, payload = self._pending(key)
        return payload is not None if known else key in self._disk

    def put(self, key: str, payload: Any) -> None:
        """Queue a payload for the writing thread; blocks while the queue is full."""
        payload = self._hand_over(payload)
        with self._changed:
            self._wait(lambda: self._num_writes(besides=key) < self._most_waiting)
            self._place(key, payload)

    def get(self, key: str) -> Any | None:
        with self._changed:
            known, payload = self._pending(key)
        return payload if known else self._disk.get(key)

    def is_whole(self, key: str) -> bool:
        """Whether a part is on disk as it was written; a part that still waits is not."""
        with self._changed:
            known, _ = self._pending(key)
        return not known and self._disk.is_whole(key)

    def drop(self, key: str) -> None:
        """Queue a removal behind the writes that wait now, instead of a write of this key that has
        not begun."""
        with self._changed:
            self._raise_error()
            self._place(key, _REMOVAL)

    def listed(self) -> list[str]:
        self.flush()
        return self._disk.listed()

    def flush(self) -> None:
        """Wait until everything is done; what went wrong is raised here at the latest."""
        with self._changed:
            self._begin()
            self._wait(lambda: not self._waiting and self._current is None)

    def waiting(self) -> list[str]:
        """Keys that wait to be written or removed."""
        with self._changed:
            return [*self._waiting, *([self._current[0]] if self._current else [])]

    def folders(self, key: str) -> list[Path]:
        return self._disk.folders(key)

    def _pending(self, key: str) -> tuple[bool, Any | None]:
        """Whether something is still to be done with a key, and what it will hold then."""
        if key in self._waiting:
            payload = self._waiting[key]
        elif self._current is not None and self._current[0] == key:
            payload = self._current[1]
        else:
            return False, None
        return True, None if payload is _REMOVAL else payload

    def _place(self, key: str, payload: Any) -> None:
        """Put an entry at the end of the queue, in place of an earlier entry of its key.

        A removal may have waited for a write that is cancelled here, so then all of them wait for
        the writes that are left, and for what was put instead.
        """
        cancelled = self._waiting.pop(key, _REMOVAL) is not _REMOVAL
        self._waiting[key] = payload
        if cancelled:
            for other in [k for k, waits in self._waiting.items() if waits is _REMOVAL]:
                self._waiting[other] = self._waiting.pop(other)
        self._begin()

    def _num_writes(self, besides: str) -> int:
        return sum(k != besides and waits is not _REMOVAL for k, waits in self._waiting.items())

    def _begin(self) -> None:
        """Start the thread if there is work; it ends with the work, so nobody has to end it."""
        if self._thread is None and self._waiting:
            self._thread = threading.Thread(target=self._work, name="msft-writer", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Do what has waited longest; False: nothing waits."""
        with self._changed:
            if not self._waiting:
                self._thread = None
                return False
            key = next(iter(self._waiting))
            payload = self._waiting.pop(key)
            self._current = key, payload
        error: BaseException | None = None
        try:
            if payload is _REMOVAL:
                self._disk.drop(key)
            else:
                self._disk.put(key, payload)
        except BaseException as caught:  # it belongs to the thread that trains
            error = caught
        with self._changed:
            self._current = None
            if error is not None:
                self._error = error
                self._waiting.clear()
            self._changed.notify_all()
        return True

    def _wait(self, done: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or done())
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
