"""Runs inside real trainers: an SFTTrainer with all weights and with an adapter, a plain one."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from torch.utils.data import SequentialSampler
from trainers import (
    TOKENIZER,
    Watch,
    answers,
    digest,
    mixture,
    plain_trainer,
    sft_trainer,
    tokenized,
)
from transformers import AutoModelForCausalLM, TrainerCallback

from msft.engine.model.loading import tiny_model
from msft.errors import Diverged, RecipeError, Stopped
from msft.integrations.engine import TrainerEngine
from msft.integrations.trainer import train
from msft.report import write_report
from msft.run.folder import read_history
from msft.run.result import Result
from msft.search.feeds import FeedContext, Mixture
from msft.text import SELECTED_ON_TEST

pytestmark = pytest.mark.usefixtures("no_reports")  # but for the first runs

KEYS: dict[str, Any] = {"metric": "nll", "compute_budget": 2, "evals_per_epoch": 2, "quiet": True}
KEYS |= {"method_options": {"max_stages": 2}}


class Finished(NamedTuple):
    """A run, its trainer, and what a callback of the user's saw of it."""

    trainer: Any
    watch: Watch
    frozen: dict[str, torch.Tensor]
    result: Result


@pytest.fixture(scope="module", params=[False, True], ids=["full", "lora"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder, watch = tmp_path_factory.mktemp("finished"), Watch()
    trainer = sft_trainer(folder, request.param, [watch])
    frozen = {n: p.clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msft.training.write_report", write_report)
        result = train(trainer, mixture(), folder / "run", **KEYS)
    assert "</html>" in (result.folder / "report.html").read_text()
    return Finished(trainer, watch, frozen, result)


def test_it_excludes_and_rolls_back_to_the_bits_of_the_peak(finished: Finished) -> None:
    watch, result = finished.watch, finished.result
    first, second = result.summary["stages"]
    ticks = [point.steps for point in read_history(result.folder).stages[0].points]
    assert ticks == [2, 2, 2, 2]
    assert (first["excluded"], second["active"]) == (["add"], ["mul"])
    peak = int(first["rolled_back_to"] * 2)
    assert 0 < peak < 4
    assert watch.before[8] == watch.after[2 * peak - 1] != watch.after[7]


def test_what_was_discarded_is_counted(finished: Finished) -> None:
    assert finished.trainer.state.global_step == len(finished.watch.after) == 12
    lengths = [
        len(TOKENIZER.encode(row["prompt"])) + 3
        for splits in mixture().values()
        for row in splits["train"]
    ]
    tokens = 2 * sum(lengths) + 2 * sum(lengths[32:])
    summary = finished.result.summary
    assert summary["tokens"]["train"] == tokens
    flops = summary["flops"]
    assert 0 < flops["discarded"] == flops["train"] - flops["kept"]
    frozen = sum(weight.numel() for weight in finished.frozen.values())
    trained = sum(p.numel() for p in finished.trainer.model.parameters()) - frozen
    assert flops["train"] == (4 * frozen + 6 * trained) * tokens
    assert flops["evaluation"] == 2 * (frozen or trained) * summary["tokens"]["evaluation"]
    assert summary.get("num_trainable", 0) == (trained if frozen else 0)
    card = (finished.result.best / "README.md").read_text()
    assert ("It is a LoRA adapter of " in card) is bool(frozen)


def test_the_best_is_in_the_model_and_in_a_folder_that_loads(finished: Finished) -> None:
    model, result = finished.trainer.model, finished.result
    assert result.summary["best"]["checkpoint"] == "r1-t4"
    assert digest(model) == finished.watch.after[11]
    loaded: Any = (
        PeftModel.from_pretrained(tiny_model(len(TOKENIZER)), str(result.best))
        if finished.frozen
        else AutoModelForCausalLM.from_pretrained(result.best)
    )
    tokens = torch.tensor([TOKENIZER.encode("mul 3 =")])
    with torch.inference_mode():
        assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], weight) for name, weight in finished.frozen.items())


def test_callbacks_are_told_of_losses_and_scores(finished: Finished) -> None:
    logs = [key for log in finished.watch.logs for key in log]
    assert logs.count("eval_add_loss") == logs.count("eval_mul_loss") == 9  # base and 8 ticks
    assert logs.count("loss") == 3  # every four of twelve steps
    lines = (finished.result.folder / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["losses"] for line in lines] == [{}] * 12  # one number for a batch


class Dies(TrainerCallback):
    """As after a kill: nothing is written any more."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 11:
            os._exit(9)


@pytest.mark.parametrize("finished", [True], ids=["lora"], indirect=True)
def test_after_a_kill_an_adapter_goes_on_with_the_same_bits(
    finished: Finished, tmp_path: Path
) -> None:
    """The process that goes on has another random adapter, and takes the first one's."""
    whole = finished.result
    child = os.fork()
    if child == 0:
        train(sft_trainer(tmp_path, True, [Dies()]), mixture(), tmp_path / "cut", **KEYS)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len((tmp_path / "cut" / "run.jsonl").read_text().splitlines()) == 11
    watch = Watch()
    trainer = sft_trainer(tmp_path, True, [watch])
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(parameter.requires_grad * 0.1)
    cut = train(trainer, mixture(), tmp_path / "cut", **KEYS)
    assert len(watch.after) == 2  # with the moments of the steps before
    assert trainer.state.global_step == 12
    for name in ("run.jsonl", "verdicts.jsonl", "best/adapter_model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole.folder / name).read_bytes()
    assert cut.summary == whole.summary

    again = sft_trainer(tmp_path, True)  # a finished folder trains nothing
    done = train(again, mixture(), tmp_path / "cut", **KEYS)
    assert done.summary == whole.summary
    assert again.optimizer is None
    assert digest(again.model) == digest(trainer.model)

    other = sft_trainer(tmp_path, True, weight_decay=0.1, adam_beta2=0.9)
    with pytest.raises(RecipeError, match=r"weight_decay was 0\.0, now it is 0\.1"):
        train(other, mixture(), tmp_path / "cut", **KEYS)
    other = sft_trainer(tmp_path, True, adam_beta2=0.9)
    with pytest.raises(RecipeError, match=r"adam_beta2 was 0\.999, now it is 0\.9"):
        train(other, mixture(), tmp_path / "cut", **KEYS)
    data = mixture()
    data["add"]["train"] = answers("add", 0, 32, 8)
    with pytest.raises(Diverged, match="data"):
        train(sft_trainer(tmp_path, True), data, tmp_path / "cut", **KEYS)


@pytest.mark.parametrize("counted", [True, False], ids=["tokens", "batches"])
def test_a_step_is_the_plain_trainers_own(tmp_path: Path, counted: bool) -> None:
    """Two epochs of `sft` and of the Trainer by itself, over the same rows in the same order; its
    loss is a mean over the tokens of a step, or over the means of its parts."""
    keys = {"lr_scheduler_type": "linear", "num_train_epochs": 2, "warmup_steps": 2}
    data = {
        name: {split: tokenized(rows) for split, rows in splits.items()}
        for name, splits in mixture().items()
    }
    ours = plain_trainer(tmp_path, **keys)
    ours.model_accepts_loss_kwargs = counted
    watch = Watch()
    ours.add_callback(watch)
    train(ours, data, tmp_path / "run", method="sft", metric="nll", evals_per_epoch=1, quiet=True)
    assert ours.train_dataset is None
    assert "_run_epoch" not in vars(ours)
    assert ours.args.max_steps == -1

    mixed = Mixture.of(dict.fromkeys(data, 32))
    place = FeedContext(mixed, ticks=2, evals_per_epoch=1, batch_size=16, seed=42, rollout=0)
    order = [row for epoch in (0, 1) for row in place.shuffled_epoch(epoch)]
    rows = tokenized([mixture()[name]["train"][number] for name, number in order])
    theirs = plain_trainer(tmp_path, rows, **{**keys, "num_train_epochs": 1})
    theirs._get_train_sampler = SequentialSampler
    theirs.model_accepts_loss_kwargs = counted
    seen = Watch()
    theirs.add_callback(seen)
    theirs.train()
    assert watch.after == seen.after
    assert len(watch.after) == 8
    rates = [[log["learning_rate"] for log in w.logs if "loss" in log] for w in (watch, seen)]
    assert rates[0] == rates[1]


def test_an_export_of_other_weights_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    trainer = sft_trainer(tmp_path, lora=True)
    engine, before = TrainerEngine(trainer, {}, {}, [], None), digest(trainer.model)
    other = {name: torch.ones_like(weight) for name, weight in engine.weights().items()}
    engine.export(other, tmp_path / "other")
    assert digest(trainer.model) == before
    saved = load_file(tmp_path / "other" / "adapter_model.safetensors")
    assert len(saved) == len(other)
    assert all(bool((weight == 1).all()) for weight in saved.values())
    predictor = engine.predictor()
    found = predictor.generate([TOKENIZER.encode("mul 3 =")], [4], lambda *row: None, [0])
    assert len(found.rows[0]) <= 4
    assert trainer.model.config._attn_implementation == "sdpa"
    assert not engine.links


def test_an_adapter_that_transformers_has_added_is_trained_scored_and_loads(tmp_path: Path) -> None:
    """`model.add_adapter` puts it into the model, which is no PeftModel then."""
    trainer = plain_trainer(tmp_path)
    torch.manual_seed(0)
    trainer.model.add_adapter(LoraConfig(r=4, target_modules="all-linear"))
    rows = {split: tokenized(rows) for split, rows in mixture()["mul"].items()}
    keys: dict[str, Any] = {"method": "sft", "metric": "nll", "evals_per_epoch": 1, "quiet": True}
    result = train(trainer, {"mul": rows}, tmp_path / "run", **keys)
    best = result.summary["best"]
    assert best["checkpoint"] != "base"
    theirs = trainer.evaluate(rows["validation"].remove_columns("source"))["eval_loss"]
    assert best["validation"]["datasets"]["mul"] == pytest.approx(theirs, rel=1e-4)
    loaded = PeftModel.from_pretrained(tiny_model(len(TOKENIZER)), str(result.best))
    tokens = torch.tensor([TOKENIZER.encode("mul 3 =")])
    with torch.inference_mode():
        assert torch.equal(loaded.eval()(tokens).logits, trainer.model.eval()(tokens).logits)
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    assert result.summary["num_trainable"] == trained


class Asks(TrainerCallback):
    """A callback that stops the training at a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_training_stop = state.global_step == 3


def test_the_same_trainer_goes_on_after_a_stop_and_does_nothing_at_the_end(tmp_path: Path) -> None:
    """As cells of a notebook that are run again, with all weights; another model is refused."""
    data = {"mul": mixture()["mul"]}
    keys: dict[str, Any] = {"method": "sft", "metric": "nll", "evals_per_epoch": 1, "quiet": True}
    whole = train(sft_trainer(tmp_path, num_train_epochs=2), data, tmp_path / "whole", **keys)
    trainer = sft_trainer(tmp_path, callbacks=[Asks()], num_train_epochs=2)
    first = digest(trainer.model)
    with pytest.raises(Stopped, match="the same call goes on"):
        train(trainer, data, tmp_path / "run", **keys)
    assert digest(trainer.model) == first
    other = sft_trainer(tmp_path, num_train_epochs=2)
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[3] += 1e-3  # a number that no sample has
    with pytest.raises(Diverged, match="the weights in memory was"):
        train(other, data, tmp_path / "run", **keys)
    trainer.remove_callback(Asks)
    result = train(trainer, data, tmp_path / "run", **keys)
    for name in ("run.jsonl", "best/model.safetensors"):
        assert (result.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    best, steps = digest(trainer.model), trainer.state.global_step
    assert best != first
    assert train(trainer, data, tmp_path / "run", **keys).summary == whole.summary
    assert (digest(trainer.model), trainer.state.global_step) == (best, steps)
    fresh = sft_trainer(tmp_path, num_train_epochs=2)
    train(fresh, data, tmp_path / "run", **keys)
    assert digest(fresh.model) == best
    with torch.no_grad():
        next(fresh.model.parameters())[0, 0] += 1e-3  # neither the first weights nor the last
    with pytest.raises(Diverged, match=r"fingerprint\.model"):
        train(fresh, data, tmp_path / "run", **keys)


def test_a_callback_may_stop_it_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """Accuracy here, by our decoder; transformers' own generation finds the same."""
    data = {"mul": mixture()["mul"] | {"test": answers("mul", 200, 204, 2)}}
    keys: dict[str, Any] = {"method": "sft", "evals_per_epoch": 1, "quiet": True}
    trainer = sft_trainer(tmp_path, callbacks=[Asks()], num_train_epochs=2)
    with pytest.raises(Stopped, match="a callback of the trainer"):
        train(trainer, data, tmp_path / "run", **keys)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    trainer = sft_trainer(tmp_path, num_train_epochs=2, save_strategy="steps", save_steps=1)
    result = train(trainer, data, tmp_path / "run", **keys)
    assert not list((tmp_path / "trl").glob("checkpoint-*"))  # what is kept is in the run folder
    assert result.summary["status"] == "finished"
    assert trainer.state.global_step == 4
    trainer.model.eval()
    right = 0
    for row in data["mul"]["validation"]:
        prompt = torch.tensor([TOKENIZER.encode(row["prompt"])])
        said = trainer.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False
        )[0, prompt.shape[1] :]
        right += TOKENIZER.decode(said, skip_special_tokens=True) == row["completion"]
    assert result.summary["best"]["validation"]["datasets"] == {"mul": right / 8}
    assert right == 8
    tensors = load_file(result.best / "model.safetensors")
    assert all(
        torch.equal(tensors[name], parameter)
        for name, parameter in trainer.model.named_parameters()
    )


def test_where_test_rows_select_validation_rows_are_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be refused: the trainer cannot take them."""
    rows = {
        name: {"train": splits["train"], "test": splits["validation"], "validation": [{"no": 1}]}
        for name, splits in mixture().items()
    }
    watch = Watch()
    keys = {**KEYS, "selection_split": "test", "quiet": False}
    result = train(sft_trainer(tmp_path, callbacks=[watch]), rows, tmp_path / "run", **keys)
    best = result.summary["best"]
    assert result.summary["selection_split"] == "test"
    assert best["test"] == best["validation"]
    said, noted = capsys.readouterr()
    assert SELECTED_ON_TEST in said
    assert SELECTED_ON_TEST in noted
    scores = [key for log in watch.logs for key in log if key.endswith("_loss")]
    assert {"test_add_loss", "test_mul_loss"} <= {*scores}
    assert not any(key.startswith("eval_") for key in scores)
    same = train(sft_trainer(tmp_path / "b"), mixture(), tmp_path / "same", **KEYS)
    assert same.summary["best"]["validation"] == best["test"]
    assert same.summary["stages"] == result.summary["stages"]
    lacking = {name: {"train": splits["train"]} for name, splits in mixture().items()}
    with pytest.raises(RecipeError, match="has no test rows"):
        train(sft_trainer(tmp_path / "c"), lacking, tmp_path / "c", **keys)


def test_a_trainer_watches_guards_and_stops_early(tmp_path: Path) -> None:
    """`add` is not trained, and its right answer is forgotten at once."""
    given = mixture()
    watched = {"validation": given["add"]["validation"], "watch": True, "guard": {"max_drop": 0.1}}
    wrong = {"train": answers("mul", 0, 32, 7), "validation": answers("mul", 100, 108, 2)}
    result = train(
        sft_trainer(tmp_path, num_train_epochs=3),
        {"add": watched, "mul": wrong},
        tmp_path / "run",
        method="sft",
        metric="nll",
        evals_per_epoch=2,
        early_stopping_patience=2,
        quiet=True,
    )
    summary = result.summary
    assert summary["stages"][0]["active"] == ["mul"]
    assert summary["watched"].keys() == {"add"}
    assert summary["watched"]["add"]["guard"] == {"max_drop": 0.1, "kept": True}
    assert summary["best"]["validation"]["datasets"].keys() == {"mul"}
    history = read_history(result.folder)
    assert all(history.seen(point.checkpoint) for point in history.stages[0].points)
    assert summary["ended_by"] == "early_stopping"


def test_a_trainer_is_told_how_to_watch(tmp_path: Path) -> None:
    only = {"validation": mixture()["add"]["validation"]}
    with pytest.raises(RecipeError, match=r"has no train rows; .* watch=True"):
        train(sft_trainer(tmp_path), {"add": only}, tmp_path / "run", quiet=True)


def on_screen(written: str) -> list[str]:
    """The lines that a terminal shows of a text; a carriage return goes back to column 0."""
    shown = []
    for line in written.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


def test_no_bar_of_the_trainer_is_drawn_over_a_line_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    trainer = sft_trainer(tmp_path, disable_tqdm=False, num_train_epochs=1)
    train(trainer, mixture(), tmp_path / "run", method="sft", metric="nll", evals_per_epoch=1)
    shown = on_screen(screen.getvalue())
    assert any("it/s]" in line for line in shown), "there is a bar"
    assert "stage 0: 1 epoch from the base model on add, mul" in shown
    begun = ("note: engine over SFTTrainer", "  epoch 1.00, ", "done: all epochs are trained; ")
    assert [sum(line.startswith(each) for line in shown) for each in begun] == [1, 1, 1]
