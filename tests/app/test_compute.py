"""`msft analyze compute`: the paper's Appendix A and Fig. 1 by one command, without runs."""

import json
from pathlib import Path

import pytest

from mortal import quick_folder
from msft.app.analyses_without_runs import factors_of
from msft.cli import main
from msft.errors import UsageError
from msft.run.folder import read_history
from msft.run.summary import summary_of
from msft.testing import Learner, simulate

PRINTED = {
    "pre-training": (1.64e23, 3.90e23, 1.16e24),
    "mid-training": (6.30e21, 4.68e22, 1.04e23),
    "SFT": (2.85e19, 5.29e19, 1.20e20),
    "DPO": (1.94e19, 3.70e19, 1.26e20),
    "RLVR-grad": (7.12e19, 1.32e20, 3.26e20),
    "RLVR-roll": (7.60e20, 1.41e21, 3.47e21),
}
"""The cells of the paper's table."""
POST_TO_TOTAL, SFT_TO_POST = (0.517, 0.374, 0.319), (3.24, 3.24, 2.97)
"""Its last two rows, in per cent."""


def test_the_paper_s_table_comes_without_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "compute", "--out", str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line[:18].strip(): line[18:].replace("°", "").split() for line in lines[:12]}
    assert lines[0].split()[-1] == "32B"
    for stage, printed in PRINTED.items():
        assert [float(cell) for cell in cells[stage]] == list(printed)
    shares = {row: [float(cell) for cell in cells[row][::2]] for row in list(cells)[-4:]}
    assert shares["post / (pre + mid)"] == pytest.approx(POST_TO_TOTAL, abs=0.0011)
    assert shares["SFT / post"] == list(SFT_TO_POST)
    totals = [sum(column) for column in zip(*PRINTED.values(), strict=True)]
    small = [100 * sft / total for sft, total in zip(PRINTED["SFT"], totals, strict=True)]
    assert shares["SFT / total"] == pytest.approx(small, rel=0.005)
    marked = [line.split()[0] for line in lines[1:7] if line.count("°") == 3]
    assert marked == ["SFT", "DPO", "RLVR-grad", "RLVR-roll"], "all of their cells are as printed"
    assert [Path(line).name for line in lines[-3:]] == ["compute.json", "share.svg", "share.png"]
    assert all(Path(line).stat().st_size for line in lines[-3:])


def made(folder: Path, method: str) -> Path:
    learners = {"a": Learner(rows=16, limit=0.3, damage=0.6), "b": Learner(rows=16)}
    path = folder / method
    path.mkdir()
    simulate(method, learners, num_train_epochs=2, train_batch_size=8, folder=path)
    return path


def test_runs_scale_the_share_of_sft(capsys: pytest.CaptureFixture[str]) -> None:
    with quick_folder() as folder:
        sft, other = made(folder, "sft"), made(folder, "soft_sro")
        costs = [summary_of(read_history(path))["flops"]["total"] for path in (sft, other)]
        command = ["analyze", "compute", str(sft), str(other), "--out", str(folder / "out")]
        assert main([*command, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        with pytest.raises(UsageError, match="no finished run of sft with one of another method"):
            factors_of([other])
        assert main(["analyze", "compute", str(folder / "nowhere"), "--out", str(folder)]) == 2
    (factor,) = content["factors"].values()
    assert factor == costs[1] / costs[0]
    assert factor > 1.5, "it trains twice"
    model = content["models"]["OLMo 2 7B"]
    cost = factor * 2.85e19
    share = cost / (model["total"] - 2.85e19 + cost)
    assert model["sft_to_total_at"] == {"Soft SRO SFT": pytest.approx(share)}
    assert model["computed"] == ["mid-training"]
    assert model["post"] == pytest.approx(2.85e19 + 1.94e19 + 7.12e19 + 7.60e20)
