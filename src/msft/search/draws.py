"""Randomness as a pure function of the seed and of the place where it is needed.

Nothing here keeps a state: the shuffle of epoch 2 of roll-out 3 is the same number whether the
run got there in one go or was killed and resumed ten times. Only `random.Random.random()` is
used, the one generator whose sequence Python promises to keep between versions.
"""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from random import Random

Where = str | int


def stream(seed: int, *place: Where) -> Random:
    """The random stream that belongs to this place under this seed."""
    name = "\x1f".join(repr(step) for step in (seed, *place))
    return Random(int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "big"))


def number(seed: int, *place: Where) -> int:
    """A whole number below 2**53, to seed another generator, such as torch's."""
    return int(stream(seed, *place).random() * 2**53)


def shuffled(count: int, seed: int, *place: Where) -> list[int]:
    """`0 … count-1` in a random order."""
    uniform = stream(seed, *place).random
    keys = [uniform() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def sampled(count: int, size: int, seed: int, *place: Where) -> list[int]:
    """`size` of `0 … count-1` without replacement."""
    return shuffled(count, seed, *place)[:size]


def picked(weights: Sequence[float], times: int, seed: int, *place: Where) -> list[int]:
    """`times` indices drawn with replacement, index k with probability weights[k] / sum."""
    uniform = stream(seed, *place).random
    bounds = list(accumulate(weights))
    last = len(weights) - 1
    return [min(bisect_right(bounds, uniform() * bounds[-1]), last) for _ in range(times)]
