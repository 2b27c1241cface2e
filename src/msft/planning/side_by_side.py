"""What the runs of a comparison cost on several devices, one run on each: `msft plan
--side-by-side`. Time is that of this machine where its speed was tried, else of assumed GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heapreplace
from typing import Any, Literal

from msft.data.corpus import Corpus
from msft.engine.machine import Room
from msft.engine.model.shape import ModelShape
from msft.planning.calibration import Calibration
from msft.planning.cases import Cases, cases_of
from msft.planning.counting_run import Case, EvaluationTokens
from msft.planning.devices import H200, USABLE
from msft.planning.evaluation_tokens import EvaluationSizes
from msft.planning.forecast import (
    calibration_of,
    demand_on_gpus,
    evaluations_of,
    flops_of_tokens,
    loaded,
    room_here,
)
from msft.planning.memory import needs_of
from msft.recipe.adapters import adapter_of
from msft.recipe.recipe import Recipe, recipe_keys

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
    needs = needs_of(recipe, corpus, recipe.prepared(), shape, room, evaluations)
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
        room = Room("cuda", round(USABLE * H200.memory), round(H200.memory), room.host)
        demand = demand_on_gpus(recipe, group.corpus, shape)
    load = (room, group.evaluations, cases.worst, demand)
    needs = needs_of(recipe, group.corpus, recipe.prepared(), shape, *load)
    adapter = adapter_of(recipe)
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
