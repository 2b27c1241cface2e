"""Peaks by probability: another curve finds the peaks; accuracy still selects and reports."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import msft
from msft.errors import DataError
from msft.recipe.recipe import Recipe
from msft.run.folder import read_history
from msft.run.history import History, summary_of
from msft.testing import Learner, simulate

pytestmark = pytest.mark.usefixtures("no_reports")

LEARNERS = {
    "a": Learner(rows=32, passes=1.5, limit=1.0, damage=0.2, validation_rows=5),
    "b": Learner(rows=32, passes=2.0, limit=9.0, validation_rows=5),
}
"""Five validation rows: accuracy moves in steps of 0.2, and its peak is the first of equals."""


def run(folder: Path, **peaks: Any) -> History:
    folder.mkdir()
    return simulate(
        "msft", LEARNERS, compute_budget=3, evals_per_epoch=4, train_batch_size=8, peaks=peaks,
        folder=folder, method_options={"max_stages": 1},
    )  # fmt: skip


def test_the_peak_is_where_the_probability_is_highest(tmp_path: Path) -> None:
    hard, soft = run(tmp_path / "hard"), run(tmp_path / "soft", by="probability")
    points = [soft.stages[0].asked.start, *(p.checkpoint for p in soft.stages[0].points)]
    likely = [soft.known(at)["a"].probability or 0.0 for at in points]
    right = [float(soft.known(at)["a"].value) for at in points]
    assert likely.index(max(likely)) != right.index(max(right)), "or this shows nothing"
    for history, curve in ((hard, right), (soft, likely)):
        peak = curve.index(max(curve))
        assert summary_of(history)["stages"][0]["peaks"]["a"] == peak / 4
        assert [float(height) for height in history.curve(0, "a")] == curve
        assert history.exclusions[0].tick == peak
        assert history.exclusions[0].name == "a"


def test_accuracy_selects_and_reports(tmp_path: Path) -> None:
    soft = run(tmp_path / "soft", by="probability")
    found = summary_of(soft)["best"]["validation"]
    assert soft.best is not None
    assert found["datasets"] == {n: float(s.value) for n, s in soft.known(soft.best).items()}
    means = [soft.mean(p.checkpoint) for p in soft.stages[0].points]
    assert soft.mean(soft.best) == max(means)


def test_the_log_has_probabilities_only_where_they_are_asked_for(tmp_path: Path) -> None:
    folders = {"hard": run(tmp_path / "hard"), "soft": run(tmp_path / "soft", by="probability")}
    for name, history in folders.items():
        lines = [
            json.loads(line) for line in (tmp_path / name / "run.jsonl").read_text().splitlines()
        ]
        assert ("by" in lines[0]["settings"]["peaks"]) == (name == "soft")
        widths = {len(score) for line in lines for score in line.get("scores", {}).values()}
        assert widths == ({3} if name == "soft" else {2})
        assert summary_of(read_history(tmp_path / name)) == summary_of(history)


# With the engine.


def toy(choices: bool = True, **keys: Any) -> Recipe:
    """`x ab:` asks which letter comes first; three choices."""
    random = Random(1)

    def rows(count: int, word: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        while len(found) < count:
            letters = random.sample("abcdefgh", 3)
            row: dict[str, Any] = {"prompt": f"{word} {''.join(letters)}:"}
            if choices:
                row |= {"choices": [f" {c}" for c in sorted(letters)]}
                row |= {"answer": sorted(letters).index(letters[0])}
            else:
                row |= {"completion": f" {letters[0]}"}
            found[row["prompt"]] = row
        return list(found.values())

    def spec(name: str) -> dict[str, Any]:
        every = rows(64, name)
        return {"name": name, "train": every[:32], "validation": every[32:], "metric": "accuracy"}

    return Recipe(
        model_name_or_path="tiny", method="sft", learning_rate=3e-3, train_batch_size=16,
        num_train_epochs=2, evals_per_epoch=2, seed=1, datasets=[spec("one"), spec("two")],
        peaks={"by": "probability"}, **keys,
    )  # fmt: skip


def test_a_run_of_the_engine_finds_its_peaks_by_probability(tmp_path: Path) -> None:
    summary = msft.train(toy(), tmp_path / "out").summary
    history = read_history(tmp_path / "out")
    for name in ("one", "two"):
        likely = [history.known(c)[name].probability or 0.0 for c in history.scores["validation"]]
        assert len(likely) == 5
        assert len(set(likely)) == 5, "softer than counts"
        assert all(0 < p < 1 for p in likely)
        assert summary["stages"][0]["peaks"][name] == likely.index(max(likely)) / 2
    assert msft.train(toy(), tmp_path / "out").summary == summary


def test_rows_without_choices_are_refused_before_the_engine(tmp_path: Path) -> None:
    def engine(recipe: Any, corpus: Any) -> Any:
        raise AssertionError("no engine is made")

    with pytest.raises(DataError) as caught:
        msft.train(toy(choices=False), tmp_path / "out", engine=engine)
    assert str(caught.value) == (
        "sub-dataset 'one', validation, row 1: peaks.by is probability, but the rows of one have "
        "no choices; use peaks.by: score, or rows with choices (of benchmarks: prompt_style: text)"
    )
