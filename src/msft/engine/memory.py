"""Memory: what training takes, what this machine has free, and how the engine fits into it.

The one model of memory: the engine sizes its micro-batches by it, `msft plan` forecasts with it and
`msft train` refuses by it. If an estimate is too bold, the engine halves its micro-batches by
itself; the gradient is the same.

A `Demand` is how a recipe trains, a `Fit` how the engine then works in the memory that is free.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from msft import process
from msft.data.corpus import Corpus
from msft.engine.kernels import optimizer_way
from msft.engine.model.shape import ModelShape
from msft.engine.ranks import SLICED_TOGETHER
from msft.errors import NoRoom
from msft.recipe.recipe import Recipe
from msft.search.feeds import steps_of
from msft.search.methods import ROLLING_BACK

UNKNOWN_MEMORY = 4 * 2**30
"""Free bytes of a host that does not say: a modest guess."""


@dataclass(frozen=True, slots=True)
class Room:
    """Free and all bytes where training is, and free ones in host memory."""

    kind: str
    free: int
    total: int
    host: int


def room_of(device: torch.device) -> Room:
    """What is free on this machine now, for each of the processes that do a run here."""
    host = _kernel_says(Path("/proc/meminfo"), "MemAvailable:", UNKNOWN_MEMORY)
    host //= process.local_world()
    if device.type != "cuda":
        return Room("cpu", host, host, host)
    free, total = torch.cuda.mem_get_info(device)
    sharing = -(-process.local_world() // torch.cuda.device_count())
    return Room("cuda", free // sharing, total // sharing, host)


def used_memory() -> int:
    """Bytes that this process has now; 0 where the system does not say."""
    return _kernel_says(Path("/proc/self/status"), "VmRSS:", 0)


def _kernel_says(file: Path, key: str, default: int) -> int:
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), default)


def free_disk(folder: Path) -> int:
    """Bytes left on the disk that a folder is on, or will be on."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def no_room(name: str, least: int, room: Room, cures: Mapping[str, int]) -> NoRoom:
    """Fewer bytes are free than the run needs at least.

    cures: changes of the recipe, and what it would need at least with each.
    """
    where = "the GPU" if room.kind == "cuda" else "this machine"
    better = [
        f"{cure} ({_gb(needed)}{'' if needed <= room.free else ', which is still too much'})"
        for cure, needed in cures.items()
        if needed < least
    ]
    return NoRoom(
        f"{name} needs {_gb(least)} of memory at least, but {where} has {_gb(room.free)} free. "
        "That is weights, moments, gradients and one row; smaller batches do not make it less. "
        f"Use {', or '.join([*better, 'a smaller model'])}, or a larger machine"
    )


def refuse_full_disk(folder: Path, needed: int, cure: str = "") -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than the run can need at once.

    cure: what helps this method, besides what helps every one.
    """
    free = free_disk(folder)
    if free < needed:
        raise NoRoom(
            f"{folder} has {_gb(free)} free, but this run can need {_gb(needed)} on disk "
            "at once; free some space, use another --out, "
            + (f"{cure}, a machine with more memory, " if cure else "")
            + "optim: adamw_bf16 (smaller moments), or a smaller model"
        )


def refuse_no_space(folder: Path, needed: int) -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than a model takes."""
    free = free_disk(folder)
    if free < needed:
        raise NoRoom(
            f"{folder} has {_gb(free)} free, but the model takes {_gb(needed)} on disk; free some "
            "space, or use another --out"
        )


def _gb(size: int) -> str:
    if size < 1e8:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e11 else f"{size / 1e9:,.0f} GB"


FP32, BF16 = 4, 2
PACKED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in NF4: a block of 64 has a scale of a byte, 256 scales have one of four."""
MERGED_SHARE = 0.25
"""Of the device's memory, what a plain model beside an adapter's may take."""
WORTH_SPLITTING = 4096
"""Tokens of a micro-batch that keep a GPU busy; an adapter's gradients add up for nothing, so
smaller batches come before recomputing."""
CPU_TOKENS = 8192
SAFETY = 0.8
"""Of the memory that seems to be left, what is counted on."""
RECORDED_UP_TO = 1_000_000_000
"""Models with more weights are not bound by launches, so their steps are not recorded."""
ADAPTED_UP_TO = 10_000_000_000
"""The same with an adapter, whose small products are many launches with little work."""
WORTH_COMPILING = 1500
"""Steps of a run that repay the compiling of its layers (15 s on an H200, 14 ms a step)."""
HALVED_STEP = 6
"""fp32 tensors beside a weight while `adamw_bf16` moves it without a kernel."""
BASE_ON_DEVICE = 0.05
"""The base model's weights stay on the device if they take less than this share of its memory."""
EVALUATED_TOKENS = {"cuda": 16384, "cpu": 8192}
"""Tokens of one forward pass that keeps nothing, over four; halved where they do not fit."""
HEAD_TOKENS = 4096
"""Predictions whose losses are computed at once, since they are in fp32."""
MEMORY_OF_KEYS = 1 / 8
"""The share of the device's memory that keys and values may take."""

Checkpointing = bool | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What the training of a recipe asks of the memory.

    batch_tokens: of a large batch.
    answers: share of the tokens that are answer tokens, at which the head is computed.
    fused: layers and losses are compiled; they keep what matrix products read, and no copy in fp32.
    lean: one kernel takes the optimizer's step, and needs no memory for it.
    averaged: the moving average of the weights is held too.
    trained: weights of an adapter, which alone are trained; None: all are.
    frozen: bytes of the frozen weights beside an adapter.
    merged: bytes of the plain model that is evaluated in place of an adapter's; 0: there is none.
    ranks: have fp32 weights, moments and the average between them.
    sliced: and gradients, with `sharding: full`, which cuts them into slices as they come.
    """

    batch_tokens: int
    answers: float
    bf16: bool
    half_moments: bool
    fused: bool = False
    lean: bool = False
    averaged: bool = False
    trained: int | None = None
    frozen: int = 0
    merged: int = 0
    ranks: int = 1
    sliced: bool = False

    def moved(self, shape: ModelShape) -> int:
        """Weights that are trained."""
        return shape.parameters if self.trained is None else self.trained


@dataclass(frozen=True, slots=True)
class Fit:
    """How the engine works, so that it fits."""

    micro_batch_tokens: int
    gradient_checkpointing: bool
    recorded: bool


def demand_of(
    recipe: Recipe,
    corpus: Corpus,
    device: torch.device,
    shape: ModelShape,
    total: int | None = None,
) -> Demand:
    """total: bytes of the device's memory; None: as it says."""
    datasets = corpus.datasets.values()
    rows, tokens = sum(d.epoch_rows for d in datasets), sum(d.epoch_tokens for d in datasets)
    every = [row for dataset in datasets for row in dataset.train.rows]
    bf16 = in_bf16(recipe, device)
    adapter = recipe.adapter
    sliced = recipe.sharding == "full" and process.world() > 1
    return Demand(
        batch_tokens=round(1.5 * recipe.train_batch_size * tokens / rows),
        answers=sum(row.answer_tokens for row in every) / sum(len(row.tokens) for row in every),
        bf16=bf16,
        half_moments=recipe.optim == "adamw_bf16",
        fused=device.type == "cuda"
        and is_long(recipe, rows, len(corpus.datasets))
        and not recipe.use_dora,  # peft's own forward, which the compiler cannot follow
        lean=optimizer_way(device, bf16).path == "kernel",  # which takes no memory beside gradients
        averaged=recipe.ema_decay is not None,
        trained=None if adapter is None else shape.adapter_weights(adapter),
        frozen=0 if adapter is None else frozen_bytes(shape, bf16, adapter.four_bit),
        merged=0 if adapter is None else merged_bytes(shape, bf16, device, total),
        ranks=process.world(),
        sliced=sliced,
    )


def merged_bytes(
    shape: ModelShape, bf16: bool, device: torch.device, total: int | None = None
) -> int:
    """Of the plain model that is evaluated beside an adapter's; 0 where that would take more than
    a quarter of the device's memory, and evaluation goes through the adapter.

    All of the memory counts, not what is free: a resumed run must go the same way.
    """
    needed = (BF16 if bf16 else FP32) * shape.parameters
    if device.type != "cuda":
        return needed
    whole: int = torch.cuda.mem_get_info(device)[1] if total is None else total
    return needed if needed <= MERGED_SHARE * whole else 0


def frozen_bytes(shape: ModelShape, bf16: bool, four_bit: bool) -> int:
    """Of weights that are not trained; the head and the embeddings are never packed."""
    packed = shape.packed_weights() if four_bit else 0
    return (BF16 if bf16 else FP32) * (shape.parameters - packed) + round(PACKED * packed)


def in_bf16(recipe: Recipe, device: torch.device) -> bool:
    """Whether the model works in bf16 there."""
    return device.type == "cuda" if recipe.bf16 == "auto" else bool(recipe.bf16)


def is_long(recipe: Recipe, rows: int, datasets: int) -> bool:
    """Whether a run is long enough to repay the compiling of its layers, or asks for it."""
    if recipe.torch_compile != "auto":
        return recipe.torch_compile
    epochs = recipe.num_train_epochs
    if recipe.method in ROLLING_BACK:
        epochs = recipe.compute_budget * datasets / 2
    steps = steps_of(rows, recipe.train_batch_size) * epochs
    return not recipe.deterministic and steps >= WORTH_COMPILING


def fit_of(
    model: Any,
    shape: ModelShape,
    device: torch.device,
    demand: Demand,
    checkpointing: Checkpointing,
) -> Fit:
    """The largest micro-batches; activations are recomputed only if a batch does not fit else."""
    if device.type != "cuda":
        return cpu_fit(checkpointing)
    there = FP32 * shape.parameters if demand.trained is None else demand.frozen
    free = torch.cuda.mem_get_info(device)[0] + there
    fit = best_fit(shape, free, demand, checkpointing)
    return replace(fit, recorded=fit.recorded and demand.bf16 and _is_plain(model))


def cpu_fit(checkpointing: Checkpointing) -> Fit:
    return Fit(CPU_TOKENS, checkpointing is True, recorded=False)


def best_fit(shape: ModelShape, free: int, demand: Demand, checkpointing: Checkpointing) -> Fit:
    """Of a GPU before the model is there; `free`: of a device that holds nothing yet."""

    def fitting(again: bool, parts: bool) -> int:
        needed = held_bytes(shape, demand) + gradient_bytes(shape, demand, parts)
        return int(SAFETY * (free - needed) / token_bytes(shape, demand, again))

    again = checkpointing is True
    if checkpointing == "auto" and demand.trained is None:
        again = fitting(False, parts=False) < demand.batch_tokens
    elif checkpointing == "auto":
        again = fitting(False, parts=True) < min(demand.batch_tokens, WORTH_SPLITTING)
    tokens = fitting(again, parts=False)
    whole = tokens >= demand.batch_tokens
    bound = RECORDED_UP_TO if demand.trained is None else ADAPTED_UP_TO
    worth_it = whole or demand.trained is not None  # parts of a step have gradients of their own
    recorded = worth_it and not again and shape.parameters <= bound
    return Fit(max(512, tokens if whole else fitting(again, parts=True)), again, recorded)


def held_bytes(shape: ModelShape, demand: Demand) -> int:
    """Frozen weights, and the plain model; of those trained fp32 weights, moments, in bf16 the
    working copy, and the average; in fp32 every rank works with all weights, its own and copies,
    or scores with all of them beside its slices."""
    moments = 2 * (BF16 if demand.half_moments else FP32)
    working = BF16 if demand.bf16 else FP32
    shared = moments + (FP32 if demand.bf16 or demand.sliced else 0)
    moved = demand.moved(shape)
    trained = moved * working + moved * shared // demand.ranks
    return demand.frozen + demand.merged + trained + average_bytes(shape, demand)


def average_bytes(shape: ModelShape, demand: Demand) -> int:
    return FP32 * demand.moved(shape) // demand.ranks if demand.averaged else 0


def gradient_bytes(shape: ModelShape, demand: Demand, parts: bool) -> int:
    """Gradients; `parts`: with the fp32 copy in which micro-batches add up.

    Of slices those of a rank, and those that are still whole.
    """
    if demand.sliced:
        summed = FP32 * shape.parameters if parts else 0
        own = FP32 * shape.parameters // demand.ranks
        return own + uncut_bytes(shape, BF16 if demand.bf16 else FP32) + summed
    if not demand.bf16:
        return FP32 * demand.moved(shape)
    summed = parts and not demand.half_moments
    return demand.moved(shape) * (BF16 + (FP32 if summed else 0))


def step_bytes(shape: ModelShape, demand: Demand) -> int:
    """Gradients, and what the optimizer's step takes beside them."""
    gradients = gradient_bytes(shape, demand, parts=False)
    if demand.lean or not demand.bf16:
        return gradients
    if demand.half_moments:
        largest = shape.largest // demand.ranks if demand.sliced else shape.largest
        return gradients + HALVED_STEP * FP32 * largest
    return gradients if demand.sliced else gradients + FP32 * demand.moved(shape)


def uncut_bytes(shape: ModelShape, width: int) -> int:
    """Of the gradients that `sharding: full` has whole at a time: of both ends, and of the layers
    that are cut into slices together and those before them."""
    ends = 2 * shape.vocabulary * shape.hidden
    layers = max(SLICED_TOGETHER, shape.parameters // max(1, shape.layers))
    return width * min(shape.parameters, ends + 2 * layers)


def token_bytes(shape: ModelShape, demand: Demand, again: bool) -> float:
    """Activations that wait for the backward pass, and the head's logits.

    again: they are recomputed, all but a layer's input.
    """
    width = BF16 if demand.bf16 else FP32
    layer = width * (10 * shape.hidden + 4 * shape.inner)
    if demand.fused:
        inner = 3 if demand.trained is None else 2  # the gate's product is computed again
        layer = width * (6 * shape.hidden + inner * shape.inner)
    kept = shape.layers * width * shape.hidden + layer if again else shape.layers * layer
    prediction = 2 * width if demand.fused else width + 2 * FP32  # with its gradient
    return kept + demand.answers * shape.vocabulary * prediction


def _is_plain(model: nn.Module) -> bool:
    """No dropout and no soft cap, which a recorded step does not know."""
    config: Any = model.config
    dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    dropout = dropout or bool(getattr(config, "attention_dropout", 0.0))
    return not dropout and getattr(config, "attn_logit_softcapping", None) is None
