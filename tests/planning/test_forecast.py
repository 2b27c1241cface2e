"""`msft plan` and what refuses a run, from outside."""

import json
import shutil
from collections import namedtuple
from math import isfinite
from pathlib import Path

import pytest
import torch
import transformers
from families import model_of
from toys import recipe_of, write_data

from msft.cli import main
from msft.data.corpus import load_corpus
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.planning.calibration import calibrate
from msft.planning.forecast import forecast
from msft.recipe.recipe import load_recipe
from msft.run.log import Tokens

pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=24, held_out=8)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_of(tmp_path, method="msft", compute_budget=2, seed=20).to_yaml())
    return path


def test_too_little_memory_is_exit_3_and_says_what_to_change(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of over a hundred trillion weights, of which only the config is there."""
    config = transformers.LlamaConfig(
        vocab_size=258, hidden_size=2**20, intermediate_size=2**22, num_hidden_layers=8
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    Path("model/model.safetensors").touch()
    large = ["--set", "model_name_or_path=model", "--set", "max_length=64"]
    assert main(["train", str(recipe), "--out", "out", "--quiet", *large]) == 3
    said = capsys.readouterr().err
    assert "GB free" in said
    assert "smaller batches do not make it less" in said
    assert "optim: adamw_bf16" in said
    assert "a smaller model" in said
    assert not Path("out").exists()
    assert main(["plan", str(recipe), *large]) == 0
    said = capsys.readouterr().out
    assert "does NOT fit" in said
    assert "the model does not fit into memory" in said


def test_a_full_disk_is_exit_3_and_the_plan_says_the_same_figure(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10_000_000))
    assert main(["train", str(recipe), "--out", "out", "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "another --out" in said
    assert not Path("out/run.jsonl").exists()
    assert main(["plan", str(recipe), "--no-calibration", "--json"]) == 0
    disk = json.loads(capsys.readouterr().out)["disk"]
    assert not disk["fits"]
    assert f"{disk['peak'] / 1e6:.1f} MB" in said


@pytest.mark.parametrize(("merged", "models"), [("false", 1), ("true", 2)])
def test_whole_models_beside_an_adapter_are_on_disk_too(
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    merged: str,
    models: int,
) -> None:
    """Of `tiny`, the base; merged, a new one and the old one."""
    adapter = ["--set", "use_peft=true", "--set", f"merge_adapter={merged}"]
    assert main(["plan", str(recipe), "--no-calibration", "--json", *adapter]) == 0
    disk = json.loads(capsys.readouterr().out)["disk"]
    assert disk["models"] == models * 4 * 410_496
    assert disk["peak"] > disk["models"]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, disk["peak"] - 1))
    assert main(["train", str(recipe), "--out", "out", "--quiet", *adapter]) == 3
    said = capsys.readouterr().err
    assert ("merge_adapter: false" in said) is (merged == "true")
    assert not Path("out/run.jsonl").exists()


def test_a_calibration_gives_a_finite_time_and_leaves_no_file(recipe: Path) -> None:
    before = sorted(Path().rglob("*"))
    content = forecast(load_recipe(recipe), Path("out"), seconds=1.0)
    for cases in content["methods"].values():
        for case in cases.values():
            assert isfinite(case["seconds"])
            assert case["seconds"] > 0
    assert content["calibration"]["train_tokens_per_second"] > 0
    assert sorted(Path().rglob("*")) == before


def test_a_calibration_scores_all_rows_where_that_is_quick(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft")
    corpus = load_corpus(recipe, tiny_tokenizer(), 512)
    speed = calibrate(recipe, corpus, torch.device("cpu"))
    assert not speed.sampled
    assert speed.seconds(Tokens(6000)) < speed.seconds(Tokens(6000, lookahead=6000))


def test_weights_that_cannot_be_had_cost_the_time_only(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_of("llama").save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    Path("model/model.safetensors").unlink()
    assert (
        main(["plan", str(recipe), "--set", "model_name_or_path=model", "--set", "max_length=64"])
        == 0
    )
    said = capsys.readouterr().out
    assert "time: not known, since the weights cannot be had" in said
    assert "→ msft" in said


def test_wrong_input_is_exit_2(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nowhere.yaml"]) == 2
    assert main(["plan", str(recipe), "--set", "method=msfd"]) == 2
    assert "msft" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "plan", "train"])
def test_a_layer_that_is_not_there_is_exit_2_before_anything_starts(
    recipe: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Before weights are read, too: this model has none."""
    model_of("llama").config.save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    Path("model/model.safetensors").touch()
    wrong = ["--set", "use_peft=true", "--set", "lora_target_modules=[qproj]"]
    wrong += ["--set", "model_name_or_path=model", "--set", "max_length=64"]
    out = [] if command == "validate" else ["--out", "out"]
    assert main([command, str(recipe), *wrong, *out]) == 2
    assert "'qproj', but this model has no linear layer of that name" in capsys.readouterr().err
    assert not Path("out").exists()
