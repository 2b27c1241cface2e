"""`msft plan --side-by-side`: the runs of a comparison on several devices."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from toys import RULES, recipe_of, write_data
from transformers import LlamaConfig

from msft.cli import main
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.planning.devices import H200
from msft.planning.forecast import forecast, last_end, side_by_side
from msft.recipe.recipe import load_recipe


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=24, held_out=8)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_of(tmp_path, method="msft", compute_budget=2, seed=20).to_yaml())
    return path


def planned(recipe: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    command = ["plan", str(recipe), "--no-calibration", "--json", "--side-by-side", "2"]
    assert main([*command, *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("times", "devices", "last"),
    [
        ([], 2, 0),
        ([3], 8, 3),
        ([1, 2, 3, 4], 1, 10),
        ([1, 2, 3, 4], 2, 5),  # 4 + 1 and 3 + 2
        ([2, 2, 2, 3, 3], 2, 7),  # 3 + 2 + 2 and 3 + 2
        ([1, 1, 1, 1, 4], 2, 4),  # the longest first; last it would end at 6
    ],
)
def test_when_the_last_run_ends(times: list[float], devices: int, last: float) -> None:
    assert last_end(times, devices) == last


def test_runs_cost_what_the_plan_of_each_says(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "sft,msft[compute_budget=1],msft"
    found = planned(recipe, capsys, "--methods", words, "--seeds", "1,2")
    names = [f"{m}-s{s}" for m, s in product(("sft", "msft+compute_budget=1", "msft"), (1, 2))]
    assert [*found["runs"]] == names
    for name, budget in (("sft", 2), ("msft+compute_budget=1", 1), ("msft", 2)):
        method = name.partition("+")[0]
        sets = [f"method={method}", f"compute_budget={budget}", "seed=1"]
        alone = forecast(load_recipe(recipe, sets), Path("out"), seconds=0)
        for seed, which in product((1, 2), ("best", "worst")):
            run = found["runs"][f"{name}-s{seed}"]
            assert run[which]["flops"] == alone["methods"][method][which]["flops"]["total"]
            assert run[which]["seconds"] == run[which]["flops"] / (H200.flops * H200.used)
            assert (run["method"], run["seed"], run["model"]) == (method, seed, "tiny")
            assert run["disk"] == alone["disk"]["peak"]
    for which in ("best", "worst"):
        runs = [run[which] for run in found["runs"].values()]
        assert found[which]["flops"] == sum(run["flops"] for run in runs)
        times = [run["seconds"] for run in runs]
        assert found[which]["device_seconds"] == pytest.approx(sum(times))
        assert found[which]["seconds"] == pytest.approx(last_end(times, 2))
    assert found["best"]["flops"] < found["worst"]["flops"]
    assert found["disk"] == sum(run["disk"] for run in found["runs"].values())
    assert (found["devices"], found["measured"], found["not_counted"]) == (2, False, {})


def shaped(name: str, hidden: int, inner: int, layers: int) -> None:
    """A model of which only the config and a tokenizer are there."""
    config = LlamaConfig(
        vocab_size=258, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(name)
    tiny_tokenizer().save_pretrained(name)
    Path(name, "model.safetensors").touch()


def test_every_model_has_its_runs(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shaped("other", 64, 64, 1)
    found = planned(recipe, capsys, "--methods", "sft", "--models", "tiny,other")
    assert [*found["runs"]] == ["tiny/sft-s20", "other/sft-s20"]
    ours, other = found["runs"].values()
    assert other["model"] == "other"
    assert other["best"]["flops"] < ours["best"]["flops"]
    assert other["memory"]["least"] < ours["memory"]["least"] < H200.memory


def test_what_does_not_fit_on_a_device_is_said(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen bytes for each of eight billion weights, without what a row needs, are 128 GB; with
    moments in bf16 twelve bytes are left."""
    shaped("large", 4096, 14336, 37)
    words = ["--methods", "sft", "--models", "tiny,large"]
    found = planned(recipe, capsys, *words)["runs"]
    assert [run["memory"]["fits"] for run in found.values()] == [True, False]
    assert found["large/sft-s20"]["memory"]["least"] > 16 * 8e9
    assert main(["plan", str(recipe), "--no-calibration", "--side-by-side", "2", *words]) == 0
    assert "GB, which does NOT fit" in " ".join(capsys.readouterr().out.split())
    half = planned(recipe, capsys, *words, "--set", "optim=adamw_bf16")["runs"]
    assert half["large/sft-s20"]["memory"]["fits"]


def test_time_is_measured_where_the_machine_was_tried(recipe: Path) -> None:
    runs = {"a": load_recipe(recipe, ["method=sft"]), "b": load_recipe(recipe, ["method=msft"])}
    found = side_by_side(runs, 2, seconds=0.2)
    assert found["measured"]
    for run in found["runs"].values():
        assert run["worst"]["seconds"] > 100 * run["worst"]["flops"] / H200.speed
    times = [run["worst"]["seconds"] for run in found["runs"].values()]
    assert found["worst"]["seconds"] == max(times)


def test_the_text_says_it_all(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(recipe), "--no-calibration", "--side-by-side", "4"]
    assert main([*command, "--methods", "sft,msft"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("run FLOPs, best worst time, best worst disk sft-s20")
    assert "2 runs on 4 devices, one on each, the longest first:" in said
    assert "the longest run alone: msft-s20" in said
    assert "time is computed, not measured, since --no-calibration was given: H200s, 40%" in said
    assert "memory of an assumed H200, at least: tiny" in said


def test_a_run_that_is_not_counted_is_named(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msft.planning.counting.MOST_LOOKS", 4 * (60 + len(RULES)))
    found = planned(recipe, capsys, "--methods", "sft,ies", "--seeds", "1,2")
    assert [*found["runs"]] == ["sft-s1", "sft-s2"]
    assert [*found["not_counted"]] == ["ies-s1", "ies-s2"]
    assert "looks at scores and rows" in found["not_counted"]["ies-s1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "sft"], "--methods goes with --side-by-side"),
        (["--seeds", "1"], "--seeds goes with --side-by-side"),
        (["--models", "tiny"], "--models goes with --side-by-side"),
        (["--side-by-side", "2", "--methods", "mstf"], "did you mean 'msft'"),
        (["--side-by-side", "2", "--models", "./nowhere"], "does not exist"),
    ],
)
def test_what_is_wrong_is_refused(
    words: list[str], said: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(recipe), *words]) == 2
    assert said in capsys.readouterr().err


def test_one_run_on_all_devices_or_a_run_on_each(recipe: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["plan", str(recipe), "--devices", "2", "--side-by-side", "2"])
    assert refused.value.code == 2
