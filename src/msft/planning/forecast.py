"""The forecast of a run on this machine: tokens, FLOPs, memory, disk and time.

`Needs` is what plan and train share: the same functions say what is needed and refuse.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from msft.data.corpus import Corpus
from msft.engine.build import EVALUATED_TOKENS, demand_of
from msft.engine.decode.batch_plans import SPARE_OF_ROW
from msft.engine.decode.fast import LINE_TOKENS
from msft.engine.machine import Room, free_disk, refuse_small_memory, used_memory
from msft.engine.memory_model import Demand, Shape
from msft.engine.saving.checkpoint_sizes import Checkpoints, Memory, Work, memory_of
from msft.errors import RecipeError
from msft.planning.calibration import Calibration, calibrate
from msft.planning.cases import Case, cases_of
from msft.planning.evaluation_tokens import Load, Tally
from msft.recipe.recipe import Recipe
from msft.run.flops import inference_flops, look_ahead_flops, train_flops
from msft.search.feeds import steps_of
from msft.search.methods import PreparedMethod
from msft.search.rollout import Tokens
from msft.search.scores import SELECTION, TEST

Loads = dict[tuple[str, str], Load]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run of a recipe needs, and what there is."""

    demand: Demand
    checkpoints: Checkpoints
    memory: Memory
    room: Room

    @property
    def in_memory(self) -> int:
        """Checkpoints that memory may hold once the model is there."""
        held = self.memory.held + self.memory.base + self.memory.libraries
        left = replace(self.room, free=max(0, self.room.free - held))
        return sum(self.checkpoints.held(left))

    @property
    def disk(self) -> int:
        return self.checkpoints.disk(roomy=self.in_memory >= self.checkpoints.most)


def needs_of(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    shape: Shape,
    room: Room,
    loads: Loads | None = None,
    worst: Case | None = None,
) -> Needs:
    """loads, worst: where they were counted; without them only the peak is rougher."""
    demand = demand_of(recipe, corpus, torch.device(room.kind))
    rows = [row for dataset in corpus.datasets.values() for row in dataset.train.rows]
    read = recipe.micro_batch_tokens or EVALUATED_TOKENS[room.kind]
    scored = [load for (_, split), load in (loads or {}).items() if split == SELECTION]
    tokens = sum(load.tokens for load in scored)
    line = min(tokens, 4 * read, LINE_TOKENS)
    answers = sum(load.answers for load in scored) / max(1, tokens)
    work = Work(
        batch_tokens=worst.largest_batch if worst else demand.batch_tokens,
        longest=min(recipe.max_length, max(len(row.tokens) for row in rows)),
        micro_batch_tokens=recipe.micro_batch_tokens,
        checkpointing=recipe.gradient_checkpointing,
        points=_points(worst, recipe.evals_per_epoch, len(corpus.datasets)),
        slots=_slots(scored, room, 4 * read),
        read=line,
        predicted=round(answers * line),
    )
    rollback = method.rollout_options.on_rollback
    number = len(corpus.datasets)
    checkpoints = Checkpoints.of(shape.parameters, recipe.optim, rollback, number)
    return Needs(demand, checkpoints, memory_of(shape, demand, work, checkpoints, room), room)


def _points(worst: Case | None, evals_per_epoch: int, datasets: int) -> int:
    """Checkpoints that can be kept at a time: a roll-out's own, its start and the best."""
    if worst is None or not worst.stages:
        return datasets + 3
    ticks = max(round(stage.epochs * evals_per_epoch) for stage in worst.stages)
    return ticks + (2 if len(worst.stages) > 1 else 0)


def _slots(scored: list[Load], room: Room, most: int) -> int:
    """Keys that are kept at a time: all of an evaluation on CUDA, with guesses; of one batch
    elsewhere."""
    slots = sum(load.slots for load in scored)
    if room.kind == "cuda":
        return slots + SPARE_OF_ROW * sum(load.rows for load in scored if load.slots)
    return min(slots, most)


def refuse_no_room(
    recipe: Recipe, corpus: Corpus, method: PreparedMethod, shape: Shape, room: Room
) -> None:
    """NoRoom if the run cannot fit into memory, with the changes that would help."""
    changes: dict[str, dict[str, Any]] = {
        "optim: adamw_bf16": {"optim": "adamw_bf16"},
        "gradient_checkpointing: true": {"gradient_checkpointing": True},
        "max_length: 64, which leaves longer rows out": {"max_length": min(recipe.max_length, 64)},
    }

    def least(changed: Recipe) -> int:
        return needs_of(changed, corpus, method, shape, room).memory.least

    needed = least(recipe)
    if needed > room.free:
        cures = {cure: least(replace(recipe, **change)) for cure, change in changes.items()}
        refuse_small_memory(recipe.model_name_or_path, needed, room, cures)


def loads_of(recipe: Recipe, corpus: Corpus, tokenizer: Any, room: Room) -> Loads:
    """Tokens of every evaluation, as the decoder of this machine computes it."""
    bf16 = demand_of(recipe, corpus, torch.device(room.kind)).bf16
    return Tally(corpus.tasks(recipe), tokenizer, room.kind == "cuda" and bf16).loads()


def forecast_of(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: Any,
    shape: Shape,
    room: Room,
    out: Path,
    calibrated: bool,
) -> dict[str, Any]:
    """Everything that `msft plan` says, as plain data."""
    loads = loads_of(recipe, corpus, tokenizer, room)
    evaluation = {place: load.tokens for place, load in loads.items()}
    found = cases_of(recipe, corpus, evaluation)
    own = found[recipe.method]
    method = recipe.prepared()
    needs = needs_of(recipe, corpus, method, shape, room, loads, own.worst)
    program = used_memory() if room.kind == "cpu" else 0
    speed, why = _calibration(recipe, corpus, needs, calibrated)
    return {
        "model": recipe.model_name_or_path,
        "parameters": shape.parameters,
        "device": room.kind,
        "method": recipe.method,
        "datasets": {name: _dataset(corpus, name, loads) for name in corpus.datasets},
        "epoch": _epoch(recipe, corpus),
        "evaluation": _evaluation(loads),
        "methods": {
            name: {
                "best": _case(cases.best, shape.parameters, speed),
                "worst": _case(cases.worst, shape.parameters, speed),
            }
            for name, cases in found.items()
        },
        "memory": {
            **asdict(needs.memory),
            "least": needs.memory.least,
            "peak": needs.memory.peak,
            "work": needs.memory.work,
            "program": program,
            "free": room.free,
            "fits": needs.memory.least <= room.free,
        },
        "disk": {
            "peak": needs.disk,
            "free": free_disk(out),
            "out": str(out),
            "fits": needs.disk <= free_disk(out),
            "checkpoints": needs.checkpoints.most,
            "checkpoints_in_memory": needs.in_memory,
        },
        "calibration": asdict(speed) if speed else None,
        "not_calibrated": why,
    }


def _calibration(
    recipe: Recipe, corpus: Corpus, needs: Needs, wanted: bool
) -> tuple[Calibration | None, str]:
    """The calibration, or why there is none."""
    if not wanted:
        return None, "--no-calibration was given"
    if needs.memory.least > needs.room.free:
        return None, "the model does not fit into memory"
    try:
        return calibrate(recipe, corpus, torch.device(needs.room.kind)), ""
    except RecipeError as error:
        return None, f"the weights cannot be had: {error}"
    except torch.OutOfMemoryError:
        return None, "memory ran out while it was tried"


def _dataset(corpus: Corpus, name: str, loads: Loads) -> dict[str, Any]:
    dataset = corpus.datasets[name]
    lengths = [len(row.tokens) for row in dataset.train.rows]
    return {
        "rows": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "validation": asdict(loads[name, SELECTION]),
        "test": asdict(loads[name, TEST]) if (name, TEST) in loads else None,
    }


def _epoch(recipe: Recipe, corpus: Corpus) -> dict[str, Any]:
    rows = sum(len(d.train.rows) for d in corpus.datasets.values())
    tokens = sum(len(row.tokens) for d in corpus.datasets.values() for row in d.train.rows)
    steps = steps_of(rows, recipe.train_batch_size)
    return {
        "rows": rows,
        "tokens": tokens,
        "steps": steps,
        "batch_size": recipe.train_batch_size,
        "evaluations": recipe.evals_per_epoch,
        "rollout_epochs": recipe.compute_budget,
        "rollout_steps": round(steps * recipe.compute_budget),
    }


def _evaluation(loads: Loads) -> dict[str, int]:
    scored = [load for (_, split), load in loads.items() if split == SELECTION]
    return {
        "rows": sum(load.rows for load in scored),
        "tokens": sum(load.tokens for load in scored),
        "written": sum(load.written for load in scored),
    }


def _case(case: Case, parameters: int, speed: Calibration | None) -> dict[str, Any]:
    tokens = case.tokens
    flops = flops_of_tokens(tokens, parameters)
    return {
        "stages": [asdict(stage) for stage in case.stages],
        "epochs": case.epochs,
        "steps": case.steps,
        "evaluations": case.evaluations,
        "tokens": asdict(tokens),
        "flops": {**flops, "total": sum(flops.values())},
        "seconds": speed.seconds(**asdict(tokens)) if speed else None,
    }


def flops_of_tokens(tokens: Tokens, parameters: int) -> dict[str, int]:
    return {
        "train": train_flops(parameters, tokens.train),
        "evaluation": inference_flops(parameters, tokens.evaluation),
        "lookahead": look_ahead_flops(parameters, tokens.lookahead),
    }
