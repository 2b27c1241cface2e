"""The documented examples run and show what their pages say."""

import re
import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from msft.report import sections
from msft.report.figures import costs
from msft.report.figures.chart import WIDE, drawing
from msft.report.page import Section
from msft.scoring import metrics
from msft.testing import Learner, simulate

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_stale_peaks_reproduces_the_paper_s_order(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "stale_peaks.py"))["main"](mixtures=3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    for line in lines[1:]:
        *_, sft, sro, msft, _, shift, _ = line.split()
        assert float(sft) < float(sro) < float(msft)
        assert float(shift) > 0


@pytest.mark.usefixtures("no_reports")
def test_a_trl_script_with_ten_lines_added_leaves_the_stale_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "trl_sft.py"
    added = script.read_text().split("    # msft: ")[1].splitlines()[1:]
    assert len([line for line in added if line.strip()]) <= 10
    best = runpy.run_path(str(script))["main"](str(tmp_path))
    said = capsys.readouterr().out
    assert "stage 0: trained ['fresh', 'stale'], left ['stale']\n" in said
    assert "stage 1: trained ['fresh'], left []\n" in said
    assert (best / "model.safetensors").exists()


def blocks_of_contributing(language: str) -> list[str]:
    page = (EXAMPLES.parent / "CONTRIBUTING.md").read_text()
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def test_the_method_in_contributing_is_a_whole_method() -> None:
    method, test = blocks_of_contributing("python")
    names: dict[str, Any] = {}
    exec(method, names)  # noqa: S102
    exec(test.replace('"halving"', "halving"), names)  # noqa: S102
    names["test_the_worse_half_leaves"]()


def test_the_benchmark_in_contributing_is_a_whole_benchmark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark, look, *_ = blocks_of_contributing("py")
    exec(benchmark + look, {})  # noqa: S102
    assert capsys.readouterr().out in (EXAMPLES.parent / "CONTRIBUTING.md").read_text().replace(
        "\n   ", "\n"
    )


def test_the_metric_in_contributing_is_a_whole_metric() -> None:
    names = dict(vars(metrics))
    exec(blocks_of_contributing("py")[2], names)  # noqa: S102
    assert names["prefix"]("", "Paris, of course", "paris") is True
    assert names["prefix"]("", "not Paris", "paris") is False


def test_the_figure_in_contributing_is_a_whole_figure() -> None:
    *_, figure, section = blocks_of_contributing("py")
    names = dict(vars(costs))
    exec(figure, names)  # noqa: S102
    history = simulate("sft", {"a": Learner(), "b": Learner()}, num_train_epochs=1)
    found: list[Section] = []
    given = {"costs": SimpleNamespace(**names), "history": history, "found": found}
    exec(section, {**vars(sections), **given})  # noqa: S102
    with drawing():
        (line,) = found[0].draw(WIDE).axes[0].lines
    ticks = [point for stage in history.stages for point in stage.points]
    assert np.asarray(line.get_ydata()).tolist() == [tick.tokens.train for tick in ticks] != []
