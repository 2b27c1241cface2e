"""`exclude_rows` in whole runs: what is trained, what is said and printed, and who may go on."""

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from rank_runs import left_by
from toys import RULES, write_data, write_lines

import msft
from msft.app.compare import planned, rollout_digest
from msft.cli import main
from msft.engine.fast import FastEngine
from msft.engine.model.tokenizers import load_rows
from msft.errors import DataError, Diverged, RecipeError
from msft.recipe.recipe import load_recipe
from msft.run.log import RunEvent, read_log
from msft.search.feeds import Batch
from msft.search.rollout import ALL_DATA

pytestmark = pytest.mark.usefixtures("no_reports")

RECIPE: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "method": "sft",
    "learning_rate": 3e-3,
    "train_batch_size": 6,
    "compute_budget": 1,
    "num_train_epochs": 2,
    "evals_per_epoch": 1,
    "seed": 1,
    "samples": 0,
}
LEFT_OUT = {"upper": (0, 3, 4, 11), "vowel": (2,)}
"""Numbers of the rows that the files here name."""


def prompts_of(name: str, folder: Path) -> list[str]:
    lines = (folder / f"{name}.train.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def write_file(folder: Path, file: str, left_out: dict[str, tuple[int, ...]]) -> Path:
    said = []
    for name, numbers in left_out.items():
        rows = (folder / f"{name}.train.jsonl").read_text().splitlines()
        for row in (json.loads(rows[number]) for number in numbers):
            text = json.dumps([row["prompt"], row["completion"]], separators=(",", ":"))
            digest = hashlib.sha256(text.encode()).hexdigest()
            said.append({"dataset": name, "sha256": digest, "prompt": row["prompt"], "doubt": 1})
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, said)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows, a recipe over them, and the file of the rows that are left out."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=12, held_out=4)
    datasets = [
        {"name": n, "train": f"{n}.train.jsonl", "validation": f"{n}.valid.jsonl"} for n in RULES
    ]
    keys = {**RECIPE, "datasets": datasets}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(keys))
    (tmp_path / "clean.yaml").write_text(
        yaml.safe_dump({**keys, "exclude_rows": "audit/out.jsonl"})
    )
    write_file(tmp_path, "audit/out.jsonl", LEFT_OUT)
    return tmp_path


def stayed(name: str, folder: Path) -> list[str]:
    gone = LEFT_OUT.get(name, ())
    return [row for n, row in enumerate(prompts_of(name, folder)) if n not in gone]


def opened(run: Path) -> RunEvent:
    first = read_log(run / "run.jsonl")[0]
    assert isinstance(first, RunEvent)
    return first


def test_every_epoch_trains_exactly_the_other_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, seen = load_recipe("clean.yaml"), list[tuple[str, int]]()
    work = FastEngine.work

    def watched(engine: FastEngine, batch: Batch) -> Any:
        seen.extend((row[0], row[1]) for row in batch.rows)
        return work(engine, batch)

    monkeypatch.setattr(FastEngine, "work", watched)
    notes = list[str]()
    result = msft.train(recipe, "run", notice=notes.append)
    rows = load_rows(recipe).corpus.datasets
    trained = Counter((name, rows[name].train.examples[n].prompt) for name, n in seen)
    expected = {(name, prompt): 2 for name in RULES for prompt in stayed(name, folder)}
    assert trained == expected, "twice in two epochs"
    half = len(seen) // 2
    assert len({*seen[:half]}) == len({*seen[half:]}) == len(expected)
    assert opened(result.folder).datasets == {"upper": 8, "first": 12, "vowel": 11}
    assert "upper: exclude_rows: 4 of 12 train rows are not trained" in notes
    assert "vowel: exclude_rows: 1 of 12 train rows is not trained" in notes
    assert not any("first: exclude_rows" in note for note in notes)


def test_the_bytes_are_those_of_a_run_on_a_file_without_these_rows(folder: Path) -> None:
    """But for the fingerprint: scores, losses and weights."""
    assert main(["train", "clean.yaml", "--out", "clean", "--quiet"]) == 0
    for name in RULES:
        file = folder / f"{name}.train.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        gone = LEFT_OUT.get(name, ())
        file.write_text("".join(row for n, row in enumerate(lines) if n not in gone))
    assert main(["train", "all.yaml", "--out", "cut", "--quiet"]) == 0
    one, other = (left_by(folder / run) for run in ("clean", "cut") if drop_samples(folder / run))
    assert one["weights"] == other["weights"] != {}
    assert one["verdicts.jsonl"] == other["verdicts.jsonl"]
    first, second = (read_log(folder / run / "run.jsonl")[1:] for run in ("clean", "cut"))
    assert [repr(e) for e in first] == [repr(e) for e in second]


def drop_samples(run: Path) -> bool:
    (run / "samples.jsonl").touch()
    return True


def test_validate_counts_the_rows_that_stay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "clean.yaml", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {n: d["train_rows"] for n, d in said["datasets"].items()} == {
        "upper": 8,
        "first": 12,
        "vowel": 11,
    }
    assert (said["train_rows"], said["epoch_rows"], said["steps_per_epoch"]) == (31, 31, 6)
    note = "exclude_rows: 4 of 12 train rows are not trained"
    assert said["datasets"]["upper"]["notes"] == [note]
    assert main(["plan", "clean.yaml", "--json", "--no-calibration"]) == 0
    told = json.dumps(json.loads(capsys.readouterr().out))
    assert main(["plan", "all.yaml", "--json", "--no-calibration"]) == 0
    assert told != json.dumps(json.loads(capsys.readouterr().out))


def test_a_run_goes_on_with_its_own_file_only(folder: Path) -> None:
    class Killed(Exception):
        pass

    recipe, out = load_recipe("clean.yaml"), folder / "run"
    whole = msft.train(recipe, "whole")
    with pytest.MonkeyPatch.context() as patch:
        work, left = FastEngine.work, iter(range(8))

        def dies(engine: FastEngine, batch: Batch) -> Any:
            if next(left, None) is None:
                raise Killed
            return work(engine, batch)

        patch.setattr(FastEngine, "work", dies)
        with pytest.raises(Killed):
            msft.train(recipe, out)
    before = (out / "run.jsonl").read_bytes()
    file = folder / "audit/out.jsonl"
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    never = json.dumps({"dataset": "upper", "sha256": "0" * 64}) + "\n"
    for other in (lines[1:], [*lines, never], [*lines[:-1], lines[-1].replace("1", "2", 1)]):
        file.write_text("".join(other))
        assert main(["train", "clean.yaml", "--out", "run", "--quiet"]) == 2
        with pytest.raises((Diverged, DataError)):
            msft.train(recipe, out)
    file.write_text(text)
    assert main(["train", "all.yaml", "--out", "run", "--quiet"]) == 2
    with pytest.raises(RecipeError, match=r"exclude_rows was '.*out.jsonl', now it is None"):
        msft.train(load_recipe("all.yaml"), out)
    shutil.copy(file, "same.jsonl")
    with pytest.raises(RecipeError, match="exclude_rows was"):
        msft.train(load_recipe("clean.yaml", ["exclude_rows=same.jsonl"]), out)
    assert (out / "run.jsonl").read_bytes() == before, "nothing was trained"
    done = msft.train(recipe, out)
    assert done.summary == whole.summary
    assert main(["train", "all.yaml", "--out", "plain", "--quiet"]) == 0
    (folder / "plain/recipe.yaml").unlink()
    with pytest.raises(Diverged, match=r"datasets\.|fingerprint\.data"):
        msft.train(recipe, "plain")


def test_a_moved_folder_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = folder / "old", folder / "new"
    old.mkdir()
    for path in [*folder.glob("*.jsonl"), folder / "clean.yaml", folder / "audit"]:
        path.rename(old / path.name)
    before = msft.train(load_recipe(old / "clean.yaml"), old / "run")
    old.rename(new)
    assert msft.train(load_recipe(new / "clean.yaml"), new / "run").summary == before.summary
    assert f"exclude_rows: {new}/audit/out.jsonl" in (new / "run/recipe.yaml").read_text()


def test_a_run_without_the_key_says_nothing_of_it(folder: Path) -> None:
    result = msft.train(load_recipe("all.yaml"), "plain")
    assert {*opened(result.folder).fingerprint} == {"data", "model", "training"}
    assert "exclude_rows" not in (result.folder / "run.jsonl").read_text()
    assert "exclude_rows: null" in (result.folder / "recipe.yaml").read_text()


def test_a_schedule_is_replayed_without_the_rows(folder: Path) -> None:
    found = msft.train(load_recipe("all.yaml", ["method=msft", "datasets.vowel.metric=nll"]), "run")
    words = ["replay", str(found.folder / "schedule.json"), "clean.yaml", "--out", "again"]
    assert main([*words, "--set", "datasets.vowel.metric=nll", "--quiet"]) == 0
    assert opened(folder / "again").datasets == {"upper": 8, "first": 12, "vowel": 11}


@pytest.mark.parametrize(
    "method", ["msft", "soup", "sro", "soft_sro", "continual", "dynamix", "ies"]
)
def test_every_method_leaves_the_rows_out(folder: Path, method: str) -> None:
    more = {"dynamix": {"lookahead_batch_size": 4, "update_every": 3}, "ies": {"threshold": 0.3}}
    recipe = load_recipe(
        "clean.yaml", [f"method={method}", f"method_options={json.dumps(more.get(method, {}))}"]
    )
    result = msft.train(recipe, "run")
    assert result.summary["status"] == "finished"
    rolled = (json.loads(line) for line in (folder / "run/run.jsonl").read_text().splitlines())
    rows = [event["active"] for event in rolled if event["event"] == "rollout"]
    limits = {"upper": 8, "first": 12, "vowel": 11}
    if method != "soft_sro":  # its second phase divides the rows anew
        assert all(count == limits[name] for each in rows for name, count in each.items())
    assert rows[0].keys() <= limits.keys()
    assert opened(folder / "run").datasets == limits


# Comparisons


def test_with_and_without_the_rows_stand_side_by_side(
    folder: Path, warm: str, reports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(folder, "a.b-c/out.jsonl", LEFT_OUT | {"first": (5,)})
    methods = "sft,sft[exclude_rows=audit/out.jsonl],sft[exclude_rows=a.b-c/out.jsonl]"
    words = ["compare", "all.yaml", "--out", "cmp", "--methods", methods, "--quiet"]
    assert main(words) == 0
    runs = {path.name: opened(path) for path in Path("cmp").iterdir() if path.is_dir()}
    audit, other = (f"sft+exclude_rows={n}%2Fout.jsonl-s1" for n in ("audit", "a.b-c"))
    assert runs.keys() == {"sft-s1", audit, other}
    assert runs[audit].datasets == {"upper": 8, "first": 12, "vowel": 11}
    assert runs[other].datasets == {"upper": 8, "first": 11, "vowel": 11}
    assert len({run.fingerprint["data"] for run in runs.values()}) == 3
    assert {run.fingerprint.get(ALL_DATA, run.fingerprint["data"]) for run in runs.values()} == {
        runs["sft-s1"].fingerprint["data"]
    }
    said = capsys.readouterr().out
    assert "SFT[exclude_rows=audit/out.jsonl]" in said
    assert "SFT[exclude_rows=a.b-c/out.jsonl]" in said
    assert "fingerprints differ" not in said
    lines = Path("cmp/compare.csv").read_text().splitlines()
    assert any(line.startswith("bootstrap") and "audit/out.jsonl" in line for line in lines)


def test_one_file_is_called_by_its_name(
    folder: Path, warm: str, reports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = "sft,sft[exclude_rows=null]"
    words = ["compare", "clean.yaml", "--out", "cmp", "--methods", methods, "--quiet"]
    assert main(words) == 0
    assert "SFT[exclude_rows=null]" in capsys.readouterr().out
    assert opened(Path("cmp/sft-s1")).datasets["upper"] == 8
    assert opened(Path("cmp/sft+exclude_rows=null-s1")).datasets["upper"] == 12
    methods = f"sft[exclude_rows=null],sft[exclude_rows={folder}/audit/out.jsonl]"
    assert main([*words[:4], "--methods", methods, "--quiet", "--out", "more"]) == 0
    assert "SFT[exclude_rows=out.jsonl]" in capsys.readouterr().out


def test_a_variant_with_a_wrong_file_starts_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "none.jsonl").write_text(json.dumps({"dataset": "upper", "sha256": "0" * 64}) + "\n")
    for file, said in (("none.jsonl", "no line fits a train row"), ("nope", "no such file")):
        methods = f"sft,sft[exclude_rows={file}]"
        assert main(["compare", "all.yaml", "--out", "cmp", "--methods", methods]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
        words = ["plan", "all.yaml", "--side-by-side", "2", "--no-calibration"]
        assert main([*words, "--methods", methods]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("cmp").exists()


def test_runs_on_the_same_rows_share_their_first_roll_out(folder: Path) -> None:
    methods = "sft,soup,sft[exclude_rows=audit/out.jsonl],soup[exclude_rows=audit/out.jsonl]"
    runs = [each.recipe for each in planned(Path("all.yaml"), [], methods, [1], Path("out"))]
    asked = [rollout_digest(recipe) for recipe in runs]
    assert asked[0] == asked[1] != asked[2] == asked[3]
    assert None not in asked
