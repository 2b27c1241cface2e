"""Runs on one dataset that `split_by` turns into several sub-datasets."""

import json
from pathlib import Path
from typing import Any

import pytest
from toys import RULES, rows, write_lines

import msft
from msft.errors import RecipeError
from msft.recipe.recipe import Recipe
from msft.report import write_report
from msft.run.log import Event, PointEvent
from msft.run.worker import Step

pytestmark = pytest.mark.usefixtures("no_reports")

NAMES = ["words.first", "words.upper", "words.other"]


def write_words(folder: Path) -> None:
    """The toy rows in one file per split, with the rule as a column; `vowel` has few."""
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    for rule in RULES:
        found = [{**row, "rule": rule} for row in rows(rule, 40)]
        splits["train"] += found[: 6 if rule == "vowel" else 24]
        splits["validation"] += found[24:32]
        splits["test"] += found[32:]
    (folder / "words").mkdir()
    for split, found in splits.items():
        write_lines(folder / "words" / f"{split}.jsonl", found)


def recipe_of(folder: Path, **keys: Any) -> Recipe:
    spec = {"name": "words", "path": str(folder / "words"), "split_by": "rule", "metric": "nll"}
    spec["split_min_rows"] = keys.pop("split_min_rows", 20)
    settings: dict[str, Any] = {
        "model_name_or_path": "tiny",
        "method": "msft",
        "learning_rate": 3e-3,
        "train_batch_size": 8,
        "compute_budget": 1,
        "evals_per_epoch": 2,
        "seed": 1,
    }
    return Recipe(**{**settings, **keys}, datasets=[spec])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("split")
    write_words(folder)
    said: list[str] = []
    result = msft.train(recipe_of(folder), folder / "out", notice=said.append)
    return folder, result, said


def test_every_value_is_trained_and_scored_by_itself(run: Any) -> None:
    folder, result, said = run
    assert result.summary["status"] == "finished"
    for split in ("validation", "test"):
        assert list(result.summary["best"][split]["datasets"]) == NAMES
    assert result.schedule["rows"] == {"words.first": 24, "words.upper": 24, "words.other": 6}
    assert len([note for note in said if "is pooled: vowel 6" in note]) == 1
    page = write_report(folder / "out").read_text()
    assert all(name in page for name in NAMES)


def test_the_same_call_gives_the_same_result_and_a_changed_recipe_is_refused(run: Any) -> None:
    folder, result, _ = run
    assert msft.train(recipe_of(folder), folder / "out").summary == result.summary
    with pytest.raises(RecipeError, match=r"datasets.words.split_min_rows was 20, now it is 5"):
        msft.train(recipe_of(folder, split_min_rows=5), folder / "out")


class Stop(Exception):
    """Raised in the middle of a run."""


class Stopping:
    """Stops a run at its second evaluation."""

    def __init__(self) -> None:
        self._reached = 0

    def event(self, event: Event, live: bool) -> None:
        self._reached += isinstance(event, PointEvent)
        if self._reached == 2:
            raise Stop

    def step(self, step: Step) -> None:
        pass


def test_a_stopped_run_goes_on(run: Any, tmp_path: Path) -> None:
    folder, result, _ = run
    with pytest.raises(Stop):
        msft.train(recipe_of(folder), tmp_path / "again", progress=Stopping())
    left = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert left["status"] != "finished"
    summary = msft.train(recipe_of(folder), tmp_path / "again").summary
    assert summary["best"] == result.summary["best"]


def test_its_schedule_can_be_replayed(run: Any, tmp_path: Path) -> None:
    folder, _, _ = run
    schedule = folder / "out" / "schedule.json"
    replayed = msft.train(recipe_of(folder), tmp_path / "replay", schedule=schedule)
    assert replayed.summary["method"] == "replay"
    assert list(replayed.summary["best"]["validation"]["datasets"]) == NAMES
    other = recipe_of(folder, split_min_rows=5)
    with pytest.raises(RecipeError, match=r"is not in both"):
        msft.train(other, tmp_path / "other", schedule=schedule)
