"""--json: stdout is one document for a program, everything else goes to stderr."""

import json
from pathlib import Path
from typing import Any

import pytest
from toys import RULES, recipe_of, write_data

from msft.cli import main

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        recipe_of(tmp_path, method="sft", num_train_epochs=1).to_yaml()
    )
    return "recipe.yaml"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    """The document on stdout, and what was said on stderr."""
    assert main([*arguments, "--json"]) == 0
    out, errors = capsys.readouterr()
    document: dict[str, Any] = json.loads(out)
    return document, errors


def test_train_eval_and_replay(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained, errors = said(capsys, "train", recipe, "--out", "out")
    assert "stage 0: 1 epoch from the base model" in errors
    summary = json.loads(Path("out/summary.json").read_text())
    places = {"folder": "out", "model": "out/best", "report": "out/report.html"}
    assert trained == {**summary, **places}
    assert trained["findings"]["exclusions"] == []
    assert trained["ema_decay"] is None
    again, errors = said(capsys, "train", recipe, "--out", "out", "--quiet")
    assert again == trained
    assert "stage" not in errors
    scored, _ = said(capsys, "eval", "out/best", recipe, "--out", "scores.json")
    assert scored == json.loads(Path("scores.json").read_text())
    assert scored["datasets"] == trained["best"]["test"]["datasets"]
    assert scored["model"] == "out/best"
    schedule = ["replay", "out/schedule.json", recipe, "--out", "again", "--quiet"]
    replayed, _ = said(capsys, *schedule)
    assert (replayed["method"], replayed["folder"]) == ("replay", "again")


def test_validate(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = said(capsys, "validate", recipe, "--show", "2")
    assert list(found["datasets"]) == list(RULES)
    upper = found["datasets"]["upper"]
    rows = (upper["train_rows"], upper["validation_rows"], upper["test_rows"])
    assert rows == (48, 16, 16)
    assert [text.count("⟦") for text in upper["shown"]] == [1, 1]
    assert (found["train_rows"], found["steps_per_epoch"]) == (144, 9)
    assert found["train_tokens"] == sum(each["tokens"] for each in found["datasets"].values())


def test_env(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = said(capsys, "env")
    assert found["msft"]
    assert found["torch"]
    assert isinstance(found["cuda"], list)
    assert main(["env"]) == 0
    assert f"torch {found['torch']}\n" in capsys.readouterr().out


def test_an_error_leaves_stdout_empty(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["train", recipe, "--set", "sed=3"], ["validate", "nowhere.yaml"]):
        assert main([*command, "--json"]) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert errors.startswith("msft: ")


def test_analyze(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real runs and their table; the second call trains nothing."""
    command = ["analyze", "size", recipe, "--sizes", "2", "--out", "sizes", "--quiet"]
    found, _ = said(capsys, *command)
    (entry,) = found["sizes"]
    assert entry["datasets"] == list(RULES)[:2]
    summary = json.loads(Path("sizes/n2-msft/summary.json").read_text())
    assert entry["msft"]["test"] == summary["best"]["test"]["mean"]
    assert all(Path(path).exists() for path in found["files"])
    log = Path("sizes/n2-msft/steps.jsonl").stat().st_mtime_ns
    again, _ = said(capsys, *command)
    assert again == found
    assert Path("sizes/n2-msft/steps.jsonl").stat().st_mtime_ns == log
