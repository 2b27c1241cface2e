"""The numbers of recipes/tiny.yaml are those of tests/golden/tiny.json.

A change that moves one changes that file (python tests/golden/tiny.py) and is named in the
CHANGELOG under *Numeric*.
"""

import json
from pathlib import Path

import pytest

from golden.tiny import FILE, METHODS, SHORT, STEPS, golden_of, machine


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("method", METHODS)
def test_losses_and_decisions_are_the_golden_ones(method: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    recorded_here = golden["machine"] == machine()
    now = golden_of(method, tmp_path / method, () if recorded_here else SHORT[method])
    assert len(now["losses"]) == STEPS
    assert now["losses"] == pytest.approx(golden[method]["losses"], rel=1e-4)
    if not recorded_here:
        pytest.skip(f"decisions were recorded on {golden['machine']}, this is {machine()}")
    assert now["losses"] == golden[method]["losses"]
    assert now["decisions"] == golden[method]["decisions"]
