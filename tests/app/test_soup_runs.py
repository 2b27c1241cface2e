"""Soup outside of the search: real weights, best/, replay, and what people are told."""

import json
import shutil
from collections import namedtuple
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toys import RULES, recipe_of, write_data

import msft
from mortal import LEARNERS
from msft.app.terminal.progress import PlainLines
from msft.app.terminal.results import result_text
from msft.cli import main
from msft.engine.memory import Checkpoints
from msft.engine.model.shape import named_shape
from msft.errors import RecipeError
from msft.observers.trackers import described
from msft.recipe.recipe import Recipe
from msft.report import write_report
from msft.report.card import card_of
from msft.run.folder import read_history
from msft.run.history import History, summary_of
from msft.run.log import AverageEvent, DecisionEvent, ScoresEvent, read_log
from msft.run.schedules import prepared_replay
from msft.search.methods.replay import replay
from msft.search.rollout import CheckpointId
from msft.testing import scripted, simulate

pytestmark = pytest.mark.usefixtures("no_reports")

ALL = {"method": "soup", "method_options": {"of": "all"}}


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "best" / "model.safetensors")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recipe, Any]:
    folder = tmp_path_factory.mktemp("soup")
    write_data(folder)
    recipe = recipe_of(folder, **ALL)
    return folder, recipe, msft.train(recipe, folder / "out")


def test_best_is_the_mean_of_the_weights_at_every_tick(run: Any) -> None:
    """Each tick by itself, from a run that ends there: what the average of one tick is."""
    folder, _, result = run
    parts = []
    for ticks in (1, 2, 3, 4):
        options = {"of": "last", "k": 1}
        recipe = recipe_of(
            folder, method="soup", method_options=options, num_train_epochs=ticks / 2
        )
        parts.append(weights_in(msft.train(recipe, folder / f"tick{ticks}").folder))
    assert result.summary["best"]["average_of"] == ["r0-t1", "r0-t2", "r0-t3", "r0-t4"]
    found = weights_in(result.folder)
    for name, tensor in found.items():
        total = parts[0][name] + parts[1][name] + parts[2][name] + parts[3][name]
        assert torch.equal(tensor, total / 4), name
    assert any(not torch.equal(found[name], parts[3][name]) for name in found)


def test_the_result_is_read_by_transformers_and_nothing_else_is_left(run: Any) -> None:
    from transformers import AutoModelForCausalLM

    folder = run[2].folder
    model = AutoModelForCausalLM.from_pretrained(folder / "best")
    held = weights_in(folder)
    assert all(torch.equal(p, held[name]) for name, p in model.named_parameters() if name in held)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["a0.weights"]
    card = (folder / "best" / "README.md").read_text()
    assert "Checkpoint `a0` of a run with seed 1 (finished), the mean of the weights after" in card
    assert "after epochs 0.5, 1, 1.5 and 2." in card
    assert "chosen from" not in card


def test_a_schedule_of_an_average_is_replayed_to_the_same_weights(run: Any) -> None:
    folder, recipe, result = run
    schedule = json.loads((result.folder / "schedule.json").read_text())
    assert schedule["average_of"] == [0.5, 1.0, 1.5, 2.0]
    again = msft.train(recipe, folder / "replay", schedule=result.folder / "schedule.json")
    assert again.summary["method"] == "replay"
    assert again.summary["best"]["average_of"] == result.summary["best"]["average_of"]
    assert again.summary["best"]["test"] == result.summary["best"]["test"]
    ours, theirs = weights_in(again.folder), weights_in(result.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_average_that_is_not_on_one_path_cannot_be_replayed(run: Any, tmp_path: Path) -> None:
    schedule = json.loads((run[2].folder / "schedule.json").read_text())
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps(schedule | {"average_of": [0.5, None]}))
    with pytest.raises(RecipeError, match="do not follow each other"):
        prepared_replay(file, list(RULES), 2)


def test_an_average_over_two_stages_of_a_schedule() -> None:
    stages = [
        {"active": {"a": 100}, "rehearsed": {}, "epochs": epochs, "optimizer": "fresh"}
        for epochs in (1.0, 0.5)
    ]
    out = scripted(
        partial(replay, stages=stages, sizes={"a": 100}, average_of=[0.0, 0.5, 1.0, 1.5]),
        ["a"],
        lambda *_: {"a": [0.0, 0.1, 0.2]},
        evals_per_epoch=2,
    )
    assert out.averaged == [["base", "r0-t1", "r0-t2", "r1-t1"]]
    assert [stage.asked.keep for stage in out.history.stages] == [(1, 2), (1,)]


# What people and programs are told.


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of a soup with controls, simulated."""
    found = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"soup-s{seed}")
        simulate(
            "soup",
            LEARNERS,
            num_train_epochs=3,
            evals_per_epoch=2,
            train_batch_size=8,
            seed=seed,
            method_options={"of": ["span", "last", "all"], "k": 2},
            score_test="best",
            folder=folder,
        )
        found.append(folder)
    return found


def test_plain_lines_and_the_result_say_what_was_averaged(folders: list[Path]) -> None:
    out = StringIO()
    lines = PlainLines(out)
    for event in read_log(folders[0] / "run.jsonl"):
        lines.event(event, live=True)
    said = out.getvalue()
    history = read_history(folders[0])
    parts = history.averages[CheckpointId("a1")].of
    assert parts == ("r0-t5", "r0-t6")
    assert "  average a1 is of the weights at checkpoints r0-t5, r0-t6\n" in said
    assert f"  average a1, mean {float(history.mean(CheckpointId('a1'))):.4f}:  a " in said
    assert "  average a1 on test: mean" in said
    text = result_text(summary_of(history))
    count = len(history.average_of or ())
    result, ended, *_ = text.splitlines()
    weights = f"the mean of the weights at {count} checkpoints from r0-t1"
    assert result.startswith(f"soup: the result is average a0, {weights}")
    assert result.endswith(", of 6 ticks")
    assert ended == "ended: all epochs are trained; 3 epochs trained in all"


def test_trackers_are_told_of_an_average_beside_the_curves_of_ticks(folders: list[Path]) -> None:
    history, told = History(), {}
    for event in read_log(folders[0] / "run.jsonl"):
        history.add(event)
        if isinstance(event, AverageEvent | ScoresEvent) and event.checkpoint in history.averages:
            told.update(described(history, event, 15))
        elif isinstance(event, DecisionEvent):
            assert described(history, event, 15) == {}
    assert (
        told["average_text"] == f"a2 is the mean of {', '.join(history.stages[0].checkpoints[1:])}"
    )
    assert {key.split("/")[0] for key in told} == {
        "average_text",
        *(f"{kind}_a{number}" for kind in ("eval", "test") for number in range(3)),
    }
    assert told["test_a1/mean"] == float(history.mean(CheckpointId("a1"), "test"))


def test_the_report_says_what_was_averaged(folders: list[Path]) -> None:
    page = write_report(folders[0]).read_text()
    assert "The result is a0, the mean of the weights after epochs" in page
    assert "Validation chose" not in page
    assert "the average, of the ticks with a ring" in page


def test_a_report_can_be_had_of_every_prefix_of_a_soup(folders: list[Path], tmp_path: Path) -> None:
    lines = (folders[0] / "run.jsonl").read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"average"' in line)
    for length in range(first, len(lines)):
        (tmp_path / "run.jsonl").write_bytes(b"".join(lines[: length + 1]))
        assert "Soup" in write_report(tmp_path).read_text()
        card_of(read_history(tmp_path), "tiny")


# What it needs at a time.


def checkpoints_of(folder: Path, **keys: Any) -> Checkpoints:
    from msft.data.corpus import load_corpus
    from msft.engine.memory import FreeMemory, needs_of
    from msft.engine.model.tokenizers import load_tokenizer

    recipe = recipe_of(folder, **keys)
    corpus = load_corpus(recipe, load_tokenizer("tiny", False), None)
    room = FreeMemory("cpu", 10**9, 10**9, 10**9)
    shape = named_shape("tiny", False, 1)
    return needs_of(recipe, corpus, recipe.prepared, shape, room).checkpoints


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({"method": "sft"}, 4),
        ({"method": "msft"}, 3 + 3),
        ({"method": "soup"}, 20 + 1),
        ({"method": "soup", "method_options": {"of": "all"}}, 20 + 1),
        ({"method": "soup", "method_options": {"of": "peaks"}}, 3 + 2 + 1),
        ({"method": "soup", "method_options": {"of": "last", "k": 4}}, 4 + 2 + 1),
        ({"method": "soup", "method_options": {"of": "random"}}, 8 + 2 + 1),
        ({"method": "soup", "method_options": {"of": ["span", "peaks"]}}, 20 + 2),
    ],
)
def test_the_plan_counts_the_ticks_that_must_be_held(
    keys: dict[str, Any], most: int, run: Any
) -> None:
    assert checkpoints_of(run[0], num_train_epochs=10, **keys).most == most


def test_what_fits_neither_memory_nor_disk_is_exit_3_with_a_cure(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory has room for no checkpoint, the disk for ten of the 41."""
    monkeypatch.setattr("msft.engine.memory.SHARE_OF_MEMORY", 0.0)
    usage = namedtuple("usage", "total used free")
    shape = named_shape("tiny", False, 1)
    free = 20 * 4 * shape.parameters
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, free))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_of(run[0], num_train_epochs=20, **ALL).to_yaml())
    call = ["train", str(recipe), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(call) == 3
    said = capsys.readouterr().err
    assert "method_options: {of: last, k: 4}, which holds four ticks" in said
    assert "a machine with more memory" in said
    assert not (tmp_path / "out" / "run.jsonl").exists()
    assert main(["plan", str(recipe), "--no-calibration"]) == 0
    said = capsys.readouterr().out
    assert "the 41 checkpoints that may be needed at a time are on disk, since" in said
    assert "does NOT fit, msft train would refuse" in " ".join(said.split())
    cured = ["--set", "method_options={of: last, k: 4}", "--set", "num_train_epochs=1"]
    assert main([*call, *cured]) == 0
