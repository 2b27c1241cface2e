"""The recipes in recipes/: each says how it is run, and each fits the data it names."""

from dataclasses import replace
from pathlib import Path

import pytest

from msft.app.variants import options_of
from msft.cli import main
from msft.planning.admission import DEFAULTS
from msft.recipe.recipe import Recipe, load_recipe
from msft.search.curves import SELECTION
from msft.search.methods import METHODS, PreparedMethod
from msft.search.methods.dynamix import ORIGINAL
from msft.search.methods.dynamix import PAPER as MSFT_PAPER
from msft.search.rollout import BASE
from msft.testing import Learner, simulate

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
NAMES = [path.name for path in RECIPES]
PAPER_S = [path for path in RECIPES if not path.stem.startswith("smollm2") and path.stem != "tiny"]
"""Those of the paper's settings."""


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
        "smollm2-fifteen.yaml",
        "tiny.yaml",
        "tiny-paper.yaml",
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


PAPER = {
    "train_rows": 1800,
    "validation_rows": 200,
    "test_rows": 200,
    "report_split": "selection",
    "track_excluded": False,
    "min_max": True,
    "evaluation_tokens": "every_row",
}
"""The paper's value of what we have another default for."""


@pytest.mark.parametrize("name", ["ten-tasks", "medmcqa-subjects", "medmcqa-groups"])
def test_the_paper_s_recipe_sets_what_is_not_the_default_to_the_paper_s(name: str) -> None:
    recipe = load_recipe(ROOT / "recipes" / f"{name}.yaml")
    alone = replace(recipe, **{key: DEFAULTS[key] for key in ("report_split", "evaluation_tokens")})
    assert alone != recipe, "they are not the defaults"
    chosen = {method: prepared(recipe, method) for method in METHODS}
    for spec in recipe.datasets:
        found = {key: getattr(spec, key) for key in ("train_rows", "validation_rows", "test_rows")}
        found |= {key: getattr(recipe, key) for key in ("report_split", "evaluation_tokens")}
        found["track_excluded"] = chosen["ies"].options["track_excluded"]
        found["min_max"] = chosen["dynamix"].options["min_max"]
        assert found == PAPER
    for method in METHODS:  # Algorithm 4 takes the best over every tick
        assert chosen[method].rollout_options.score_excluded == "every"
    bare = Recipe("tiny", [{"name": "a", "benchmark": "sciq"}])
    assert bare.datasets[0].train_rows is None
    assert "track_excluded" not in prepared(bare, "ies").options
    assert ORIGINAL.min_max is PAPER["min_max"] is not MSFT_PAPER.min_max
    assert MSFT_PAPER.beta == 5000.0


COUNTED = "options_by_method.msft.score_excluded=rollback"
"""What sets a recipe to the accounting of the paper's FLOPs section."""
FORGETFUL = {
    "a": Learner(passes=0.7, limit=1.4, damage=0.28),
    "b": Learner(passes=0.5, limit=1.3, damage=0.25),
    "c": Learner(passes=1.4, limit=1.0, damage=0.11),
    "d": Learner(passes=0.6, limit=0.3, damage=0.35),
}
"""One of them leaves in each stage, and the best point is one that is not rolled back to."""


@pytest.mark.parametrize("path", PAPER_S, ids=lambda path: path.name)
def test_the_paper_s_recipes_choose_as_algorithm_4_and_the_other_reading_is_one_flag(
    path: Path,
) -> None:
    """The argmax is over every tick of every stage, base included; with the flag, over the first
    stage and one tick of each later one."""
    chosen = {}
    for reading, flags in {"every": [], "rollback": [COUNTED]}.items():
        recipe = load_recipe(path, flags)
        method = prepared(recipe, "msft")
        assert method.rollout_options.score_excluded == reading
        for other in ("continual", "sro"):  # the appendix scores everybody at every tick of these
            assert prepared(recipe, other).rollout_options.score_excluded == "every"
        history = simulate(
            "msft",
            FORGETFUL,
            compute_budget=recipe.compute_budget,
            evals_per_epoch=recipe.evals_per_epoch,
            peaks=recipe.peaks,
            method_options=options_of("msft", recipe),
        )
        means = {
            place: sum(score.value for score in scores.values()) / len(FORGETFUL)
            for place, scores in history.scores[SELECTION].items()
            if len(scores) == len(FORGETFUL)
        }
        assert history.candidates == len(means)
        assert history.best == max(means, key=means.__getitem__)
        chosen[reading] = (history, means)
    (every, all_means), (counted, few) = chosen["every"], chosen["rollback"]
    assert [stage.excluded for stage in every.stages] == [s.excluded for s in counted.stages]
    ticks = every.stages[0].ticks
    assert [stage.ticks for stage in every.stages] == [ticks] * len(FORGETFUL)
    assert len(all_means) == 1 + ticks * len(FORGETFUL)
    went_on = {decision.checkpoint for stage in every.stages[1:] for decision in stage.decisions}
    assert {*few} == {BASE, *every.stages[0].checkpoints, *went_on}
    assert len(few) < len(all_means)
    assert every.best not in few, "nobody sees it with the flag"
    assert max(all_means.values()) > max(few.values())


def prepared(recipe: Recipe, method: str) -> PreparedMethod:
    """The method as `msft compare` would run it."""
    options = options_of(method, recipe)
    return replace(recipe, method=method, method_options=options).prepared


def test_the_page_names_every_default_that_is_not_the_paper_s() -> None:
    page = (ROOT / "docs/recipe.md").read_text()
    rows = page.partition("| option | default | the paper's | why not |")[2].partition("\n\n")[0]
    lines = [line.split(" | ") for line in rows.splitlines()[2:]]
    assert len(lines) == 5
    said = {option: line[2] for line in lines for option in PAPER if f"`{option}`" in line[0]}
    assert said.keys() == PAPER.keys()
    for option, paper in PAPER.items():
        text = str(paper).lower() if isinstance(paper, bool) else str(paper)
        assert text in said[option], option


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


def test_the_fifteen_tasks_of_the_study_begin_with_the_ten() -> None:
    ten, fifteen = (
        load_recipe(ROOT / "recipes" / f"{name}.yaml")
        for name in ("smollm2-learnable", "smollm2-fifteen")
    )
    assert len({spec.benchmark for spec in fifteen.datasets}) == 15
    assert replace(fifteen, datasets=fifteen.datasets[:10]) == ten


WITHIN = ("five-tasks", "ten-tasks", "smollm2-learnable")
"""Recipes that are the beginning of another one, as tests above have it."""


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.stem not in WITHIN], ids=lambda path: path.name
)
def test_a_recipe_fits_the_data_folder(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "model_name_or_path=tiny", "--set", "max_length=512"]
    assert main(["validate", str(path), "--data", str(SHARED), *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    table, _, rest = captured.out.partition("\n\n")
    rest = rest[rest.index("one epoch: ") :]
    told = " ".join(rest.split())
    names = [line.split()[0] for line in table.splitlines()[1:]]
    specs = load_recipe(path).datasets
    if path.stem.startswith("medmcqa-"):
        assert len(names) == 11 if path.stem == "medmcqa-groups" else len(names) > 11
        assert all(name.startswith("medmcqa.") for name in names)
        assert told.count("are pooled: ") == int("medmcqa.other" in names)
    else:
        assert names == [spec.name for spec in specs]
    assert "what trained rows of" not in told or "fifteen" in path.stem
    if path.stem == "smollm2-learnable-noisy":
        wrong = [line for line in rest.splitlines() if "train labels are made wrong" in line]
        assert [line.split(": ")[1] for line in wrong] == ["sciq", "boolq", "piqa", "sst2"]
        assert "sciq: label_noise 0.4: 720 of 1,800 train labels are made wrong" in wrong[0]
        assert "piqa: label_noise 0.4: 664 of 1,660 train labels are made wrong" in wrong[2]
