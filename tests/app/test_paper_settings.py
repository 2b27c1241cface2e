"""Keys that set a run to the paper's accounting: what they change, and what they do not."""

from dataclasses import replace
from pathlib import Path

import pytest
from toys import recipe_of, write_data

import msft
from msft.app.variants import options_of
from msft.errors import RecipeError
from msft.run.folder import RunFolder
from msft.run.log import to_json

pytestmark = pytest.mark.usefixtures("no_reports")


def test_counting_every_row_changes_tokens_of_evaluation_and_nothing_else(tmp_path: Path) -> None:
    write_data(tmp_path)
    events, recipes = [], []
    for counted in ("computed", "every_row"):
        keys = {"num_train_epochs": 1, "evaluation_tokens": counted}
        recipe = recipe_of(tmp_path, method="sft", **keys)
        shots = [replace(spec, num_fewshot=1) for spec in recipe.datasets]
        recipes.append(replace(recipe, datasets=shots))
        msft.train(recipes[-1], tmp_path / counted)
        events.append([to_json(event) for event in RunFolder(tmp_path / counted).events()])
    computed, whole = events
    assert "evaluation_tokens" not in computed[0]["settings"]
    assert whole[0] == {
        **computed[0],
        "settings": {**computed[0]["settings"], "evaluation_tokens": "every_row"},
    }
    more = []
    for one, other in zip(computed[1:], whole[1:], strict=True):
        if "tokens" in one:
            more.append(other["tokens"].pop("evaluation") - one["tokens"].pop("evaluation"))
        assert one == other
    assert min(more) > 0, "all rows begin with the same exemplar"
    with pytest.raises(
        RecipeError, match="evaluation_tokens was 'computed', now it is 'every_row'"
    ):
        msft.train(recipes[1], tmp_path / "computed")


def test_a_folder_from_before_these_keys_goes_on(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft", num_train_epochs=1)
    msft.train(recipe, tmp_path / "run")
    files = RunFolder(tmp_path / "run")
    younger = ("options_by_method:", "evaluation_tokens:")
    kept = [line for line in files.recipe.read_text().splitlines() if not line.startswith(younger)]
    assert len(kept) == len(files.recipe.read_text().splitlines()) - 2
    files.recipe.write_text("\n".join(kept))
    assert msft.train(recipe, tmp_path / "run").summary["ended_by"] == "budget"


def test_a_comparison_gives_each_method_its_options(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(
        tmp_path,
        method="msft",
        method_options={"patience": 3, "drop_ties": "all"},
        options_by_method={
            "msft": {"drop_ties": "one", "score_excluded": "rollback"},
            "continual": {"patience": 2},
            "ies": {"track_excluded": False},
        },
    )
    assert {
        name: options_of(name, recipe) for name in ("msft", "continual", "sro", "ies", "sft")
    } == {
        "msft": {"patience": 3, "drop_ties": "all", "score_excluded": "rollback"},
        "continual": {"patience": 2},
        "sro": {},
        "ies": {"track_excluded": False},
        "sft": {},
    }
