"""Whole runs with `use_peft`: killed and resumed, scored, merged, refused."""

import importlib.util
import json
import logging
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
import yaml
from toys import recipe_of, write_data
from transformers import AutoModelForCausalLM

import msft
from msft.app.merge import trusts_remote_code
from msft.cli import main
from msft.engine.model.folders import import_peft
from msft.engine.model.tokenizers import load_tokenizer
from msft.errors import RecipeError
from msft.run.folder import RunFolder, read_history
from msft.training import training_keys

pytestmark = pytest.mark.usefixtures("no_reports")

HERE = Path(__file__).parent
LORA: dict[str, Any] = {"use_peft": True, "lora_r": 4, "lora_alpha": 16, "learning_rate": 1e-2}
SHORT = {"num_train_epochs": 1, "evals_per_epoch": 2}
QUICK = {"kills": 1, "rows": 15}
RUNS: list[dict[str, Any]] = [
    {"method": "sft", **LORA, **SHORT, "engine": "simple", "ema_decay": 0.5},
    {"method": "continual", **LORA, "load_in_4bit": True, "compute_budget": 0.5},
    {"method": "dynamix", **LORA, **SHORT, "use_rslora": True},
    {"method": "ies", **LORA, **SHORT, "lora_dropout": 0.1},
    {"method": "sro", **LORA, **SHORT, "lora_target_modules": ["q_proj", "v_proj"]},
    {"method": "soft_sro", **LORA, **SHORT, "merge_adapter": True},
    {"method": "msft", **LORA, "method_options": {"max_stages": 2}},
    {"method": "soup", **LORA, **SHORT, "use_dora": True},
]


@pytest.mark.usefixtures("warm")
def test_killed_at_any_moment_a_run_resumes_to_the_same_log_and_weights(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "kill_and_resume.py"), str(tmp_path)]
    command += [json.dumps({**keys, **QUICK}) for keys in RUNS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, keys in enumerate(RUNS):
        best = tmp_path / str(number) / "alone" / "best"
        assert (best / "config.json").exists() is bool(keys.get("merge_adapter")), keys
        card = (best / "README.md").read_text()
        assert ("in four bits (NF4, " in card) is bool(keys.get("load_in_4bit")), keys
        told = json.loads((best.parent / "environment.json").read_text())
        assert ("bitsandbytes" in told[0]) is bool(keys.get("load_in_4bit")), keys


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and its recipe beside it."""
    folder = tmp_path_factory.mktemp("adapter")
    write_data(folder)
    recipe = recipe_of(folder, method="sft", **{**LORA, "num_train_epochs": 4})
    msft.train(recipe, folder / "run")
    (folder / "recipe.yaml").write_text((folder / "run" / "recipe.yaml").read_text())
    return folder


def scores_of(folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    assert main(["eval", str(model), str(folder / "recipe.yaml"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    return dict(content["datasets"])


def test_eval_and_merge_give_the_scores_of_the_run(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    summary = json.loads((run / "run" / "summary.json").read_text())
    assert summary["best"]["checkpoint"] != "base"
    expected = summary["best"]["test"]["datasets"]
    assert len(set(expected.values())) > 1
    recwarn.clear()
    assert scores_of(run, run / "run" / "best", capsys) == pytest.approx(expected)
    assert main(["merge", str(run / "run"), "--out", str(tmp_path / "merged")]) == 0
    assert "merged" in capsys.readouterr().out
    assert [str(each.message) for each in recwarn if each.category is FutureWarning] == []
    assert scores_of(run, tmp_path / "merged", capsys) == pytest.approx(expected)
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (run / "run" / "best", tmp_path / "merged")
    ]
    tokens = torch.arange(2, 40)[None]
    with torch.no_grad():
        one, other = (model(input_ids=tokens).logits for model in models)
    assert torch.allclose(one, other, atol=1e-4), "one product less; CPUs round it differently"
    card = (run / "run" / "best" / "README.md").read_text()
    assert "library_name: peft" in card
    assert "four bits" not in card
    merged = (tmp_path / "merged" / "README.md").read_text()
    assert "library_name: transformers" in merged
    assert "adapter" not in merged
    means = [line for line in merged.splitlines() if line.startswith("| **")]
    assert means == [line for line in card.splitlines() if line.startswith("| **")]
    told = json.loads((run / "run" / "environment.json").read_text())
    assert told[0]["peft"] == version("peft")
    assert "bitsandbytes" not in told[0], "only four bits need it"


def test_a_run_beside_fp8_is_read_and_merged_as_it_was_scored(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU is refused, since it computes FP8 in software; here it may."""
    recipe = recipe_of(run, method="sft", fp8=True, **LORA)
    with pytest.raises(RecipeError, match="fp8 is true, but FP8 needs an NVIDIA GPU"):
        msft.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("msft.engine.adapters.fp8.fp8_fault", lambda device: None)
    result = msft.train(recipe, tmp_path / "run")
    msft.train(replace(recipe, fp8=False), tmp_path / "plain")
    (one, rows), (other, _) = (
        read_history(tmp_path / each).stages[0].points[-1].loss for each in ("run", "plain")
    )
    assert 0 < abs(one - other) / rows < 0.1
    capsys.readouterr()
    expected = result.summary["best"]["test"]["datasets"]
    assert json.loads((result.best / "msft_adapter.json").read_text())["fp8"] is True
    assert "in FP8 (e4m3, " in (result.best / "README.md").read_text()
    assert scores_of(run, result.best, capsys) == pytest.approx(expected)
    assert main(["merge", str(tmp_path / "run"), "--out", str(tmp_path / "merged")]) == 0
    capsys.readouterr()
    assert scores_of(run, tmp_path / "merged", capsys) == pytest.approx(expected)


def test_adapters_print_nothing_of_kernels_that_they_do_not_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a CPU with AVX512-BF16 importing bitsandbytes, which peft does, logs such a line."""
    assert import_peft().__name__ == "peft"
    cause = "Failed to load CPU gemm_4bit_forward from kernels-community"
    logging.getLogger("bitsandbytes.backends.cpu.ops").warning(cause)
    assert capsys.readouterr() == ("", "")


def test_flops_are_those_of_frozen_and_trained_weights(run: Path, tmp_path: Path) -> None:
    history = read_history(run / "run")
    linear = 4 * (128 + 128) + 3 * (128 + 320)
    adapter = {"frozen": history.start.num_parameters, "trained": 2 * 4 * linear}
    assert history.start.settings["adapter"] == adapter
    assert adapter["frozen"] == 410_496
    summary = json.loads((run / "run" / "summary.json").read_text())
    assert summary["num_trainable"] == adapter["trained"]
    tokens, flops = summary["tokens"], summary["flops"]
    assert flops["train"] == (4 * adapter["frozen"] + 6 * adapter["trained"]) * tokens["train"]
    assert flops["evaluation"] == 2 * adapter["frozen"] * tokens["evaluation"]
    assert flops["kept"] + flops["discarded"] == flops["train"] + flops["lookahead"]
    pages = [tmp_path / "report.html", tmp_path / "run" / "report.html"]
    for name in ("run", "again"):
        copytree(run / "run", tmp_path / name)
    assert main(["report", str(tmp_path / "run"), str(tmp_path / "again")]) == 0
    for page in pages:
        assert "(4, 2 and 6 where it is frozen beside an adapter)" in page.read_text()


def test_a_plan_knows_both_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = read_history(run / "run").start
    arguments = ["plan", str(run / "recipe.yaml"), "--no-calibration"]
    assert main([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    trained = start.settings["adapter"]["trained"]
    assert (content["trainable"], content["frozen"]) == (trained, start.num_parameters)
    summary = json.loads((run / "run" / "summary.json").read_text())
    planned = content["methods"]["sft"]["best"]["flops"]
    assert planned["train"] == summary["flops"]["train"]
    assert content["memory"]["held"] == 4 * start.num_parameters + 12 * trained
    assert main(arguments) == 0
    assert f"{trained:,} weights are trained" in capsys.readouterr().out


def test_other_keys_are_another_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, said in {
        "lora_r=8": "lora_r was 4, now it is 8",
        "use_peft=false": "without use_peft",
        "use_rslora=true": "use_rslora was False",
    }.items():
        arguments = ["train", str(run / "recipe.yaml"), "--out", str(run / "run")]
        assert main([*arguments, "--set", change]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    plain = recipe_of(run, method="sft")
    assert "use_peft" not in dict(training_keys(plain))
    assert "fp8" not in dict(training_keys(recipe_of(run, method="sft", **LORA)))
    assert ("fp8", True) in training_keys(recipe_of(run, method="sft", fp8=True, **LORA))
    one, other = (
        dict(training_keys(recipe_of(run, method="sft", **{**LORA, "lora_r": rank})))
        for rank in (4, 8)
    )
    assert one != other


def test_a_missing_package_is_named_before_anything_starts(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    for package, more in (("peft", []), ("bitsandbytes", ["--set", "load_in_4bit=true"])):
        gone = {package}
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, gone=gone: None if name in gone else found(name),
        )
        for command in (["train", "--out", str(tmp_path / "new")], ["plan"], ["validate"]):
            name, *rest = command
            assert main([name, str(run / "recipe.yaml"), *rest, *more]) == 2
            said = " ".join(capsys.readouterr().err.split())
            assert f"the package {package} is not installed; pip install {package}" in said
    assert not (tmp_path / "new").exists()


def test_a_base_that_cannot_be_found_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "moved"
    adapter.mkdir()
    config = json.loads((run / "run" / "best" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/base"
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for command in (
        ["eval", str(adapter), str(run / "recipe.yaml")],
        ["merge", str(adapter), "--out", str(tmp_path / "out")],
        ["train", str(run / "recipe.yaml"), "--set", f"model_name_or_path={adapter}"],
    ):
        assert (
            main([*command, *(["--out", str(tmp_path / "r")] if "train" in command else [])]) == 2
        )
        said = " ".join(capsys.readouterr().err.split())
        assert "the base model '/nowhere/base' cannot be found" in said
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "r").exists()


def test_an_adapter_that_nobody_could_load_is_not_uploaded(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", str(run / "recipe.yaml"), "--out", str(tmp_path / "new")]
    assert main([*arguments, "--set", "push_to_hub=true"]) == 2
    assert "set merge_adapter: true" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(run: Path, tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((run / "run" / "best" / name).read_bytes())
    assert len(load_tokenizer(str(tmp_path))) == 258


def test_what_cannot_be_merged_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for arguments, said in (
        ([str(tmp_path), "--out", str(tmp_path / "new")], "has no adapter"),
        ([str(run / "run" / "base"), "--out", str(tmp_path / "new")], "nothing to merge"),
        ([str(run / "run"), "--out", str(tmp_path / "full")], "is there already"),
    ):
        assert main(["merge", *arguments]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_model_may_be_merged_into_the_empty_folder_where_one_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert main(["merge", str(run / "run"), "--out", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "config.json").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["merge", str(run / "run"), "--out", "."]) == 0
    assert (tmp_path / "here" / "config.json").exists()


def test_code_that_the_run_trusted_is_trusted_when_it_is_merged(run: Path, tmp_path: Path) -> None:
    recipe, key = (run / "recipe.yaml").read_text(), "trust_remote_code: "
    (tmp_path / "recipe.yaml").write_text(recipe)
    assert not trusts_remote_code(RunFolder(tmp_path))
    (tmp_path / "recipe.yaml").write_text(recipe.replace(f"{key}false", f"{key}true"))
    assert trusts_remote_code(RunFolder(tmp_path))
    assert not trusts_remote_code(RunFolder(tmp_path / "nowhere"))


def test_a_merged_model_that_the_disk_cannot_hold_is_exit_3(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for free, code in ((4 * 410_496 - 1, 3), (4 * 410_496, 0)):
        monkeypatch.setattr("msft.engine.memory.free_disk", lambda folder, free=free: free)
        assert main(["merge", str(run / "run"), "--out", str(tmp_path / "m")]) == code
        assert (tmp_path / "m").exists() == (code == 0)
    assert "but the model takes 1.6 MB on disk" in " ".join(capsys.readouterr().err.split())


def test_an_adapter_without_a_readable_run_is_merged_without_a_card(
    run: Path, tmp_path: Path
) -> None:
    copytree(run / "run", tmp_path / "cut")
    (tmp_path / "cut" / "run.jsonl").write_text("damaged")
    copytree(run / "run" / "best", tmp_path / "alone" / "best")
    for source in (tmp_path / "cut", tmp_path / "alone" / "best"):
        out = tmp_path / f"of-{source.name}"
        assert main(["merge", str(source), "--out", str(out)]) == 0
        assert (out / "config.json").exists()
        assert not (out / "README.md").exists()


def test_a_low_rate_is_noted_and_a_usual_one_is_not(tmp_path: Path) -> None:
    keys = yaml.safe_load(recipe_of(tmp_path, method="sft").to_yaml()) | {"use_peft": True}
    low, usual = (
        msft.Recipe.from_mapping({**keys, "learning_rate": rate}).notes for rate in (1e-5, 1e-4)
    )
    assert [note for note in low if "low for an adapter" in note]
    assert not [note for note in usual if "adapter" in note]


def test_an_adapter_on_an_adapter_loads_everywhere(run: Path, tmp_path: Path) -> None:
    """transformers and peft take no adapter for a base, so it is written merged."""
    first = str(run / "run" / "best")
    keys = {**LORA, **SHORT, "method": "soup", "model_name_or_path": first}
    write_data(tmp_path)
    msft.train(recipe_of(tmp_path, **keys), tmp_path / "second")
    config = json.loads((tmp_path / "second" / "best" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "second" / "base")
    assert main(["merge", str(tmp_path / "second"), "--out", str(tmp_path / "merged")]) == 0
    one, other, base = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (tmp_path / "second" / "best", tmp_path / "merged", Path(first))
    )
    tokens = torch.arange(2, 40)[None]
    with torch.no_grad():
        logits = [model(input_ids=tokens).logits for model in (one, other, base)]
    assert torch.allclose(logits[0], logits[1], atol=1e-5)
    assert not torch.allclose(logits[0], logits[2], atol=1e-2)


def test_a_run_folder_that_was_moved_finds_its_base(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run").rename(tmp_path / "elsewhere")
    try:
        assert main(["merge", str(tmp_path / "elsewhere"), "--out", str(tmp_path / "m")]) == 0
        assert "not finished" not in capsys.readouterr().err
    finally:
        (tmp_path / "elsewhere").rename(run / "run")
    assert (tmp_path / "m" / "model.safetensors").stat().st_size > 4 * 410_000
    assert RunFolder(run / "run").is_finished()


def test_of_a_run_that_goes_on_the_best_so_far_is_merged_with_a_note(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(run / "run", tmp_path / "cut")
    lines = (tmp_path / "cut" / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut" / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    assert main(["merge", str(tmp_path / "cut"), "--out", str(tmp_path / "m")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "is not finished; this is the best that it has so far" in said
