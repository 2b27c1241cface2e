"""Bytes of checkpoints on disk."""

import pytest

from msft.engine.saving.checkpoint_sizes import Checkpoints


@pytest.mark.parametrize("restored", [False, True])
def test_disk_without_memory_holds_every_checkpoint(restored: bool) -> None:
    checkpoints = Checkpoints(100, 200, restored, most=13)
    assert checkpoints.disk(roomy=True) == 4 * 100 + (3 if restored else 2) * 200
    assert checkpoints.disk(roomy=False) == 14 * 100 + (13 if restored else 2) * 200
