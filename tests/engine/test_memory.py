"""What a run needs in memory and on disk: the model that engine and plan share, against what was
measured, and where a run is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import RULES, recipe_of, write_data

from msft.data.corpus import Corpus, load_corpus
from msft.engine.memory import (
    Checkpoints,
    Demand,
    FreeMemory,
    MemoryParts,
    Workload,
    best_fit,
    frozen_bytes,
    gradient_bytes,
    held_bytes,
    is_long,
    limits_left,
    memory_of,
    merged_bytes,
    needs_of,
    refuse_no_room,
    room_of,
    step_bytes,
    token_bytes,
    uncut_bytes,
)
from msft.engine.model.shape import ModelShape, named_shape
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import NoRoom
from msft.process import IS_JOB
from msft.recipe.recipe import AdapterOptions, Recipe

GB = 10**9
H200 = FreeMemory("cuda", 149 * GB, 150 * GB, 128 * GB)
SHAPES = {
    "135M": ModelShape(134_515_008, 30, 576, 1536, 49152, 11520),
    "0.5B": ModelShape(494_032_768, 24, 896, 4864, 151936, 6144),
    "3B": ModelShape(3_085_938_688, 36, 2048, 11008, 151936, 18432),
    "8B": ModelShape(8_030_261_248, 32, 4096, 14336, 128256, 65536),
}


def corpus_of(recipe: Recipe) -> Corpus:
    return load_corpus(recipe, tiny_tokenizer(), 512)


def foreseen(
    size: str, tokens: int, optim: str = "adamw", lean: bool = True, room: FreeMemory = H200
) -> MemoryParts:
    """Training alone, without checkpoints or evaluations, as bench/train_speed.py does it."""
    batch, half = round(1.5 * 91 * 64), optim != "adamw"
    demand = Demand(batch, 0.185, bf16=True, half_moments=half, fused=True, lean=lean)
    none = Checkpoints(1, 0, restored=False, most=0)
    workload = Workload(tokens, 468, None, "auto", points=0)
    return memory_of(SHAPES[size], demand, workload, none, room)


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
    memory = foreseen(
        "0.5B", 7062, room=FreeMemory("cuda", 23_350_000_000, 23_350_000_000, 128 * GB)
    )
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
    memory = foreseen(size, 48_000, room=FreeMemory("cuda", free * GB, free * GB, 128 * GB))
    assert memory.least > 20 * SHAPES[size].parameters
    assert memory.least > free * GB
    assert not memory.recorded


def test_keys_take_no_more_than_the_decoder_gives_them() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    none = Checkpoints(1, 0, restored=False, most=0)
    many, few = (
        memory_of(
            SHAPES["8B"],
            demand,
            Workload(6000, 468, None, "auto", points=0, slots=slots),
            none,
            H200,
        ).evaluation
        for slots in (10**6, 1000)
    )
    assert many == H200.total // 8
    assert few == 1000 * SHAPES["8B"].keys * 2


@pytest.mark.parametrize(
    ("free", "keys", "cures"),
    [
        (120, {}, ["optim: adamw_bf16 (110 GB), or a smaller model"]),
        (100, {}, ["optim: adamw_bf16", "still too much"]),
        (100, {"optim": "adamw_bf16"}, ["a smaller model"]),
        (120, {"optim": "adamw_bf16", "ema_decay": 0.9}, ["ema_decay: null (110 GB)"]),
    ],
)
def test_an_8b_model_is_told_what_would_help(
    free: int, keys: dict[str, Any], cures: list[str], tmp_path: Path
) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="sft", **keys)
    room = FreeMemory("cuda", free * GB, 150 * GB, 100 * GB)
    corpus, method = corpus_of(recipe), recipe.prepared
    with pytest.raises(NoRoom) as refused:
        refuse_no_room(recipe, corpus, method, SHAPES["8B"], room)
    for cure in cures:
        assert cure in str(refused.value)
    refuse_no_room(recipe, corpus, method, SHAPES["135M"], room)


def test_an_8b_model_is_told_of_adapters_and_of_four_bits(tmp_path: Path) -> None:
    write_data(tmp_path)
    block = {"q_proj": (4096, 4096), "k_proj": (4096, 1024), "v_proj": (4096, 1024)}
    block |= {"o_proj": (4096, 4096), "gate_proj": (4096, 14336), "up_proj": (4096, 14336)}
    block |= {"down_proj": (14336, 4096)}
    linears = tuple((name, *sizes) for _ in range(32) for name, sizes in block.items())
    shape = replace(SHAPES["8B"], linears=linears)
    for free, keys, cure in (
        (60, {}, "use_peft: true (17.72 GB)"),
        (60, {"sharding": "full"}, "use_peft: true with sharding: optimizer (17.72 GB)"),
        (12, {"use_peft": True}, "load_in_4bit: true (7.36 GB)"),
    ):
        recipe = recipe_of(tmp_path, method="sft", **keys)
        room = FreeMemory("cuda", free * GB, 24 * GB, 100 * GB)
        with pytest.raises(NoRoom) as refused:
            refuse_no_room(recipe, corpus_of(recipe), recipe.prepared, shape, room)
        assert cure in str(refused.value)
    adapter = recipe_of(tmp_path, method="sft", use_peft=True)
    needs = needs_of(adapter, corpus_of(adapter), adapter.prepared, shape, H200)
    trained = 16 * 32 * sum(given + made for given, made in block.values())
    assert needs.checkpoints.weights == 4 * trained == 167_772_160
    assert needs.checkpoints.moments == 8 * trained
    assert needs.memory.held == 2 * shape.parameters + 14 * trained
    assert needs.memory.merged == 2 * shape.parameters
    assert needs.memory.base == 4 * trained


def test_ranks_with_slices_need_less_than_ranks_with_all_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    for name, value in {"RANK": "0", "MASTER_ADDR": "here", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    shape = SHAPES["8B"]
    optimizer, full = (
        needs_of(recipe, corpus_of(recipe), recipe.prepared, shape, H200).memory
        for recipe in (recipe_of(tmp_path, method="sft", sharding=s) for s in ("auto", "full"))
    )
    assert full.held == optimizer.held == 2 * shape.parameters + 12 * shape.parameters // 4
    assert optimizer.step >= 2 * shape.parameters
    assert full.step == 4 * shape.parameters // 4 + uncut_bytes(shape, 2)


def test_the_moving_average_is_counted_where_it_is(tmp_path: Path) -> None:
    write_data(tmp_path)
    without, averaged = (
        needs_of(recipe, corpus_of(recipe), recipe.prepared, SHAPES["135M"], H200)
        for recipe in (recipe_of(tmp_path, method="sft", ema_decay=d) for d in (None, 0.98))
    )
    copy = 4 * SHAPES["135M"].parameters
    assert (without.memory.average, averaged.memory.average) == (0, copy)
    assert averaged.memory.held == without.memory.held
    assert averaged.memory.state == without.memory.state + copy
    assert averaged.memory.snapshot == without.memory.snapshot + copy
    assert averaged.disk == without.disk + 2 * copy


def test_plan_and_train_ask_for_the_same(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = recipe_of(tmp_path, method="msft", method_options={"on_rollback": "restore"})
    shape = named_shape("tiny", False, 1)
    room = FreeMemory("cpu", GB, GB, GB)
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared, shape, room)
    assert needs.checkpoints == Checkpoints.of(shape.parameters, "adamw", "restore", len(RULES))
    assert needs.disk == needs.checkpoints.disk(roomy=True)
    poor = FreeMemory("cpu", 30_000_000, GB, GB)
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared, shape, poor)
    assert needs.disk == needs.checkpoints.disk(roomy=False)


@pytest.mark.parametrize(
    ("options", "moments", "lean_moments"),
    [({}, 2, 2), ({"on_rollback": "restore"}, len(RULES) + 3, 3)],
)
def test_the_paper_s_policy_has_every_candidate_on_disk_and_the_newest_in_memory(
    tmp_path: Path, options: dict[str, str], moments: int, lean_moments: int
) -> None:
    write_data(tmp_path)
    shape = named_shape("tiny", False, 1)
    found = {}
    for policy in ("lean", "paper"):
        recipe = recipe_of(tmp_path, method="msft", method_options=options, disk_policy=policy)
        for name, free in {"roomy": GB, "poor": 30_000_000}.items():
            room = FreeMemory("cpu", free, GB, GB)
            needs = needs_of(recipe, corpus_of(recipe), recipe.prepared, shape, room)
            found[policy, name] = needs
    weights = 4 * shape.parameters
    models = found["lean", "roomy"].checkpoints.models
    most = len(RULES) + 3
    assert found["lean", "roomy"].disk == (4 + 2 * lean_moments) * weights + models
    assert found["paper", "roomy"].disk == (most + 2 * moments) * weights + models
    assert found["lean", "roomy"].in_memory == most
    assert found["paper", "roomy"].in_memory == 2
    assert found["paper", "poor"].in_memory == 0
    assert found["paper", "poor"].disk == found["lean", "poor"].disk
    assert found["paper", "poor"].disk == (most + 1 + 2 * moments) * weights + models


# The model of memory that engine and plan share.

SHAPE = SHAPES["8B"]


@pytest.mark.parametrize(("datasets", "long"), [(21, True), (1, False)])
def test_a_run_is_as_long_as_its_sub_datasets_are_many(datasets: int, long: bool) -> None:
    """One entry of a recipe may be split into many."""
    rows = [{"prompt": "p", "completion": "c"}]
    recipe = Recipe("tiny", [{"name": "a", "train": rows, "validation": rows}], method="msft")
    assert is_long(recipe, 10_500, datasets) is long


def test_the_optimizer_in_bf16_takes_less() -> None:
    demand = Demand(1000, 0.2, bf16=True, half_moments=False)
    halved = Demand(1000, 0.2, bf16=True, half_moments=True)
    assert held_bytes(SHAPE, demand) == 14 * SHAPE.parameters
    assert held_bytes(SHAPE, halved) == 10 * SHAPE.parameters


def test_the_moving_average_is_one_more_copy() -> None:
    demand = Demand(1000, 0.2, bf16=True, half_moments=True, averaged=True)
    assert held_bytes(SHAPE, demand) == 14 * SHAPE.parameters


def test_ranks_have_the_optimizer_between_them() -> None:
    """An 8B model on eight ranks: a working copy in bf16 and an eighth of 12 bytes a weight."""
    eight = Demand(1000, 0.2, bf16=True, half_moments=False, ranks=8)
    assert held_bytes(SHAPE, eight) == 2 * SHAPE.parameters + 12 * SHAPE.parameters // 8
    fp32 = Demand(1000, 0.2, bf16=False, half_moments=False, averaged=True, ranks=2)
    assert held_bytes(SHAPE, fp32) == (4 + 8 // 2 + 4 // 2) * SHAPE.parameters


def test_slices_are_a_share_of_all_but_of_working_weights_and_of_gradients_that_are_uncut() -> None:
    """Those of both ends, and twice those of 2^29 numbers, or of a layer that has more."""
    ends = 2 * 128256 * 4096
    assert uncut_bytes(SHAPE, 2) == 2 * (ends + 2 * 2**29)
    large = replace(SHAPE, parameters=20 * SHAPE.parameters)
    assert uncut_bytes(large, 2) == 2 * (ends + 2 * (large.parameters // 32))
    assert uncut_bytes(replace(SHAPE, layers=1), 2) == 2 * SHAPE.parameters
    eight = Demand(1000, 0.2, bf16=True, half_moments=False, ranks=8, sliced=True)
    assert held_bytes(SHAPE, eight) == 2 * SHAPE.parameters + 12 * SHAPE.parameters // 8
    fp32 = replace(eight, bf16=False, ranks=2)
    assert held_bytes(SHAPE, fp32) == (4 + (4 + 8) // 2) * SHAPE.parameters
    own = 4 * SHAPE.parameters // 8 + uncut_bytes(SHAPE, 2)
    assert gradient_bytes(SHAPE, eight, accumulate=False) == step_bytes(SHAPE, eight) == own
    assert gradient_bytes(SHAPE, eight, accumulate=True) == own + 4 * SHAPE.parameters
    halved = replace(eight, half_moments=True)
    assert step_bytes(SHAPE, halved) == own + 6 * 4 * SHAPE.largest // 8


def test_activations_are_recomputed_where_a_batch_does_not_fit() -> None:
    demand = Demand(8736, 0.185, bf16=True, half_moments=True)
    roomy, tight = (best_fit(SHAPE, n * GB, demand, "auto") for n in (300, 140))
    assert not roomy.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert tight.micro_batch_tokens >= 512


ADAPTED = Demand(8736, 0.185, bf16=True, half_moments=False, trained=42_000_000, frozen=16 * GB)


def test_beside_an_adapter_only_its_own_weights_have_masters_moments_and_gradients() -> None:
    assert held_bytes(SHAPE, ADAPTED) == 16 * GB + 42_000_000 * (4 + 8 + 2)
    assert gradient_bytes(SHAPE, ADAPTED, accumulate=True) == 42_000_000 * (2 + 4)
    averaged = replace(ADAPTED, averaged=True)
    assert held_bytes(SHAPE, averaged) - held_bytes(SHAPE, ADAPTED) == 42_000_000 * 4


def test_compiled_layers_with_an_adapter_compute_the_gate_again() -> None:
    kept, every = replace(ADAPTED, fused=True), replace(ADAPTED, fused=True, trained=None)
    apart = token_bytes(SHAPE, every, recompute=False) - token_bytes(SHAPE, kept, recompute=False)
    assert apart == pytest.approx(SHAPE.layers * 2 * SHAPE.inner)


def test_an_adapters_batch_is_cut_before_activations_are_recomputed() -> None:
    demand = replace(ADAPTED, fused=True, lean=True)
    roomy, cut, tight = (best_fit(SHAPE, n * GB, demand, "auto") for n in (80, 42, 24))
    assert roomy.micro_batch_tokens >= 8736
    assert not roomy.gradient_checkpointing
    assert 4096 <= cut.micro_batch_tokens < 8736
    assert not cut.gradient_checkpointing
    assert tight.gradient_checkpointing
    assert [fit.recorded for fit in (roomy, cut, tight)] == [True, True, False]
    large = replace(SHAPE, parameters=11_000_000_000)
    assert not best_fit(large, 200 * GB, demand, "auto").recorded
    every = replace(demand, trained=None, frozen=0)
    assert not best_fit(SHAPE, 400 * GB, every, "auto").recorded, "eight billion, all trained"


def test_four_bits_hold_all_but_embeddings_and_head() -> None:
    linears = (("q_proj", 4096, 4096), ("up_proj", 4096, 14336))
    shape = replace(SHAPE, parameters=100_000_000, linears=linears)
    packed = 4096 * (4096 + 14336)
    assert frozen_bytes(shape, bf16=True, four_bit=False) == 200_000_000
    scales = packed / 64 + 4 * packed / (64 * 256)
    expected = 2 * (100_000_000 - packed) + packed / 2 + scales
    assert frozen_bytes(shape, bf16=True, four_bit=True) == pytest.approx(expected)
    some = AdapterOptions(r=16, alpha=32, targets=("q_proj",), dora=True)
    assert shape.adapter_weights(some) == 16 * (4096 + 4096) + 4096


def test_a_merged_model_beside_is_held_where_it_is_a_quarter_of_the_memory_at_most() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    size = 2 * SHAPE.parameters
    assert merged_bytes(SHAPE, True, cuda, 4 * size) == size
    assert merged_bytes(SHAPE, True, cuda, 4 * size - 1) == 0
    assert merged_bytes(SHAPE, False, cpu, 1) == 2 * size
    held = held_bytes(SHAPE, replace(ADAPTED, merged=size))
    assert held == held_bytes(SHAPE, ADAPTED) + size


def group(folder: Path, limit: str, used: int, cached: int, version: int) -> None:
    v1, v2 = ("limit_in_bytes", "usage_in_bytes"), ("max", "current")
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in zip(v1 if version == 1 else v2, (limit, used), strict=True):
        (folder / f"memory.{name}").write_text(f"{size}\n")
    stat = f"anon 7\ninactive_file {cached - 1}\nactive_file 1\n"
    if version == 1:  # of this group alone, and of those below it
        stat = "inactive_file 0\nactive_file 0\n"
        stat += f"total_inactive_file {cached}\ntotal_active_file 0\n"
    (folder / "memory.stat").write_text(stat)


@pytest.mark.parametrize(
    ("mine", "version"),
    [("0::/slurm/job_7/step_0\n", 2), ("5:cpu:/\n4:memory:/slurm/job_7/step_0\n0::/\n", 1)],
)
def test_a_limit_on_a_group_above_is_a_limit(tmp_path: Path, mine: str, version: int) -> None:
    root = tmp_path / ("memory" if version == 1 else "")
    none = "max" if version == 2 else str(2**63 - 4096)
    group(root / "slurm/job_7/step_0", none, 30 * GB, 10 * GB, version)
    group(root / "slurm/job_7", str(64 * GB), 40 * GB, 10 * GB, version)
    group(root, none, 500 * GB, 10 * GB, version)
    (tmp_path / "mine").write_text(mine)
    assert min(limits_left(tmp_path / "mine", tmp_path)) == 34 * GB


def test_a_container_has_its_own_group_at_the_top(tmp_path: Path) -> None:
    """Its path is that of the host, which is not there inside, or just `/`."""
    group(tmp_path, str(16 * GB), 20 * GB, 1 * GB, 2)
    for path in ("/", "/docker/8f3a"):
        (tmp_path / "mine").write_text(f"0::{path}\n")
        assert limits_left(tmp_path / "mine", tmp_path) == [0]


def test_without_limits_the_machine_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_text("0::/user.slice\n")
    assert limits_left(tmp_path / "mine", tmp_path) == []
    assert limits_left(tmp_path / "none", tmp_path) == []
    monkeypatch.setattr("msft.engine.memory.limits_left", list)
    assert room_of(torch.device("cpu")).host > 2 * GB
    monkeypatch.setattr("msft.engine.memory.limits_left", lambda: [2 * GB, 1 * GB])
    assert room_of(torch.device("cpu")) == FreeMemory("cpu", GB, GB, GB)


def test_jobs_side_by_side_share_the_host_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on a GPU of its own. All look before any has checkpoints there."""
    monkeypatch.setattr("msft.engine.memory.limits_left", lambda: [1 * GB])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 * GB, 8 * GB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for jobs, host in (("1", GB), ("8", GB // 8)):
        monkeypatch.setenv(IS_JOB, jobs)
        assert room_of(torch.device("cuda")) == FreeMemory("cuda", 7 * GB, 8 * GB, host)
