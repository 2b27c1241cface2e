"""What a run costs on several devices, against arithmetic by hand."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msft.app.terminal.plan import devices_lines
from msft.cli import main
from msft.engine.memory import Checkpoints, Demand
from msft.engine.model.shape import ModelShape
from msft.planning.devices import Device, Job, cost_of, devices_content

ROOT = Path(__file__).parents[2]
PARAMETERS = 8_000_000_000
SHAPE = ModelShape(PARAMETERS, layers=32, hidden=4000, inner=14000, vocabulary=100_000, keys=0)
JOB = Job(
    shape=SHAPE,
    demand=Demand(16_000, 0.25, bf16=True, half_moments=False, lean=True),
    steps=100,
    train_tokens=1_600_000,
    evaluation_tokens=4_000_000,
    batch_tokens=16_000,
    longest=500,
    checkpoints=Checkpoints.of(PARAMETERS, "adamw", "reset", datasets=7),
)
GPU = Device(
    name="G",
    memory=100e9,
    flops=1000e12,
    used=0.5,
    node=8,
    inside=200e9,
    between=50e9,
    copying=1e12,
)
A_TOKEN = 32 * 2 * (10 * 4000 + 4 * 14000) + 0.25 * 100_000 * (2 + 8)
"""Bytes of a token's activations: 6.144 MB in the layers, and 0.25 MB of predictions."""


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_the_optimizer_shared_takes_4_bytes_a_weight_and_12_over_the_world() -> None:
    cost = cost_of(JOB, 8, "optimizer", GPU)
    assert (cost.weights, cost.owned) == (near(32e9), near(12e9))
    assert cost.activations == near(2000 * A_TOKEN)  # 16,000 tokens over 8
    assert cost.memory == near(44e9 + 2000 * A_TOKEN)
    assert cost.fits
    assert not cost.recomputed
    assert cost_of(JOB, 64, "optimizer", GPU).activations == near(500 * A_TOKEN)  # the longest row
    half = replace(JOB, demand=replace(JOB.demand, half_moments=True))
    assert cost_of(half, 8, "optimizer", GPU).owned == near(8e9)
    averaged = replace(JOB, demand=replace(JOB.demand, averaged=True))
    assert cost_of(averaged, 8, "optimizer", GPU).owned == near(16e9)


def test_time_of_a_step_is_computing_and_sending() -> None:
    cost = cost_of(JOB, 8, "optimizer", GPU)
    computing = 6 * 8e9 * 16_000 / 500e12 / 8
    sending = 7 / 8 * 32e9 / 200e9 + 7 / 8 * 16e9 / 200e9  # gradients in fp32, weights in bf16
    assert cost.sending == near(sending)
    assert cost.step == near(computing + sending)
    assert cost.training == near(100 * (computing + sending))
    assert cost.faster == near(8 * computing / (computing + sending))
    assert cost.evaluating == near(2 * 8e9 * 4e6 / 500e12 / 8)
    across = cost_of(JOB, 16, "optimizer", GPU)
    assert across.sending == near(8 / 16 * 32e9 / 50e9 + 15 / 16 * 16e9 / 200e9)


def test_all_shared_takes_2_bytes_and_16_over_the_world_and_sends_while_it_computes() -> None:
    cost = cost_of(JOB, 8, "full", GPU)
    assert cost.owned == near(16e9)
    uncut = 2 * 2 * 100_000 * 4000 + 2 * 2 * 2**29  # of both ends, and of two groups of layers
    assert cost.weights == near(16e9 + uncut)
    assert cost.memory == near(32e9 + uncut + cost.activations)
    sending = 7 / 8 * 16e9 / 200e9 + 7 / 8 * 16e9 / 200e9  # gradients and weights, both in bf16
    computing = 6 * 8e9 * 16_000 / 500e12 / 8
    assert cost.step == near(max(computing, sending))
    assert cost.evaluating == near(2 * 8e9 * 4e6 / 500e12 / 8)
    assert cost.rollback_seconds == near(4e9 / 1e12 + 7 / 8 * 16e9 / 200e9)


def test_snapshots_are_local_and_a_roll_back_gathers_what_is_computed_with() -> None:
    cost = cost_of(JOB, 8, "optimizer", GPU)
    assert cost.snapshot == near(4e9)  # fp32 masters of an eighth
    assert cost.snapshot_seconds == near(0.004)
    assert cost.rollback_seconds == near(0.004 + 7 / 8 * 16e9 / 200e9)
    assert cost.kept == near(10 * 4e9)  # seven peaks, start, newest and best
    assert cost.disk == 4 * 32e9 + 2 * 64e9


def test_an_adapter_leaves_the_base_alone() -> None:
    few = 40_000_000
    job = replace(
        JOB,
        demand=replace(JOB.demand, trained=few, frozen=2 * PARAMETERS),
        checkpoints=Checkpoints.of(few, "adamw", "reset", datasets=7),
    )
    cost = cost_of(job, 8, "optimizer", GPU)
    merged = 2 * PARAMETERS
    assert cost.weights == near(16e9 + 4 * few + merged)
    assert cost.owned == near(12 * few / 8)
    computing = (4 * 8e9 + 6 * few) * 16_000 / 500e12 / 8
    assert cost.step == near(computing + 7 / 8 * 6 * few / 200e9)
    assert cost.disk == 4 * 4 * few + 2 * 8 * few
    assert cost.evaluating == near(2 * 8e9 * 4e6 / 500e12 / 8), "of the merged model"
    assert cost.rollback_seconds == near(4 * few / 8 / 1e12 + 7 / 8 * 2 * few / 200e9)
    packed = replace(job, demand=replace(job.demand, frozen=PARAMETERS // 2))
    assert cost_of(packed, 8, "optimizer", GPU).weights == near(4e9 + 4 * few + merged)
    small = replace(GPU, memory=60e9)  # base and adapter as one would take more than a quarter
    assert cost_of(job, 8, "optimizer", small).weights == near(16e9 + 4 * few)


def test_activations_are_recomputed_where_they_do_not_fit() -> None:
    tight = replace(GPU, memory=58e9)
    cost = cost_of(JOB, 8, "optimizer", tight)
    assert 44e9 + 2000 * A_TOKEN > 0.94 * 58e9
    kept = 32 * 2 * 4000 + 2 * (10 * 4000 + 4 * 14000) + 0.25 * 100_000 * 10
    assert (cost.recomputed, cost.fits) == (True, True)
    assert cost.activations == near(2000 * kept)
    assert cost.step - cost.sending == near(8 * 8e9 * 16_000 / 500e12 / 8)


def test_the_first_way_that_fits_is_the_optimizer_then_all_then_none() -> None:
    small, none = replace(GPU, memory=40e9), replace(GPU, memory=20e9)
    assert [devices_content(JOB, 8, gpu)["fitting"] for gpu in (GPU, small, none)] == [
        *("optimizer", "full"),
        None,
    ]
    lines = devices_lines(devices_content(JOB, 8, none), 80)
    assert lines[-1] == "it does not fit on so many devices"
    assert lines[1].split() == ["memory", "of", "a", "device", "45.4", "GB", "37.1", "GB"]


def test_the_page_has_the_table_of_the_bench() -> None:
    spec = importlib.util.spec_from_file_location("scale_costs", ROOT / "bench/scale_costs.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert "\n".join(bench.lines()) in (ROOT / "docs/scale.md").read_text()


def test_plan_says_it_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"say {number}:", "completion": " b"} for number in range(20)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("recipe.yaml").write_text(
        "model_name_or_path: tiny\nmethod: sft\ntrain_batch_size: 4\nnum_train_epochs: 1\n"
        "datasets: [{name: a, train: rows.jsonl, validation_fraction: 0.2, metric: nll}]\n"
    )
    command = ["plan", "recipe.yaml", "--no-calibration", "--devices"]
    assert main([*command, "4", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    found = plan["devices"]["sharding"]["optimizer"]
    assert found["weights"] == 4 * plan["parameters"]
    assert found["owned"] == 3 * plan["parameters"]
    assert main([*command, "4", "--json", "--set", "use_peft=true"]) == 0
    plan = json.loads(capsys.readouterr().out)
    found, trained = plan["devices"]["sharding"]["optimizer"], plan["trainable"]
    assert plan["frozen"] == plan["parameters"] > 2 * trained
    assert found["weights"] == 2 * plan["parameters"] + 4 * trained + 2 * plan["parameters"], (
        "the base, the adapter with its gradient, and the model with the adapter in it to score"
    )
    assert found["owned"] == 3 * trained, "a quarter of masters and moments"
    assert [*plan["devices"]["sharding"]] == ["optimizer"], "slices are for full fine-tuning"
    assert main([*command, "4", "--set", "use_peft=true"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("sharding: optimizer fits") == 1
    few = ["--set", "use_peft=true", "--set", "lora_target_modules=[layers.0.self_attn.q_proj]"]
    assert main([*command, "2", *few]) == 0
    assert main([*command, "3", *few]) == 2
    assert "--devices is 3, but the adapter has 2 tensors" in capsys.readouterr().err
    for each in ([*command, "4"], ["validate", "recipe.yaml"], ["train", "recipe.yaml"]):
        assert main([*each, "--set", "use_peft=true", "--set", "sharding=full"]) == 2
        assert "use sharding: optimizer" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "4"]) == 0
    shown = capsys.readouterr().out
    assert "computed, not measured: H200s with 141 GB" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main([*command, "5"]) == 2
    assert "--devices is 5, but a step has 4 rows" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*command, "0"])
    assert "'0'; expected a whole number, 1 to 100,000" in " ".join(capsys.readouterr().err.split())
