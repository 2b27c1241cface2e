"""Watched sub-datasets, guards and early stopping as a user has them: files, commands, pages."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rank_processes import in_processes
from rank_runs import left_by, train
from toys import read_lines, rows, write_data, write_lines

from mortal import quick_folder
from msft.cli import main
from msft.data.corpus import load_corpus
from msft.engine.model.tokenizers import load_rows
from msft.errors import DataError
from msft.integrations.refusals import TAKEN_KEYS
from msft.recipe.importer import drafted
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.log import PointEvent, read_log

RECIPE: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "method": "sft",
    "learning_rate": 3e-3,
    "train_batch_size": 6,
    "num_train_epochs": 3,
    "compute_budget": 1,
    "evals_per_epoch": 2,
    "lanes": 2,
    "samples": 1,
    "seed": 1,
}


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with quick_folder() as folder:
        write_data(folder, train=13, held_out=8)
        yield folder


def spec(name: str, *splits: str, **more: Any) -> dict[str, Any]:
    ours = {"train": "train", "validation": "valid", "test": "test"}
    files = {split: f"{name}.{ours[split]}.jsonl" for split in splits}
    return {"name": name, "metric": "nll"} | files | more


WATCHED = [
    spec("upper", "train", "validation", guard={"max_drop": 0.5}),
    spec("first", "train", "validation"),
    spec("vowel", "validation", "test", guard={"max_drop": 0.2}),
]


def recipe(folder: Path, file: str, datasets: list[dict[str, Any]] = WATCHED, **keys: Any) -> str:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **keys, "datasets": datasets}))
    return str(path)


def summary(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    file = recipe(data, "trained", early_stopping_patience=2)
    assert main(train(file, data / "trained")) == 0
    return data / "trained"


def test_a_run_watches_and_says_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = summary(trained)
    assert found["best"]["validation"]["datasets"].keys() == {"upper", "first"}
    assert found["best"]["path_exclusions"] == []
    assert found["best"]["test"] is None, "no trained one has test rows"
    watched = found["watched"]["vowel"]
    assert watched.keys() == {"base", "best", "guard", "test"}
    assert watched["guard"] == {"max_drop": 0.2, "kept": True}
    assert watched["test"]["base"] > 0
    points = [e for e in read_log(trained / "run.jsonl") if isinstance(e, PointEvent)]
    assert all(e.scores.keys() == {"upper", "first", "vowel"} for e in points)
    assert all(e.guards.keys() == {"upper", "vowel"} for e in points)
    assert main(["train", str(trained.parent / "trained.yaml"), "--out", str(trained)]) == 0
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if line.startswith("vowel")]
    assert line.split()[1:3] == [f"{watched['base']:.4f}", f"{watched['best']:.4f}"]
    assert line.endswith("kept (max_drop 0.2)")
    assert "guard of upper: kept (max_drop 0.5)" in said


def test_page_and_card_show_it_apart(trained: Path) -> None:
    page = (trained / "report.html").read_text()
    section = page[page.index("Watched sub-datasets") :]
    assert "vowel" in section[:3000]
    assert "upper (trained)" in section[:3000]
    card = (trained / "best" / "README.md").read_text()
    apart = card[card.index("### Watched sub-datasets") :]
    assert "| vowel |" in apart.replace("\\", "")
    assert "| vowel |" not in card[: card.index("### Watched sub-datasets")]
    assert "kept, +0.200 nats allowed" in apart.replace("\\", "")


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("method", ["sft", "msft"])
def test_two_processes_leave_the_bytes_of_one(data: Path, method: str) -> None:
    keys: dict[str, Any] = {"method": method}
    if method == "sft":
        keys |= {"early_stopping_patience": 1, "learning_rate": 0.03}
    else:
        keys |= {"method_options": {"score_excluded": "rollback"}}
    file = recipe(data, f"ranks-{method}", **keys)
    assert main(train(file, data / f"one-{method}")) == 0
    ended = in_processes(2, [train(file, data / f"two-{method}")])
    assert ended.codes == [[0], [0]], ended.said
    assert left_by(data / f"two-{method}") == left_by(data / f"one-{method}")
    log = (data / f"one-{method}" / "run.jsonl").read_text()
    assert '"guards":{"upper":{"drop":' in log


@pytest.mark.usefixtures("no_reports")
def test_stopping_early_keeps_the_planned_learning_rates(data: Path) -> None:
    """The run that stopped took the first steps of the run that did not."""
    keys: dict[str, Any] = {"lr_scheduler_type": "linear", "learning_rate": 1e-6, "lanes": 1}
    mixture = [spec(name, "train", "validation", metric="accuracy") for name in ("upper", "first")]
    whole, short = data / "whole", data / "short"
    assert main(train(recipe(data, "whole", mixture, **keys), whole)) == 0
    file = recipe(data, "short", mixture, early_stopping_patience=1, **keys)
    assert main(train(file, short)) == 0
    rates = [
        [
            json.loads(line)["learning_rate"]
            for line in (out / "steps.jsonl").read_text().splitlines()
        ]
        for out in (whole, short)
    ]
    assert len(rates[0]) == 15
    assert len(rates[1]) == 3, "the first tick; accuracy stays at 0"
    assert rates[1] == rates[0][:3]
    assert rates[0][0] > rates[0][2] > 0.8e-6, "a course of 15 steps"
    assert summary(short)["ended_by"] == "early_stopping"
    assert summary(whole)["ended_by"] == "budget"


@pytest.mark.usefixtures("no_reports")
def test_test_rows_alone_are_scored_at_every_tick(data: Path) -> None:
    datasets = [spec("upper", "train", "validation", "test"), spec("vowel", "test")]
    out = data / "test-alone"
    assert main(train(recipe(data, "test-alone", datasets, num_train_epochs=1), out)) == 0
    found = summary(out)
    assert found["watched"]["vowel"].keys() == {"base", "best", "guard"}
    assert found["best"]["test"]["datasets"].keys() == {"upper"}
    assert found["best"]["test"]["mean"] is not None
    points = [e for e in read_log(out / "run.jsonl") if isinstance(e, PointEvent)]
    assert all("vowel" in e.scores for e in points)
    assert points[0].scores["vowel"].metric == "nll"


@pytest.mark.usefixtures("no_reports")
def test_where_test_selects_it_is_scored_on_test(data: Path) -> None:
    datasets = [spec("upper", "train", "test"), spec("vowel", "test")]
    out = data / "on-test"
    file = recipe(data, "on-test", datasets, num_train_epochs=1, selection_split="test")
    assert main(train(file, out)) == 0
    found = summary(out)
    assert found["watched"]["vowel"]["base"] > 0
    assert found["best"]["test"] == found["best"]["validation"]


# Refusals and what is printed.


def test_rows_that_are_trained_are_not_watched(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leak = data / "leak.jsonl"
    mine = read_lines(data / "first.train.jsonl")
    other = [{"prompt": "x?", "completion": "y"}]
    write_lines(leak, [*other, mine[4], mine[2]])
    datasets = [*WATCHED[:2], {"name": "w", "test": "leak.jsonl"}]
    assert main(["validate", recipe(data, "leak", datasets)]) == 2
    said = capsys.readouterr().err
    assert "w is only watched, but 2 of 3 rows of it are trained in first" in said
    assert "leak.jsonl, line 2 = " in said
    assert "remove them from one of the two" in said


def test_even_a_short_question_is_not_watched(data: Path) -> None:
    (data / "short.train.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n' * 2)
    (data / "short.w.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    datasets = [
        {**spec("upper", "train", "validation"), "train": "short.train.jsonl"},
        {"name": "w", "validation": "short.w.jsonl"},
    ]
    with pytest.raises(DataError, match="w is only watched, but 1 of 1 row of it is trained"):
        load_rows(load_recipe(recipe(data, "short-leak", datasets)))


def test_validate_shows_it_as_watched(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recipe(data, "shown")
    assert main(["validate", file, "--show", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "vowel prompt+completion nll watched 8 8 0" in said
    assert "vowel: watched: it is scored at every tick and never trained; guard:" in said
    assert "one epoch: 26 rows" in said, "of upper and first"
    assert "--- vowel (" in said
    assert main(["validate", file, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["datasets"].keys() == {"upper", "first"}
    assert content["watched"]["vowel"]["train_rows"] == 0
    assert content["watched"]["vowel"]["validation_rows"] == 8
    assert content["guards"] == {"upper": 0.5, "vowel": 0.2}


def test_plan_counts_it(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(file: str) -> Any:
        assert main(["plan", file, "--no-calibration", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    with_one = planned(recipe(data, "plan", early_stopping_patience=2))
    without = planned(recipe(data, "plan-without", WATCHED[:2]))
    assert with_one["watched"]["vowel"]["validation"]["rows"] == 8
    assert with_one["evaluation"]["rows"] == without["evaluation"]["rows"] + 8
    best, worst = (with_one["methods"]["sft"][which] for which in ("best", "worst"))
    assert (best["epochs"], worst["epochs"]) == (1, 3), "two ticks are an epoch"
    assert worst["tokens"]["train"] == without["methods"]["sft"]["worst"]["tokens"]["train"]


def test_eval_scores_it_in_no_mean(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recipe(data, "eval")
    assert main(["eval", "tiny", file, "--split", "validation", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["watched"] == ["vowel"]
    trained = [found["datasets"][name] for name in ("upper", "first")]
    assert found["mean"] == pytest.approx(sum(trained) / 2)
    assert main(["eval", "tiny", file, "--split", "test"]) == 0
    said = capsys.readouterr().out
    assert "nll, watched" in said
    assert "mean" not in said.replace("nll", "").splitlines()[-1], "nobody else has test rows"


@pytest.mark.usefixtures("warm")
def test_compare_shows_it_and_refuses_patience_by_name(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = data / "compared"
    file = recipe(data, "compared", num_train_epochs=1)
    assert main(["compare", file, "--methods", "sft,msft", "--out", str(out), "--quiet"]) == 0
    text = (out / "compare.md").read_text()
    table = text[text.index("### Watched sub-datasets") :].split("\n\n")[2]
    lines = table.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["Base", "SFT", "mSFT"]
    assert lines[0] == "| method | vowel | guards kept |"
    base = summary(out / "sft-s1")["watched"]["vowel"]["base"]
    assert f"{base:.3f}" in lines[2]
    page = (out / "compare.html").read_text()
    assert "Watched sub-datasets" in page
    capsys.readouterr()
    with_patience = recipe(data, "patient", early_stopping_patience=1)
    words = ["compare", with_patience, "--methods", "sft,msft", "--out", str(data / "x")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("msft: with method msft: ")
    assert "early_stopping_patience is 1, but method msft does not take it" in said


@pytest.mark.usefixtures("no_reports")
def test_a_schedule_is_replayed_beside_what_is_watched(trained: Path, data: Path) -> None:
    out = data / "replayed"
    file = str(data / "trained.yaml")
    words = ["replay", str(trained / "schedule.json"), file, "--out", str(out), "--quiet"]
    assert main(words) == 0
    assert summary(out)["watched"]["vowel"]["guard"]["max_drop"] == 0.2
    assert summary(out)["best"]["epochs"] == summary(trained)["best"]["epochs"]


@pytest.mark.usefixtures("no_reports")
def test_an_audit_leaves_it_alone(data: Path) -> None:
    file = recipe(data, "audited", early_stopping_patience=1, num_train_epochs=0.5)
    out = data / "audited"
    assert main(["audit", file, "--rounds", "1", "--out", str(out)]) == 0
    assert json.loads((out / "audit.json").read_text())["datasets"].keys() == {"upper", "first"}
    assert "vowel" not in (out / "run.jsonl").read_text()
    assert load_recipe(out / "clean.yaml").datasets[2].is_watched


# Benchmarks and folders.


def test_a_watched_benchmark_has_exemplars_and_no_train_rows() -> None:
    recipe = Recipe.from_mapping(
        {
            "model_name_or_path": "tiny",
            "datasets": [
                {"name": "teams", "benchmark": "demo_teams"},
                {"name": "sorting", "benchmark": "demo_sorting", "watch": True, "num_fewshot": 2},
            ],
        }
    )
    corpus = load_rows(recipe).corpus
    assert [*corpus.datasets] == ["teams"]
    [sorting] = corpus.watched.values()
    assert not sorting.train.rows
    assert len(sorting.exemplars) == 2
    assert {split: len(rows.rows) for split, rows in sorting.given.items()} == {
        "validation": 150,
        "test": 400,
    }
    assert recipe.notes[0].startswith("there is one sub-dataset only")


def test_a_folder_is_watched_where_it_says_so(data: Path) -> None:
    folder = data / "folder"
    folder.mkdir(exist_ok=True)
    shutil.copy(data / "vowel.valid.jsonl", folder / "validation.jsonl")
    own = {"name": "vowel", "path": "folder", "metric": "nll"}
    found = load_recipe(recipe(data, "folder", [WATCHED[0], {**own, "watch": True}]))
    assert [*load_rows(found).corpus.watched] == ["vowel"]
    with pytest.raises(DataError, match=r"no train file in this folder .* has watch: true"):
        load_rows(load_recipe(recipe(data, "folder-trained", [WATCHED[0], own])))


def test_rows_of_python_are_watched(data: Path) -> None:
    from msft.recipe.recipe import with_rows

    asked = load_recipe(recipe(data, "python", WATCHED[:2]))
    given = with_rows(asked, {"w": {"validation": rows("vowel", 3, seed=5)}})
    read = load_rows(given)
    assert load_corpus(given, read.tokenizer).watched["w"].given["validation"].rows
    assert [*read.corpus.datasets] == ["upper", "first"]


# Other tools.


@pytest.mark.parametrize(
    ("config", "patience"),
    [
        ({"base_model": "tiny", "datasets": [], "early_stopping_patience": 3}, 3),
        ({"model_name_or_path": "tiny", "stage": "sft", "early_stopping_steps": 4}, 4),
    ],
)
def test_other_tools_patience_is_carried_over(
    tmp_path: Path, config: dict[str, Any], patience: int
) -> None:
    lines = '{"instruction": "a", "input": "", "output": "b"}\n'
    (tmp_path / "d.jsonl").write_text(lines * 3)
    if "datasets" in config:
        config = {**config, "datasets": [{"path": "d.jsonl", "type": "alpaca"}]}
    else:
        config = {**config, "dataset": "d.jsonl"}
    draft = drafted(config, tmp_path, tmp_path)
    assert draft.keys["early_stopping_patience"] == patience
    off = {**config, next(key for key in config if key.startswith("early")): 0}
    assert "early_stopping_patience" not in drafted(off, tmp_path, tmp_path).keys


def test_a_trainer_takes_patience() -> None:
    assert "early_stopping_patience" in TAKEN_KEYS
