"""bench/plan_check.py: the plan of a path that was taken is the log."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from toys import recipe_of, write_data

from msft.errors import UsageError
from msft.training import train

pytestmark = pytest.mark.usefixtures("no_reports")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("plan_check")


@pytest.mark.parametrize(("method", "apart"), [("msft", 0.0), ("dynamix", 0.1), ("ies", 0.05)])
def test_the_forecast_of_a_path_is_the_log(
    method: str, apart: float, tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOPs within 5 per cent, disk within 15, of a run that really trained.

    What a log does not have is estimated: how long answers were, which rows IES let rest, and
    whom DynamixSFT favoured. Other training is counted to the token.
    """
    write_data(tmp_path, train=32, held_out=12)
    out, file = tmp_path / "out", tmp_path / "check.json"
    train(recipe_of(tmp_path, method=method), out)
    script.main([str(out / "recipe.yaml"), str(out), "--no-calibration", "--json", str(file)])
    (check,) = json.loads(file.read_text())
    assert (check["folder"], check["method"]) == (str(out), method)
    figures = check["figures"]
    planned, was = figures["train FLOPs"]
    assert planned == pytest.approx(was, rel=apart)
    planned, was = figures["all FLOPs"]
    assert was > 0
    assert planned == pytest.approx(was, rel=0.05)
    planned, was = figures["look-ahead FLOPs"]
    assert planned == was
    planned, was = figures["disk, at most"]
    assert planned == pytest.approx(was, rel=0.15)
    assert figures["seconds"][0] is None
    assert figures["seconds"][1] > 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["run", "method", "figure", "forecast", "was", "apart"]
    assert lines[1][:4] == [str(out), method, "train", "FLOPs"]
    assert lines[-1][:4] == [str(out), method, "seconds", "?"]
    assert (script.apart(105, 100), script.apart(None, 100)) == ("+5.0%", "-")


def test_a_run_of_other_data_is_refused(tmp_path: Path, script: Any) -> None:
    write_data(tmp_path, train=24, held_out=8)
    recipe = recipe_of(tmp_path, method="sft", num_train_epochs=0.5)
    with pytest.raises(UsageError, match="not a run folder"):
        script.plan_check(recipe, tmp_path / "out", 0)
    train(recipe, tmp_path / "out")
    write_data(tmp_path, train=25, held_out=8)
    with pytest.raises(UsageError, match=r"'upper': 24.*'upper': 25.*out/recipe.yaml"):
        script.plan_check(recipe, tmp_path / "out", 0)
