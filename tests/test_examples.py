"""The documented examples run and show what their pages say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_stale_peaks_reproduces_the_paper_s_order(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "stale_peaks.py"))["main"](mixtures=3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    for line in lines[1:]:
        *_, sft, sro, msft, _, shift, _ = line.split()
        assert float(sft) < float(sro) < float(msft)
        assert float(shift) > 0
