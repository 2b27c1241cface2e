"""Groups of benchmarks: a run records them."""

from pathlib import Path

import pytest
from toys import write_lines

import msft
from msft.recipe.recipe import Recipe
from msft.run.environment import read_groups
from msft.run.folder import RunFolder
from msft.run.log import RunEvent

pytestmark = pytest.mark.usefixtures("no_reports")


def test_a_run_records_the_groups_of_its_benchmarks_and_not_in_its_log(tmp_path: Path) -> None:
    for place, asks in (("commonsenseqa", "question"), ("own", "prompt")):
        (tmp_path / place).mkdir()
        for split, first in (("train", 0), ("validation", 20), ("test", 40)):
            rows = [
                {asks: f"What is {n}?", "choices": ["x", "y"], "answer": n % 2}
                for n in range(first, first + 4)
            ]
            write_lines(tmp_path / place / f"{split}.jsonl", rows)
    recipe = Recipe.from_mapping(
        {
            "model_name_or_path": "tiny",
            "method": "sft",
            "num_train_epochs": 1,
            "evals_per_epoch": 1,
            "num_fewshot": 0,
            "data_dir": str(tmp_path),
            "datasets": [
                {"name": "a", "benchmark": "commonsenseqa"},
                {"name": "b", "path": str(tmp_path / "own")},
            ],
        }
    )
    folder = RunFolder(msft.train(recipe, tmp_path / "out").folder)
    assert read_groups(folder.environment) == {"a": "commonsense"}
    opened = folder.events()[0]
    assert isinstance(opened, RunEvent)
    assert "groups" not in opened.settings
