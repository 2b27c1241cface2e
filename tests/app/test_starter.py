"""`msft init`: what it writes runs as it stands and becomes the user's own by three lines."""

import json
from pathlib import Path

import pytest
from toys import write_lines

from msft.cli import main
from msft.recipe.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_it_writes_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that it prints works. Shorter than a user's, for the time that it takes."""
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "msft train recipe.yaml --out example\n" in said
    assert main(["validate", "recipe.yaml", "--show", "1"]) == 0
    shown = capsys.readouterr().out
    assert "one epoch: 480 rows" in shown
    assert "⟦ billing" in shown or "⟦ s" in shown
    shorter = ["--set", "num_train_epochs=1", "--set", "learning_rate=1e-3", "--quiet"]
    assert main(["train", "recipe.yaml", "--out", "example", *shorter]) == 0
    summary = json.loads(Path("example/summary.json").read_text())
    assert summary["status"] == "finished"
    assert set(summary["best"]["test"]["datasets"]) == {"routing", "boxes"}
    assert summary["best"]["test"]["mean"] > 0.2, "the model that was given has 0"


def test_three_lines_make_it_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    lines = Path("recipe.yaml").read_text().splitlines()
    yours = [number for number, line in enumerate(lines) if "# yours" in line]
    assert len(yours) == 3
    for name in ("a", "b"):
        rows = ({"prompt": f"{name} {n} is", "completion": f" {n % 3}"} for n in range(30))
        write_lines(Path(f"{name}.jsonl"), rows)
    model, *datasets = yours
    lines[model] = "model_name_or_path: somebody/model"
    for number, name in zip(datasets, ("a", "b"), strict=True):
        lines[number] = f"  - {{name: {name}, train: {name}.jsonl, validation_fraction: 0.2}}"
    Path("mine.yaml").write_text("\n".join(lines))
    recipe = load_recipe("mine.yaml")
    assert recipe.model_name_or_path == "somebody/model"
    assert [spec.train for spec in recipe.datasets] == ["a.jsonl", "b.jsonl"]
    capsys.readouterr()
    assert main(["validate", "mine.yaml", "--set", "model_name_or_path=tiny"]) == 0
    assert "one epoch: 48 rows" in capsys.readouterr().out


def test_it_never_overwrites(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert main(["init", "second.yaml"]) == 0, "the same rows may be there"
    rows = Path("example-rows/boxes.jsonl")
    assert len(rows.read_text().splitlines()) == 300
    rows.write_text("mine\n")
    assert main(["init", "third.yaml"]) == 2
    assert "example-rows/boxes.jsonl exists already" in capsys.readouterr().err
    assert rows.read_text() == "mine\n"
    assert not Path("third.yaml").exists()
    Path("sub").mkdir()
    Path("sub/example-rows").write_text("mine")
    assert main(["init", "sub/recipe.yaml"]) == 2
    assert "sub/example-rows exists already and is not a folder" in capsys.readouterr().err
    assert not Path("sub/recipe.yaml").exists()
