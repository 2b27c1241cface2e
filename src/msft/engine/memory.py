"""Memory: what training takes, what this machine has free, and how the engine fits into it.

The one model of memory: the engine sizes its micro-batches by it, `msft plan` forecasts with it and
`msft train` refuses by it. If an estimate is too bold, the engine halves its micro-batches by
itself; the gradient is the same.

A `ModelShape` is the sizes of the model, a `Demand` how the recipe trains it, a `Workload` the
largest batch, row and evaluation of this run, and `FreeMemory` what the machine has. From these
come `MemoryParts`, bytes by what they are for, and `Needs`, which adds checkpoints and disk. A
`Fit` is how the engine then works.
"""

import gc
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from msft import process
from msft.data.corpus import Corpus, settings_for
from msft.engine.adapters.fp8 import MULTIPLE
from msft.engine.decode.decoder import MEMORY_OF_KEYS
from msft.engine.decode.plans import SPARE_OF_ROW
from msft.engine.kernels import optimizer_way
from msft.engine.model.folders import is_ours
from msft.engine.model.loading import DTYPES
from msft.engine.model.shape import ModelShape
from msft.engine.sharding import SLICED_TOGETHER
from msft.errors import NoRoom
from msft.recipe.recipe import Recipe
from msft.search.feeds import steps_of
from msft.search.methods import ROLLING_BACK, PreparedMethod, most_held
from msft.search.rollout import LEAN, DiskPolicy
from msft.store.store import MemoryTier

if TYPE_CHECKING:
    from msft.engine.saving.weight_files import Copies

UNKNOWN_MEMORY = 4 * 2**30
"""Free bytes of a host that does not say: a modest guess."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free and all bytes where training is, and free ones in host memory."""

    kind: str
    free: int
    total: int
    host: int


def room_of(device: torch.device) -> FreeMemory:
    """What is free on this machine now, for each of the processes that do a run here."""
    host = _kernel_says(Path("/proc/meminfo"), "MemAvailable:", UNKNOWN_MEMORY)
    host = min([host, *limits_left()])
    if process.world() > 1:
        host //= process.local_world()
    if device.type != "cuda":
        return FreeMemory("cpu", host, host, host)
    free, total = torch.cuda.mem_get_info(device)
    sharing = -(-process.local_world() // torch.cuda.device_count())
    host //= process.jobs()  # only checkpoints are there, which come when all jobs have looked
    return FreeMemory("cuda", free // sharing, total // sharing, host)


def used_memory() -> int:
    """Bytes that this process has now; 0 where the system does not say."""
    return _kernel_says(Path("/proc/self/status"), "VmRSS:", 0)


def _kernel_says(file: Path, key: str, default: int) -> int:
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), default)


_CGROUPS = Path("/sys/fs/cgroup")
_FILES_OF_CGROUPS = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""By the controllers that `/proc/self/cgroup` names, which has none in version 2: the folder of the
groups, a group's limit, and what it has of it."""
_CACHED = ("inactive_file", "active_file")


def limits_left(mine: Path = Path("/proc/self/cgroup"), groups: Path = _CGROUPS) -> list[int]:
    """Bytes that each limit on this process leaves: that of a container, or of a job of SLURM. A
    process that takes more is killed. Cached files count as left, since they go when asked."""
    found: list[int] = []
    for line in mine.read_text().splitlines() if mine.exists() else []:
        _, kind, name = line.split(":", 2)
        if kind not in _FILES_OF_CGROUPS:
            continue
        root, *files = _FILES_OF_CGROUPS[kind]
        place = Path(root) / name.lstrip("/")
        for group in (place, *place.parents):  # in a container its own group is at the top
            try:
                limit, used = (int((groups / group / file).read_text()) for file in files)
                stat = (groups / group / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):  # not there, or no limit: "max"
                continue
            sizes = {key: int(size) for key, size in map(str.split, stat)}
            cached = [sizes.get(f"total_{k}", sizes.get(k, 0)) for k in _CACHED]  # groups below too
            found.append(max(0, limit - used + sum(cached)))
    return found


def free_disk(folder: Path) -> int:
    """Bytes left on the disk that a folder is on, or will be on."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def refuse_full_disk(folder: Path, needed: int, cured_by: Callable[[], str] = str) -> None:
    """NoRoom if the disk under `folder` has fewer bytes left than the run can need at once.

    cured_by: what helps this method, besides what helps every one.
    """
    free = free_disk(folder)
    if free < needed:
        cure = cured_by()
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
IN_FP8 = 1
"""Bytes of a weight in FP8. The scale of each row is not counted."""
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
EVALUATED_TOKENS = {"cuda": 65536, "cpu": 32768}
"""Tokens of one forward pass of an evaluation. The decoder halves them where memory runs out."""
EVALUATED_PER_TRAINED = 4
"""Times `micro_batch_tokens`, since a pass without gradients keeps nothing."""
HEAD_TOKENS = 4096
"""Predictions whose losses are computed at once, since they are in fp32."""
LINE_TOKENS = 65536
"""Tokens of the longest line of an evaluation; a longer one makes nothing faster."""

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
    ranks: processes that share fp32 weights, moments and the average.
    sliced: they share gradients too, with `sharding: full`, which cuts gradients into slices.
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

    def trainable_parameters(self, shape: ModelShape) -> int:
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
    """What the training of a recipe asks of a device's memory.

    total: bytes of the device's memory; None: ask the device.
    """
    datasets, sizes = corpus.datasets.values(), corpus.epochs(recipe).values()
    batches = [1.5 * recipe.train_batch_size * size.tokens / size.rows for size in sizes]
    every = [row for dataset in datasets for row in dataset.train.rows]
    bf16 = in_bf16(recipe, device)
    adapter = recipe.adapter
    sliced = recipe.sharding == "full" and process.world() > 1
    return Demand(
        batch_tokens=round(max(batches)),
        answers=sum(row.trained_tokens for row in every) / sum(len(row.tokens) for row in every),
        bf16=bf16,
        half_moments=recipe.optim == "adamw_bf16",
        fused=device.type == "cuda"
        and is_long(recipe, min(size.rows for size in sizes), len(corpus.datasets))
        and not recipe.use_dora,  # peft's own forward, which the compiler cannot follow
        lean=optimizer_way(device, bf16).path == "kernel",  # which takes no memory beside gradients
        averaged=recipe.ema_decay is not None,
        trained=None if adapter is None else shape.adapter_weights(adapter),
        frozen=0 if adapter is None else frozen_bytes(shape, bf16, adapter.four_bit, adapter.fp8),
        merged=0 if adapter is None else merged_bytes(shape, bf16, device, total),
        ranks=process.world(),
        sliced=sliced,
    )


def merged_bytes(
    shape: ModelShape, bf16: bool, device: torch.device, total: int | None = None
) -> int:
    """Bytes of the plain model that is evaluated in place of one with an adapter; 0 where that
    would take more than a quarter of the device's memory, and evaluation goes through the adapter.

    All of the memory counts, not what is free: a resumed run must go the same way.
    """
    needed = (BF16 if bf16 else FP32) * shape.parameters
    if device.type != "cuda":
        return needed
    whole: int = torch.cuda.mem_get_info(device)[1] if total is None else total
    return needed if needed <= MERGED_SHARE * whole else 0


def frozen_bytes(shape: ModelShape, bf16: bool, four_bit: bool, fp8: bool = False) -> int:
    """Bytes of the weights that are not trained; head and embeddings are never packed."""
    multiple = MULTIPLE if fp8 else 1
    packed = shape.packed_weights(multiple) if four_bit or fp8 else 0
    each = IN_FP8 if fp8 else PACKED
    return (BF16 if bf16 else FP32) * (shape.parameters - packed) + round(each * packed)


def evaluated_tokens(recipe: Recipe, kind: str) -> int:
    """The most tokens of one forward pass of an evaluation. kind: of the device."""
    asked = recipe.micro_batch_tokens
    return EVALUATED_PER_TRAINED * asked if asked else EVALUATED_TOKENS[kind]


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
    """How the engine works on a GPU; free: its free bytes before the model is there."""

    def fitting(recompute: bool, accumulate: bool) -> int:
        needed = held_bytes(shape, demand) + gradient_bytes(shape, demand, accumulate)
        return int(SAFETY * (free - needed) / token_bytes(shape, demand, recompute))

    recompute = checkpointing is True
    if checkpointing == "auto" and demand.trained is None:
        recompute = fitting(False, accumulate=False) < demand.batch_tokens
    elif checkpointing == "auto":
        recompute = fitting(False, accumulate=True) < min(demand.batch_tokens, WORTH_SPLITTING)
    tokens = fitting(recompute, accumulate=False)
    whole = tokens >= demand.batch_tokens
    bound = RECORDED_UP_TO if demand.trained is None else ADAPTED_UP_TO
    worth_it = whole or demand.trained is not None  # parts of a step have gradients of their own
    recorded = worth_it and not recompute and shape.parameters <= bound
    return Fit(
        max(512, tokens if whole else fitting(recompute, accumulate=True)), recompute, recorded
    )


def held_bytes(shape: ModelShape, demand: Demand) -> int:
    """Bytes that are there all the time: frozen weights and the merged model; of the weights that
    are trained masters, moments, average and, in bf16, the working copy.

    In fp32 masters are the working weights. But with slices every rank has all working weights
    beside its own masters.
    """
    moments = 2 * (BF16 if demand.half_moments else FP32)
    working = BF16 if demand.bf16 else FP32
    shared = moments + (FP32 if demand.bf16 or demand.sliced else 0)
    moved = demand.trainable_parameters(shape)
    trained = moved * working + moved * shared // demand.ranks
    return demand.frozen + demand.merged + trained + average_bytes(shape, demand)


def average_bytes(shape: ModelShape, demand: Demand) -> int:
    return FP32 * demand.trainable_parameters(shape) // demand.ranks if demand.averaged else 0


def gradient_bytes(shape: ModelShape, demand: Demand, accumulate: bool) -> int:
    """Bytes of gradients; with slices, of the slices of a rank and of gradients not yet cut.

    accumulate: a batch is split, so a copy in fp32 adds up the gradients of its parts.
    """
    if demand.sliced:
        summed = FP32 * shape.parameters if accumulate else 0
        own = FP32 * shape.parameters // demand.ranks
        return own + uncut_bytes(shape, BF16 if demand.bf16 else FP32) + summed
    if not demand.bf16:
        return FP32 * demand.trainable_parameters(shape)
    summed = accumulate and not demand.half_moments
    return demand.trainable_parameters(shape) * (BF16 + (FP32 if summed else 0))


def step_bytes(shape: ModelShape, demand: Demand) -> int:
    """Bytes of gradients, and of what the optimizer's step takes beside them."""
    gradients = gradient_bytes(shape, demand, accumulate=False)
    if demand.lean or not demand.bf16:
        return gradients
    if demand.half_moments:
        largest = shape.largest // demand.ranks if demand.sliced else shape.largest
        return gradients + HALVED_STEP * FP32 * largest
    return gradients if demand.sliced else gradients + FP32 * demand.trainable_parameters(shape)


def uncut_bytes(shape: ModelShape, width: int) -> int:
    """Bytes of the gradients that `sharding: full` has whole at a time: of embeddings and head, of
    the layers that are cut into slices together, and of as many layers before them."""
    ends = 2 * shape.vocabulary * shape.hidden
    layers = max(SLICED_TOGETHER, shape.parameters // max(1, shape.layers))
    return width * min(shape.parameters, ends + 2 * layers)


def token_bytes(shape: ModelShape, demand: Demand, recompute: bool) -> float:
    """Bytes of a token's activations that wait for the backward pass, and of the head's logits.

    recompute: activations are recomputed, all but a layer's input.
    """
    width = BF16 if demand.bf16 else FP32
    layer = width * (10 * shape.hidden + 4 * shape.inner)
    if demand.fused:
        inner = 3 if demand.trained is None else 2  # the gate's product is computed again
        layer = width * (6 * shape.hidden + inner * shape.inner)
    kept = shape.layers * width * shape.hidden + layer if recompute else shape.layers * layer
    prediction = 2 * width if demand.fused else width + 2 * FP32  # with its gradient
    return kept + demand.answers * shape.vocabulary * prediction


def _is_plain(model: nn.Module) -> bool:
    """No dropout and no soft cap, which a recorded step does not know."""
    config: Any = model.config
    dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    dropout = dropout or bool(getattr(config, "attention_dropout", 0.0))
    return not dropout and getattr(config, "attn_logit_softcapping", None) is None


# Bytes of a run's checkpoints, and how many of them memory holds.

SHARE_OF_MEMORY = 0.25
"""Of the free memory where training is, what checkpoints may take."""
SHARE_BESIDE_DEVICE = 0.5
"""Of the free host memory, where training is on a device."""
ROOMY_COPIES, ROOMY_MOMENTS = 4, 2
"""Sets on disk at a time while memory holds the others: start, newest, best, and one on its way
out; moments are of the newest and of the one before."""
NEWEST = 2
"""Checkpoints in memory where the others are on disk: the newest, and the one before while the
newest is made."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Bytes of a run's checkpoints, and of what is on disk beside them.

    moments: with the raw weights beside them, where what is kept is an average.
    restored: their moments are kept with them.
    most: that are needed at a time.
    models: whole models that a run writes beside them.
    policy: which of them are on disk, whatever memory has room for.
    """

    weights: int
    moments: int
    restored: bool
    most: int
    models: int = 0
    policy: DiskPolicy = LEAN

    @staticmethod
    def of(
        parameters: int,
        optim: str,
        on_rollback: str,
        datasets: int,
        most: int | None = None,
        averaged: bool = False,
        models: int = 0,
        policy: DiskPolicy = LEAN,
    ) -> "Checkpoints":
        """most: where a method says how many it needs; else what its sub-datasets' peaks need.
        averaged: moments have the raw weights beside them (`ema_decay`)."""
        weights = FP32 * parameters
        moments = weights if optim == "adamw_bf16" else 2 * weights
        moments += weights if averaged else 0
        restored = on_rollback == "restore"
        return Checkpoints(weights, moments, restored, most or datasets + 3, models, policy)

    @property
    def each(self) -> int:
        return self.weights + (self.moments if self.restored else 0)

    @property
    def aside(self) -> int:
        """Bytes of the newest checkpoint's moments, and of weights on their way to the disk."""
        return self.weights + self.moments

    @property
    def in_memory(self) -> int:
        """Checkpoints that memory is to hold."""
        return self.most if self.policy == LEAN else min(NEWEST, self.most)

    def held(self, room: FreeMemory) -> tuple[int, int]:
        """Checkpoints that memory may hold: where training is, and on a host beside a device."""
        return held_in(self.each, self.aside, self.in_memory, room)

    def disk(self, roomy: bool) -> int:
        """Bytes on disk at a time, at most; `roomy`: memory holds all that it is to hold."""
        few = self.most <= ROOMY_COPIES  # a method that never goes back has no others
        lean = roomy and self.policy == LEAN
        copies = ROOMY_COPIES if lean or few else self.most + (0 if roomy else 1)
        moments = ROOMY_MOMENTS
        if self.restored:
            moments = ROOMY_MOMENTS + 1 if lean else self.most
        return copies * self.weights + moments * self.moments + self.models


def models_beside(recipe: Recipe, parameters: int, links: bool, bytes_a_weight: int) -> int:
    """Bytes of the whole models in a run's folder, at most: results, the new one written before the
    old one goes; or the base of an adapter, where others do not know its name.

    links: the result is a checkpoint's own file. bytes_a_weight: of one that is written.
    """
    if recipe.use_peft and not recipe.merge_adapter:
        return int(is_ours(recipe.model())) * FP32 * parameters
    return 0 if links else 2 * bytes_a_weight * parameters


def held_in(each: int, aside: int, most: int, room: FreeMemory) -> tuple[int, int]:
    """How many checkpoints of `each` bytes fit where training is, and on a host beside it.

    aside: bytes that must be free besides, for the newest one's moments and what is on its way.
    """

    def fits(free: float, wanted: int) -> int:
        return min(wanted, max(0, int(free) - aside) // each)

    here = fits(room.free * SHARE_OF_MEMORY, most)
    if room.kind != "cuda":
        return here, 0
    return here, fits(room.host * SHARE_BESIDE_DEVICE, most - here)


def memory_tiers(
    each: int, aside: int, most: int, device: torch.device, copies: "Copies"
) -> list[MemoryTier]:
    """Device memory first, then host memory, for at most `most` checkpoints in all."""
    here, there = held_in(each, aside, most, room_of(device))
    if device.type != "cuda":
        tiers = [MemoryTier("host", here)]
    else:
        tiers = [
            MemoryTier("device", here, lambda payload: on_device(payload, device)),
            MemoryTier("host", there, copies.to_host, copies.arrive),
        ]
    return [tier for tier in tiers if tier.capacity]


def on_device(payload: Any, device: torch.device) -> Any:
    """A nested payload on a device: as it is, unless it comes from the disk."""
    if isinstance(payload, torch.Tensor):
        return payload.to(device)
    if isinstance(payload, dict):
        return {key: on_device(part, device) for key, part in payload.items()}
    return payload


# What a run needs at once, before it starts: `msft plan` says it and `msft train` refuses by it.

LIBRARIES = {"cuda": 650_000_000, "cpu": 140_000_000}
"""What torch and the report take for themselves, as measured."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The largest pieces of a run's work, as far as recipe and data say.

    batch_tokens, longest: tokens of the largest batch, and of the longest row.
    micro_batch_tokens: as the recipe has them; None: what fits.
    checkpointing: as the recipe has it.
    points: checkpoints that can be kept at a time, since a roll-out has no more.
    slots, read, predicted: of an evaluation, tokens whose keys are kept, tokens of a forward pass,
        and those of them whose prediction is wanted.
    """

    batch_tokens: int
    longest: int
    micro_batch_tokens: int | None
    checkpointing: Checkpointing
    points: int
    slots: int = 0
    read: int = 0
    predicted: int = 0


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes where training is, by what they are for.

    held: weights, moments and the working copy. average: the weights' moving average.
    merged: the plain model that is evaluated in place of one with an adapter.
    base: the base model's weights, if they are here.
    step: gradients and what the optimizer's step needs. backward: activations of a batch.
    row: the same of the longest row alone, recomputed where that is allowed, and what micro-batches
        add up in where there are some.
    evaluation: keys, activations and predictions. snapshot: a copy of weights and moments.
    checkpoints: that wait in memory, with the newest one's moments.
    recorded: steps are, so what a batch and a step need stays theirs.
    """

    held: int
    base: int
    libraries: int
    step: int
    backward: int
    row: int
    evaluation: int
    snapshot: int
    checkpoints: int
    recorded: bool
    average: int = 0
    merged: int = 0

    @property
    def state(self) -> int:
        """What is there all the time."""
        return self.held + self.average + self.merged + self.base + self.libraries

    @property
    def least(self) -> int:
        """What the run cannot do without, however small its micro-batches are."""
        return self.state + max(self.step, self.row)

    @property
    def peak(self) -> int:
        """The most at a time."""
        return self.state + self.work + self.checkpoints

    @property
    def work(self) -> int:
        """What is done comes after each other: a batch, a step, an evaluation, a snapshot."""
        training, other = max(self.backward, self.step), max(self.evaluation, self.snapshot)
        return training + other if self.recorded else max(training, other)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs, and what there is.

    in_memory: checkpoints that memory may hold once the model is there.
    disk: bytes of checkpoints on disk at a time.
    """

    memory: MemoryParts
    checkpoints: Checkpoints
    room: FreeMemory

    @property
    def in_memory(self) -> int:
        return sum(self.checkpoints.held(_less(self.room, self.memory.state)))

    @property
    def disk(self) -> int:
        return self.checkpoints.disk(roomy=self.in_memory >= self.checkpoints.in_memory)


@dataclass(frozen=True, slots=True)
class EvaluationSize:
    """One evaluation of a sub-dataset's split.

    tokens: through the model.
    written: of those, the estimate of what the model writes itself.
    cut_short: a wrong answer is left as soon as it is known to be wrong.
    slots: tokens whose keys are kept at a time, where it writes.
    answers: tokens whose prediction is wanted, where it does not.
    """

    rows: int
    tokens: int
    written: int = 0
    cut_short: bool = False
    slots: int = 0
    answers: int = 0


EvaluationSizes = Mapping[tuple[str, str], EvaluationSize]
"""By sub-dataset and split."""


def needs_of(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    shape: ModelShape,
    room: FreeMemory,
    evaluations: EvaluationSizes | None = None,
    worst: tuple[int, int] | None = None,
    demand: Demand | None = None,
    held: int | None = None,
) -> Needs:
    """evaluations: where they were counted; without them only the peak is rougher.
    worst: likewise, tokens of the largest batch and checkpoints that can be kept at a time.
    demand, held: what training asks of the memory, and the checkpoints that the method needs at a
    time (`most_held`), where they are known already or of a device that is not here."""
    demand = demand or demand_of(recipe, corpus, torch.device(room.kind), shape, room.total)
    rows = [row for dataset in corpus.datasets.values() for row in dataset.train.rows]
    most = evaluated_tokens(recipe, room.kind)
    sizes = (evaluations or {}).items()
    scored = [size for (_, split), size in sizes if split == recipe.selection_split]
    tokens = sum(size.tokens for size in scored)
    line = min(tokens, most, LINE_TOKENS)
    answers = sum(size.answers for size in scored) / max(1, tokens)
    workload = Workload(
        batch_tokens=worst[0] if worst else demand.batch_tokens,
        longest=min(recipe.max_length, max(len(row.tokens) for row in rows)),
        micro_batch_tokens=recipe.micro_batch_tokens,
        checkpointing=recipe.gradient_checkpointing,
        points=(worst[1] if worst else len(corpus.datasets) + 3) + method.averages,
        slots=_slots(scored, room, most),
        read=line,
        predicted=round(answers * line),
    )
    rollback = method.rollout_options.on_rollback
    number = len(corpus.datasets)
    held = held or most_held(method, settings_for(recipe, corpus, method))
    averaged = recipe.ema_decay is not None
    moved, optim = demand.trainable_parameters(shape), recipe.optim
    models = models_beside(recipe, shape.parameters, *exported(recipe, shape))
    how = (averaged, models, recipe.disk_policy)
    checkpoints = Checkpoints.of(moved, optim, rollback, number, held, *how)
    return Needs(memory_of(shape, demand, workload, checkpoints, room), checkpoints, room)


def exported(recipe: Recipe, shape: ModelShape) -> tuple[bool, int]:
    """Whether the result of one process is a checkpoint's own file, and bytes of a weight in it."""
    width = shape.published
    if recipe.export_dtype != "auto":
        width = DTYPES[recipe.export_dtype].itemsize
    return shape.in_memory and width == FP32 and not recipe.merge_adapter, width


def _slots(scored: Iterable[EvaluationSize], room: FreeMemory, most: int) -> int:
    """Keys that are kept at a time: all of an evaluation on CUDA, with guesses; of one batch
    elsewhere."""
    writing = [size for size in scored if size.slots]
    slots = sum(size.slots for size in writing)
    if room.kind == "cuda":
        return slots + SPARE_OF_ROW * sum(size.rows for size in writing)
    return min(slots, most)


def demand_that_fits(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    device: torch.device,
    shape: ModelShape,
    held: int,
) -> Demand:
    """What the training of a recipe asks of the memory of this device; NoRoom if it cannot fit.

    held: checkpoints that the method needs at a time.
    """
    gc.collect()  # the engine of a run before this one in the process
    if device.type == "cuda":
        torch.cuda.empty_cache()
    room = room_of(device)
    demand = demand_of(recipe, corpus, device, shape)
    refuse_no_room(recipe, corpus, method, shape, room, demand, held)
    return demand


def refuse_no_room(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    shape: ModelShape,
    room: FreeMemory,
    demand: Demand | None = None,
    held: int | None = None,
) -> None:
    """NoRoom if the run cannot fit into memory, with the changes that would help.

    demand, held: as for `needs_of`.
    """
    needed = needs_of(recipe, corpus, method, shape, room, demand=demand, held=held).memory.least
    if needed <= room.free:
        return
    changes: dict[str, dict[str, Any]] = {
        "optim: adamw_bf16": {"optim": "adamw_bf16"},
        "gradient_checkpointing: true": {"gradient_checkpointing": True},
        "max_length: 64, which leaves longer rows out": {"max_length": min(recipe.max_length, 64)},
    }
    if recipe.ema_decay is not None:
        changes["ema_decay: null"] = {"ema_decay": None}
    key = "load_in_4bit" if recipe.use_peft else "use_peft"
    adaptable = shape.packs if recipe.use_peft else bool(shape.linears)
    if adaptable and recipe.sharding == "full":
        changes["use_peft: true with sharding: optimizer"] = {key: True, "sharding": "optimizer"}
    elif adaptable:
        changes[f"{key}: true"] = {key: True}

    given = (corpus, method, shape, room)
    cures = {
        cure: needs_of(replace(recipe, **change), *given).memory.least
        for cure, change in changes.items()
    }
    better = [
        f"{cure} ({_gb(least)}{'' if least <= room.free else ', which is still too much'})"
        for cure, least in cures.items()
        if least < needed
    ]
    where = "the GPU" if room.kind == "cuda" else "this machine"
    raise NoRoom(
        f"{recipe.model_name_or_path} needs {_gb(needed)} of memory at least, but {where} has "
        f"{_gb(room.free)} free. That is weights, moments, gradients and one row; smaller batches "
        "do not make it less. "
        f"Use {', or '.join([*better, 'a smaller model'])}, or a larger machine"
    )


def memory_of(
    shape: ModelShape,
    demand: Demand,
    workload: Workload,
    checkpoints: Checkpoints,
    room: FreeMemory,
) -> MemoryParts:
    """The forecast for one run on this machine."""
    base = FP32 * demand.trainable_parameters(shape) // demand.ranks
    fit = cpu_fit(workload.checkpointing)
    if room.kind == "cuda":
        base = base if base <= BASE_ON_DEVICE * room.total else 0
        fit = best_fit(shape, room.free, demand, workload.checkpointing)
    again, most = fit.gradient_checkpointing, workload.micro_batch_tokens or fit.micro_batch_tokens
    whole = workload.batch_tokens <= most
    tokens = max(workload.longest, min(workload.batch_tokens, most))
    sums = 0 if whole else gradient_bytes(shape, demand, accumulate=True)
    allowed = workload.checkpointing is not False and room.kind == "cuda"
    least = token_bytes(shape, demand, again or allowed)
    average = average_bytes(shape, demand)
    parts = MemoryParts(
        held=held_bytes(shape, demand) - average - demand.merged,
        base=base,
        libraries=LIBRARIES[room.kind],
        step=step_bytes(shape, demand),
        backward=round(tokens * token_bytes(shape, demand, again)) + sums,
        row=round(workload.longest * least) + sums,
        evaluation=evaluation_bytes(shape, demand, workload, room),
        snapshot=checkpoints.aside,
        checkpoints=0,
        recorded=fit.recorded and demand.bf16 and whole,
        average=average,
        merged=demand.merged,
    )
    here = checkpoints.held(_less(room, parts.state))[0]
    before = min(workload.points, here) - 1  # when the next one is made
    newest = 0 if checkpoints.restored else checkpoints.moments
    return replace(parts, checkpoints=before * checkpoints.each + newest if before > 0 else 0)


def evaluation_bytes(
    shape: ModelShape, demand: Demand, workload: Workload, room: FreeMemory
) -> int:
    """Keys that are kept, activations of a forward pass, and predictions, part of them in fp32."""
    width = BF16 if demand.bf16 else FP32
    keys = workload.slots * shape.keys * width
    if room.kind == "cuda":
        keys = min(keys, int(room.total * MEMORY_OF_KEYS))
    passing = workload.read * width * (3 * shape.inner + 4 * shape.hidden)
    wide = min(workload.predicted, HEAD_TOKENS) if demand.bf16 else workload.predicted
    predictions = shape.vocabulary * (workload.predicted * width + 2 * wide * FP32)
    return keys + passing + predictions


def _less(room: FreeMemory, taken: int) -> FreeMemory:
    """What is left once so many bytes are taken."""
    return replace(room, free=max(0, room.free - taken))
