"""What a run needs at once, before it starts: `msft plan` says it and `msft train` refuses by it.

Which noun is which: a `ModelShape` is the sizes of the model, a `Demand` how the recipe trains it,
a `Workload` the largest batch, row and evaluation of this run, and a `Room` what the machine has
free. From these come `MemoryParts`, bytes by what they are for, and `Needs`, which adds checkpoints
and disk. A `Fit` is how the engine then works, a `Case` one way that a whole run can go, and an
`EvaluationSize` the tokens of one evaluation of a split.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from msft.data.corpus import Corpus, settings_for
from msft.engine.decode.fast import LINE_TOKENS
from msft.engine.decode.plans import SPARE_OF_ROW
from msft.engine.memory import (
    BASE_ON_DEVICE,
    BF16,
    EVALUATED_TOKENS,
    FP32,
    HEAD_TOKENS,
    MEMORY_OF_KEYS,
    Checkpointing,
    Demand,
    Room,
    average_bytes,
    best_fit,
    cpu_fit,
    demand_of,
    gradient_bytes,
    held_bytes,
    no_room,
    step_bytes,
    token_bytes,
)
from msft.engine.model.loading import DTYPES
from msft.engine.model.shape import ModelShape
from msft.engine.saving.checkpoint_sizes import Checkpoints, models_beside
from msft.planning.counting import Case, EvaluationSize, EvaluationSizes
from msft.recipe.recipe import Recipe
from msft.search.methods import PreparedMethod, most_held

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
    room: Room

    @property
    def in_memory(self) -> int:
        return sum(self.checkpoints.held(_less(self.room, self.memory.state)))

    @property
    def disk(self) -> int:
        return self.checkpoints.disk(roomy=self.in_memory >= self.checkpoints.in_memory)


def needs_of(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    shape: ModelShape,
    room: Room,
    evaluations: EvaluationSizes | None = None,
    worst: Case | None = None,
    demand: Demand | None = None,
    held: int | None = None,
) -> Needs:
    """evaluations, worst: where they were counted; without them only the peak is rougher.
    demand, held: what training asks of the memory, and the checkpoints that the method needs at a
    time (`most_held`), where they are known already or of a device that is not here."""
    demand = demand or demand_of(recipe, corpus, torch.device(room.kind), shape, room.total)
    rows = [row for dataset in corpus.datasets.values() for row in dataset.train.rows]
    most = 4 * (recipe.micro_batch_tokens or EVALUATED_TOKENS[room.kind])
    sizes = (evaluations or {}).items()
    scored = [size for (_, split), size in sizes if split == recipe.selection_split]
    tokens = sum(size.tokens for size in scored)
    line = min(tokens, most, LINE_TOKENS)
    answers = sum(size.answers for size in scored) / max(1, tokens)
    workload = Workload(
        batch_tokens=worst.largest_batch if worst else demand.batch_tokens,
        longest=min(recipe.max_length, max(len(row.tokens) for row in rows)),
        micro_batch_tokens=recipe.micro_batch_tokens,
        checkpointing=recipe.gradient_checkpointing,
        points=_points(worst, recipe.evals_per_epoch, len(corpus.datasets)) + method.averages,
        slots=_slots(scored, room, most),
        read=line,
        predicted=round(answers * line),
    )
    rollback = method.rollout_options.on_rollback
    number = len(corpus.datasets)
    held = held or most_held(method, settings_for(recipe, corpus, method))
    averaged = recipe.ema_decay is not None
    moved, optim = demand.moved(shape), recipe.optim
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


def _points(worst: Case | None, evals_per_epoch: int, datasets: int) -> int:
    """Checkpoints that can be kept at a time: a roll-out's own, its start and the best."""
    if worst is None or not worst.stages:
        return datasets + 3
    ticks = max(round(stage.epochs * evals_per_epoch) for stage in worst.stages)
    return ticks + (2 if len(worst.stages) > 1 else 0)


def _slots(scored: Iterable[EvaluationSize], room: Room, most: int) -> int:
    """Keys that are kept at a time: all of an evaluation on CUDA, with guesses; of one batch
    elsewhere."""
    writing = [size for size in scored if size.slots]
    slots = sum(size.slots for size in writing)
    if room.kind == "cuda":
        return slots + SPARE_OF_ROW * sum(size.rows for size in writing)
    return min(slots, most)


def refuse_no_room(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    shape: ModelShape,
    room: Room,
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

    def least(changed: Recipe) -> int:
        return needs_of(changed, corpus, method, shape, room).memory.least

    cures = {cure: least(replace(recipe, **change)) for cure, change in changes.items()}
    raise no_room(recipe.model_name_or_path, needed, room, cures)


def memory_of(
    shape: ModelShape, demand: Demand, workload: Workload, checkpoints: Checkpoints, room: Room
) -> MemoryParts:
    """The forecast for one run on this machine."""
    base = FP32 * demand.moved(shape) // demand.ranks
    fit = cpu_fit(workload.checkpointing)
    if room.kind == "cuda":
        base = base if base <= BASE_ON_DEVICE * room.total else 0
        fit = best_fit(shape, room.free, demand, workload.checkpointing)
    again, most = fit.gradient_checkpointing, workload.micro_batch_tokens or fit.micro_batch_tokens
    whole = workload.batch_tokens <= most
    tokens = max(workload.longest, min(workload.batch_tokens, most))
    sums = 0 if whole else gradient_bytes(shape, demand, parts=True)
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


def evaluation_bytes(shape: ModelShape, demand: Demand, workload: Workload, room: Room) -> int:
    """Keys that are kept, activations of a forward pass, and predictions, part of them in fp32."""
    width = BF16 if demand.bf16 else FP32
    keys = workload.slots * shape.keys * width
    if room.kind == "cuda":
        keys = min(keys, int(room.total * MEMORY_OF_KEYS))
    passing = workload.read * width * (3 * shape.inner + 4 * shape.hidden)
    wide = min(workload.predicted, HEAD_TOKENS) if demand.bf16 else workload.predicted
    predictions = shape.vocabulary * (workload.predicted * width + 2 * wide * FP32)
    return keys + passing + predictions


def _less(room: Room, taken: int) -> Room:
    """What is left once so many bytes are taken."""
    return replace(room, free=max(0, room.free - taken))
