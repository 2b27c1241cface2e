"""`msft compare --models`: folders, wrong input, and a comparison from end to end."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from test_analyses import LEARNERS, Simulation, recipe_of
from test_variants import RECIPE

import msft
from msft.app.analyses import budgets, budgets_on_models, divergence, shifts
from msft.app.compare import planned, run_folders_in, shared_folders
from msft.app.variants import model_folder, models_named
from msft.cli import main
from msft.errors import UsageError

from msft.testing.simulated import Learner  # isort: skip


pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("tiny", "tiny"),
        ("Qwen/Qwen2.5-0.5B", "Qwen--Qwen2.5-0.5B"),
        ("/data/a b/best", "data--a%20b--best"),
        ("../m.gguf", "%2E.--m.gguf"),
        ("./m", "%2E--m"),
    ],
)
def test_a_model_has_a_folder_whatever_its_name_is(model: str, folder: str) -> None:
    assert model_folder(model) == folder
    assert "/" not in folder
    assert not folder.startswith(".")


def test_every_run_of_every_model_has_a_place_of_its_own(recipe: Path) -> None:
    runs = planned(recipe, [], "sft,soup[of=last,k=2]", [1, 2], Path("out"), ["tiny", "o/n"])
    assert [run.name for run in runs] == [
        f"{model}/{method}-s{seed}"
        for model in ("tiny", "o--n")
        for method in ("sft", "soup+k=2,of=last")
        for seed in (1, 2)
    ]
    assert [str(run.folder.path) for run in runs] == [f"out/{run.name}" for run in runs]
    assert {run.recipe.model_name_or_path for run in runs[4:]} == {"o/n"}
    assert runs[0].job(False, None).output == Path("out/tiny/sft-s1.log")
    places = shared_folders({run.name: run.recipe for run in runs}, Path("out"))
    assert places["tiny/sft-s1"] == places["tiny/soup+k=2,of=last-s1"]
    assert places["tiny/sft-s1"] != places["o--n/sft-s1"]
    for run in runs:
        run.folder.path.mkdir(parents=True)
    (Path("out") / "figures").mkdir()
    found = [str(path.relative_to("out")) for path in run_folders_in(Path("out"))]
    assert found == [run.name for run in (*runs[4:], *runs[:4])]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("models", "said"),
    [
        ("tiny,", "expected names between commas"),
        ("tiny,tiny", "tiny twice"),
        ("tiny,./nowhere", "'./nowhere', which does not exist"),
        ("tiny,nowhere.gguf", "which does not exist"),
        ("tiny,no-such-model-at-all", "no-such-model-at-all"),
    ],
)
def test_a_wrong_model_is_refused_before_anything_starts(
    models: str, said: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["compare", str(recipe), "--out", "out", "--methods", "sft", "--models", models],
        ["analyze", "divergence", str(recipe), "--out", "out", "--models", models],
        ["analyze", "budget", str(recipe), "--out", "out", "--models", models],
    ):
        assert main(command) == 2
        assert said in capsys.readouterr().err
        assert not Path("out").exists()


def test_a_variant_with_a_model_of_its_own_does_not_go_with_models(recipe: Path) -> None:
    with pytest.raises(UsageError, match="name all of them with --models"):
        msft.compare(recipe, "out", methods=["sft[model_name_or_path=tiny]"], models=["tiny", "b"])
    with pytest.raises(UsageError, match="--figures has 'gif'"):
        msft.compare(recipe, "out", methods=["sft"], figures=["gif"])
    assert models_named(None) == []


@pytest.mark.usefixtures("warm")
def test_a_second_model_joins_and_what_is_done_stays(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["compare", "recipe.yaml", "--out", "out", "--methods", "sft,msft", "--quiet"]
    command += ["--set", "report_split=selection", "--set", "method_options={}"]
    assert main([*command, "--models", "tiny"]) == 0
    first = {path: path.read_bytes() for path in Path("out").rglob("run.jsonl")}
    assert sorted(str(path.parent) for path in first) == ["out/tiny/msft-s1", "out/tiny/sft-s1"]
    assert "\nAverage\n" not in capsys.readouterr().out
    trained = "out/tiny/sft-s1/best"
    again = [*command, "--models", f"tiny,{trained}", "--figures", "svg"]
    assert main(again) == 0
    shown = capsys.readouterr().out
    assert shown.index("\ntiny\n") < shown.index("\nsft-s1/best\n") < shown.index("\nAverage\n")
    assert {path: path.read_bytes() for path in first} == first
    other = Path("out") / model_folder(trained)
    assert (other / "msft-s1" / "summary.json").exists()
    cells = [*csv.DictReader(StringIO(Path("out/compare.csv").read_text()))]
    wanted: list[float] = []
    for place in (Path("out/tiny"), other):
        summaries = [
            json.loads((place / f"{method}-s1" / "summary.json").read_text())["best"]
            for method in ("msft", "sft")
        ]
        scores = [100 * each["validation"]["mean"] for each in summaries]
        wanted += [scores[0], scores[0] - scores[1]]
    (average,) = [
        cell
        for cell in cells
        if (cell["table"], cell["block"], cell["row"], cell["column"])
        == ("main", "Average", "mSFT", "mean")
    ]
    assert float(average["value"]) == pytest.approx((wanted[0] + wanted[2]) / 2)
    assert float(average["difference"]) == pytest.approx((wanted[1] + wanted[3]) / 2)
    drawn = {path.name for path in Path("out/figures").iterdir()}
    assert {"scores-1.svg", "scores-2.svg", "gains-1.svg", "places.svg", "losses-2.svg"} <= drawn
    assert "validation" in Path("out/figures/gains-1.svg").read_text()
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("run.jsonl")}
    assert main(["compare", "recipe.yaml", "--out", "out", "--no-run"]) == 0
    assert "\nAverage\n" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert main(["report", *(str(path.parent) for path in before)]) == 0
    page = " ".join((Path("out/tiny") / "report.html").read_text().split())
    page = page if "Average" in page else " ".join((other / "report.html").read_text().split())
    assert "<th colspan=" in page
    assert "averaged over 2 models" in page


def test_fig_3b_from_one_command(tmp_path: Path) -> None:
    run = Simulation()
    recipes = {
        "m/one": recipe_of(),
        "m/two": recipe_of(train_batch_size=32),
    }
    found = shifts(recipes, tmp_path, run)
    assert run.folders == ["with", "without"] * 2
    alone = [
        divergence(recipe, tmp_path / "alone" / str(number), Simulation()).content
        for number, recipe in enumerate(recipes.values())
    ]
    assert [
        {key: value for key, value in each.items() if key != "model"}
        for each in found.content["models"]
    ] == alone
    means = [each["mean_absolute_change"] for each in alone]
    assert found.content["mean_absolute_change"] == pytest.approx(sum(means) / 2)
    assert [row[0] for row in found.rows[1:]] == ["m/one", "m/two"]
    for place, recipe in zip(("m--one", "m--two"), recipes, strict=True):
        for branch in ("with", "without"):
            folder = tmp_path / place / branch
            (folder / "recipe.yaml").write_text(f"model_name_or_path: {recipe}\n")
    paths = [path.name for path in found.write(tmp_path)]
    assert paths[0] == "shifts.json"
    assert {"shifts.svg", "shifts.png", "divergence-1.svg", "divergence-2.svg"} <= set(paths)
    drawn = (tmp_path / "shifts.svg").read_text()
    assert "m/one" in drawn
    assert all(f">{mean:.2f}<" in drawn for mean in means)


def test_a_model_on_which_nobody_overfits_is_named_and_left_out(tmp_path: Path) -> None:
    still = {name: Learner(limit=99.0, passes=20.0, validation_rows=10000) for name in LEARNERS}

    class Two(Simulation):
        def __call__(self, recipe, folder):  # type: ignore[no-untyped-def]
            self._learners = still if folder.parent.name == "flat" else LEARNERS
            return super().__call__(recipe, folder)

    recipes = {"flat": recipe_of(), "steep": recipe_of()}
    found = shifts(recipes, tmp_path, Two())
    assert [each["model"] for each in found.content["models"]] == ["steep"]
    assert "flat is left out: no sub-dataset peaked" in found.text()
    with pytest.raises(UsageError, match="flat: no sub-dataset peaked"):
        shifts({"flat": recipe_of()}, tmp_path / "none", Two())


def test_fig_6_on_several_models_from_one_command(tmp_path: Path) -> None:
    run = Simulation()
    recipes = {"m/one": recipe_of(), "m/two": recipe_of(train_batch_size=32)}
    found = budgets_on_models(recipes, tmp_path, run, [1.0, 2.0])
    assert run.folders == ["sft", "c1", "c2"] * 2
    alone = [
        budgets(recipe, tmp_path / "alone" / str(number), Simulation(), [1.0, 2.0]).content
        for number, recipe in enumerate(recipes.values())
    ]
    assert found.content["models"] == [
        {"model": model, **content} for model, content in zip(recipes, alone, strict=True)
    ]
    for place, mean in enumerate(found.content["mean"]):
        searches = [content["msft"][place] for content in alone]
        costs = [
            search["flops"]["total"] - content["sft"]["flops"]["total"]
            for search, content in zip(searches, alone, strict=True)
        ]
        assert mean["compute_budget"] == place + 1
        assert mean["gain"] == pytest.approx((searches[0]["gain"] + searches[1]["gain"]) / 2)
        assert mean["flops"] == pytest.approx(sum(costs) / 2)
        says = f"C = {place + 1}, mean over 2 models: gain {mean['gain']:+.4f}, "
        assert says in found.text()
    assert [row[:2] for row in found.rows[1:]] == [
        (model, label) for model in recipes for label in ("sft", "msft C=1", "msft C=2")
    ]
    for folder, model in zip(("m--one", "m--two"), recipes, strict=True):
        for name in ("sft", "c1", "c2"):
            (tmp_path / folder / name / "recipe.yaml").write_text(f"model_name_or_path: {model}\n")
    names = [path.name for path in found.write(tmp_path)]
    assert names[0] == "budgets.json"
    assert {"budgets-1.svg", "budgets-2.svg", "budgets-2.png", "report.html"} <= set(names)
    assert "C = 2" in (tmp_path / "budgets-2.svg").read_text()


def test_the_budgets_of_a_model_that_is_named(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["analyze", "budget", str(recipe), "--budgets", "1", "--out", "out", "--json"]
    command += ["--set", "method_options={}", "--quiet"]
    assert main([*command, "--models", "tiny"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["model"] for each in found["models"]] == ["tiny"]
    straight, search = (
        json.loads(Path(f"out/tiny/{name}/summary.json").read_text())["flops"]["total"]
        for name in ("sft", "c1")
    )
    assert found["mean"][0]["flops"] == search - straight
