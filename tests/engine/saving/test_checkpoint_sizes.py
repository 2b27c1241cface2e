"""Bytes of checkpoints."""

import pytest

from msft.engine.memory import Checkpoints


@pytest.mark.parametrize("restored", [False, True])
def test_disk_without_memory_holds_every_checkpoint(restored: bool) -> None:
    checkpoints = Checkpoints(100, 200, restored, most=13)
    assert checkpoints.disk(roomy=True) == 4 * 100 + (3 if restored else 2) * 200
    assert checkpoints.disk(roomy=False) == 14 * 100 + (13 if restored else 2) * 200


def test_a_method_that_never_goes_back_has_four_on_disk_with_memory_and_without() -> None:
    """Start, newest, best, and the next one."""
    checkpoints = Checkpoints(100, 200, False, most=4)
    assert checkpoints.disk(roomy=True) == checkpoints.disk(roomy=False) == 4 * 100 + 2 * 200


@pytest.mark.parametrize(("optim", "moments"), [("adamw", 12), ("adamw_bf16", 8)])
def test_raw_weights_are_beside_the_moments_where_an_average_is_kept(
    optim: str, moments: int
) -> None:
    checkpoints = Checkpoints.of(100, optim, "restore", 2, averaged=True)
    assert (checkpoints.weights, checkpoints.moments) == (400, 100 * moments)
    assert checkpoints.each == checkpoints.aside == 400 + 100 * moments
