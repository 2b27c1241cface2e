"""The recipes in recipes/: each says how it is run, and each fits the data it names."""

from dataclasses import replace
from pathlib import Path

import pytest

from msft.cli import main
from msft.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
NAMES = [path.name for path in RECIPES]


def test_the_recipes_are_there() -> None:
    assert set(NAMES) >= {
        "ten-tasks.yaml",
        "five-tasks.yaml",
        "fifteen-tasks.yaml",
        "medmcqa-subjects.yaml",
        "medmcqa-groups.yaml",
        "smollm2-ten.yaml",
        "smollm2-learnable.yaml",
        "smollm2-learnable-noisy.yaml",
        "tiny.yaml",
    }


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_a_recipe_starts_with_the_command_that_runs_it(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith(f"# msft train recipes/{path.name} --out runs/{path.stem}")
    recipe = load_recipe(path)
    assert recipe.notes == ()
    assert all(spec.benchmark is not None for spec in recipe.datasets)


@pytest.mark.parametrize(
    ("name", "count"),
    [("five-tasks", 5), ("ten-tasks", 10), ("smollm2-ten", 10), ("fifteen-tasks", 15)],
)
def test_a_recipe_has_as_many_tasks_as_its_name_says(name: str, count: int) -> None:
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    assert len({spec.benchmark for spec in recipe.datasets}) == count
    for spec in recipe.datasets:
        assert (spec.train_rows, spec.validation_rows, spec.test_rows) == (1800, 200, 200)


def test_the_recipes_for_5_10_and_15_nest() -> None:
    """So `msft analyze size recipes/fifteen-tasks.yaml --sizes 5,10,15` trains all three."""
    five, ten, fifteen = (
        load_recipe(ROOT / "recipes" / f"{name}-tasks.yaml") for name in ("five", "ten", "fifteen")
    )
    for count, recipe in ((5, five), (10, ten)):
        assert replace(fifteen, datasets=fifteen.datasets[:count]) == recipe


def test_the_learnable_tasks_differ_in_their_wrong_labels_only() -> None:
    clean, noisy = (
        load_recipe(ROOT / "recipes" / f"{name}.yaml")
        for name in ("smollm2-learnable", "smollm2-learnable-noisy")
    )
    wrong = {spec.name: spec.label_noise for spec in noisy.datasets if spec.label_noise}
    assert wrong == dict.fromkeys(("sciq", "boolq", "piqa", "sst2"), 0.4)
    assert len(clean.datasets) == 10
    mended = tuple(replace(spec, label_noise=0.0) for spec in noisy.datasets)
    assert replace(noisy, datasets=mended) == clean
    for spec in clean.datasets:
        assert (spec.train_rows, spec.validation_rows, spec.test_rows) == (1800, None, None)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_a_recipe_fits_the_data_folder(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "model_name_or_path=tiny", "--set", "max_length=512"]
    assert main(["validate", str(path), "--data", str(SHARED), *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    table, _, rest = captured.out.partition("\n\n")
    names = [line.split()[0] for line in table.splitlines()[1:]]
    specs = load_recipe(path).datasets
    if path.stem.startswith("medmcqa-"):
        assert len(names) == 11 if path.stem == "medmcqa-groups" else len(names) > 11
        assert all(name.startswith("medmcqa.") for name in names)
        assert rest.count("are pooled: ") == int("medmcqa.other" in names)
    else:
        assert names == [spec.name for spec in specs]
    assert rest.startswith("one epoch: ")
    assert "what trained rows of" not in rest or path.stem == "fifteen-tasks"
    if path.stem == "smollm2-learnable-noisy":
        wrong = [line for line in rest.splitlines() if "train labels are made wrong" in line]
        assert [line.split(": ")[1] for line in wrong] == ["sciq", "boolq", "piqa", "sst2"]
        assert "sciq: label_noise 0.4: 720 of 1,800 train labels are made wrong" in wrong[0]
        assert "piqa: label_noise 0.4: 664 of 1,660 train labels are made wrong" in wrong[2]
