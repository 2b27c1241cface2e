"""The store: what is kept, where, and that nothing needed is ever lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mortal import LateDisk, quick_folder
from msft.errors import StoreError
from msft.search.rollout import BASE, CheckpointId, checkpoint_id
from msft.store.store import (
    BackgroundDisk,
    CheckpointStore,
    DiskTier,
    MemoryTier,
    Retained,
    retained,
)
from msft.testing import JsonCodec

A, B, C, D = (checkpoint_id(0, tick) for tick in (1, 2, 3, 4))


def ids(*checkpoints: CheckpointId) -> frozenset[CheckpointId]:
    return frozenset(checkpoints)


def entered(store: CheckpointStore, checkpoint: CheckpointId, content: object = 0) -> None:
    """A new checkpoint in its place, with moments beside it."""
    store.enter(checkpoint)
    store.put(checkpoint, lambda: content, lambda: {"moments": content})


def only(*checkpoints: CheckpointId) -> Retained:
    return Retained(ids(*checkpoints), ids(*checkpoints), ids())


def test_the_contenders_the_newest_and_the_best_are_retained() -> None:
    needed = retained(
        start=A, latest=D, contenders=[B, C], best=A, keep_start=False, moments="none"
    )
    assert needed.weights == ids(A, B, C, D)
    assert needed.training == ids(D), "the newest is where a killed run goes on"


def test_the_start_stays_only_while_somebody_needs_it() -> None:
    def weights(contenders: list[CheckpointId], keep_start: bool) -> frozenset[CheckpointId]:
        return retained(
            start=A,
            latest=D,
            contenders=contenders,
            best=None,
            keep_start=keep_start,
            moments="none",
        ).weights

    assert A not in weights([C], keep_start=False)
    assert A in weights([A, C], keep_start=False)
    assert A in weights([C], keep_start=True)


def durable(start: CheckpointId, latest: CheckpointId, best: CheckpointId, keep: bool) -> set[str]:
    needed = retained(
        start=start, latest=latest, contenders=[C], best=best, keep_start=keep, moments="none"
    )
    assert needed.weights >= {C, latest, best} - {BASE}
    return set(needed.durable)


def test_of_what_memory_holds_at_most_two_sets_are_on_disk() -> None:
    assert durable(start=A, latest=D, best=B, keep=True) == {A, B}
    assert durable(start=A, latest=D, best=A, keep=True) == {A, D}
    assert durable(start=A, latest=D, best=D, keep=True) == {A, D}
    assert durable(start=BASE, latest=D, best=B, keep=True) == {B, D}, "the base needs no copy"
    assert durable(start=A, latest=D, best=BASE, keep=True) == {A, D}


def test_without_a_start_to_train_from_everything_is_on_disk() -> None:
    assert durable(start=A, latest=D, best=B, keep=False) == {B, C, D}


def test_moments_stay_where_the_optimizer_will_go_on() -> None:
    def training(moments: str, contenders: list[CheckpointId]) -> frozenset[CheckpointId]:
        return retained(
            start=A,
            latest=D,
            contenders=contenders,
            best=B,
            keep_start=False,
            moments=moments,  # type: ignore[arg-type]
        ).training

    assert training("none", [A, C]) == ids(D)
    assert training("start", [A, C]) == ids(A, D)
    assert training("start", [C]) == ids(D), "the start itself is gone"
    assert training("contenders", [A, C]) == ids(A, C, D)


def test_the_base_model_needs_no_copy() -> None:
    needed = retained(
        start=BASE, latest=BASE, contenders=[BASE], best=BASE, keep_start=True, moments="contenders"
    )
    assert needed == Retained(ids(), ids(), ids())


def test_a_store_refuses_to_have_lost_what_could_still_be_a_peak() -> None:
    store = CheckpointStore([MemoryTier("host", 2)])
    store.go_live()
    entered(store, A, "a")
    store.keep(only(A))
    with pytest.raises(StoreError, match="r0-t2"):
        store.keep(only(A, B))
    assert store.get(A, "weights") == "a", "and then drops nothing"


def test_a_store_refuses_what_it_has_no_room_for() -> None:
    store = CheckpointStore([MemoryTier("device", 1), MemoryTier("host", 1)])
    store.enter(A)
    store.enter(B)
    with pytest.raises(StoreError, match=r"no room .* r0-t3"):
        store.enter(C)


def test_a_store_needs_a_tier() -> None:
    with pytest.raises(ValueError, match="at least one tier"):
        CheckpointStore()


def test_the_fastest_tier_with_room_is_used_and_the_disk_for_what_is_durable(
    tmp_path: Path,
) -> None:
    device, host = MemoryTier("device", 1), MemoryTier("host", 1)
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([device, host], disk)
    store.go_live()
    for checkpoint in (A, B, C):
        entered(store, checkpoint)
    places = {
        checkpoint: [f"{checkpoint}.weights" in tier for tier in (device, host, disk)]
        for checkpoint in (A, B, C)
    }
    assert places == {A: [True, False, False], B: [False, True, False], C: [False, False, True]}
    store.keep(Retained(ids(A, B, C), ids(B), ids()))
    assert disk.listed() == ["r0-t2.weights", "r0-t3.weights"], "A is in memory, C nowhere else"
    store.keep(only(B, C))
    entered(store, D)
    assert f"{D}.weights" in device, "its room is free again"


def test_a_part_that_has_no_place_is_not_made() -> None:
    made = list[str]()

    def make(part: str) -> str:
        made.append(part)
        return part

    store = CheckpointStore([MemoryTier("host", 9)])
    store.go_live()
    for checkpoint in (A, B):
        store.enter(checkpoint)
    store.keep(Retained(ids(A), ids(), ids()))
    for checkpoint in (A, B):
        store.put(checkpoint, lambda: make("weights"), lambda: make("training"))
    assert made == ["weights"], "A has lost its moments, B is gone"


def test_what_must_be_durable_is_brought_to_disk_with_its_moments(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([MemoryTier("host", 1)], disk)
    store.go_live()
    entered(store, A, "a")
    store.keep(Retained(ids(A), ids(), ids(A)))
    assert disk.listed() == []
    store.keep(Retained(ids(A), ids(A), ids(A)))
    assert disk.get("r0-t1.weights") == "a"
    assert disk.get("r0-t1.training") == {"moments": "a"}
    store.keep(only(A))
    assert disk.listed() == ["r0-t1.weights"]
    store.keep(Retained(ids(A), ids(), ids()))
    assert disk.listed() == []
    assert store.get(A, "weights") == "a"


def test_going_live_removes_what_is_not_in_the_log_and_nothing_else(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    for key in ("r0-t1.weights", "r0-t1.training", "r0-t2.weights", "r0-t3.weights"):
        disk.put(key, key)
    (tmp_path / ".r0-t3.weights.tmp").mkdir()
    (tmp_path / "r9-t9.weights.bad").mkdir()
    store = CheckpointStore([], disk)
    store.enter(A)
    store.enter(B)
    store.keep(Retained(ids(A), ids(A), ids()))
    assert len(disk.listed()) == 5, "while the log is replayed no file is touched"
    store.go_live()
    assert disk.listed() == ["r0-t1.training", "r0-t1.weights", "r0-t2.weights"]
    assert store.get(B, "weights") == "r0-t2.weights", "what is lost may be trained from it"
    store.keep(only(A))
    assert disk.listed() == ["r0-t1.weights"]
    assert (tmp_path / "r9-t9.weights.bad").is_dir(), "what was set aside stays for the user"


def test_what_was_parked_is_found_by_the_next_process_as_it_was(tmp_path: Path) -> None:
    """Before an orderly stop memory goes to disk; afterwards it is in memory again."""
    disks = [DiskTier(tmp_path, JsonCodec()) for _ in range(2)]
    memories = [MemoryTier("host", 9) for _ in range(2)]
    needed = Retained(ids(A, B, C), ids(A), ids(C))
    for disk, memory in zip(disks, memories, strict=True):
        store = CheckpointStore([memory], disk)
        if disk is disks[0]:
            store.go_live()
        for checkpoint in (A, B, C):
            if disk is disks[0]:
                entered(store, checkpoint, str(checkpoint))
            else:
                store.enter(checkpoint)
        store.keep(needed)
        if disk is disks[0]:
            assert disk.listed() == ["r0-t1.weights"]
            store.park()
    store.go_live()
    for _ in range(2):
        assert [store.get(checkpoint, "weights") for checkpoint in (A, B, C)] == [A, B, C]
        assert store.get(C, "training") == {"moments": C}
        assert not any(store.lacks(checkpoint) for checkpoint in (A, B, C))
        store.keep(needed)
        assert disks[1].listed() == ["r0-t1.weights"]
    assert all(f"{checkpoint}.weights" in memories[1] for checkpoint in (A, B, C))


@pytest.mark.parametrize(("room", "count"), [(0, 1), (3, 3), (99, 40)])
def test_what_is_parked_ends_where_the_disk_has_no_more_room(
    tmp_path: Path, room: int, count: int
) -> None:
    """Memory may hold far more than the run was to have on disk; the newest always goes there."""
    every = [checkpoint_id(0, tick) for tick in range(1, 41)]
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([MemoryTier("host", 99)], BackgroundDisk(disk))
    store.go_live()
    for checkpoint in every:
        entered(store, checkpoint)
    store.park(lambda: len(disk.listed()) < 2 * room)
    parts = [f"{each}.{part}" for each in every[-count:] for part in ("training", "weights")]
    assert disk.listed() == sorted(parts)


def test_what_memory_gets_back_comes_in_the_order_of_the_ledger(tmp_path: Path) -> None:
    """Each is a meeting of ranks, and sets have another order in every process."""
    every = [checkpoint_id(0, tick) for tick in range(1, 13)]
    disk = DiskTier(tmp_path, JsonCodec())
    for checkpoint in every:
        disk.put(f"{checkpoint}.weights", checkpoint)
    noted: list[str] = []
    store = CheckpointStore([MemoryTier("host", 99)], disk, note=noted.append)
    for checkpoint in every:
        store.enter(checkpoint)
    store.go_live()
    store.keep(Retained(ids(*every), ids(), ids()))
    assert noted == [f"{checkpoint}.weights" for checkpoint in every]
    assert disk.listed() == []
    assert [store.get(checkpoint, "weights") for checkpoint in every] == every


def test_nothing_is_parked_before_the_log_is_at_its_end(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([MemoryTier("host", 9)], disk)
    entered(store, A)
    store.park()
    assert disk.listed() == []


def test_the_use_of_the_disk_is_counted(tmp_path: Path) -> None:
    store = CheckpointStore([], DiskTier(tmp_path, JsonCodec()), 100, 10)
    for checkpoint in (A, B):
        store.enter(checkpoint)
    store.keep(only(A))
    account = store.account()
    assert (account.copies, account.peak_copies, account.peak_bytes) == (1, 2, 220)
    store.enter(C)
    account = store.account()
    assert (account.copies, account.peak_copies, account.peak_bytes) == (1, 2, 210)


class StoreMachine(RuleBasedStateMachine):
    """A store against a dict, with crashes that lose the memory and what the disk had not done."""

    @initialize(memory=st.integers(0, 3), lag=st.integers(0, 5))
    def open(self, memory: int, lag: int) -> None:
        self.place = ExitStack()
        self.folder = self.place.enter_context(quick_folder())
        self.memory = memory
        self.lag = lag
        self.calls: list[tuple[str, CheckpointId | Retained]] = []
        self.model: dict[CheckpointId, int] = {}
        self.lost: set[CheckpointId] = set()
        self.tick = 0
        self.pruned = True
        self.store = self.opened()
        self.store.go_live()

    def opened(self) -> CheckpointStore:
        self.below = DiskTier(self.folder, JsonCodec())
        self.disk = LateDisk(self.folder, self.lag)
        memory = [MemoryTier("host", self.memory)] if self.memory else []
        return CheckpointStore(memory, self.disk)

    @rule()
    def save(self) -> None:
        self.tick += 1
        checkpoint = checkpoint_id(0, self.tick)
        entered(self.store, checkpoint, self.tick)
        self.calls.append(("enter", checkpoint))
        self.model[checkpoint] = self.tick

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        weights = data.draw(st.sets(st.sampled_from(sorted(self.model))))
        durable = data.draw(st.sets(st.sampled_from(sorted(weights)))) if weights else set()
        training = data.draw(st.sets(st.sampled_from(sorted(weights)))) if weights else set()
        needed = Retained(frozenset(weights), frozenset(durable), frozenset(training))
        self.store.keep(needed)
        self.calls.append(("keep", needed))
        self.model = {checkpoint: self.model[checkpoint] for checkpoint in weights}
        self.lost &= weights
        self.pruned = True
        assert all(f"{checkpoint}.weights" in self.disk for checkpoint in durable - self.lost)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def secure(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(set(self.model) - self.lost) or [BASE]))
        self.store.secure(checkpoint)
        self.calls.append(("secure", checkpoint))
        assert checkpoint == BASE or f"{checkpoint}.weights" in self.disk

    @rule()
    def flush(self) -> None:
        self.store.flush()
        known = set(self.model) if self.pruned else {c for call, c in self.calls if call == "enter"}
        assert {key.split(".")[0] for key in self.below.listed()} <= known

    @rule(orderly=st.booleans())
    def crash(self, orderly: bool) -> None:
        """Memory is lost, the ledger is replayed, and rubbish of the last moment is there."""
        if orderly:
            self.store.park()
        kept = {checkpoint for checkpoint in self.model if f"{checkpoint}.weights" in self.below}
        assert not orderly or kept == set(self.model) - self.lost
        self.below.put(f"{checkpoint_id(0, self.tick + 1)}.weights", "not in the log")
        self.store = self.opened()
        for call, what in self.calls:
            getattr(self.store, call)(what)
        self.store.go_live()
        self.lost = set(self.model) - kept
        self.pruned = False

    @invariant()
    def what_is_held_is_what_was_put(self) -> None:
        assert self.store.held == set(self.model)
        for checkpoint, content in self.model.items():
            assert self.store.lacks(checkpoint) == (checkpoint in self.lost)
            expected = None if checkpoint in self.lost else content
            assert self.store.get(checkpoint, "weights") == expected
            assert self.store.get(checkpoint, "training") in (None, {"moments": content})

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None, derandomize=True
)
