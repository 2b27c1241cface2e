"""The disk that works in the background: at once for who puts, in order on the disk."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mortal import LateDisk, quick_folder
from msft.store.store import BackgroundDisk, DiskTier
from msft.testing import JsonCodec

LONG = 30.0
"""Seconds until a test gives up on another thread."""


class HeldCodec(JsonCodec):
    """Writes a payload only when it is let; says when it has begun."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.error: OSError | None = None

    def write(self, payload: Any, folder: Path) -> None:
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.let.acquire(timeout=LONG)
        if self.error is not None:
            raise self.error
        super().write(payload, folder)


class Held:
    """A disk in the background over a codec that waits, and what is really on it."""

    def __init__(self, folder: Path) -> None:
        self.codec = HeldCodec()
        self.below = DiskTier(folder, self.codec)
        self.disk = BackgroundDisk(self.below)

    def has_begun(self) -> bool:
        return self.codec.begun.acquire(timeout=LONG)

    def let_write(self, count: int = 1) -> None:
        self.codec.let.release(count)

    def in_another_thread(self, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    held = Held(tmp_path)
    yield held
    held.let_write(100)


def test_put_returns_while_it_is_being_written(held: Held) -> None:
    held.disk.put("a", 1)
    assert held.has_begun()
    assert "a" not in held.below
    assert ("a" in held.disk, held.disk.get("a")) == (True, 1), "it is as if it were there"
    held.let_write()
    held.disk.flush()
    assert held.below.get("a") == held.disk.get("a") == 1
    assert held.codec.threads != [threading.current_thread()]


def test_no_thread_is_left_when_all_is_done(held: Held) -> None:
    for key in ("a", "b"):
        held.disk.put(key, 1)
        held.let_write()
        held.disk.flush()
        held.codec.threads[-1].join(LONG)
        assert not held.codec.threads[-1].is_alive()


def test_put_waits_when_too_much_is_waiting(held: Held) -> None:
    held.disk.put("writing", 0)
    assert held.has_begun()
    for number in range(4):
        held.disk.put(f"waiting {number}", number)
    arrived = threading.Event()

    def one_more() -> None:
        held.disk.put("one more", 5)
        arrived.set()

    thread = held.in_another_thread(one_more)
    assert not arrived.wait(0.05)
    held.let_write()
    thread.join(LONG)
    assert arrived.is_set()
    held.let_write(5)
    held.disk.flush()
    assert len(held.below.listed()) == 6


def test_what_is_dropped_before_it_was_begun_is_never_written(held: Held) -> None:
    held.disk.put("writing", 0)
    assert held.has_begun()
    held.disk.put("superseded", 1)
    held.disk.put("newest", 2)
    held.disk.drop("superseded")
    assert "superseded" not in held.disk
    assert held.disk.get("superseded") is None
    held.let_write(2)
    held.disk.flush()
    assert held.below.listed() == ["newest", "writing"]
    assert len(held.codec.threads) == 2


def test_what_is_dropped_while_it_is_written_is_removed_after(held: Held) -> None:
    held.disk.put("a", 1)
    assert held.has_begun()
    held.disk.drop("a")
    assert "a" not in held.disk
    held.let_write()
    held.disk.flush()
    assert held.below.listed() == []


def test_old_checkpoints_leave_a_disk_that_is_slower_than_the_ticks(held: Held) -> None:
    """Each tick's set replaces the one before, and the disk writes one set in two ticks."""
    held.disk.put("tick 0", 0)
    assert held.has_begun()
    most = 0
    for tick in range(1, 21):
        held.disk.put(f"tick {tick}", tick)
        held.disk.drop(f"tick {tick - 1}")
        if tick % 2 == 0:
            held.let_write()
            assert held.has_begun()
            most = max(most, len(held.below.listed()))
    assert most <= 2
    held.let_write(2)
    held.disk.flush()
    assert held.below.listed() == ["tick 20"]


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_disk_that_takes_longer_than_a_tick_has_a_whole_checkpoint_and_few_parts(
    held: Held, ticks: int
) -> None:
    """Each tick's checkpoint replaces the one before, and the disk writes one part in so many
    ticks, so no checkpoint is written while it is the newest."""
    most, whole = 0, set[str]()
    for tick in range(1, 61):
        held.disk.put(f"t{tick}.weights", tick)
        held.disk.put(f"t{tick}.training", tick)
        if tick == 1:
            assert held.has_begun()
        else:
            held.disk.drop(f"t{tick - 1}.weights")
            held.disk.drop(f"t{tick - 1}.training")
        if tick % ticks == 0:
            held.let_write()
            assert held.has_begun()
        there = held.below.listed()
        most = max(most, len(there))
        whole |= {name for name in there if name.replace("weights", "training") in there}
        if tick > 6 * ticks:  # the process may be killed at any tick
            assert any(name in whole for name in there), tick
    assert most <= 5, "one that is whole, the next one, and what is being written"
    assert len(whole) >= 60 // ticks // 3
    held.let_write(100)
    held.disk.flush()
    assert held.below.listed() == ["t60.training", "t60.weights"]


def test_a_part_that_was_dropped_is_not_there_while_it_is_written(held: Held) -> None:
    held.disk.put("a.weights", 1)
    held.disk.put("a.training", 2)
    assert held.has_begun()
    for _ in range(2):
        held.disk.drop("a.training")
        assert ("a.training" in held.disk, held.disk.get("a.training")) == (False, None)
    held.let_write()
    assert held.has_begun()
    assert ("a.training" in held.disk, held.disk.get("a.training")) == (False, None)
    held.let_write()
    held.disk.flush()
    assert held.below.listed() == ["a.weights"]


def test_what_is_put_again_after_it_was_dropped_is_there(held: Held) -> None:
    held.disk.put("a", 1)
    assert held.has_begun()
    held.disk.drop("a")
    held.disk.put("a", 2)
    assert held.disk.get("a") == 2
    held.let_write(2)
    held.disk.flush()
    assert held.below.get("a") == 2


def test_nothing_is_removed_before_what_took_its_place_is_written(held: Held) -> None:
    """Also when what first took its place was cancelled."""
    held.let_write()
    held.disk.put("old", 0)
    held.disk.flush()
    assert held.has_begun()
    held.disk.put("another", 1)
    assert held.has_begun()
    held.disk.put("newer", 2)
    held.disk.drop("old")
    held.disk.put("newest", 3)
    held.disk.drop("newer")
    held.let_write()
    assert held.has_begun(), "the newest is being written"
    assert held.below.listed() == [".newest.tmp", "another", "old"]
    held.let_write()
    held.disk.flush()
    assert held.below.listed() == ["another", "newest"]


CALLS: dict[str, Callable[[BackgroundDisk], object]] = {
    "put": lambda disk: disk.put("b", 2),
    "drop": lambda disk: disk.drop("b"),
    "flush": lambda disk: disk.flush(),
    "listed": lambda disk: disk.listed(),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_error_is_raised_where_the_disk_is_used_next(call: str, held: Held) -> None:
    held.codec.error = OSError(5, "Input/output error")
    held.disk.put("a", 1)
    assert held.has_begun()
    held.disk.put("waiting", 1)
    held.let_write()
    held.codec.threads[0].join(LONG)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as raised:
            CALLS[call](held.disk)
        assert held.codec.error in (raised.value, raised.value.__cause__)
    assert held.below.listed() == [], "and nothing more was tried"
    assert held.disk.get("a") is None


def test_an_error_ends_the_wait_for_room(held: Held) -> None:
    held.codec.error = OSError(5, "Input/output error")
    held.disk.put("writing", 0)
    assert held.has_begun()
    for number in range(4):
        held.disk.put(f"waiting {number}", number)
    held.in_another_thread(held.let_write)
    with pytest.raises(OSError, match="Input/output"):
        held.disk.put("one more", 5)


def test_a_payload_is_handed_over_by_who_puts_it(tmp_path: Path) -> None:
    seen = list[threading.Thread]()

    def hand_over(payload: Any) -> Any:
        seen.append(threading.current_thread())
        return payload + 1

    disk = BackgroundDisk(DiskTier(tmp_path, JsonCodec()), hand_over)
    disk.put("a", 1)
    disk.flush()
    assert disk.get("a") == 2
    assert seen == [threading.current_thread()]


KEYS = st.sampled_from("abcd")
ORDERS = st.lists(st.tuples(st.sampled_from(["put", "drop"]), KEYS), max_size=25)


@given(orders=ORDERS, lag=st.integers(0, 8))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_it_answers_as_a_disk_that_is_never_late(orders: list[tuple[str, str]], lag: int) -> None:
    with quick_folder() as folder:
        disk, model = LateDisk(folder, lag), dict[str, int]()
        for number, (order, key) in enumerate(orders):
            if order == "put":
                disk.put(key, number)
                model[key] = number
            else:
                disk.drop(key)
                model.pop(key, None)
            assert {k: disk.get(k) for k in "abcd" if k in disk} == model
        disk.flush()
        assert disk.listed() == sorted(model)


@given(ticks=st.integers(1, 12), lag=st.integers(0, 8))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_of_a_row_of_checkpoints_there_is_always_one(ticks: int, lag: int) -> None:
    """Each takes the place of the one before; whatever is lost, the disk is never without one."""
    with quick_folder() as folder:
        disk = LateDisk(folder, lag)
        disk.put("0", 0)
        disk.flush()
        below = DiskTier(folder, JsonCodec())
        for tick in range(1, ticks + 1):
            disk.put(str(tick), tick)
            assert below.listed()
            disk.drop(str(tick - 1))
            assert below.listed()
            assert len(below.listed()) <= lag + 2
        disk.flush()
        assert below.listed() == [str(ticks)]
