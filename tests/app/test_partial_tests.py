"""A mixture where one sub-dataset has no test rows: the test scores of the others are shown."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from toys import recipe_of, write_data

import msft
from msft.cli import main
from msft.run.log import Chain, EndEvent, RunEvent, ScoresEvent, read_log, to_line

WHY = "no mean on test: first has no test rows"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, warm_module: str) -> Path:
    folder = tmp_path_factory.mktemp("partial")
    write_data(folder, train=16, held_out=8)
    whole = recipe_of(folder, method="sft", num_train_epochs=1)
    specs = [replace(spec, test=None) if spec.name == "first" else spec for spec in whole.datasets]
    recipe = replace(whole, datasets=specs)
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    command = ["compare", str(folder / "recipe.yaml"), "--methods", "sft,soup"]
    assert main([*command, "--seeds", "1", "--out", str(folder / "all")]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


def test_what_there_is_stands_in_the_summary_and_where_people_look(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs / "all" / "sft-s1"
    best = json.loads((run / "summary.json").read_text())["best"]
    assert best["test"]["mean"] is None
    scores = best["test"]["datasets"]
    assert scores.keys() == {"upper", "vowel"}
    assert scores["vowel"] > 0
    assert main(["train", str(run / "recipe.yaml"), "--out", str(run)]) == 0
    shown = said(capsys)
    assert f"vowel {best['validation']['datasets']['vowel']:.4f} {scores['vowel']:.4f}" in shown
    assert WHY in shown
    card = (run / "best" / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith("| vowel"))
    assert row.endswith(f"| {scores['vowel']:.4f} |")
    assert WHY.capitalize() in card
    page = (run / "report.html").read_text()
    assert WHY.capitalize() in page
    assert "was not scored on" not in page
    assert f"<b>{100 * scores['vowel']:.1f}</b>" in page
    assert main(["report", str(run)]) == 0
    assert main(["analyze", "headroom", str(run), "--json"]) == 0
    said(capsys)
    out = tmp_path / "scores.json"
    command = ["eval", str(run / "best"), str(runs / "recipe.yaml"), "--out", str(out)]
    assert main(command) == 0
    assert json.loads(out.read_text())["datasets"] == pytest.approx(scores)
    assert "first: it has no test rows" in said(capsys)


def test_tables_have_it_and_say_why_there_is_no_mean(runs: Path) -> None:
    scores = json.loads((runs / "all" / "sft-s1" / "summary.json").read_text())["best"]["test"]
    shown = f"{100 * scores['datasets']['vowel']:.1f}"
    for suffix in ("md", "html", "tex"):
        text = (runs / "all" / f"compare.{suffix}").read_text()
        assert WHY.capitalize() in text, suffix
        assert shown in text.split("on test", 1)[1], suffix
    lines = (runs / "all" / "compare.csv").read_text().splitlines()
    on_test = [line.split(",") for line in lines if line.split(",")[1] == "vowel"]
    assert [float(line[3]) for line in on_test if line[2] == "SFT"][-1] == pytest.approx(
        100 * scores["datasets"]["vowel"]
    )


def test_a_run_that_an_earlier_version_began_goes_on_without_test(
    runs: Path, tmp_path: Path
) -> None:
    """Such a version scored nothing on test there, and its first event says so."""
    run = copytree(runs / "all" / "sft-s1", tmp_path / "run")
    events = []
    for event in read_log(run / "run.jsonl"):
        if isinstance(event, RunEvent):
            settings = {key: value for key, value in event.settings.items() if key != "tested"}
            event = replace(event, settings={**settings, "score_test": "none"})
        if not isinstance(event, EndEvent) and not (
            isinstance(event, ScoresEvent) and event.split == "test"
        ):
            events.append(event)
    chain = Chain()
    (run / "run.jsonl").write_bytes(b"".join(chain.seal(to_line(event)) for event in events))
    before = (run / "run.jsonl").read_bytes()
    result = msft.train(msft.load_recipe(run / "recipe.yaml"), run)
    assert result.summary["best"]["test"] is None
    assert (run / "run.jsonl").read_bytes().startswith(before)
