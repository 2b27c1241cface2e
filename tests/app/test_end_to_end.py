"""Whole runs of the tiny model: every method, killed and resumed, and what they leave behind."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import RULES, read_lines, recipe_of, rows, write_data

import msft
from msft.engine import build, memory
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import Diverged, RecipeError
from msft.report import write_report
from msft.run.log import PointEvent, read_log
from msft.run.rows import read_samples, read_verdicts
from msft.search.methods import METHODS
from msft.search.rollout import BASE, CheckpointId

pytestmark = pytest.mark.usefixtures("no_reports")  # but for one run

HERE = Path(__file__).parent


HALVES = sorted(METHODS)[::2], sorted(METHODS)[1::2]
"""Each has a process of its own, and every method a run of its own in it."""


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("methods", HALVES, ids=", ".join)
def test_killed_at_any_moment_a_run_resumes_to_the_same_log_and_weights(
    methods: Sequence[str], tmp_path: Path
) -> None:
    command = [sys.executable, str(HERE / "kill_and_resume.py"), str(tmp_path)]
    small = {"rows": 24, "train_batch_size": 8}  # as many steps as with twice the rows
    command += [json.dumps({"method": method, **small}) for method in methods]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    write_data(folder)
    recipe = recipe_of(folder, method="msft")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msft.training.write_report", write_report)
        return recipe, msft.train(recipe, folder / "out")


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    write_data(folder)
    return msft.train(recipe_of(folder, method="sft"), folder / "out").folder


def test_the_run_folder_has_what_the_contract_says(run: Any) -> None:
    folder = run[1].folder
    for name in [
        "recipe.yaml",
        "run.jsonl",
        "verdicts.jsonl",
        "steps.jsonl",
        "schedule.json",
        "summary.json",
    ]:
        assert (folder / name).stat().st_size > 0, name
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == run[1].summary
    assert summary["status"] == "finished"
    assert summary["best"]["test"] is not None
    assert set(summary["best"]["validation"]["datasets"]) == set(RULES)
    assert summary["flops"]["kept"] + summary["flops"]["discarded"] == summary["flops"]["train"]
    assert "<html" in (folder / "report.html").read_text()


def test_steps_have_the_losses_of_their_sub_datasets_the_rate_and_the_norm(run: Any) -> None:
    recipe, result = run
    steps = read_lines(result.folder / "steps.jsonl")
    first = steps[0]
    assert set(first["losses"]) == set(RULES)
    low, high = min(first["losses"].values()), max(first["losses"].values())
    assert low < first["loss"] < high
    assert all(step["learning_rate"] == recipe.learning_rate for step in steps)
    assert all(step["grad_norm"] > 0 for step in steps)
    assert len({step["grad_norm"] for step in steps}) > len(steps) / 2
    by_tick = [step for step in steps if (step["rollout"], step["tick"]) == (0, 1)]
    (point, *_) = [
        event for event in read_log(result.folder / "run.jsonl") if isinstance(event, PointEvent)
    ]
    total = sum(step["loss"] * step["rows"] for step in by_tick)
    assert total == pytest.approx(point.loss[0])


def test_the_result_loads_in_transformers_and_says_what_msft_measured(run: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    recipe, result = run
    model = AutoModelForCausalLM.from_pretrained(result.best)
    tokenizer = AutoTokenizer.from_pretrained(result.best)
    assert model.dtype == torch.float32
    assert tokenizer.encode("abc") == tiny_tokenizer().encode("abc")
    name = "upper"
    lines = Path(str(recipe.datasets[0].test)).read_text().splitlines()
    losses, count = 0.0, 0
    for row in map(json.loads, lines):
        prompt = tokenizer.encode(row["prompt"])
        answer = [*tokenizer.encode(row["completion"]), tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        losses += torch.nn.functional.cross_entropy(
            logits, torch.tensor(answer), reduction="sum"
        ).item()
        count += len(answer)
    assert losses / count == pytest.approx(result.summary["best"]["test"]["datasets"][name], 1e-4)


def test_the_same_call_on_a_finished_folder_changes_nothing(run: Any) -> None:
    recipe, result = run
    before = (result.folder / "run.jsonl").read_bytes()
    again = msft.train(recipe, result.folder)
    assert again.summary == result.summary
    assert (result.folder / "run.jsonl").read_bytes() == before


def test_a_moved_project_goes_on_and_its_rows_must_be_the_same(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write_data(old, train=16, held_out=4)
    keys: dict[str, Any] = {"method": "sft", "num_train_epochs": 0.5}
    before = msft.train(replace(recipe_of(old, **keys), folder=old), old / "run", quiet=True)
    old.rename(new)
    recipe = replace(recipe_of(new, **keys), folder=new)
    assert msft.train(recipe, new / "run", quiet=True).summary == before.summary
    assert str(new) in (new / "run/recipe.yaml").read_text()
    file = new / "upper.train.jsonl"
    file.write_text(file.read_text().replace("A", "B"))
    with pytest.raises(Diverged, match=r"fingerprint\.data"):
        msft.train(recipe, new / "run", quiet=True)


def test_verdicts_agree_with_the_scores_in_the_log(sft: Path) -> None:
    verdicts = read_verdicts(sft / "verdicts.jsonl")
    points = [e for e in read_log(sft / "run.jsonl") if isinstance(e, PointEvent)]
    for point in points:
        for name, score in point.scores.items():
            marks = verdicts[point.checkpoint, "validation", name]
            assert isinstance(marks, str)
            assert (marks.count("1"), len(marks)) == (score.total, score.count)


def test_not_one_training_bit_depends_on_evaluation(sft: Path) -> None:
    every = recipe_of(sft.parent, method="sft", score_test="every")
    assert every.score_test != recipe_of(sft.parent, method="sft").score_test
    best = []
    for out in (sft, msft.train(every, sft.parent / "every").folder):
        losses = [e.loss for e in read_log(out / "run.jsonl") if isinstance(e, PointEvent)]
        best.append((losses, (out / "best" / "model.safetensors").read_bytes()))
    assert best[0] == best[1]


def test_rows_may_come_from_python(tmp_path: Path) -> None:
    every = rows("first", 60)
    dataset = {"name": "first", "train": every[:40], "validation": every[40:], "metric": "nll"}
    recipe = msft.Recipe(
        model_name_or_path="tiny",
        method="sft",
        num_train_epochs=1,
        evals_per_epoch=1,
        datasets=[dataset],
    )
    result = msft.train(recipe, tmp_path / "out")
    assert result.summary["best"]["test"] is None
    assert result.summary["stages"][0]["active"] == ["first"]


def test_a_second_run_of_a_process_has_the_memory_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `msft train --audit`, and in a notebook."""
    write_data(tmp_path)
    engines: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def built(*given: Any) -> Any:
        engine = engine_of(*given)
        engines.append(weakref.ref(engine))
        return engine

    def measured(device: torch.device) -> memory.FreeMemory:
        alive.append(sum(engine() is not None for engine in engines))
        return room_of(device)

    engine_of, room_of = build.engine_of, memory.room_of
    monkeypatch.setattr(build, "engine_of", built)
    monkeypatch.setattr(memory, "room_of", measured)
    gc.disable()  # it may come by itself, or not
    try:
        for seed in (1, 2):
            recipe = recipe_of(tmp_path, method="sft", num_train_epochs=1, seed=seed)
            msft.train(recipe, tmp_path / f"run {seed}", quiet=True)
            alive.append(-1)
    finally:
        gc.enable()
    second = alive[alive.index(-1) + 1]
    assert (len(engines), second) == (2, 0)


def test_a_schedule_is_replayed_in_one_straight_run(run: Any, tmp_path: Path) -> None:
    recipe, result = run
    again = msft.train(recipe, tmp_path / "replay", schedule=result.folder / "schedule.json")
    assert again.summary["method"] == "replay"
    assert again.summary["best"]["epochs"] == result.summary["best"]["epochs"]
    assert again.summary["flops"]["discarded"] == 0


def test_rows_longer_than_the_model_can_see_are_a_recipe_error(tmp_path: Path) -> None:
    write_data(tmp_path)
    with pytest.raises(RecipeError, match="512"):
        msft.train(recipe_of(tmp_path, max_length=4096), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("reports")
def test_samples_beside_a_loss_are_what_the_models_write(tmp_path: Path) -> None:
    """Base and result; neither scores nor log know of it, and a report shows it."""
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft", num_train_epochs=4, samples=2)
    specs = [replace(spec, metric="nll") for spec in recipe.datasets]
    recipe = replace(recipe, datasets=specs)
    result = msft.train(recipe, tmp_path / "out", quiet=True)
    without = msft.train(replace(recipe, samples=0), tmp_path / "without", quiet=True)
    logs = [
        [
            {key: value for key, value in json.loads(line).items() if key not in ("disk", "crc")}
            for line in (run.folder / "run.jsonl").read_text().splitlines()
        ]
        for run in (result, without)
    ]
    assert logs[0] == logs[1]
    assert result.summary["flops"] == without.summary["flops"]
    best = CheckpointId(result.summary["best"]["checkpoint"])
    held = read_samples(result.folder / "samples.jsonl")
    assert [*held] == [BASE, best]
    accuracy = replace(recipe, datasets=[replace(spec, metric="accuracy") for spec in specs])
    for checkpoint, model in ((BASE, "tiny"), (best, result.best)):
        scored = msft.evaluate(model, accuracy, split="validation", answers=True, quiet=True)
        for name in ("upper", "vowel"):
            rows = [row for row in scored["answers"] if row["dataset"] == name]
            for sample in held[checkpoint][name]:
                assert rows[sample.row]["prediction"] == sample.answer, (checkpoint, name)
                assert not isinstance(sample.worth, bool)
    page = (result.folder / "report.html").read_text()
    shown = next(each for each in held[best]["vowel"] if each.answer)
    loss = f'{shown.answer} <small class="quiet">loss of the reference {shown.worth:.3f}</small>'
    assert loss in page


def test_the_validation_loss_is_that_of_the_metric_nll(tmp_path: Path) -> None:
    write_data(tmp_path, train=32, held_out=8)
    keys: dict[str, Any] = {"method": "sft", "num_train_epochs": 1}
    plain = msft.train(recipe_of(tmp_path, **keys), tmp_path / "plain", quiet=True)
    recipe = recipe_of(tmp_path, **keys, validation_loss=True)
    measured = msft.train(recipe, tmp_path / "measured", quiet=True)
    twin = replace(recipe, validation_loss=False)
    twin = replace(twin, datasets=[replace(spec, metric="nll") for spec in twin.datasets])
    by_loss = msft.train(twin, tmp_path / "nll", quiet=True)
    lines = (measured.folder / "losses.jsonl").read_text().splitlines()
    losses = {line["checkpoint"]: line["losses"] for line in map(json.loads, lines)}
    points = [e for e in read_log(by_loss.folder / "run.jsonl") if isinstance(e, PointEvent)]
    assert [*losses] == ["base", *(point.checkpoint for point in points)]
    for point in points:
        expected = {name: pytest.approx(float(s.value)) for name, s in point.scores.items()}
        assert losses[point.checkpoint] == expected
    assert measured.summary["best"] == plain.summary["best"], "it decides nothing"
    assert measured.summary["flops"]["evaluation"] > plain.summary["flops"]["evaluation"]
    assert not (plain.folder / "losses.jsonl").exists()
    planned = [
        msft.plan(each, calibrate=False)["methods"]["sft"]["best"]["flops"]["evaluation"]
        for each in (recipe, recipe_of(tmp_path, **keys))
    ]
    more = measured.summary["flops"]["evaluation"] - plain.summary["flops"]["evaluation"]
    assert planned[0] - planned[1] == pytest.approx(more, rel=0.01)
