"""What is refused before torch is loaded: at once, by every command, with the same words."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from msft.cli import main
from msft.data import splits
from msft.errors import DataError, RecipeError, UsageError
from msft.planning.admission import refuse_foreign, refuse_run, refuse_untrainable, resolved
from msft.recipe.recipe import load_recipe
from msft.report import write_report
from msft.run.folder import RunFolder
from msft.testing.simulated import Learner, simulate

RECIPE = """\
model_name_or_path: tiny
compute_budget: 1
datasets:
- {name: a, train: a.jsonl, validation_fraction: 0.2}
- {name: b, train: b.jsonl, validation_fraction: 0.2}
"""
ROWS = "".join(f'{{"prompt": "{n} + 1 =", "completion": "{n + 1}"}}\n' for n in range(5))

WRONG = [
    (["typo.yaml"], "did you mean 'compute_budget'"),
    (["nowhere.yaml"], "there is no such file"),
    (["recipe.yaml", "--set", "seed=x"], "seed is 'x'"),
    (["recipe.yaml", "--set", "datasets.b.train=c.jsonl"], "c.jsonl: there is no such file"),
    (["recipe.yaml", "--set", "datasets.a.metric=no.such:thing"], "no.such:thing"),
    (["recipe.yaml", "--data", "nowhere"], "data_dir is"),
]
NO_MODEL = (["recipe.yaml", "--set", "model_name_or_path=a/b/c"], "no folder 'a/b/c'")
NO_TRACKER = (["recipe.yaml", "--set", "report_to=wandb"], "wandb is not installed")
BAD_PLACE = (["recipe.yaml", "--out", "a.jsonl/out"], "a.jsonl is a file")
OF_SOMEBODY = (["recipe.yaml", "--out", "theirs"], "is not the folder of a run")
COMMANDS = {
    "train": [*WRONG, NO_MODEL, NO_TRACKER, BAD_PLACE, OF_SOMEBODY],
    "validate": [*WRONG, NO_MODEL, NO_TRACKER],
    "plan": [*WRONG, NO_MODEL, BAD_PLACE],
    "eval tiny": [*WRONG, (["recipe.yaml", "--out", "theirs"], "theirs is a folder")],
    "eval ./a/b": [(["recipe.yaml"], "no folder './a/b'")],
    "compare --methods sft,msft": [
        *(([*words, "--out", "runs"], said) for words, said in [*WRONG, NO_MODEL, NO_TRACKER]),
        BAD_PLACE,
    ],
}

DRIVER = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
from msft.cli import main
import importlib.util

importlib.util.find_spec = lambda name: None if name == "wandb" else sys
for arguments in json.load(sys.stdin):
    with redirect_stderr(StringIO()) as said:
        code = main(arguments)
    heavy = [name for name in ("torch", "transformers", "matplotlib") if name in sys.modules]
    print(json.dumps([code, said.getvalue(), heavy]))
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(ROWS)
    (tmp_path / "typo.yaml").write_text(RECIPE.replace("budget", "buget"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "summary.json").write_text("{}")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_input_is_refused_before_torch_is_imported(command: str, recipe: Path) -> None:
    """Torch takes six seconds to import."""
    before = sorted(recipe.parent.rglob("*"))
    calls = [[*command.split(), *arguments] for arguments, _ in COMMANDS[command]]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for call, (_, expected), (code, said, heavy) in zip(
        calls, COMMANDS[command], answers, strict=True
    ):
        assert code == 2, (call, said)
        assert said.startswith("msft: "), (call, said)
        assert expected in said, (call, said)
        assert heavy == [], (call, said)
    assert sorted(recipe.parent.rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize(("arguments", "said"), [*WRONG, NO_MODEL, NO_TRACKER])
def test_validate_refuses_what_train_refuses_in_the_same_words(
    arguments: list[str],
    said: str,
    recipe: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else sys)
    assert main(["train", *arguments]) == 2
    by_train = capsys.readouterr().err
    assert main(["validate", *arguments]) == 2
    assert capsys.readouterr().err == by_train
    assert said in by_train


def test_train_from_python_refuses_the_same(recipe: Path) -> None:
    import msft

    given = load_recipe(recipe, ["datasets.a.metric=no.such:thing"])
    with pytest.raises(RecipeError, match=r"no\.such:thing"):
        msft.train(given, "out")
    with pytest.raises(UsageError, match="not the folder of a run"):
        msft.train(load_recipe(recipe), "theirs")
    assert not Path("out").exists()


def test_no_file_or_folder_of_somebody_else_is_taken_for_ours(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    refuse_foreign(folder)
    log, *files = folder.files
    for path in (*files, *(place / "thesis.tex" for place in folder.folders)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
        with pytest.raises(UsageError, match=path.relative_to(tmp_path).parts[0]):
            refuse_foreign(folder)
        path.unlink()
    (tmp_path / "samples.jsonl").touch()
    log.touch()
    refuse_foreign(folder)


def test_a_file_that_went_away_is_named_and_no_changed_recipe(recipe: Path) -> None:
    given, folder = load_recipe(recipe), RunFolder(Path("out"))
    folder.path.mkdir()
    folder.recipe.write_text(resolved(given).to_yaml())
    folder.log.touch()
    refuse_run(given, folder)
    with pytest.raises(RecipeError, match="seed was 20, now it is 3"):
        refuse_run(load_recipe(recipe, ["seed=3"]), folder)
    Path("b.jsonl").unlink()
    with pytest.raises(DataError, match=r"b\.jsonl: there is no such file"):
        refuse_run(given, folder)


def test_a_moved_project_is_no_changed_recipe(recipe: Path) -> None:
    Path("more").mkdir()
    for name in ("a.jsonl", "c.jsonl"):
        Path("more", name).write_text(ROWS)
    several = ["datasets.b.train=[b.jsonl, more/c.jsonl]"]
    folder = RunFolder(Path("out"))
    folder.path.mkdir()
    folder.recipe.write_text(resolved(load_recipe(recipe, several)).to_yaml())
    folder.log.touch()
    Path("new/more").mkdir(parents=True)
    for name in (recipe.name, "a.jsonl", "b.jsonl", "more/a.jsonl", "more/c.jsonl"):
        Path(name).rename(Path("new", name))
    moved = Path("new") / recipe.name
    refuse_run(load_recipe(moved, several), folder)
    changes = ["seed=3", "datasets.a.train=more/a.jsonl", "datasets.b.train=[b.jsonl]"]
    for change in changes:
        with pytest.raises(RecipeError, match="a run of another recipe"):
            refuse_run(load_recipe(moved, [*several, change]), folder)


def test_a_file_of_the_same_name_in_another_folder_is_another_file(recipe: Path) -> None:
    Path("more").mkdir()
    Path("more/a.jsonl").write_text(ROWS)
    folder = RunFolder(Path("out"))
    folder.path.mkdir()
    deeper = load_recipe(recipe, ["datasets.a.train=more/a.jsonl"])
    folder.recipe.write_text(resolved(deeper).to_yaml())
    folder.log.touch()
    with pytest.raises(RecipeError, match=r"datasets\.a\.train was"):
        refuse_run(load_recipe(recipe), folder)


def test_finished_runs_are_compared_without_data_and_trackers(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("runs") / "sft-s20"
    simulate("sft", {"a": Learner(), "b": Learner()}, num_train_epochs=2, folder=run)
    write_report(run)
    asked = ["compare", "recipe.yaml", "--methods", "sft", "--out", "runs"]
    sets = ["method=sft", "seed=20"]
    RunFolder(run).recipe.write_text(resolved(load_recipe(recipe, sets)).to_yaml())
    Path("a.jsonl").unlink()
    assert main([*asked, "--set", "report_to=wandb"]) == 0
    assert "sft-s20: finished already" in capsys.readouterr().err


def test_rows_are_not_read_and_the_hub_is_not_asked(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[object] = []

    def unreachable(*address: object) -> None:
        addresses.append(address)
        raise socket.gaierror("no way to the hub")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    Path("a.jsonl").write_text("no row\n")
    recipe.write_text(
        RECIPE
        + "- {name: hub, path: owner/name, validation_fraction: 0.1}\n"
        + "- {name: sciq, benchmark: sciq}\n"
        + "- {name: arc, benchmark: arc_easy, path: owner/arc}\n"
    )
    refuse_untrainable(load_recipe(recipe))
    assert not addresses
    with pytest.raises(DataError, match="owner/name"):
        splits.load_datasets(load_recipe(recipe, ["datasets.a.train=b.jsonl"]))


def test_folders_are_looked_into(recipe: Path) -> None:
    recipe.write_text(RECIPE + "- {name: sciq, benchmark: sciq}\n")
    Path("data").mkdir()
    with pytest.raises(DataError, match="no folder sciq in it"):
        refuse_untrainable(load_recipe(recipe, ["data_dir=data"]))
    (Path("data") / "sciq").mkdir()
    with pytest.raises(DataError, match="no train file in this folder"):
        refuse_untrainable(load_recipe(recipe, ["data_dir=data"]))
    (Path("data") / "sciq" / "train.jsonl").write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        refuse_untrainable(load_recipe(recipe, ["data_dir=data"]))
    (Path("data") / "sciq" / "train.jsonl").write_text(ROWS)
    refuse_untrainable(load_recipe(recipe, ["data_dir=data"]))


def test_rows_in_memory_are_there(recipe: Path) -> None:
    import msft

    rows = [{"prompt": "1", "completion": "2"}] * 2
    spec = {"name": "a", "train": rows, "validation": rows}
    refuse_untrainable(msft.Recipe(model_name_or_path="tiny", datasets=[spec]))
