"""`selection_split: test`, the paper's protocol: test rows select and report, and every score that
anybody sees says so."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys import recipe_of, write_data

import msft
from msft.app.terminal.board import Board
from msft.app.terminal.progress import event_text, live_view
from msft.app.variants import variants_of
from msft.cli import main
from msft.errors import UsageError
from msft.observers.trackers import described
from msft.recipe.recipe import Recipe
from msft.report.compare.comparison import comparison_of_each, comparisons_of, model_comparisons
from msft.report.compare.runs import compared_runs
from msft.run.environment import rollout_from
from msft.run.folder import RunFolder, read_history
from msft.run.log import PointEvent, to_json
from msft.text import SELECTED_ON_TEST

METHODS = "sft,soup,msft"


def on_test(folder: Path, **keys: Any) -> Recipe:
    """The toy recipe; its validation files are not there at all."""
    recipe = recipe_of(folder, **keys)
    moved = [replace(spec, validation=str(folder / "gone.jsonl")) for spec in recipe.datasets]
    return replace(recipe, datasets=moved, selection_split="test")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, warm_module: str) -> Path:
    """A recipe, and a comparison of three methods with all that it writes."""
    folder = tmp_path_factory.mktemp("on-test")
    write_data(folder)
    (folder / "recipe.yaml").write_text(on_test(folder, method="sft").to_yaml())
    command = ["compare", str(folder / "recipe.yaml"), "--out", str(folder / "out"), "--quiet"]
    assert main([*command, "--methods", METHODS, "--figures", "svg"]) == 0
    return folder


def said(path: Path) -> str:
    """The text of a page, without the recipe that it quotes."""
    text = path.read_text().partition('id="settings"')[0]
    return " ".join(text.replace("&#39;", "'").split())


def test_it_does_what_a_run_does_whose_validation_rows_are_the_test_rows(tmp_path: Path) -> None:
    """Decisions, scores, tokens and weights; only the names of the split differ."""
    write_data(tmp_path)
    options: dict[str, Any] = {"method": "msft", "method_options": {"max_stages": 3}}
    theirs = on_test(tmp_path, **options)
    ours = recipe_of(tmp_path, **options)
    same = [replace(spec, validation=spec.test, test=None) for spec in ours.datasets]
    runs = {"test": theirs, "validation": replace(ours, datasets=same)}
    events = {}
    for name, recipe in runs.items():
        msft.train(recipe, tmp_path / name, quiet=True)
        lines = [to_json(event) for event in RunFolder(tmp_path / name).events()]
        assert lines[0]["settings"].pop("selection_split", "validation") == name
        assert {line.pop("split") for line in lines if "split" in line} == {name}
        lines[0].pop("fingerprint")
        lines[0]["settings"].pop("score_test")
        events[name] = lines
        verdicts = (tmp_path / name / "verdicts.jsonl").read_text()
        assert f'"split":"{name}"' in verdicts
        assert verdicts.count('"split"') == verdicts.count(f'"split":"{name}"')
        samples = (tmp_path / name / "samples.jsonl").read_text()
        assert samples.count('"split"') == samples.count(f'"split": "{name}"') > 0
    assert events["test"] == events["validation"]
    weights = [(tmp_path / name / "best/model.safetensors").read_bytes() for name in runs]
    assert weights[0] == weights[1]
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in runs]
    best = [summary["best"] for summary in summaries]
    assert best[0]["test"] == best[0]["validation"] == best[1]["validation"]
    assert best[1]["test"] is None
    assert [summary.get("selection_split") for summary in summaries] == ["test", None]


def test_a_first_roll_out_is_shared_here_too(place: Path) -> None:
    assert rollout_from(place / "out/soup-s1/environment.json") == "sft-s1"
    logs = [(place / f"out/{name}-s1/run.jsonl").read_text() for name in ("sft", "soup")]
    points = [
        [json.loads(line) for line in log.splitlines() if '"event":"point"' in line] for log in logs
    ]
    kept = [[{**p, "disk": 0, "crc": 0} for p in each] for each in points]
    assert kept[0] == kept[1]
    steps = [(place / f"out/{name}-s1/steps.jsonl").read_text() for name in ("sft", "soup")]
    assert steps[0] == steps[1], "none was trained again"


def test_a_resume_with_another_split_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(place / "recipe.yaml"), "--out", str(place / "out/sft-s1"), "--quiet"]
    assert main(command) == 0
    assert SELECTED_ON_TEST in " ".join(capsys.readouterr().out.split())
    (place / "there").mkdir()
    write_data(place / "there")
    (place / "there/recipe.yaml").write_text(recipe_of(place / "there", method="sft").to_yaml())
    assert main([*command, "--set", "selection_split=validation"]) == 2
    assert "gone.jsonl" in capsys.readouterr().err
    there = ["train", str(place / "there/recipe.yaml"), "--out", str(place / "there/run")]
    assert main([*there, "--quiet"]) == 0
    capsys.readouterr()
    assert main([*there, "--quiet", "--set", "selection_split=test"]) == 2
    assert "selection_split was 'validation', now it is 'test'" in capsys.readouterr().err


def test_the_result_on_a_terminal_has_one_split_and_the_mark(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(place / "recipe.yaml"), "--out", str(place / "out/sft-s1")]
    assert main(command) == 0
    printed, noted = capsys.readouterr()
    assert "points on test\n" in printed
    assert "sub-dataset    test\n" in printed
    assert SELECTED_ON_TEST in printed
    assert "validation" not in printed
    assert "validation of upper, first and vowel is not used" in noted
    assert SELECTED_ON_TEST in noted


def test_progress_and_trackers_say_it(place: Path) -> None:
    board = Board()
    texts: list[str] = []
    for event in RunFolder(place / "out/soup-s1").events():
        board.event(event, live=True)
        texts += [event_text(event, board, 200) or ""]
        told = described(board.history, event, 1)
        assert all(not key.startswith("eval") for key in told)
        if event.event == "run":
            assert told == {"selection_text": SELECTED_ON_TEST}
        if isinstance(event, PointEvent):
            assert told["test/mean"] == float(board.history.mean(event.checkpoint))
    assert texts[0] == SELECTED_ON_TEST
    means = [text for text in texts if " mean 0." in text]
    assert len(means) > 5
    assert all(" on test, which selects" in text for text in means)
    from rich.console import Console

    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(live_view(board, "soup", 100, 40))
    assert SELECTED_ON_TEST in shown.get()


@pytest.mark.parametrize("name", ["sft-s1", "soup-s1", "msft-s1"])
def test_page_and_card_of_a_run_say_it_and_never_speak_of_validation(
    place: Path, name: str
) -> None:
    run = place / "out" / name
    page, card = said(run / "report.html"), (run / "best/README.md").read_text()
    assert f'<p class="note"><b>{SELECTED_ON_TEST}</b></p>' in page
    assert f"**{SELECTED_ON_TEST}**" in card
    for text in (page, card):
        assert "validation" not in text.casefold()
    best = json.loads((run / "summary.json").read_text())["best"]
    mean = best["test"]["mean"]
    assert f"| **mean** | | | {mean:.4f} |" in card
    assert f"{100 * mean:.1f} % on test over 3 sub-datasets" in page
    main(["report", str(run), "--figures", "svg"])
    for figure in sorted((run / "figures").iterdir()):
        marked = "Selected on test rows" in figure.read_text()
        assert marked == (figure.stem not in ("loss", "flops", "disk")), figure.stem


def test_every_table_and_figure_of_a_comparison_says_it(place: Path) -> None:
    out = place / "out"
    page, markdown, tex = (said(out / f"compare.{suffix}") for suffix in ("html", "md", "tex"))
    assert f'<p class="note"><b>{SELECTED_ON_TEST}</b></p>' in page
    tables = {"html": page.split('id="table-')[1:], "md": markdown.split("### ")[1:]}
    tables["tex"] = tex.split("begin{table}")[1:]
    for suffix, found in tables.items():
        assert len(found) > 5
        for table in found:
            assert "Selected on test rows (the paper" in table, (suffix, table[:80])
    for text in (page, markdown, tex):
        assert "validation" not in text.casefold()
    with (out / "compare.csv").open() as file:
        cells = [*csv.DictReader(file)]
    assert {cell["selection_split"] for cell in cells} == {"test"}
    scores = {cell["row"]: cell["value"] for cell in cells if cell["table"] == "main"}
    assert {"SFT", "Soup", "mSFT"} <= scores.keys()
    for figure in sorted((out / "figures").iterdir()):
        marked = "Selected on test rows" in figure.read_text()
        assert marked == (figure.stem != "losses"), figure.stem


def test_json_says_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = str(place / "recipe.yaml"), place / "out"
    asked = {
        "validate": ["validate", recipe],
        "plan": ["plan", recipe, "--no-calibration", "--out", str(place / "x")],
        "train": ["train", recipe, "--out", str(out / "sft-s1")],
        "eval": ["eval", str(out / "sft-s1/best"), recipe],
        "compare": ["compare", recipe, "--methods", METHODS, "--out", str(out), "--no-run"],
        "headroom": ["analyze", "headroom", str(out / "sft-s1")],
    }
    capsys.readouterr()
    found = {}
    for name, command in asked.items():
        assert main([*command, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
        assert found[name]["selection_split"] == "test", name
    assert found["compare"]["remarks"][0] == SELECTED_ON_TEST
    assert found["eval"]["mean"] == found["train"]["best"]["test"]["mean"]
    assert found["validate"]["datasets"]["upper"]["validation_rows"] == 0
    assert found["plan"]["datasets"]["upper"]["validation"] is None
    assert found["plan"]["datasets"]["upper"]["test"]["rows"] == 16
    assert found["plan"]["evaluation"]["rows"] == 48


def test_texts_of_commands_say_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = str(place / "recipe.yaml"), place / "out"
    for command in (
        ["validate", recipe],
        ["plan", recipe, "--out", str(place / "x")],
        ["eval", str(out / "sft-s1/best"), recipe],
        ["analyze", "headroom", str(out / "sft-s1")],
        ["compare", recipe, "--methods", METHODS, "--out", str(out), "--no-run"],
    ):
        capsys.readouterr()
        assert main(command) == 0
        assert SELECTED_ON_TEST in " ".join(capsys.readouterr().out.split()), command
    assert main(["eval", str(out / "sft-s1/best"), recipe, "--split", "validation"]) == 2
    assert "reads no validation rows" in " ".join(capsys.readouterr().err.split())


def test_a_plan_counts_the_rows_that_are_scored(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = on_test(tmp_path, method="sft")
    planned = msft.plan(recipe, tmp_path / "run", calibrate=False)["methods"]["sft"]["best"]
    tokens = msft.train(recipe, tmp_path / "run", quiet=True).summary["tokens"]
    assert planned["evaluations"] == 5, "the base model and four ticks, each once"
    assert planned["tokens"]["train"] == tokens["train"]


def test_runs_that_selected_on_different_rows_are_not_compared(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = place / "other"
    other.mkdir(exist_ok=True)
    write_data(other)
    msft.train(recipe_of(other, method="sft"), other / "run", quiet=True)
    page = place / "out/report.html"
    capsys.readouterr()
    assert main(["report", str(place / "out/msft-s1"), str(other / "run")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "msft-s1 was selected on test rows (selection_split: test), and run on validation" in told
    )
    assert not page.exists()
    runs = compared_runs([place / "out/msft-s1", other / "run"])
    for comparison in (comparison_of_each, model_comparisons, comparisons_of):
        with pytest.raises(UsageError, match="so their scores cannot be compared"):
            comparison(runs)
    (variant,) = variants_of("sft[selection_split=test]")
    with pytest.raises(UsageError, match="scores of different rows cannot be compared"):
        variant.overrides(recipe_of(other, method="sft"))


def test_a_schedule_that_test_rows_selected_is_replayed_as_such(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = place / "out/msft-s1/schedule.json"
    assert json.loads(schedule.read_text())["selection_split"] == "test"
    plain = place / "plain"
    plain.mkdir()
    write_data(plain)
    (plain / "recipe.yaml").write_text(recipe_of(plain, method="sft").to_yaml())
    command = ["replay", str(schedule), str(plain / "recipe.yaml"), "--out", str(plain / "run")]
    capsys.readouterr()
    assert main([*command, "--quiet"]) == 2
    assert "was selected on test rows" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--quiet", "--set", "selection_split=test"]) == 0
    assert SELECTED_ON_TEST in capsys.readouterr().out
    assert read_history(plain / "run").selected_on_test


def test_an_analysis_says_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["analyze", "budget", str(place / "recipe.yaml"), "--budgets", "0.5,1"]
    assert main([*command, "--out", str(place / "budget"), "--quiet"]) == 0
    assert f"scores on test\n{SELECTED_ON_TEST}" in capsys.readouterr().out
    content = json.loads((place / "budget/budgets.json").read_text())
    assert content["sft"]["selection_split"] == content["msft"][0]["selection_split"] == "test"
    assert "Selected on test rows" in (place / "budget/budgets.svg").read_text()


def test_a_grid_of_scores_says_it_and_the_others_show_none(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("peaks", "loss", "disk"):
        command = ["analyze", "grid", kind, str(place / "out"), "--out", str(tmp_path / kind)]
        capsys.readouterr()
        assert main(command) == 0
        printed = " ".join(capsys.readouterr().out.split())
        drawn = (tmp_path / kind / f"{kind}-grid.svg").read_text()
        shows_scores = kind == "peaks"
        assert (SELECTED_ON_TEST in printed) == shows_scores
        assert ("Selected on test rows" in drawn) == shows_scores
        assert main([*command, "--json"]) == 0
        panels = json.loads(capsys.readouterr().out)["panels"]
        assert [panel["selection_split"] for panel in panels] == ["test"] * len(panels)


def test_a_grid_of_scores_has_one_selection(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path)
    msft.train(recipe_of(tmp_path, method="sft"), tmp_path / "run", quiet=True)
    runs = [str(place / "out/sft-s1"), str(tmp_path / "run")]
    assert main(["analyze", "grid", "peaks", *runs, "--out", str(tmp_path / "grid")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "sft-s1 was selected on test rows (selection_split: test), and run on" in told
    assert not (tmp_path / "grid").exists()
