"""Which ticks a method may still ask for: nothing that it will need is dropped, whatever comes."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msft.search.curves import Follower, PeakRule, accuracy
from msft.search.rollout import BASE, CheckpointId, Keep, checkpoint_id
from msft.store.store import CheckpointStore, DiskTier, MemoryTier, NoDisk, retained, wanted
from msft.testing import JsonCodec

TICKS = [BASE, *(checkpoint_id(0, tick) for tick in range(1, 7))]


@pytest.mark.parametrize(
    ("keep", "held"),
    [
        ("contenders", {2, 5}),
        ("span", {2, 3, 4, 5, 6}),
        ("best", set()),
        ("all", set(range(7))),
        ((1, 6, 9), {1, 6}),
        ((), set()),
    ],
)
def test_what_is_held_for_a_method(keep: Keep, held: set[int]) -> None:
    assert wanted(keep, TICKS, {2, 5}) == {TICKS[tick] for tick in held}


def test_before_anything_is_scored_a_span_holds_everything() -> None:
    assert wanted("span", TICKS, set()) == frozenset(TICKS)


@settings(max_examples=200, deadline=None)
@given(
    curves=st.integers(2, 9).flatmap(
        lambda length: st.lists(
            st.lists(st.integers(0, 5), min_size=length, max_size=length), min_size=1, max_size=4
        )
    ),
    smooth=st.integers(0, 2),
    min_delta=st.sampled_from([0.0, 0.2]),
    include_start=st.booleans(),
)
def test_peaks_and_span_are_held_at_every_tick_since_they_were_reached(
    curves: list[list[int]], smooth: int, min_delta: float, include_start: bool
) -> None:
    """A tick that is dropped once never comes back, so it must be held all the way."""
    rule = PeakRule(smooth, min_delta, include_start)
    names = [str(number) for number in range(len(curves))]
    follower = Follower(rule, names)
    heights = [[Fraction(right, 5) for right in curve] for curve in curves]
    peaks = [rule.peak(curve) for curve in heights]
    needed = {"contenders": {*peaks}, "span": {*range(min(peaks), max(peaks) + 1)}}
    ticks: list[CheckpointId] = []
    held: dict[str, frozenset[CheckpointId]] = {"contenders": frozenset(), "span": frozenset()}
    for tick in range(len(curves[0])):
        scores = {name: accuracy(curve[tick], 5) for name, curve in zip(names, curves, strict=True)}
        follower.follow(scores)
        ticks.append(TICKS[0] if tick == 0 else checkpoint_id(0, tick))
        for keep in held:
            now = wanted(keep, ticks, follower.contenders)  # type: ignore[arg-type]
            held[keep] = now & (held[keep] | {ticks[-1]})
    for keep, numbers in needed.items():
        assert {ticks[number] for number in numbers} <= held[keep]


@settings(max_examples=200, deadline=None)
@given(
    keep=st.one_of(
        st.sampled_from(["contenders", "span", "best", "all"]),
        st.lists(st.integers(0, 8), max_size=4).map(tuple),
    ),
    ticks=st.integers(0, 6),
    contenders=st.sets(st.integers(0, 6)),
    best=st.integers(0, 6),
    memory=st.integers(0, 8),
)
def test_while_memory_has_room_two_sets_are_on_disk_and_else_what_it_cannot_hold(
    keep: Keep, ticks: int, contenders: set[int], best: int, memory: int
) -> None:
    there = TICKS[: ticks + 1]
    contenders = {tick for tick in contenders if tick <= ticks} or {ticks}
    held = wanted(keep, there, contenders)
    needed = retained(
        start=BASE,
        latest=there[-1],
        contenders=held,
        best=there[min(best, ticks)],
        keep_start=memory > 0,
        moments="none",
    )
    assert needed.weights == (held | {there[-1], there[min(best, ticks)]}) - {BASE}
    assert needed.durable <= needed.weights
    assert len(needed.durable) <= (2 if memory else len(needed.weights))
    assert needed.training == ({there[-1]} - {BASE} if ticks else set())


def test_with_every_tick_held_the_disk_gets_what_memory_cannot_hold(tmp_path: Path) -> None:
    store = CheckpointStore(
        [MemoryTier("host", 2)], DiskTier(tmp_path, JsonCodec()), weights_bytes=10
    )
    store.go_live()
    for tick, checkpoint in enumerate(TICKS[1:], start=1):
        store.enter(checkpoint)
        store.put(checkpoint, lambda: 1, lambda: 2)
        there = TICKS[: tick + 1]
        store.keep(
            retained(
                start=BASE,
                latest=checkpoint,
                contenders=wanted("all", there, ()),
                best=TICKS[1],
                keep_start=store.would_lose(BASE, there),
                moments="none",
            )
        )
    assert store.held == frozenset(TICKS[1:])
    on_disk = {path.name for path in tmp_path.iterdir()}
    weights = {f"{checkpoint}.weights" for checkpoint in (TICKS[1], *TICKS[3:])}
    assert on_disk == weights | {"r0-t6.training"}


@settings(max_examples=100, deadline=None)
@given(
    active=st.integers(1, 4),
    curves=st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=7, max_size=7),
    from_base=st.booleans(),
)
def test_the_paper_s_disk_has_a_peak_of_each_the_start_and_the_best_at_any_time(
    active: int, curves: list[list[int]], from_base: bool
) -> None:
    """With room for the newest in memory. A superseded peak goes before the new one is written, so
    that there are never more; the base model is no copy."""
    start = BASE if from_base else CheckpointId("r0-t9")
    other = CheckpointId("r0-t8")  # the best of an earlier stage
    ticks = [start, *(checkpoint_id(1, tick) for tick in range(1, 7))]
    names = [str(number) for number in range(active)]
    follower = Follower(PeakRule(), names)
    store = CheckpointStore([MemoryTier("host", 2)], NoDisk(), weights_bytes=10, training_bytes=7)
    for checkpoint in () if from_base else (start, other):
        store.enter(checkpoint)
    best, height = (BASE, 20) if from_base else (other, 20)
    for tick, checkpoint in enumerate(ticks):
        *each, mean = curves[tick]
        if tick:
            store.enter(checkpoint)
        if 5 * mean > height:
            best, height = checkpoint, 5 * mean
        follower.follow({n: accuracy(each[int(n)], 9) for n in names})
        peaks = {ticks[number] for number in follower.contenders}
        store.keep(
            retained(
                start=start,
                latest=checkpoint,
                contenders=peaks,
                best=best,
                keep_start=False,
                moments="none",
                policy="paper",
            )
        )
        assert store.held == {*peaks, start, best, checkpoint} - {BASE}
        disk = store.account()
        assert disk.copies == len({*peaks, start, best} - {BASE})
        assert disk.peak_copies <= active + (1 if from_base else 2)
        assert disk.peak_bytes <= disk.peak_copies * 10 + 7, "moments of the newest alone"


def test_an_average_has_no_moments_and_its_remains_are_removed(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, JsonCodec())
    average = CheckpointId("a0")
    store = CheckpointStore(disk=disk, weights_bytes=10, training_bytes=7)
    store.go_live()
    store.enter(average, moments=False)
    store.put(average, lambda: 1, lambda: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["a0.weights"]
    assert store.account().peak_bytes == 10
    (tmp_path / ".a1.weights.tmp").mkdir()
    (tmp_path / "apple.weights").mkdir()
    CheckpointStore(disk=disk).go_live()  # of a log that has neither
    assert [path.name for path in tmp_path.iterdir()] == ["apple.weights"]
