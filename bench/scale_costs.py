"""Prints the tables of docs/scale.md: what a run costs on 8 to 64 devices, computed.

    python bench/scale_costs.py

The run is mSFT on a mixture of the paper's size: 10 sub-datasets of 1,800 rows with 250 tokens,
64 rows a step, ten stages of three epochs, four evaluations an epoch of 2,000 rows with 300 tokens.
"""

from dataclasses import replace

from msft.app.terminal.plan import short_time
from msft.engine.memory import BF16, Checkpoints, Demand
from msft.engine.model.shape import ModelShape
from msft.planning.devices import Cost, Job, cost_of, ways_of
from msft.text import si, table

MODELS = {
    "8B": ModelShape(8_030_261_248, 32, 4096, 14336, 128256, 65536),
    "32B": ModelShape(32_763_876_352, 64, 5120, 27648, 152064, 131072),
    "70B": ModelShape(70_553_706_496, 80, 8192, 28672, 128256, 163840),
}
"""Llama 3 8B, Qwen2.5 32B and Llama 3 70B."""
WORLDS = (8, 16, 64)
RANK = 16
ROWS, BATCH, LENGTH, EPOCHS, EVALUATIONS = 18_000, 64, 250, 30, 120
PACKED = 0.5625
"""Bytes of a weight in 4 bits: a scale in fp32 for every 64."""
HEAD = (
    "model",
    "GPUs",
    "sharding",
    "memory",
    "step",
    "× one",
    "train",
    "score",
    "snapshot",
    "back",
)
HEAD += ("disk",)
KINDS = {"8B": ("", " LoRA"), "32B": ("", " LoRA"), "70B": ("", " LoRA", " 4-bit")}


def adapter_of(shape: ModelShape) -> int:
    """Weights of an adapter of all linear layers: rank × (in + out) of each."""
    keys = shape.keys // (2 * shape.layers)
    attention = 2 * (2 * shape.hidden) + 2 * (shape.hidden + keys)
    return RANK * shape.layers * (attention + 3 * (shape.hidden + shape.inner))


def job_of(shape: ModelShape, kind: str) -> Job:
    trained = adapter_of(shape) if kind else shape.parameters
    ends = 2 * shape.vocabulary * shape.hidden
    packed = PACKED if kind == " 4-bit" else BF16
    demand = Demand(BATCH * LENGTH, 0.2, bf16=True, half_moments=False, lean=True)
    if kind:
        frozen = round(BF16 * ends + packed * (shape.parameters - ends))
        demand = replace(demand, trained=trained, frozen=frozen)
    return Job(
        shape=shape,
        demand=demand,
        steps=EPOCHS * -(-ROWS // BATCH),
        train_tokens=EPOCHS * ROWS * LENGTH,
        evaluation_tokens=EVALUATIONS * 2_000 * 300,
        batch_tokens=BATCH * LENGTH,
        longest=512,
        checkpoints=Checkpoints.of(trained, "adamw", "reset", 10),
    )


def cheapest(job: Job, world: int) -> Cost:
    """The optimizer alone where that fits, else all."""
    costs = [cost_of(job, world, way) for way in ways_of(job)]
    return next((cost for cost in costs if cost.fits), costs[-1])


def lines() -> list[str]:
    """The table, a line for each model, kind of training and number of devices."""
    rows = [HEAD]
    for name, shape in MODELS.items():
        for kind in KINDS[name]:
            for world in WORLDS:
                cost = cheapest(job_of(shape, kind), world)
                found = (
                    short_time(cost.step),
                    f"{cost.faster:.1f}",
                    short_time(cost.training),
                    short_time(cost.evaluating),
                    f"{si(cost.snapshot)}B",
                    short_time(cost.rollback_seconds),
                    f"{si(cost.disk)}B",
                )
                way = cost.sharding if cost.fits else "too large"
                blank = ("",) * len(found)
                memory = f"{si(cost.memory)}B"
                rows.append(
                    (name + kind, str(world), way, memory, *(found if cost.fits else blank))
                )
    return table(rows)


if __name__ == "__main__":
    print("\n".join(lines()))
