"""The forecast on this machine: against real runs, free memory and disk, and from outside."""

import json
import shutil
from collections import namedtuple
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from families import model_of
from toys import RULES, recipe_of, write_data

from msft.app.train import train
from msft.cli import main
from msft.data.corpus import Corpus, load_corpus
from msft.engine.build import is_long
from msft.engine.decode.decoder import Decoder
from msft.engine.machine import Room
from msft.engine.memory_model import Demand, Shape, best_fit, held_bytes, named_shape, shape_of
from msft.engine.model.loading import load_model
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.engine.saving.checkpoint_sizes import Checkpoints, Memory, Work, memory_of
from msft.errors import NoRoom
from msft.planning.calibration import calibrate
from msft.planning.evaluation_tokens import Tally
from msft.planning.forecast import needs_of, refuse_no_room
from msft.planning.planning import planned
from msft.recipe.recipe import Recipe
from msft.scoring.evaluation import Evaluator
from msft.search.methods import METHODS

CPU = torch.device("cpu")
GB = 10**9
H200 = Room("cuda", 149 * GB, 150 * GB, 128 * GB)


def corpus_of(recipe: Recipe) -> Corpus:
    return load_corpus(recipe, tiny_tokenizer(), 512)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=24, held_out=8)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model_name_or_path: tiny\nmethod: msft\nlearning_rate: 3e-3\ntrain_batch_size: 16\n"
        "compute_budget: 1\nnum_train_epochs: 2\nevals_per_epoch: 2\ndatasets:\n"
        + "".join(
            f"  - {{name: {n}, train: {n}.train.jsonl, validation: {n}.valid.jsonl}}\n"
            for n in RULES
        )
    )
    return path


# Against real runs.


@pytest.mark.parametrize("method", METHODS)
def test_the_forecast_of_a_known_path_is_the_log(method: str, tmp_path: Path) -> None:
    """FLOPs within 5 per cent, disk within 15, of a run that really trained.

    What a log does not have is estimated: how long answers were, which rows IES let rest, and
    whom DynamixSFT favoured. Other training is counted to the token.
    """
    write_data(tmp_path, train=32, held_out=12)
    run = recipe_of(tmp_path, method=method)
    train(run, tmp_path / "out")
    known = planned(run, tmp_path, calibrated=False, known=tmp_path / "out")["known"]
    compared = known["compared"]
    assert known["method"] == method
    assert known["finished"]
    forecast, was = compared["train FLOPs"]
    apart = {"dynamix": 0.1, "ies": 0.05}.get(method, 0.0)
    assert forecast == pytest.approx(was, rel=apart)
    forecast, was = compared["all FLOPs"]
    assert was > 0
    assert forecast == pytest.approx(was, rel=0.05)
    forecast, was = compared["look-ahead FLOPs"]
    assert forecast == was
    forecast, was = compared["disk, at most"]
    assert forecast == pytest.approx(was, rel=0.15)
    assert compared["seconds"][1] > 0


def test_a_run_of_other_data_or_another_model_is_refused(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--no-calibration", "--known", "out"]
    assert main(["plan", str(recipe), *quick]) == 2
    assert "not a run folder" in capsys.readouterr().err
    once = ["--set", "method=sft", "--set", "num_train_epochs=0.5"]
    assert main(["train", str(recipe), "--out", "out", "--quiet", *once]) == 0
    assert main(["plan", str(recipe), *quick]) == 0
    model_of("llama").save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    assert (
        main(
            [
                "plan",
                str(recipe),
                *quick,
                "--set",
                "model_name_or_path=model",
                "--set",
                "max_length=64",
            ]
        )
        == 2
    )
    assert "recipe.yaml" in capsys.readouterr().err
    with Path("upper.train.jsonl").open("a") as file:
        file.write('{"prompt": "upper zzzz:", "completion": " ZZZZ"}\n')
    assert main(["plan", str(recipe), *quick]) == 2
    assert "'upper': 25" in capsys.readouterr().err


def test_likelihoods_are_counted_to_the_token(tmp_path: Path) -> None:
    """Choices and losses, behind a prefix that all rows share."""
    same = "the very same words at the start of a row, then "
    chosen = [
        {"prompt": f"{same}{word}", "choices": [" yes", " no"], "answer": 0}
        for word in ("one", "two", "three", "four")
    ]
    said = [{"prompt": row["prompt"], "completion": " so"} for row in chosen]
    recipe = Recipe(
        "tiny",
        [
            {"name": "chosen", "train": chosen[:2], "validation": chosen[2:]},
            {"name": "said", "train": said[:2], "validation": said[2:], "metric": "nll"},
        ],
    )
    tasks = corpus_of(recipe).tasks(recipe)
    decoder = Decoder(load_model("tiny", CPU).model, [0], 4096)
    evaluator = Evaluator(tasks, decoder, tiny_tokenizer())
    tally = Tally(tasks, tiny_tokenizer(), stems=False)
    for name in tasks:
        load = tally.load(name, "validation")
        assert load.tokens == evaluator.answered([name], "validation").tokens
        assert (load.rows, load.written) == (2, 0)
    # As on CUDA: the prefix once, and of each row the last word with a choice but its last token
    # (the words are too short to be worth computing once for both choices).
    tails = [
        len(word) + len(choice) - 1 for word in ("three", "four") for choice in (" yes", " no")
    ]
    fast = Tally(tasks, tiny_tokenizer(), stems=True).load("chosen", "validation")
    assert fast.tokens == len(same) + sum(tails)


def test_a_generation_is_taken_to_be_as_long_as_its_reference(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "completion": "x" * (i + 1)} for i in range(6)]
    dataset = {"name": "a", "train": rows[:2], "validation": rows[2:], "max_new_tokens": 5}
    recipe = Recipe("tiny", [dataset])
    load = Tally(corpus_of(recipe).tasks(recipe), tiny_tokenizer(), False).load("a", "validation")
    written = (4 - 1) + (5 - 1) + (5 - 1) + (5 - 1)  # with the end, within the limit, less the last
    assert (load.tokens, load.written) == (4 * 2 + written, written)


# Memory.

SHAPES = {
    "135M": Shape(134_515_008, 30, 576, 1536, 49152, 11520),
    "0.5B": Shape(494_032_768, 24, 896, 4864, 151936, 6144),
    "3B": Shape(3_085_938_688, 36, 2048, 11008, 151936, 18432),
    "8B": Shape(8_030_261_248, 32, 4096, 14336, 128256, 65536),
}


def foreseen(
    size: str, tokens: int, optim: str = "adamw", lean: bool = True, room: Room = H200
) -> Memory:
    """Training alone, without checkpoints or evaluations, as bench/train_speed.py does it."""
    batch, half = round(1.5 * 91 * 64), optim != "adamw"
    demand = Demand(batch, 0.185, bf16=True, half_moments=half, fused=True, lean=lean)
    none = Checkpoints(1, 0, restored=False, most=0)
    work = Work(tokens, 468, None, "auto", points=0)
    return memory_of(SHAPES[size], demand, work, none, room)


@pytest.mark.parametrize(
    ("size", "tokens", "optim", "lean", "measured"),
    [
        ("135M", 7062, "adamw", True, 6.94),
        ("8B", 6117, "adamw_bf16", True, 111.5),
        ("3B", 6381, "adamw", False, 67.15),
        ("8B", 6117, "adamw_bf16", False, 108.0),
    ],
)
def test_memory_is_what_was_measured_on_an_h200(
    size: str, tokens: int, optim: str, lean: bool, measured: float
) -> None:
    """Tokens of the largest batch there was; see docs/plan.md."""
    assert foreseen(size, tokens, optim, lean).peak / GB == pytest.approx(measured, rel=0.05)


def test_half_a_billion_weights_fit_on_a_card_of_24_gb() -> None:
    """As measured with no more than that of an H200's memory: recorded, in one batch."""
    memory = foreseen("0.5B", 7062, room=Room("cuda", 23_350_000_000, 23_350_000_000, 128 * GB))
    assert memory.recorded
    assert memory.peak / GB == pytest.approx(15.61, rel=0.05)


@pytest.mark.parametrize(("size", "measured"), [("135M", 3.1), ("0.5B", 9.518)])
def test_what_stays_between_recorded_steps_is_what_was_measured(size: str, measured: float) -> None:
    """A replayed step allocates nothing, so its activations are not in torch's figure."""
    memory = foreseen(size, 7062)
    stays = memory.held + memory.base + memory.libraries
    assert stays / GB == pytest.approx(measured, rel=0.02)
    assert memory.peak > stays + memory.backward / 2


@pytest.mark.parametrize(("size", "free"), [("8B", 150), ("3B", 60), ("0.5B", 10)])
def test_what_micro_batches_add_up_in_is_needed(size: str, free: int) -> None:
    """A batch that does not fit at once takes fp32 sums of gradients, however small its parts."""
    memory = foreseen(size, 48_000, room=Room("cuda", free * GB, free * GB, 128 * GB))
    assert memory.least > 20 * SHAPES[size].parameters
    assert memory.least > free * GB
    assert not memory.recorded


@pytest.mark.parametrize(("datasets", "long"), [(21, True), (1, False)])
def test_a_run_is_as_long_as_its_sub_datasets_are_many(datasets: int, long: bool) -> None:
    """One entry of a recipe may be split into many."""
    rows = [{"prompt": "p", "completion": "c"}]
    recipe = Recipe("tiny", [{"name": "a", "train": rows, "validation": rows}], method="msft")
    assert is_long(recipe, 10_500, datasets) is long


def test_keys_take_no_more_than_the_decoder_gives_them() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    none = Checkpoints(1, 0, restored=False, most=0)
    many, few = (
        memory_of(
            SHAPES["8B"],
            demand,
            Work(6000, 468, None, "auto", points=0, slots=slots),
            none,
            H200,
        ).evaluation
        for slots in (10**6, 1000)
    )
    assert many == H200.total // 8
    assert few == 1000 * SHAPES["8B"].keys * 2


def test_the_optimizer_in_bf16_takes_less() -> None:
    demand = Demand(1000, 0.2, bf16=True, half_moments=False)
    halved = Demand(1000, 0.2, bf16=True, half_moments=True)
    shape = SHAPES["8B"]
    assert held_bytes(shape, demand) == 14 * shape.parameters
    assert held_bytes(shape, halved) == 10 * shape.parameters


def test_activations_are_recomputed_where_a_batch_does_not_fit() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    roomy, tight = (best_fit(SHAPES["8B"], n * GB, demand, "auto") for n in (300, 140))
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens >= 512


def test_a_shape_is_known_without_weights(tmp_path: Path) -> None:
    model = load_model("tiny", CPU).model
    size = sum(p.numel() for p in model.parameters())
    assert named_shape("tiny", False, 1) == shape_of(model.config, size)
    assert named_shape("tiny", False, 1) == Shape(size, 2, 128, 320, 258, 512)
    model_of("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    found = named_shape(str(tmp_path), False, 1)
    assert found.parameters == sum(p.numel() for p in model_of("llama").parameters())


@pytest.mark.parametrize("restored", [False, True])
def test_disk_without_memory_holds_every_checkpoint(restored: bool) -> None:
    checkpoints = Checkpoints(100, 200, restored, most=13)
    assert checkpoints.disk(roomy=True) == 4 * 100 + (3 if restored else 2) * 200
    assert checkpoints.disk(roomy=False) == 14 * 100 + (13 if restored else 2) * 200


# Refusals.


def test_too_little_memory_is_exit_3_and_says_what_to_change(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("msft.engine.machine.free_host_memory", lambda: 140_000_000)
    assert main(["train", str(recipe), "--out", "out", "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "GB free" in said
    assert "smaller batches do not make it less" in said
    assert "optim: adamw_bf16" in said
    assert "a smaller model" in said
    assert not Path("out").exists()
    assert main(["plan", str(recipe)]) == 0
    said = capsys.readouterr().out
    assert "does NOT fit" in said
    assert "the model does not fit into memory" in said


@pytest.mark.parametrize(
    ("free", "keys", "cures"),
    [
        (120, {}, ["optim: adamw_bf16 (110 GB), or a smaller model"]),
        (100, {}, ["optim: adamw_bf16", "still too much"]),
        (100, {"optim": "adamw_bf16"}, ["a smaller model"]),
    ],
)
def test_an_8b_model_is_told_what_would_help(
    free: int, keys: dict[str, Any], cures: list[str], tmp_path: Path
) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft", **keys)
    room = Room("cuda", free * GB, 150 * GB, 100 * GB)
    corpus, method = corpus_of(recipe), recipe.prepared()
    with pytest.raises(NoRoom) as refused:
        refuse_no_room(recipe, corpus, method, SHAPES["8B"], room)
    for cure in cures:
        assert cure in str(refused.value)
    refuse_no_room(recipe, corpus, method, SHAPES["135M"], room)


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


def test_plan_and_train_ask_for_the_same(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="msft", method_options={"on_rollback": "restore"})
    shape = named_shape("tiny", False, 1)
    room = Room("cpu", GB, GB, GB)
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, room)
    assert needs.checkpoints == Checkpoints.of(shape.parameters, "adamw", "restore", len(RULES))
    assert needs.disk == needs.checkpoints.disk(roomy=True)
    poor = Room("cpu", 30_000_000, GB, GB)
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, poor)
    assert needs.disk == needs.checkpoints.disk(roomy=False)


# From outside.


def test_a_calibration_gives_a_finite_time_and_leaves_no_file(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msft.planning.calibration.SECONDS", 1.0)
    before = sorted(Path().rglob("*"))
    assert main(["plan", str(recipe), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    for cases in content["methods"].values():
        for case in cases.values():
            assert isfinite(case["seconds"])
            assert case["seconds"] > 0
    assert content["calibration"]["train_tokens_per_second"] > 0
    assert sorted(Path().rglob("*")) == before


def test_a_calibration_scores_all_rows_where_that_is_quick(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft")
    found = calibrate(recipe, corpus_of(recipe), CPU)
    assert not found.sampled
    assert found.seconds(6000, 0, 0) < found.seconds(6000, 0, 6000)


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
