"""What a run costs on several devices: memory, time, snapshots, roll-backs and disk of each rank.

Everything here is computed from sizes, and nothing is measured: a model of the two ways to share
(`sharding`), of an assumed device, and of links that are never disturbed. With `optimizer` a rank
has all working weights and their gradients, and owns 1/W of the masters and moments; a step sends
gradients in fp32 and gathers weights in bf16. With `full` it owns 1/W of gradients too: they travel
in bf16 while the pass goes on, and weights are gathered while others are computed with.
An adapter is shared by `optimizer` alone: every rank has the whole frozen model.
"""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal

from msft.engine.memory import (
    BF16,
    FP32,
    MERGED_SHARE,
    Checkpoints,
    Demand,
    gradient_bytes,
    held_bytes,
    token_bytes,
    uncut_bytes,
)
from msft.engine.model.shape import ModelShape

Sharding = Literal["optimizer", "full"]

USABLE = 0.94
"""Of a device's memory; libraries and fragments take the rest."""


@dataclass(frozen=True, slots=True)
class Device:
    """An assumed device.

    memory: bytes. flops: of its bf16 peak, a second. used: the share of them that is reached.
    node: devices of a machine. inside, between: bytes a second that a device sends to others of
        its machine, and to other machines. copying: bytes a second within its own memory.
    """

    name: str
    memory: float
    flops: float
    used: float
    node: int
    inside: float
    between: float
    copying: float

    def exchange(self, amount: float, world: int) -> float:
        """Seconds in which each rank sends every other one its part: gradients are summed in an
        order of our own, so no switch and no ring can add them up on the way."""
        near = min(world, self.node)
        there, away = (near - 1) / self.inside, (world - near) / self.between
        return amount / world * max(there, away)

    def gather(self, amount: float, world: int) -> float:
        """Seconds until each rank has all parts: a ring, which crosses machines on all links."""
        slowest = self.inside if world <= self.node else min(self.inside, self.node * self.between)
        return amount * (world - 1) / world / slowest

    @property
    def speed(self) -> float:
        return self.flops * self.used


H200 = Device("H200", 141e9, 989e12, 0.4, 8, 300e9, 40e9, 2e12)
"""NVLink at two thirds of its 450 GB/s, and 400 Gb/s of network for each device, at 80 %."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run, as far as its cost on devices depends on it.

    demand: of training on one such device.
    steps, train_tokens, evaluation_tokens: of the whole run.
    batch_tokens, longest: tokens of a batch, and of the longest row.
    checkpoints: bytes of one, and how many are needed at a time.
    """

    shape: ModelShape
    demand: Demand
    steps: int
    train_tokens: int
    evaluation_tokens: int
    batch_tokens: int
    longest: int
    checkpoints: Checkpoints

    @property
    def trained(self) -> int:
        """Weights that are trained."""
        return self.demand.trainable_parameters(self.shape)

    @property
    def frozen(self) -> int:
        """Weights beside an adapter."""
        return 0 if self.demand.trained is None else self.shape.parameters


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way to share costs; bytes are of one rank unless they say otherwise.

    weights: what is there whole: working weights, with `optimizer` gradients and the model with
        an adapter in it where that is scored, with `full` the gradients that are still whole.
    owned: masters, moments, and with `full` also slices of gradients.
    activations: of a rank's rows. recomputed: they are, to fit. memory: all of these.
    step: seconds of one, of which `sending`. faster: than one device with room for all of it.
    training, evaluating: seconds of the whole run.
    snapshot: bytes; snapshot_seconds, rollback_seconds: of one.
    kept: bytes of all checkpoints that are needed at a time. disk: bytes of all ranks together.
    """

    sharding: Sharding
    world: int
    weights: float
    owned: float
    activations: float
    recomputed: bool
    memory: float
    fits: bool
    step: float
    sending: float
    faster: float
    training: float
    evaluating: float
    snapshot: float
    snapshot_seconds: float
    rollback_seconds: float
    kept: float
    disk: int


def cost_of(job: Job, world: int, sharding: Sharding, device: Device = H200) -> Cost:
    """The cost on so many devices."""
    weights, owned = _held(job, world, sharding)
    tokens = max(job.longest, ceil(job.batch_tokens / world))
    plain, less = (tokens * token_bytes(job.shape, job.demand, again) for again in (False, True))
    merged = BF16 * job.frozen
    if merged <= MERGED_SHARE * device.memory:
        weights += merged
    room = USABLE * device.memory
    recomputed = weights + owned + plain > room
    activations = less if recomputed else plain
    memory = weights + owned + activations
    computing = _flops(job, job.train_tokens, recomputed) / device.speed
    alone = _flops(job, job.train_tokens, recomputed=False) / device.speed
    sent = (BF16 if sharding == "full" else FP32) * job.trained
    sending = device.exchange(sent, world) + device.gather(BF16 * job.trained, world)
    sending *= job.steps
    # `full` sends while other layers are computed; `optimizer` sends after the pass.
    together = max if sharding == "full" else lambda *parts: sum(parts)
    training = together(computing / world, sending)
    each = job.checkpoints.each / world
    evaluating = 2 * job.shape.parameters * job.evaluation_tokens / device.speed / world
    back = each / device.copying + device.gather(BF16 * job.trained, world)
    return Cost(
        sharding=sharding,
        world=world,
        weights=weights,
        owned=owned,
        activations=activations,
        recomputed=recomputed,
        memory=memory,
        fits=memory <= room,
        step=training / job.steps,
        sending=sending / job.steps,
        faster=alone / training,
        training=training,
        evaluating=evaluating,
        snapshot=each,
        snapshot_seconds=each / device.copying,
        rollback_seconds=back,
        kept=job.checkpoints.most * each,
        disk=job.checkpoints.disk(roomy=True),
    )


def _held(job: Job, world: int, sharding: Sharding) -> tuple[int, int]:
    """Bytes of a rank: what is there whole, and what is its own share."""
    demand = replace(job.demand, ranks=world, sliced=sharding == "full", merged=0)
    every = held_bytes(job.shape, demand) + gradient_bytes(job.shape, demand, accumulate=False)
    gradients = uncut_bytes(job.shape, BF16) if demand.sliced else BF16 * job.trained
    whole = BF16 * job.trained + demand.frozen + gradients
    return whole, every - whole


def _flops(job: Job, tokens: int, recomputed: bool) -> float:
    """6 for each trained weight and token, 4 for each frozen one, 2 more where it is recomputed."""
    again = 2 * (job.trained + job.frozen) if recomputed else 0
    return tokens * (6 * job.trained + 4 * job.frozen + again)


def ways_of(job: Job) -> list[Sharding]:
    """The ways to share a run, the one that keeps more whole first."""
    return ["optimizer"] if job.frozen else ["optimizer", "full"]


def devices_content(job: Job, world: int, device: Device = H200) -> dict[str, Any]:
    """What `msft plan --devices` says, as plain data; `fitting`: the first way that fits."""
    costs = [cost_of(job, world, sharding, device) for sharding in ways_of(job)]
    fitting = next((cost.sharding for cost in costs if cost.fits), None)
    return {
        "world": world,
        "assumed": asdict(device),
        "fitting": fitting,
        "sharding": {cost.sharding: asdict(cost) for cost in costs},
    }
