"""What a run needs in memory and on disk: against what was measured, and where it is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys import RULES, recipe_of, write_data

from msft.data.corpus import Corpus, load_corpus
from msft.engine.memory import (
    Checkpoints,
    Demand,
    FreeMemory,
    MemoryParts,
    Workload,
    memory_of,
    needs_of,
    refuse_no_room,
    uncut_bytes,
)
from msft.engine.model.shape import ModelShape, named_shape
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import NoRoom
from msft.recipe.recipe import Recipe

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
    corpus, method = corpus_of(recipe), recipe.prepared()
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
            refuse_no_room(recipe, corpus_of(recipe), recipe.prepared(), shape, room)
        assert cure in str(refused.value)
    adapter = recipe_of(tmp_path, method="sft", use_peft=True)
    needs = needs_of(adapter, corpus_of(adapter), adapter.prepared(), shape, H200)
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
        needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, H200).memory
        for recipe in (recipe_of(tmp_path, method="sft", sharding=s) for s in ("auto", "full"))
    )
    assert full.held == optimizer.held == 2 * shape.parameters + 12 * shape.parameters // 4
    assert optimizer.step >= 2 * shape.parameters
    assert full.step == 4 * shape.parameters // 4 + uncut_bytes(shape, 2)


def test_the_moving_average_is_counted_where_it_is(tmp_path: Path) -> None:
    write_data(tmp_path)
    without, averaged = (
        needs_of(recipe, corpus_of(recipe), recipe.prepared(), SHAPES["135M"], H200)
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
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, room)
    assert needs.checkpoints == Checkpoints.of(shape.parameters, "adamw", "restore", len(RULES))
    assert needs.disk == needs.checkpoints.disk(roomy=True)
    poor = FreeMemory("cpu", 30_000_000, GB, GB)
    needs = needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, poor)
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
            needs = needs_of(recipe, corpus_of(recipe), recipe.prepared(), shape, room)
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
