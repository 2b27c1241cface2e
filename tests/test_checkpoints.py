"""The store: what is kept, where, and that nothing needed is ever lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mortal import quick_folder
from msft.checkpoints import CheckpointStore, Retained, StoreError, retained
from msft.rollout import BASE, CheckpointId, checkpoint_id
from msft.testing import JsonCodec
from msft.tiers import DiskTier, MemoryTier

A, B, C, D = (checkpoint_id(0, tick) for tick in (1, 2, 3, 4))


def ids(*checkpoints: CheckpointId) -> frozenset[CheckpointId]:
    return frozenset(checkpoints)


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


def test_contenders_may_be_in_memory_only_as_long_as_the_start_is_on_disk() -> None:
    def durable(keep_start: bool) -> frozenset[CheckpointId]:
        return retained(
            start=A, latest=D, contenders=[C], best=B, keep_start=keep_start, moments="none"
        ).durable

    assert durable(keep_start=True) == ids(A, B, D)
    assert durable(keep_start=False) >= ids(B, C, D)


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
    store.enter(A)
    store.put(A, "a", None)
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


def test_the_fastest_tier_with_room_is_used_first_and_the_disk_always(tmp_path: Path) -> None:
    device, host = MemoryTier("device", 1), MemoryTier("host", 1)
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([device, host], disk)
    store.go_live()
    for checkpoint in (A, B, C):
        store.enter(checkpoint)
        store.put(checkpoint, str(checkpoint), {})
    places = {
        checkpoint: [f"{checkpoint}.weights" in tier for tier in (device, host, disk)]
        for checkpoint in (A, B, C)
    }
    assert places == {A: [True, False, True], B: [False, True, True], C: [False, False, True]}
    store.keep(Retained(ids(A, B, C), ids(B), ids()))
    assert disk.listed() == ["r0-t2.weights", "r0-t3.weights"], "A is in memory, C nowhere else"
    store.keep(only(B, C))
    store.enter(D)
    store.put(D, "d", {})
    assert f"{D}.weights" in device, "its room is free again"


def test_what_a_resume_starts_from_is_brought_to_disk(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    store = CheckpointStore([MemoryTier("host", 1)], disk)
    store.go_live()
    store.enter(A)
    store.put(A, "a", {"m": 1})
    store.keep(Retained(ids(A), ids(), ids(A)))
    assert disk.listed() == []
    store.secure(A)
    assert disk.get("r0-t1.weights") == "a"
    assert disk.get("r0-t1.training") == {"m": 1}
    store.keep(only(A))
    assert disk.listed() == ["r0-t1.weights"]


def test_going_live_removes_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    for key in ("r0-t1.weights", "r0-t1.training", "r0-t2.weights", "r0-t2.training"):
        disk.put(key, 0)
    (tmp_path / ".r0-t3.weights.tmp").mkdir()
    (tmp_path / "r9-t9.weights.bad").mkdir()
    store = CheckpointStore([], disk)
    store.enter(A)
    store.enter(B)
    store.keep(Retained(ids(A), ids(A), ids()))
    assert len(disk.listed()) == 5, "while the log is replayed no file is touched"
    store.go_live()
    assert disk.listed() == ["r0-t1.weights"]
    assert (tmp_path / "r9-t9.weights.bad").is_dir(), "what was set aside stays for the user"


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
    """A store against a dict, with crashes that lose the memory."""

    @initialize(memory=st.integers(0, 3))
    def open(self, memory: int) -> None:
        self.place = ExitStack()
        self.folder = self.place.enter_context(quick_folder())
        self.memory = memory
        self.calls: list[tuple[str, CheckpointId | Retained]] = []
        self.model: dict[CheckpointId, int] = {}
        self.lost: set[CheckpointId] = set()
        self.tick = 0
        self.store = self.opened()
        self.store.go_live()

    def opened(self) -> CheckpointStore:
        self.disk = DiskTier(self.folder, JsonCodec())
        memory = [MemoryTier("host", self.memory)] if self.memory else []
        return CheckpointStore(memory, self.disk)

    @rule()
    def save(self) -> None:
        self.tick += 1
        checkpoint = checkpoint_id(0, self.tick)
        self.store.enter(checkpoint)
        self.store.put(checkpoint, self.tick, {"moments": self.tick})
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

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def secure(self, data: st.DataObject) -> None:
        checkpoint = data.draw(st.sampled_from(sorted(set(self.model) - self.lost) or [BASE]))
        self.store.secure(checkpoint)
        self.calls.append(("secure", checkpoint))
        assert checkpoint == BASE or f"{checkpoint}.weights" in self.disk

    @rule()
    def crash(self) -> None:
        """Memory is lost, the ledger is replayed, and rubbish of the last moment is there."""
        kept = {checkpoint for checkpoint in self.model if f"{checkpoint}.weights" in self.disk}
        self.disk.put(f"{checkpoint_id(0, self.tick + 1)}.weights", "not in the log")
        self.store = self.opened()
        for call, what in self.calls:
            getattr(self.store, call)(what)
        self.store.go_live()
        self.lost = set(self.model) - kept

    @invariant()
    def what_is_held_is_what_was_put(self) -> None:
        assert self.store.held == set(self.model)
        for checkpoint, content in self.model.items():
            expected = None if checkpoint in self.lost else content
            assert self.store.get(checkpoint, "weights") == expected
            assert self.store.get(checkpoint, "training") in (None, {"moments": content})

    @invariant()
    def nothing_else_is_on_disk(self) -> None:
        assert {key.split(".")[0] for key in self.disk.listed()} <= set(self.model)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None, derandomize=True
)
