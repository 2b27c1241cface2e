"""`msft plan`: from a recipe to a forecast of tokens, FLOPs, memory, disk and time."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from msft.data.corpus import Corpus, load_corpus
from msft.engine.machine import Room, free_disk, room_of, used_memory
from msft.engine.memory_model import Demand, demand_of, frozen_bytes, in_bf16
from msft.engine.model.shape import ModelShape, shape_for
from msft.engine.model.tokenizers import load_context, tokenizer_for
from msft.engine.saving.checkpoint_sizes import models_beside
from msft.errors import RecipeError, UsageError
from msft.planning.calibration import SECONDS, Calibration, calibrate
from msft.planning.cases import TOO_LONG, cases_of
from msft.planning.counting_run import Case
from msft.planning.devices import H200, Job, devices_content
from msft.planning.evaluation_tokens import EvaluationSizes, evaluation_sizes
from msft.planning.memory import Needs, exported, needs_of
from msft.recipe.adapters import adapter_of
from msft.recipe.recipe import Recipe
from msft.run.summary import inference_flops, look_ahead_flops, train_flops
from msft.search.feeds import steps_of
from msft.search.rollout import Tokens
from msft.search.scores import SELECTION, TEST
from msft.text import counted


def forecast(
    recipe: Recipe, out: Path, seconds: float = SECONDS, devices: int | None = None
) -> dict[str, Any]:
    """Everything that `msft plan` says of a run on this machine.

    out: the run's folder, for its disk.
    seconds: of calibration; 0: the model is not loaded, and no time is forecast.
    devices: compute also what the run costs on so many.
    """
    tokenizer, corpus, shape = loaded(recipe)
    return forecast_of(recipe, corpus, tokenizer, shape, room_here(), out, seconds, devices)


def evaluations_of(recipe: Recipe, corpus: Corpus, tokenizer: Any, room: Room) -> EvaluationSizes:
    """Tokens of every evaluation, as the decoder of this machine computes it."""
    stems = room.kind == "cuda" and in_bf16(recipe, torch.device(room.kind))
    return evaluation_sizes(corpus.tasks(recipe), tokenizer, stems)


def loaded(recipe: Recipe) -> tuple[Any, Corpus, ModelShape]:
    """Tokenizer, rows and sizes of a recipe's model; no weights."""
    name, trust = recipe.model(), recipe.trust_remote_code
    tokenizer = tokenizer_for(recipe, name)
    corpus = load_corpus(recipe, tokenizer, load_context(name, trust))
    return tokenizer, corpus, shape_for(recipe, len(tokenizer))


def room_here() -> Room:
    """What this machine has where it would train."""
    return room_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def forecast_of(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: Any,
    shape: ModelShape,
    room: Room,
    out: Path,
    seconds: float,
    devices: int | None = None,
) -> dict[str, Any]:
    """The same of what is loaded already, on a machine with this room."""
    evaluations = evaluations_of(recipe, corpus, tokenizer, room)
    tokens = {place: size.tokens for place, size in evaluations.items()}
    counted_methods = cases_of(recipe, corpus, tokens)
    own = counted_methods.cases.get(recipe.method)
    worst = own.worst if own else None
    needs = needs_of(recipe, corpus, recipe.prepared(), shape, room, evaluations, worst)
    adapter = adapter_of(recipe)
    trained = 0 if adapter is None else shape.adapter_weights(adapter)
    program = used_memory() if room.kind == "cpu" else 0
    speed, why = calibration_of(recipe, corpus, needs, seconds)
    return {
        "model": recipe.model_name_or_path,
        "parameters": shape.parameters,
        **({"trainable": trained, "frozen": shape.parameters} if trained else {}),
        "device": room.kind,
        "method": recipe.method,
        "datasets": {name: _dataset(corpus, name, evaluations) for name in corpus.datasets},
        "epoch": _epoch(recipe, corpus),
        "selection_split": corpus.selection,
        "evaluation": _evaluation(evaluations, corpus.selection),
        "methods": {
            name: {
                "best": _case(cases.best, shape.parameters, trained, speed),
                "worst": _case(cases.worst, shape.parameters, trained, speed),
            }
            for name, cases in counted_methods.cases.items()
        },
        "not_counted": dict(counted_methods.left_out),
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
            "policy": needs.checkpoints.policy,
            "checkpoints": needs.checkpoints.most,
            "models": needs.checkpoints.models,
            "checkpoints_in_memory": needs.in_memory,
        },
        "calibration": asdict(speed) if speed else None,
        "not_calibrated": why,
        "devices": devices and _devices(recipe, corpus, shape, needs, worst, devices),
    }


def _devices(
    recipe: Recipe,
    corpus: Corpus,
    shape: ModelShape,
    needs: Needs,
    worst: Case | None,
    world: int,
) -> dict[str, Any]:
    """The dearest run on several devices, as they would be on GPUs."""
    if worst is None:
        raise UsageError(f"--devices is {world}, but {recipe.method} is not counted: {TOO_LONG}")
    if world > recipe.train_batch_size:
        raise UsageError(
            f"--devices is {world}, but a step has {counted(recipe.train_batch_size, 'row')}, and "
            "each device needs one; name fewer devices, or raise train_batch_size"
        )
    adapter = adapter_of(recipe)
    tensors = [] if adapter is None else shape.adapter_tensors(adapter)
    if tensors and world > len(tensors):
        raise UsageError(
            f"--devices is {world}, but the adapter has {counted(len(tensors), 'tensor')}, and "
            "each device needs one; name fewer devices, or more lora_target_modules"
        )
    on_gpus = demand_on_gpus(recipe, corpus, shape)
    four_bit = adapter is not None and adapter.four_bit
    links, width = exported(recipe, shape)  # the parts that several wrote are written as one
    models = models_beside(recipe, shape.parameters, links and world == 1, width)
    job = Job(
        shape=shape,
        demand=on_gpus,
        trained=on_gpus.moved(shape),
        frozen=0 if adapter is None else shape.parameters,
        frozen_bytes=frozen_bytes(shape, bf16=True, four_bit=four_bit) / shape.parameters,
        steps=max(1, worst.steps),
        train_tokens=worst.tokens.train,
        evaluations=worst.evaluations,
        evaluation_tokens=worst.tokens.evaluation,
        batch_tokens=worst.largest_batch,
        longest=max(max(_lengths(corpus, name)) for name in corpus.datasets),
        checkpoints=replace(needs.checkpoints, models=models),
    )
    return devices_content(job, world)


def demand_on_gpus(recipe: Recipe, corpus: Corpus, shape: ModelShape) -> Demand:
    """How the recipe would train on an assumed GPU."""
    found = demand_of(recipe, corpus, torch.device("cuda"), shape, round(H200.memory))
    return replace(found, fused=False, lean=True, bf16=True)


def calibration_of(
    recipe: Recipe, corpus: Corpus, needs: Needs, seconds: float
) -> tuple[Calibration | None, str]:
    """The calibration, or why there is none."""
    if not seconds:
        return None, "--no-calibration was given"
    if needs.memory.least > needs.room.free:
        return None, "the model does not fit into memory"
    try:
        return calibrate(recipe, corpus, torch.device(needs.room.kind), seconds), ""
    except RecipeError as error:
        return None, f"the weights cannot be had: {error}"
    except torch.OutOfMemoryError:
        return None, "memory ran out while it was tried"


def _dataset(corpus: Corpus, name: str, evaluations: EvaluationSizes) -> dict[str, Any]:
    lengths = _lengths(corpus, name)
    return {
        "rows": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        **{
            split: asdict(evaluations[name, split]) if (name, split) in evaluations else None
            for split in (SELECTION, TEST)
        },
    }


def _epoch(recipe: Recipe, corpus: Corpus) -> dict[str, Any]:
    rows = sum(dataset.epoch_rows for dataset in corpus.datasets.values())
    steps = steps_of(rows, recipe.train_batch_size)
    return {
        "rows": rows,
        "tokens": sum(dataset.epoch_tokens for dataset in corpus.datasets.values()),
        "steps": steps,
        "batch_size": recipe.train_batch_size,
        "evaluations": recipe.evals_per_epoch,
        "rollout_epochs": recipe.compute_budget,
        "rollout_steps": round(steps * recipe.compute_budget),
    }


def _lengths(corpus: Corpus, name: str) -> list[int]:
    return [len(row.tokens) for row in corpus.datasets[name].train.rows]


def _evaluation(evaluations: EvaluationSizes, selection: str) -> dict[str, int]:
    scored = [size for (_, split), size in evaluations.items() if split == selection]
    return {
        "rows": sum(size.rows for size in scored),
        "tokens": sum(size.tokens for size in scored),
        "written": sum(size.written for size in scored),
    }


def _case(case: Case, parameters: int, adapter: int, speed: Calibration | None) -> dict[str, Any]:
    flops = flops_of_tokens(case.tokens, parameters, adapter)
    return {
        "stages": [asdict(stage) for stage in case.stages],
        "epochs": case.epochs,
        "steps": case.steps,
        "evaluations": case.evaluations,
        "tokens": asdict(case.tokens),
        "flops": {**flops, "total": sum(flops.values())},
        "seconds": speed.seconds(case.tokens) if speed else None,
    }


def flops_of_tokens(tokens: Tokens, parameters: int, adapter: int = 0) -> dict[str, int]:
    """adapter: its weights, where only they are trained."""
    return {
        "train": train_flops(parameters, tokens.train, adapter),
        "evaluation": inference_flops(parameters, tokens.evaluation),
        "lookahead": look_ahead_flops(parameters, tokens.lookahead, adapter),
    }
