"""Randomness is a pure function of the seed and of the place where it is needed."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.draws import picked, sampled, shuffled, stream

Draw = Callable[..., list[int]]


def shuffle(seed: int, *place: str | int) -> list[int]:
    return shuffled(50, seed, *place)


def sample(seed: int, *place: str | int) -> list[int]:
    return sampled(50, 20, seed, *place)


def pick(seed: int, *place: str | int) -> list[int]:
    return picked([0.1] * 10, 50, seed, *place)


@pytest.mark.parametrize("draw", [shuffle, sample, pick])
def test_the_same_seed_and_place_give_the_same_draw(draw: Draw) -> None:
    first = draw(20, "order", 3, 1)
    draw(20, "something", "else")  # nothing in between can disturb it
    assert draw(20, "order", 3, 1) == first


@pytest.mark.parametrize("draw", [shuffle, sample, pick])
@pytest.mark.parametrize(
    ("seed", "place"),
    [(21, ("order", 3, 1)), (20, ("order", 1, 3)), (20, ("order", 31)), (20, ("order", 3, "1"))],
)
def test_another_seed_or_place_gives_another_draw(
    draw: Draw, seed: int, place: tuple[str | int, ...]
) -> None:
    assert draw(seed, *place) != draw(20, "order", 3, 1)


def test_another_process_draws_the_same() -> None:
    """A resumed run must draw what the killed one would have drawn."""
    code = "from msft.search.draws import shuffled; print(shuffled(50, 20, 'order', 3, 1))"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        printed = subprocess.check_output(command, env=environment, text=True)
        assert printed.strip() == str(shuffle(20, "order", 3, 1))


@given(st.integers(0, 60), st.integers(0, 99))
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(shuffled(count, seed, "x")) == list(range(count))


def test_every_order_is_equally_likely() -> None:
    orders = Counter(tuple(shuffled(3, 20, "x", number)) for number in range(6000))
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())


@given(st.integers(0, 40), st.integers(0, 60))
def test_a_sample_is_without_replacement_and_never_more_than_there_is(
    count: int, size: int
) -> None:
    drawn = sampled(count, size, 20, "x")
    assert len(drawn) == len(set(drawn)) == min(count, size)
    assert set(drawn) <= set(range(count))


def test_picks_follow_their_weights_which_need_not_sum_to_1() -> None:
    counts = Counter(picked([1.0, 0.0, 3.0], 20_000, 20, "x"))
    assert counts[1] == 0
    assert counts[2] / counts[0] == pytest.approx(3, rel=0.08)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8))
def test_a_pick_is_always_an_index(weights: list[float]) -> None:
    assert set(picked(weights, 50, 20, "x")) <= set(range(len(weights)))


def test_a_stream_has_no_hidden_state() -> None:
    one, other = stream(20, "x"), stream(20, "x")
    one.random()
    assert one.random() == [other.random() for _ in range(2)][1]
