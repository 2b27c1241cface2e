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

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msft.errors import StoreError
from msft.search.rollout import BASE, LEAN, CheckpointId, DiskPolicy, Keep
from msft.store.disk import MemoryTier, NoDisk
from msft.store.ranked import DurableTier

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


Tier = MemoryTier | DurableTier


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
        disk: DurableTier | None = None,
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

    def park(self) -> None:
        """Before an orderly stop: what only memory holds goes to disk, the newest first."""
        if self._disk is None or not self._live:
            return
        for checkpoint in reversed(self._ledger):
            self._write(self._disk, checkpoint, PARTS)
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
