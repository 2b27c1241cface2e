"""The Python interface: what it shows, what it returns, and the notebook that uses it."""

import ast
import json
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


def test_evaluate_refuses_a_split_that_there_is_not(tmp_path: Path) -> None:
    for split in ("tst", "train", None):
        with pytest.raises(UsageError, match=rf"^split is {split!r}; expected test or validation$"):
            msft.evaluate("tiny", recipe_of(tmp_path), split=split)  # type: ignore[arg-type]
