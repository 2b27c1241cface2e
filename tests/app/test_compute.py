"""`msft analyze compute` and `homogeneous`: the paper's Appendix A, Fig. 1 and Tab. 1."""

import json
import re
from pathlib import Path

import pytest

from mortal import quick_folder
from msft.app.analyses import factors_of
from msft.cli import main
from msft.errors import UsageError
from msft.run.folder import read_history
from msft.run.history import summary_of
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


def test_the_rlvr_cells_follow_from_two_thirds_of_the_tokens_that_the_formula_has() -> None:
    """Appendix A: 2·|theta|·10M·4096·2 for roll-outs; 6·|theta|·steps·4096, twice for PPO. Only
    2,713 and 2,714 tokens give all six cells as they are printed."""
    sizes, updates = (7e9, 13e9, 32e9), (2 * 312_500, 2 * 312_500, 625_000)
    rolls = [2 * size * 10**7 * 2 for size in sizes]
    gradients = [6 * size * number for size, number in zip(sizes, updates, strict=True)]

    def cells(tokens: int) -> tuple[list[str], list[str]]:
        return [f"{one * tokens:.2e}" for one in rolls], [f"{g * tokens:.2e}" for g in gradients]

    printed = tuple(
        [f"{cell:.2e}" for cell in PRINTED[f"RLVR-{what}"]] for what in ("roll", "grad")
    )
    assert [tokens for tokens in range(1, 4097) if cells(tokens) == printed] == [2713, 2714]
    assert cells(4096) == (
        ["1.15e+21", "2.13e+21", "5.24e+21"],
        ["1.08e+20", "2.00e+20", "4.92e+20"],
    )


PAPER = Path(__file__).parents[3] / "shared" / "paper" / "msft.tex"


def test_how_other_teams_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "homogeneous"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "type", "epochs"]
    assert lines[1].split() == ["Magistral", "homogeneous", "2"]
    assert lines[2].split() == ["OLMo", "homogeneous", "3"]
    assert lines[9].split("  ")[-1] == "1 (code) + 3 (general)"
    assert lines[10].split() == ["mSFT", "heterogeneous", "dynamic"]
    assert main(["analyze", "homogeneous", "--json"]) == 0
    teams = json.loads(capsys.readouterr().out)["teams"]
    assert len(teams) == 10
    assert {each["type"] for each in teams[:8]} == {"homogeneous"}
    assert sum(each["epochs"]["all"] for each in teams[:8]) == 7 * 2 + 3
    assert teams[8]["epochs"] == {"code": 1, "general": 3}
    assert teams[9]["epochs"] == {}


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside the checkout")
def test_the_teams_are_those_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    table = PAPER.read_text().split("\\textbf{Method}")[1].split("\\bottomrule")[0]
    row = r"\\ttt\{([^}]+)\} \{\\small \\citep\{([^}]+)\}.*?(\d)(?: \\\\| \(Code)"
    printed = re.findall(row, table, re.DOTALL)
    assert main(["analyze", "homogeneous", "--json"]) == 0
    teams = json.loads(capsys.readouterr().out)["teams"][:-1]
    found = [(t["model"], t["source"], str(next(iter(t["epochs"].values())))) for t in teams]
    assert found == printed
