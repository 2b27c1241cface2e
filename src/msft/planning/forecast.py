"""`msft plan`: from a recipe to a forecast of tokens, FLOPs, memory, disk and time.

`forecast` is about one run, `side_by_side` (`--side-by-side`) about the runs of a comparison on
several devices, one run on each: there, time is that of this machine where its speed was tried,
else of assumed GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, Literal

import torch

from msft.data.corpus import Corpus, later_epochs
from msft.data.splits import question_of
from msft.engine.kernels import device_here
from msft.engine.memory import (
    Demand,
    EvaluationSizes,
    FreeMemory,
    Needs,
    demand_of,
    exported,
    free_disk,
    in_bf16,
    models_beside,
    needs_of,
    room_of,
    used_memory,
)
from msft.engine.model.shape import ModelShape, shape_for
from msft.engine.model.tokenizers import load_rows
from msft.errors import RecipeError, UsageError
from msft.planning.calibration import SECONDS, Calibration, calibrate
from msft.planning.counting import (
    TOO_LONG,
    Case,
    Cases,
    EvaluationTokens,
    TooLong,
    audit_round,
    cases_of,
    evaluation_sizes,
)
from msft.planning.devices import H200, USABLE, Job, devices_content
from msft.recipe.recipe import Recipe, recipe_keys
from msft.run.history import inference_flops, look_ahead_flops, train_flops
from msft.run.log import Tokens
from msft.search.curves import SELECTION, TEST
from msft.search.methods.audit import FOLDS
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


def evaluations_of(
    recipe: Recipe, corpus: Corpus, tokenizer: Any, room: FreeMemory
) -> EvaluationSizes:
    """Tokens of every evaluation, as the decoder of this machine computes it."""
    return evaluation_sizes(corpus.tasks(recipe), tokenizer, _stems(recipe, room))


def _stems(recipe: Recipe, room: FreeMemory) -> bool:
    """Whether what choices share is computed once."""
    return room.kind == "cuda" and in_bf16(recipe, torch.device(room.kind))


def loaded(recipe: Recipe) -> tuple[Any, Corpus, ModelShape]:
    """Tokenizer, rows and sizes of a recipe's model; no weights."""
    rows = load_rows(recipe)
    return rows.tokenizer, rows.corpus, shape_for(recipe, len(rows.tokenizer))


def room_here() -> FreeMemory:
    """The free memory of this machine where it would train."""
    return room_of(device_here())


def forecast_of(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: Any,
    shape: ModelShape,
    room: FreeMemory,
    out: Path,
    seconds: float,
    devices: int | None = None,
) -> dict[str, Any]:
    """As `forecast`, of rows that are loaded already and a machine with this much free memory."""
    evaluations = evaluations_of(recipe, corpus, tokenizer, room)
    tokens = {place: size.tokens for place, size in evaluations.items()}
    counted_methods = cases_of(recipe, corpus, tokens)
    own = counted_methods.cases.get(recipe.method)
    worst = own.worst if own else None
    needs = _needs(recipe, corpus, shape, room, evaluations, worst)
    adapter = recipe.adapter
    trained = 0 if adapter is None else shape.adapter_weights(adapter)
    program = used_memory() if room.kind == "cpu" else 0
    speed, why = calibration_of(recipe, corpus, needs, seconds)
    audited = _audited(recipe, corpus, tokenizer, _stems(recipe, room))
    return {
        "model": recipe.model_name_or_path,
        "parameters": shape.parameters,
        **({"trainable": trained, "frozen": shape.parameters} if trained else {}),
        "device": room.kind,
        "method": recipe.method,
        "early_stopping_patience": recipe.early_stopping_patience,
        "datasets": {name: _dataset(corpus, name, evaluations) for name in corpus.datasets},
        "watched": {name: _splits(name, evaluations) for name in corpus.watched},
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
        "audit_round": audited and _case(audited, shape.parameters, trained, speed),
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


def _audited(recipe: Recipe, corpus: Corpus, tokenizer: Any, stems: bool) -> Case | None:
    """A round of an audit; None where there can be none (a judge would have no rows to train on, or
    test rows select), or where counting it takes too long."""
    questions = [[question_of(row) for row in d.train.examples] for d in corpus.datasets.values()]
    if corpus.selection != SELECTION or all(len({*each}) < FOLDS for each in questions):
        return None
    try:
        return audit_round(recipe, corpus, tokenizer, stems)
    except TooLong:
        return None


def _needs(
    recipe: Recipe,
    corpus: Corpus,
    shape: ModelShape,
    room: FreeMemory,
    evaluations: EvaluationSizes,
    worst: Case | None = None,
    demand: Demand | None = None,
) -> Needs:
    """What the recipe's dearest run needs; worst: that run, where it was counted."""
    load = None
    if worst is not None:
        points = worst.points(recipe.evals_per_epoch, len(corpus.datasets))
        load = worst.largest_batch, points
    return needs_of(recipe, corpus, recipe.prepared, shape, room, evaluations, load, demand)


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
    adapter = recipe.adapter
    tensors = [] if adapter is None else shape.adapter_tensors(adapter)
    if tensors and world > len(tensors):
        raise UsageError(
            f"--devices is {world}, but the adapter has {counted(len(tensors), 'tensor')}, and "
            "each device needs one; name fewer devices, or more lora_target_modules"
        )
    links, width = exported(recipe, shape)  # the parts that several wrote are written as one
    models = models_beside(recipe, shape.parameters, links and world == 1, width)
    job = Job(
        shape=shape,
        demand=demand_on_gpus(recipe, corpus, shape),
        steps=max(1, worst.steps),
        train_tokens=worst.tokens.train,
        evaluation_tokens=worst.tokens.evaluation,
        batch_tokens=worst.largest_batch,
        longest=max(max(_lengths(corpus, name)) for name in corpus.datasets),
        checkpoints=replace(needs.checkpoints, models=models),
    )
    return devices_content(job, world)


def demand_on_gpus(recipe: Recipe, corpus: Corpus, shape: ModelShape) -> Demand:
    """How the recipe would train on an assumed GPU."""
    found = demand_of(
        replace(recipe, bf16=True), corpus, torch.device("cuda"), shape, round(H200.memory)
    )
    return replace(found, fused=False, lean=True)


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
        **_splits(name, evaluations),
    }


def _splits(name: str, evaluations: EvaluationSizes) -> dict[str, Any]:
    return {
        split: asdict(evaluations[name, split]) if (name, split) in evaluations else None
        for split in (SELECTION, TEST)
    }


def _epoch(recipe: Recipe, corpus: Corpus) -> dict[str, Any]:
    sizes = corpus.epochs(recipe)
    steps = sizes[0].steps
    return {
        **asdict(sizes[0]),
        **later_epochs(sizes),
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


Which = Literal["best", "worst"]
OF_METHODS = ("method", "method_options", "compute_budget", "num_train_epochs", "seed")
"""Keys of a recipe that change a run but not its rows; runs of other seeds cost the same."""


@dataclass(frozen=True, slots=True)
class _Group:
    """What runs of one model and of the same rows have in common.

    speed: as it was tried here; else why it was not.
    """

    corpus: Corpus
    shape: ModelShape
    evaluations: EvaluationSizes
    speed: Calibration | None
    why: str

    @property
    def tokens(self) -> EvaluationTokens:
        return {place: size.tokens for place, size in self.evaluations.items()}


@dataclass(frozen=True, slots=True)
class _Cost:
    """What one run costs.

    disk: bytes of its folder at the most.
    least, peak: bytes of a GPU's memory: this machine's, or an assumed one's where it has none.
        fits: as `msft train` would say there.
    """

    group: _Group
    cases: Cases
    adapter: int
    disk: int
    least: int
    peak: int
    fits: bool

    def flops(self, which: Which) -> int:
        tokens = self._case(which).tokens
        return sum(flops_of_tokens(tokens, self.group.shape.parameters, self.adapter).values())

    def seconds(self, which: Which, measured: bool) -> float:
        if measured and self.group.speed is not None:
            return self.group.speed.seconds(self._case(which).tokens)
        return self.flops(which) / H200.speed

    def _case(self, which: Which) -> Case:
        return self.cases.best if which == "best" else self.cases.worst


def side_by_side(runs: Mapping[str, Recipe], devices: int, seconds: float) -> dict[str, Any]:
    """Every run alone, and all of them on so many devices.

    runs: recipes by the names of runs.
    seconds: of calibration of each model; 0: none.
    """
    groups: dict[str, _Group] = {}
    counted: dict[str, _Cost | str] = {}
    costs: dict[str, _Cost] = {}
    left_out: dict[str, str] = {}
    for name, recipe in runs.items():
        same = _but(recipe, OF_METHODS)
        if same not in groups:
            groups[same] = _group(recipe, seconds)
        alike = _but(recipe, ("seed",))
        if alike not in counted:
            counted[alike] = _cost(recipe, groups[same])
        match counted[alike]:
            case str(why):
                left_out[name] = why
            case cost:
                costs[name] = cost
    measured = bool(costs) and all(cost.group.speed for cost in costs.values())
    return {
        "devices": devices,
        "runs": {
            name: {
                "model": runs[name].model_name_or_path,
                "method": runs[name].method,
                "seed": runs[name].seed,
                "best": _alone(cost, "best", measured),
                "worst": _alone(cost, "worst", measured),
                "memory": {"least": cost.least, "peak": cost.peak, "fits": cost.fits},
                "disk": cost.disk,
            }
            for name, cost in costs.items()
        },
        "best": _together(costs, "best", measured, devices),
        "worst": _together(costs, "worst", measured, devices),
        "disk": sum(cost.disk for cost in costs.values()),
        "not_counted": left_out,
        "measured": measured,
        "not_measured": next((group.why for group in groups.values() if group.why), ""),
        "assumed": asdict(H200),
        "memory_of": "this GPU" if room_here().kind == "cuda" else f"an assumed {H200.name}",
    }


def _but(recipe: Recipe, keys: Sequence[str]) -> str:
    """Everything that a recipe says, without these keys."""
    return repr([(key, getattr(recipe, key)) for key in recipe_keys() if key not in keys])


def _group(recipe: Recipe, seconds: float) -> _Group:
    tokenizer, corpus, shape = loaded(recipe)
    room = room_here()
    evaluations = evaluations_of(recipe, corpus, tokenizer, room)
    needs = _needs(recipe, corpus, shape, room, evaluations)
    speed, why = calibration_of(recipe, corpus, needs, seconds)
    return _Group(corpus, shape, evaluations, speed, why)


def _cost(recipe: Recipe, group: _Group) -> _Cost | str:
    """What a run costs, or why it is not counted."""
    found = cases_of(recipe, group.corpus, group.tokens, methods=())
    if recipe.method in found.left_out:
        return found.left_out[recipe.method]
    cases = found.cases[recipe.method]
    shape, room, demand = group.shape, room_here(), None
    if room.kind != "cuda":
        room = FreeMemory("cuda", round(USABLE * H200.memory), round(H200.memory), room.host)
        demand = demand_on_gpus(recipe, group.corpus, shape)
    needs = _needs(recipe, group.corpus, shape, room, group.evaluations, cases.worst, demand)
    adapter = recipe.adapter
    weights = 0 if adapter is None else shape.adapter_weights(adapter)
    least, peak = needs.memory.least, needs.memory.peak
    return _Cost(group, cases, weights, needs.disk, least, peak, least <= room.free)


def _alone(cost: _Cost, which: Which, measured: bool) -> dict[str, float]:
    return {"flops": cost.flops(which), "seconds": cost.seconds(which, measured)}


def _together(
    costs: Mapping[str, _Cost], which: Which, measured: bool, devices: int
) -> dict[str, float]:
    """flops: of all. device_seconds: of all devices. seconds: until the last has ended."""
    times = [cost.seconds(which, measured) for cost in costs.values()]
    return {
        "flops": sum(cost.flops(which) for cost in costs.values()),
        "device_seconds": sum(times),
        "seconds": last_end(times, devices),
    }


def last_end(times: Sequence[float], devices: int) -> float:
    """When the last of these runs ends, if the longest begins first and each next one where a
    device is free first."""
    ends = [0.0] * devices
    heapify(ends)
    for time in sorted(times, reverse=True):
        heapreplace(ends, ends[0] + time)
    return max(ends)
