"""The documented examples run and show what their pages say."""

import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

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


def test_the_method_in_contributing_is_a_whole_method() -> None:
    page = (EXAMPLES.parent / "CONTRIBUTING.md").read_text()
    method, test = re.findall(r"^ *```python\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(textwrap.dedent(method), names)  # noqa: S102
    exec(textwrap.dedent(test).replace('"halving"', "halving"), names)  # noqa: S102
    names["test_the_worse_half_leaves"]()
