"""The checkpoint store: what must be kept, where it is kept, and how it gets there safely.

`retained` is the whole policy, a pure function. Per stage the paper keeps each active
sub-dataset's present peak, the stage's start and the best so far; we keep the same, plus the
newest tick with its optimizer moments, from which a killed run goes on. What a resume starts from
is on disk; the other candidates stay in device or host memory while there is room: if they are
lost in a crash, they are trained again from the stage's start.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from msft.log import Disk
from msft.rollout import BASE, CheckpointId
from msft.tiers import DiskTier, MemoryTier, Tier

Part = Literal["weights", "training"]
PARTS: tuple[Part, Part] = ("weights", "training")


class StoreError(Exception):
    """A checkpoint that is needed cannot be kept or found."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Checkpoints that must be there; of those, which on disk, and which with their moments."""

    weights: frozenset[CheckpointId]
    durable: frozenset[CheckpointId]
    training: frozenset[CheckpointId]


def retained(
    *,
    start: CheckpointId,
    latest: CheckpointId,
    contenders: Iterable[CheckpointId],
    best: CheckpointId | None,
    keep_start: bool,
    moments: Literal["none", "start", "contenders"],
) -> Retained:
    """What must be kept once `latest` is safe. The base model needs no copy: it can be loaded.

    contenders: every tick that could still become an active sub-dataset's peak.
    keep_start: the start must stay even when nobody's peak is there any more, because some
        contender is only in memory and would be trained again from it. Without it every
        contender stays on disk.
    moments: whose optimizer moments are needed besides the latest tick's: none (`on_rollback:
        reset`), the start's (an optimizer that is kept), or every contender's (`restore`).
    """
    peaks = set(contenders)
    fixed = {latest, *([best] if best else []), *([start] if keep_start else [])}
    training = {latest} if latest != start else set()
    if moments == "contenders":
        training |= peaks
    if moments != "none" and (latest == start or start in peaks or keep_start):
        training.add(start)
    durable = fixed if keep_start else peaks | fixed
    return Retained(
        frozenset((peaks | fixed) - {BASE}),
        frozenset(durable - {BASE}),
        frozenset(training - {BASE}),
    )


class CheckpointStore:
    """Checkpoints over tiers, fastest first, and a ledger of what is where.

    While a log is replayed only the ledger moves; no file is touched until `go_live`. So a
    resumed run places its checkpoints exactly as the uninterrupted one did.
    """

    def __init__(
        self,
        memory: Sequence[MemoryTier] = (),
        disk: DiskTier | None = None,
        weights_bytes: int = 0,
        training_bytes: int = 0,
    ) -> None:
        if not memory and disk is None:
            raise ValueError("a store needs at least one tier")
        self._memory = memory
        self._disk = disk
        self._weights_bytes = weights_bytes
        self._training_bytes = training_bytes
        self._ledger: dict[CheckpointId, set[str]] = {}
        self._moments: set[CheckpointId] = set()
        self._live = False
        self._copies = 0
        self._peak = Disk()

    @property
    def held(self) -> frozenset[CheckpointId]:
        return frozenset(self._ledger)

    def leans_on(self, start: CheckpointId, contenders: Iterable[CheckpointId]) -> bool:
        """Whether a crash would lose a contender that could be trained again from this start."""
        if self._disk is None or (start != BASE and start not in self._ledger):
            return False
        return any(
            self._ledger.get(contender, set()) - {self._disk.name} for contender in contenders
        )

    def go_live(self) -> None:
        """The replay is over: from here on files move too. What a crash left over is removed."""
        self._live = True
        if self._disk is None:
            return
        known = {
            _key(checkpoint, part)
            for checkpoint, tiers in self._ledger.items()
            if "disk" in tiers
            for part in PARTS
            if part == "weights" or checkpoint in self._moments
        }
        for key in self._disk.listed():
            if key not in known:
                self._disk.drop(key)

    def enter(self, checkpoint: CheckpointId) -> None:
        """Give a new checkpoint its places: the first memory tier with room, and the disk."""
        room = next((tier.name for tier in self._memory if self._count(tier) < tier.capacity), None)
        tiers = {name for name in (room, self._disk and self._disk.name) if name}
        if not tiers:
            raise StoreError(
                f"no room for checkpoint {checkpoint}: memory holds {len(self._ledger)} that could "
                "still become a peak, and there is no disk to go to"
            )
        self._ledger[checkpoint] = tiers
        self._moments.add(checkpoint)
        self._note_peak()

    def put(self, checkpoint: CheckpointId, weights: Any, training: Any) -> None:
        """Write a checkpoint that was entered; when this returns, it is as safe as its places."""
        for tier in self._tiers(checkpoint):
            tier.put(_key(checkpoint, "weights"), weights)
            if checkpoint in self._moments:
                tier.put(_key(checkpoint, "training"), training)

    def get(self, checkpoint: CheckpointId, part: Part) -> Any | None:
        """From the fastest tier that has it; None if no tier has it any more."""
        for tier in self._tiers(checkpoint):
            payload = tier.get(_key(checkpoint, part))
            if payload is not None:
                return payload
        return None

    def has(self, checkpoint: CheckpointId, part: Part) -> bool:
        """Whether `get` would give it: a damaged one is found here, not where it is needed."""
        return self.get(checkpoint, part) is not None

    def secure(self, checkpoint: CheckpointId) -> None:
        """Make sure that a checkpoint is on disk, since a resume will start from it."""
        tiers = self._ledger.get(checkpoint)
        if self._disk is None or tiers is None or self._disk.name in tiers:
            return
        if self._live:
            for part in PARTS:
                payload = self.get(checkpoint, part)
                if payload is not None:
                    self._disk.put(_key(checkpoint, part), payload)
        tiers.add(self._disk.name)
        self._note_peak()

    def keep(self, needed: Retained) -> None:
        """Drop what is not needed; refuse if something needed is not there."""
        lost = needed.weights - self.held
        if lost:
            raise StoreError(f"checkpoints that could still be needed are gone: {sorted(lost)}")
        for checkpoint, tiers in list(self._ledger.items()):
            for tier in self._tiers(checkpoint):
                spare = tier is self._disk and len(tiers) > 1 and checkpoint not in needed.durable
                if spare and self._live and checkpoint in needed.weights:
                    self._bring_back(checkpoint, PARTS[: 1 + (checkpoint in needed.training)])
                if spare or checkpoint not in needed.weights:
                    self._drop(tier, checkpoint, PARTS)
                    tiers.discard(tier.name)
                elif checkpoint in self._moments - needed.training:
                    self._drop(tier, checkpoint, ("training",))
            if not tiers:
                del self._ledger[checkpoint]
        self._moments &= needed.training
        self._copies = self._usage()[0]

    def _bring_back(self, checkpoint: CheckpointId, parts: Iterable[Part]) -> None:
        """Memory that a crash has emptied gets a checkpoint from the disk, which will drop it."""
        memory = self._tiers(checkpoint)[0]
        for key in (_key(checkpoint, part) for part in parts):
            payload = None if key in memory or self._disk is None else self._disk.get(key)
            if payload is not None:
                memory.put(key, payload)

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

    def _drop(self, tier: Tier, checkpoint: CheckpointId, parts: Iterable[Part]) -> None:
        if self._live:
            for part in parts:
                tier.drop(_key(checkpoint, part))

    def _count(self, tier: MemoryTier) -> int:
        return sum(tier.name in tiers for tiers in self._ledger.values())

    def _tiers(self, checkpoint: CheckpointId) -> list[Tier]:
        tiers: list[Tier] = [*self._memory, *([self._disk] if self._disk else [])]
        return [tier for tier in tiers if tier.name in self._ledger.get(checkpoint, ())]


def _key(checkpoint: CheckpointId, part: Part) -> str:
    return f"{checkpoint}.{part}"
