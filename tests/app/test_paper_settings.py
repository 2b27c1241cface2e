"""Keys that set a run to the paper's: what they change, and what they do not."""

import csv
import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from toys import recipe_of, write_data

import msft
from msft.app.variants import options_of
from msft.cli import main
from msft.errors import RecipeError
from msft.run.environment import rollout_from
from msft.run.folder import RunFolder
from msft.run.log import to_json
from msft.testing import promised_log

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


@pytest.mark.usefixtures("warm")
def test_both_policies_of_the_disk_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command, one first roll-out: logs and results differ in what was on disk alone."""
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="msft")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    out = tmp_path / "out"
    command = ["compare", str(tmp_path / "recipe.yaml"), "--quiet", "--out", str(out)]
    assert main([*command, "--methods", "msft,msft[disk_policy=paper]"]) == 0
    lean, paper = out / "msft-s1", out / "msft+disk_policy=paper-s1"
    assert rollout_from(RunFolder(paper).environment) == lean.name
    logs = [promised_log(folder / "run.jsonl").splitlines() for folder in (lean, paper)]
    assert logs[0][1:] == logs[1][1:]
    for name in ("best/model.safetensors", "verdicts.jsonl", "schedule.json"):
        assert (lean / name).read_bytes() == (paper / name).read_bytes()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (lean, paper)]
    disks = [summary.pop("disk") for summary in summaries]
    assert summaries[0] == summaries[1]
    assert disks[0]["mean_copies"] < disks[1]["mean_copies"]
    with (out / "compare.csv").open() as file:
        cells = [cell for cell in csv.DictReader(file) if cell["table"] == "disk"]
    found = {(cell["row"], cell["column"]): cell["value"] for cell in cells}
    for row, policy, disk in zip(
        ("mSFT", "mSFT[disk_policy=paper]"), ("lean", "paper"), disks, strict=True
    ):
        assert found[row, "policy"] == policy
        assert float(found[row, "mean"]) == pytest.approx(disk["mean_copies"])
        assert float(found[row, "most"]) == disk["peak_copies"]
    assert main(["report", str(paper), str(lean)]) == 0
    page = (paper / "report.html").read_text()
    assert "Every candidate is on disk, as in the paper&#39;s Algorithm 4." in page
    assert "held (disk_policy: paper)" in page
    assert "held (disk_policy: lean)" in (lean / "report.html").read_text()
    capsys.readouterr()
    train = ["train", str(tmp_path / "recipe.yaml"), "--set", "disk_policy=paper"]
    assert main([*train, "--out", str(lean)]) == 2
    assert "disk_policy was 'lean', now it is 'paper'" in capsys.readouterr().err


def test_the_plan_and_the_start_count_what_the_policy_puts_on_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    (tmp_path / "recipe.yaml").write_text(recipe_of(tmp_path, method="msft").to_yaml())
    command = [str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out")]
    paper = ["--set", "disk_policy=paper"]
    plan = ["plan", *command, "--no-calibration"]
    peaks = []
    for more in ([], paper):
        assert main([*plan, *more, "--json"]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["disk"]["peak"])
    assert main([*plan, *paper]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 checkpoints that may be needed at a time are on disk (disk_policy: paper)" in said
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, peaks[1] - 1))
    assert peaks[0] < peaks[1]
    assert main(["train", *command, *paper]) == 3
    assert "use another --out, disk_policy: lean, a machine" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
