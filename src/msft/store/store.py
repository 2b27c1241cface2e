"""The checkpoint store: which checkpoints are kept, where, and how they get there safely.

    enter   a new checkpoint gets its place: the first memory tier with room, else the disk
    put     its weights and its training state (moments, feed) go there
    keep    what `retained` says stays, on disk where a crash may not lose it; the rest goes
    get     the fastest tier that has a part gives it

What must be kept is a pure function, `retained`. Per stage the paper keeps each active
sub-dataset's present peak, the stage's start and the best so far; we keep the same, plus the newest
tick with its optimizer moments. While memory has room, at most two sets of weights are on disk
(`lean`), or all that the paper has there (`paper`). What only memory holds is trained again if the
process dies, from the stage's start at worst.

A ledger says what is where. While a log is replayed only the ledger moves, so a resumed run comes
to the same places, and to the same numbers of copies in its log, as one that was never stopped.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msft.errors import StoreError, explaining
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
from msft.search.rollout import BASE, LEAN, CheckpointId, DiskPolicy, Keep

# The places that hold checkpoints: memory, a disk, and a disk that a thread writes to.

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
                {name: (int(size), str(digest)) for name, (size, digest) in part.items()}
                for part in (files, beside)
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
        most = min(self.at_once, before[2] + 1)  # a small file needs no large buffer
        with open_to_read(path) as file:
            while piece := file.read(most):
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


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A payload that was dropped, but is written first, so that its checkpoint is whole."""

    payload: Any


class BackgroundDisk:
    """A disk tier whose `put` and `drop` return at once; one thread does them in order.

    A write that has not begun is not done where its key is dropped. But once one part of a
    checkpoint has begun, all its parts are written: else a disk that takes longer for a checkpoint
    than a tick takes would never have a whole one, and removals, which wait for that, never come.

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
        self._begun = ""
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
        """Queue a removal behind the writes that wait now, instead of a write of this key, unless
        that is the rest of a checkpoint that has begun."""
        with self._changed:
            self._raise_error()
            waits = self._waiting.get(key, _REMOVAL)
            if waits is _REMOVAL or _checkpoint_of(key) != self._begun:
                self._place(key, _REMOVAL)
            elif not isinstance(waits, _Doomed):
                self._waiting[key] = _Doomed(waits)

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
        return True, None if payload is _REMOVAL or isinstance(payload, _Doomed) else payload

    def _place(self, key: str, payload: Any) -> None:
        """Put an entry at the end of the queue, in place of an earlier entry of its key.

        A removal waits for the writes before it. Where one of those is cancelled here, the removal
        waits for the writes that are left, and for what was put instead. A removal before it stays
        where it is: where ticks are faster than the disk, every tick cancels a write, and a removal
        that moved each time would never come.
        """
        behind = [*self._waiting][[*self._waiting, key].index(key) + 1 :]
        cancelled = self._waiting.pop(key, _REMOVAL) is not _REMOVAL
        self._waiting[key] = payload
        if cancelled:
            for other in [k for k in behind if self._waiting[k] is _REMOVAL]:
                self._waiting[other] = self._waiting.pop(other)
        self._begin()

    def _num_writes(self, besides: str) -> int:
        """Writes that wait, besides that of a key and those of the checkpoint being written."""
        return sum(
            key != besides and waits is not _REMOVAL and not isinstance(waits, _Doomed)
            for key, waits in self._waiting.items()
        )

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
            order = self._waiting.pop(key)
            doomed = isinstance(order, _Doomed)
            payload = order.payload if doomed else order
            self._current = key, _REMOVAL if doomed else payload
            if payload is not _REMOVAL:
                self._begun = _checkpoint_of(key)
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
            if doomed:
                self._waiting.setdefault(key, _REMOVAL)
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


# What is kept, and where.

if TYPE_CHECKING:
    from msft.store.ranked import RankedDisk

DurableTier: TypeAlias = "DiskTier | BackgroundDisk | RankedDisk | NoDisk"
Tier: TypeAlias = "MemoryTier | DurableTier"

Part = Literal["weights", "training"]

WEIGHTS: tuple[Part] = ("weights",)
PARTS: tuple[Part, Part] = ("weights", "training")
"""A checkpoint's weights, and its optimizer's moments with the feed's state."""

MOST_DURABLE = 2
"""Sets of weights on disk at a time, as long as memory holds the others (`lean`)."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Checkpoints that must be there; of those, which on disk, and which with their moments.

    moved: what is on disk leaves memory, and what is not needed goes before what is new comes.
    """

    weights: frozenset[CheckpointId]
    durable: frozenset[CheckpointId]
    training: frozenset[CheckpointId]
    moved: bool = False


def wanted(
    keep: Keep, ticks: Sequence[CheckpointId], contenders: Collection[int]
) -> frozenset[CheckpointId]:
    """The ticks of a roll-out that its method may still ask for, besides the best.

    ticks: those there are, its start first.
    contenders: numbers of those that could still become a peak. The first of them never moves
        back, so a span that ends at the peaks needs nothing before it.
    """
    match keep:
        case "contenders":
            return frozenset(ticks[tick] for tick in contenders)
        case "span":
            return frozenset(ticks[min(contenders, default=0) :])
        case "best":
            return frozenset()
        case "all":
            return frozenset(ticks)
    return frozenset(checkpoint for tick, checkpoint in enumerate(ticks) if tick in keep)


def retained(
    *,
    start: CheckpointId,
    latest: CheckpointId,
    contenders: Iterable[CheckpointId],
    best: CheckpointId | None,
    keep_start: bool,
    moments: Literal["none", "start", "contenders"],
    policy: DiskPolicy = LEAN,
) -> Retained:
    """What must be kept once `latest` is safe. The base model needs no copy: it can be loaded.

    contenders: every tick that the method may still ask for: those that could become an active
        sub-dataset's peak, or what `wanted` says.
    keep_start: the start must stay even when nobody's peak is there any more, because something
        is only in memory and would be trained again from it. Then the best and the start are on
        disk, and the newest tick where that makes no third set. Without it everything is.
    moments: whose optimizer moments are needed besides the latest tick's: none (`on_rollback:
        reset`), the start's (an optimizer that is kept), or every contender's (`restore`).
    policy: with `paper` the start stays as long as its roll-out goes on, and contenders, start and
        best are on disk; the newest tick is only where it is one of them, or memory has no room.
    """
    peaks, paper = set(contenders), policy == "paper"
    keep_start = keep_start or paper
    lasting = {*([best] if best else []), *([start] if keep_start else [])}
    training = {latest} if latest != start else set()
    if moments == "contenders":
        training |= peaks
    if moments != "none" and (latest == start or start in peaks or keep_start):
        training.add(start)
    weights = peaks | lasting | {latest}
    if paper:
        durable = peaks | lasting
    elif not keep_start:
        durable = weights
    else:
        more = lasting | {latest}
        durable = more if len(more - {BASE}) <= MOST_DURABLE else lasting
    return Retained(
        frozenset(weights - {BASE}),
        frozenset(durable - {BASE}),
        frozenset(training - {BASE}),
        moved=paper,
    )


def parts_of(checkpoint: CheckpointId, with_moments: Collection[CheckpointId]) -> Sequence[Part]:
    """The parts of a checkpoint that are kept: its moments only where somebody needs them."""
    return PARTS if checkpoint in with_moments else WEIGHTS


@dataclass(frozen=True, slots=True)
class Disk:
    """Sets of weights on disk while a tick was trained; the most sets and bytes till its line."""

    copies: int = 0
    peak_copies: int = 0
    peak_bytes: int = 0


class CheckpointStore:
    """Checkpoints over tiers, fastest first, and a ledger of what is where.

    No file is touched until `go_live`.
    """

    def __init__(
        self,
        memory: Sequence[MemoryTier] = (),
        disk: "DurableTier | None" = None,
        weights_bytes: int = 0,
        training_bytes: int = 0,
        note: Callable[[str], None] = lambda what: None,
    ) -> None:
        """note: is told each key that is read, so that ranks notice if they read different ones."""
        if not memory and disk is None:
            raise ValueError("a store needs at least one tier")
        self._memory = memory
        self._disk = disk
        self._note = note
        self._weights_bytes = weights_bytes
        self._training_bytes = training_bytes
        self._ledger: dict[CheckpointId, set[str]] = {}
        self._moments: set[CheckpointId] = set()
        self._entered: list[CheckpointId] = []
        self._leftover: set[str] | None = None
        self._live = False
        self._copies = 0
        self._peak = Disk()

    def ledger_alone(self) -> "CheckpointStore":
        """An empty store with the same tiers, whose ledger moves as that of this store."""
        memory = [MemoryTier(tier.name, tier.capacity) for tier in self._memory]
        disk = None if self._disk is None else NoDisk()
        return CheckpointStore(memory, disk, self._weights_bytes, self._training_bytes)

    @property
    def held(self) -> frozenset[CheckpointId]:
        return frozenset(self._ledger)

    def would_lose(self, start: CheckpointId, others: Iterable[CheckpointId]) -> bool:
        """Whether memory holds one of the others: a crash loses it, and training from the start
        makes it again."""
        if self._disk is None or (start != BASE and start not in self._ledger):
            return False
        return any(self._ledger.get(other, set()) - {self._disk.name} for other in others)

    def go_live(self) -> None:
        """The replay is over: from here on files move too.

        What is in no line of the log is removed. Checkpoints that the log has seen and that would
        be gone by now (the crash came before their removal, or an orderly stop put them there)
        stay until the next pruning: what is lost can be trained again from them.
        """
        self._live = True
        self._leftover = set()
        if self._disk is None:
            return
        planned = self._planned()
        logged = {_key(checkpoint, part) for checkpoint in self._entered for part in PARTS}
        there = {key for key in self._disk.listed() if _OURS.fullmatch(key)}
        for key in sorted(there - logged):
            self._disk.drop(key)
        self._disk.flush()  # before one of them is trained again under the same name
        self._leftover = (there & logged) - planned

    def enter(self, checkpoint: CheckpointId, moments: bool = True) -> None:
        """Give a new checkpoint its place: the first memory tier with room, else the disk.

        moments: it has some; an average has none.
        """
        room = next((tier.name for tier in self._memory if self._count(tier) < tier.capacity), None)
        name = room or (self._disk and self._disk.name)
        if not name:
            raise StoreError(
                f"no room for checkpoint {checkpoint}: memory holds {len(self._ledger)} that could "
                "still be needed, and there is no disk to go to"
            )
        self._ledger[checkpoint] = {name}
        if moments:
            self._moments.add(checkpoint)
        self._entered.append(checkpoint)
        self._note_peak()

    def put(
        self, checkpoint: CheckpointId, weights: Callable[[], Any], training: Callable[[], Any]
    ) -> None:
        """Write an entered checkpoint to its tiers; a part is only made if a tier takes it."""
        tiers = self._tiers(checkpoint)
        parts = parts_of(checkpoint, self._moments) if tiers else ()
        for part in parts:
            payload = weights() if part == "weights" else training()
            for tier in tiers:
                tier.put(_key(checkpoint, part), payload)

    def get(self, checkpoint: CheckpointId, part: Part) -> Any | None:
        """A part from the fastest tier that has it; None: no tier has it any more."""
        key = _key(checkpoint, part)
        self._note(key)
        tiers = self._sources(checkpoint, key)
        return next((held for tier in tiers if (held := tier.get(key)) is not None), None)

    def has(self, checkpoint: CheckpointId, part: Part) -> bool:
        """Whether `get` would give a part: damage is found here, not where the part is needed."""
        return self.get(checkpoint, part) is not None

    def lacks(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint that is needed was lost."""
        key = _key(checkpoint, "weights")
        return checkpoint in self._ledger and not any(
            key in tier for tier in self._sources(checkpoint, key)
        )

    def _sources(self, checkpoint: CheckpointId, key: str) -> list[Tier]:
        """The tiers that may have a part, fastest first; after a resume also the disk, as long as
        what an earlier process left there has not been pruned."""
        tiers = self._tiers(checkpoint)
        if self._disk is not None and key in (self._leftover or ()):
            tiers.append(self._disk)
        return tiers

    def is_whole(self, checkpoint: CheckpointId) -> bool:
        """Whether a checkpoint's weights are on disk as they were written, fit to be handed out.

        Damaged ones are set aside, and written again where memory holds them. Without a disk there
        is nothing to damage.
        """
        if self._disk is None:
            return True
        whole = self._disk.is_whole(_key(checkpoint, "weights"))
        if not whole and self._disk.name in self._ledger.get(checkpoint, ()):
            self._write(self._disk, checkpoint, WEIGHTS)
        return whole

    def folders(self, checkpoint: CheckpointId) -> list[Path]:
        """The folders of a checkpoint's weights on disk: one, or one for each rank that wrote."""
        return self._disk.folders(_key(checkpoint, "weights")) if self._disk else []

    def secure(self, checkpoint: CheckpointId, parts: Iterable[Part] = WEIGHTS) -> None:
        """Have the disk hold a checkpoint as well."""
        tiers = self._ledger.get(checkpoint)
        if self._disk is None or tiers is None:
            return
        tiers.add(self._disk.name)
        self._note_peak()
        self._write(self._disk, checkpoint, parts)

    def keep(self, needed: Retained) -> None:
        """Secure what must be on disk, drop what is not needed; refuse if something is gone.

        What is new is secured before anything goes, so that a crash costs little. `needed.moved`
        has it the other way, so that the disk never holds more than what is needed: a crash in
        between costs what is lost with memory too, training from the start of the roll-out.
        """
        lost = needed.weights - self.held
        if lost:
            raise StoreError(f"checkpoints that could still be needed are gone: {sorted(lost)}")
        if self._leftover is not None:
            self._bring_back(needed)
        if needed.moved:
            self._discard(needed)
        for checkpoint in [each for each in self._ledger if each in needed.durable]:
            self.secure(checkpoint, parts_of(checkpoint, needed.training))
        if needed.moved:
            self._leave_memory(needed.durable)
        else:
            self._discard(needed)
        self._copies = self._usage()[0]
        if self._disk is not None and self._leftover is not None:
            for key in sorted(self._leftover - self._planned()):
                self._disk.drop(key)
            self._leftover = None

    def _discard(self, needed: Retained) -> None:
        """Drop what is not needed: whole checkpoints, moments, and what is on disk needlessly."""
        for checkpoint, tiers in list(self._ledger.items()):
            for tier in self._tiers(checkpoint):
                spare = tier is self._disk and len(tiers) > 1 and checkpoint not in needed.durable
                if spare or checkpoint not in needed.weights:
                    self._drop(tier, checkpoint, PARTS)
                    tiers.discard(tier.name)
                elif checkpoint in self._moments - needed.training:
                    self._drop(tier, checkpoint, ("training",))
            if not tiers:
                del self._ledger[checkpoint]
        self._moments &= needed.training

    def _leave_memory(self, durable: Collection[CheckpointId]) -> None:
        """Let memory forget what the disk has."""
        if self._disk is None:
            return
        for checkpoint in [each for each in self._ledger if each in durable]:
            for tier in self._tiers(checkpoint)[:-1]:
                self._drop(tier, checkpoint, PARTS)
            self._ledger[checkpoint] = {self._disk.name}

    def flush(self) -> None:
        """Wait until the disk is as the ledger says."""
        if self._disk is not None:
            self._disk.flush()

    def park(self, has_room: Callable[[], bool] = lambda: True) -> None:
        """Before an orderly stop: what only memory holds goes to disk, the newest first.

        has_room: is asked before each of the others, since memory may hold far more than the disk.
        """
        if self._disk is None or not self._live:
            return
        for number, checkpoint in enumerate(reversed(self._ledger)):
            if number and not has_room():
                break
            self._write(self._disk, checkpoint, PARTS)
            self._disk.flush()
        self._disk.flush()

    def _bring_back(self, needed: Retained) -> None:
        """Memory that was emptied gets back what the disk has of it and may drop from now on."""
        for checkpoint in [each for each in self._ledger if each in needed.weights]:
            tier = self._tiers(checkpoint)[0]
            for part in parts_of(checkpoint, needed.training):
                key = _key(checkpoint, part)
                payload = None if key in tier else self.get(checkpoint, part)
                if payload is not None:
                    tier.put(key, payload)

    def account(self) -> Disk:
        """Copies on disk since the last pruning, and the most there were since the last call."""
        account = replace(self._peak, copies=self._copies)
        self._peak = Disk()
        return account

    def _note_peak(self) -> None:
        copies, size = self._usage()
        most = max(copies, self._peak.peak_copies)
        self._peak = Disk(peak_copies=most, peak_bytes=max(size, self._peak.peak_bytes))

    def _usage(self) -> tuple[int, int]:
        """Sets of weights and bytes on disk."""
        here = [c for c, tiers in self._ledger.items() if self._disk and self._disk.name in tiers]
        moments = sum(checkpoint in self._moments for checkpoint in here)
        return len(here), len(here) * self._weights_bytes + moments * self._training_bytes

    def _planned(self) -> set[str]:
        """The keys that the ledger has on disk."""
        return {
            _key(checkpoint, part)
            for checkpoint, tiers in self._ledger.items()
            for part in PARTS
            if self._disk
            and self._disk.name in tiers
            and (part == "weights" or checkpoint in self._moments)
        }

    def _write(self, disk: DurableTier, checkpoint: CheckpointId, parts: Iterable[Part]) -> None:
        """Bring to disk what memory holds and the disk does not."""
        places = self._ledger[checkpoint]
        for tier in (tier for tier in self._memory if tier.name in places):
            for key in (_key(checkpoint, part) for part in parts):
                payload = tier.lend(key)
                if payload is not None and key not in disk:
                    disk.put(key, payload)

    def _drop(self, tier: Tier, checkpoint: CheckpointId, parts: Iterable[Part]) -> None:
        if self._live:
            for part in parts:
                tier.drop(_key(checkpoint, part))

    def _count(self, tier: MemoryTier) -> int:
        return sum(tier.name in tiers for tiers in self._ledger.values())

    def _tiers(self, checkpoint: CheckpointId) -> list[Tier]:
        tiers = [*self._memory, *([self._disk] if self._disk else [])]
        return [tier for tier in tiers if tier.name in self._ledger.get(checkpoint, ())]


_OURS = re.compile(rf"\.?(r\d+-t\d+|a\d+)\.({'|'.join(PARTS)})(\.tmp|\.old)?")
"""Names of checkpoints, unfinished ones too; what has another name is not ours to remove."""


def _key(checkpoint: CheckpointId, part: Part) -> str:
    return f"{checkpoint}.{part}"


def _checkpoint_of(key: str) -> str:
    return key.partition(".")[0]
