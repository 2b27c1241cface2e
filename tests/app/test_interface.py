"""The Python interface: what it shows, what it returns, and the notebook that uses it."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from toys import recipe_of, write_data

import msft
from msft.cli import main
from msft.errors import RecipeError, UsageError

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the notebook's cells leave, and the value of each cell's last line."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names: dict[str, Any] = {"shown": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for cell in cells:
            if cell["cell_type"] == "code":
                *body, last = ast.parse("".join(cell["source"])).body
                value = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
                first = ast.Module(body if value else [*body, last], [])
                exec(compile(first, "cell", "exec"), names)  # noqa: S102
                if value:
                    names["shown"].append(eval(compile(value, "cell", "eval"), names))  # noqa: S307
    return {**names, "folder": folder}


def test_the_notebook_trains_scores_and_answers(notebook: dict[str, Any]) -> None:
    result, scores = notebook["result"], notebook["scores"]
    assert (notebook["folder"] / "first-run" / "report.html").exists()
    assert notebook["cost"]["method"] == "sft"
    assert result.summary["status"] == "finished"
    assert scores["mean"] == pytest.approx(result.summary["best"]["test"]["mean"])
    assert notebook["shown"][-1].startswith("is 7 even?")


def test_it_shows_progress_and_its_numbers_are_those_of_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path, train=32, held_out=8)
    out = tmp_path / "loud"
    result = msft.train(recipe_of(tmp_path, method="sft", num_train_epochs=0.5), out)
    assert result.summary["best"]["checkpoint"] in capsys.readouterr().out
    recipe = out / "recipe.yaml"
    msft.train(recipe, tmp_path / "still", quiet=True)
    assert capsys.readouterr() == ("", "")

    assert main(["plan", str(recipe), "--json", "--no-calibration", "--out", str(tmp_path)]) == 0
    planned = json.loads(capsys.readouterr().out)
    again = json.loads(json.dumps(msft.plan(recipe, tmp_path, calibrate=False)))
    moving = ("memory", "disk")  # what is free changes with every other process
    assert {k: v for k, v in again.items() if k not in moving} == {
        k: v for k, v in planned.items() if k not in moving
    }
    command = ["eval", str(result.best), str(recipe), "--split", "validation", "--json"]
    assert main(command) == 0
    scored = json.loads(capsys.readouterr().out)
    here = msft.evaluate(result.best, recipe, split="validation", answers=True)
    answers = here.pop("answers")
    assert here["tokens"] > scored["tokens"], "answers are generated to their end"
    assert json.loads(json.dumps(here)) == {**scored, "tokens": here["tokens"]}
    assert len(answers) == 24
    with pytest.raises(RecipeError, match="nowhere"):
        msft.evaluate(tmp_path / "nowhere", recipe)

    assert main(["validate", str(recipe), "--json", "--show", "1"]) == 0
    validated = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(msft.validate(recipe, show=1))) == validated
    assert validated["train_rows"] == 96

    report = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert msft.write_report(str(out)) == out / "report.html"
    assert (out / "report.html").read_bytes() == report
    with pytest.raises(UsageError, match="is not a run folder"):
        msft.write_report(tmp_path)
    with pytest.raises(UsageError, match="has a whole model already"):
        msft.merge(out, tmp_path / "merged")


def test_a_result_is_short_to_read_and_its_scores_are_a_table() -> None:
    best = {
        "checkpoint": "r0-t3",
        "epochs": 1.5,
        "validation": {"mean": 0.75, "datasets": {"a<b": 0.5, "c": 1.0}},
        "test": {"mean": None, "datasets": {"c": 0.25}},
    }
    summary = {"method": "sft", "best": best}
    result = msft.Result(summary, Path("run/best"), {"long": [1] * 5000}, Path("run"))
    assert repr(result) == (
        "<msft.Result: sft, the best is r0-t3 after 1.5 epochs; mean on validation 0.7500; "
        "model in run/best>"
    )
    assert [*result.scores.index] == ["a<b", "c", "mean"]
    assert [*result.scores["validation"]] == [0.5, 1.0, 0.75]
    assert result.scores["test"]["c"] == 0.25
    assert result.scores["test"].isna().sum() == 2, "there are no test rows of a<b, so no mean"
    page = result._repr_html_()
    assert "<th>a&lt;b</th>" in page
    assert "<td>0.75</td>" in page
    best["test"] = None
    assert [*result.scores.columns] == ["validation"]


def test_the_page_on_python_runs_and_has_every_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (NOTEBOOK.parents[1] / "docs" / "python.md").read_text()
    assert [n for n in msft.__all__ if n != "__version__" and f"`{n}" not in page] == []
    write_data(tmp_path, train=32, held_out=8)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe_of(tmp_path, method="sft").to_yaml())
    names: dict[str, Any] = {}
    for block in page.split("```python\n")[1:]:
        exec(block.partition("```")[0], names)  # noqa: S102
    assert names["found"]["train_rows"] == 96
    assert names["scores"]["mean"] == names["result"].summary["best"]["test"]["mean"]
    events = names["events"]
    assert events[0] == "run"
    assert events[-1] == "end"
    assert events.count("point") == 4
    again: list[str] = []
    msft.train(names["adding"], "adding", progress=lambda event: again.append(event.event))
    assert again == [], "the run is finished: nothing happens now"
    watched = capsys.readouterr().out.splitlines()[-3:]
    assert all(re.fullmatch(r"base|r0-t[1-4]", line) for line in watched)


def test_evaluate_refuses_a_split_that_there_is_not(tmp_path: Path) -> None:
    for split in ("tst", "train", None):
        with pytest.raises(UsageError, match=rf"^split is {split!r}; expected test or validation$"):
            msft.evaluate("tiny", recipe_of(tmp_path), split=split)  # type: ignore[arg-type]
