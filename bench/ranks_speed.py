"""Several processes: what their machinery costs where there is one, and that bits are the same.

    PYTHONPATH=src python bench/ranks_speed.py [--out FILE] [--only nccl,full,…] [--size tiny]

nccl: a group of one process over NCCL against the plain path, 0.5B, both recorded; at most 3 %
    slower is asked for.
full: FSDP2 with one process against the plain path, 3B; at most 8 %. Layers are compiled in both;
    `uncompiled`: in neither. `host ms` is the time until the host has launched a step. `by layers`:
    with a group of FSDP2 for each layer, and not for several.
gloo: two processes on one GPU over gloo, deterministic: the weights after a few steps are those of
    one process with the same lanes, bit for bit. `gloo-lora`: those of an adapter.
Weights are random. Each case takes less than a minute; on a CPU all of them use gloo.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from common import (
    SHAPES,
    Report,
    device_of,
    free,
    parser_of,
    peak_gb,
    print_kernels,
    random_model,
    synchronize,
)
from transformers import AutoConfig

import msft.engine.sharding
from msft.engine.adapters.lora import adapted
from msft.engine.fast import FastEngine
from msft.engine.kernels import layers_of
from msft.engine.model.loading import LoadedModel
from msft.engine.optimizer import TrainingSettings
from msft.engine.ranks import Group
from msft.example import Encoded
from msft.ranks import ALONE, Ranks
from msft.recipe.recipe import AdapterOptions
from msft.search.feeds import Batch

CUDA = torch.cuda.is_available()
LENGTH, ANSWER = 95, 17
"""Rows as the ten core tasks have them."""
ROWS = 64 if CUDA else 4
BATCHES = 8
END = SimpleNamespace(eos_token_id=0)


def engine_of(
    size: str,
    ranks: Ranks,
    recorded: bool = False,
    fused: bool = False,
    lora: bool = False,
    **settings: Any,
) -> FastEngine:
    random = Random(0)
    model = random_model(AutoConfig.for_model(**SHAPES[size]), torch.float32, "msft")
    mask = tuple(place >= LENGTH - ANSWER for place in range(LENGTH))
    rows = [
        Encoded(tuple(random.choices(range(1000), k=LENGTH)), mask) for _ in range(ROWS * BATCHES)
    ]
    known = {"bf16": CUDA, "batch_rows": ROWS if CUDA and recorded else 0}
    chosen = TrainingSettings(**{**known, "micro_batch_tokens": 2**16, **settings})
    loaded = LoadedModel(model, END, "random")
    adapter = (
        adapted(loaded, AdapterOptions(r=16, alpha=32), device_of(), chosen.bf16) if lora else None
    )
    layers = layers_of(model, fused)
    return FastEngine(loaded, {"a": rows}, chosen, layers, adapted=adapter, ranks=ranks)


def step(engine: FastEngine, ranks: Ranks, turn: int) -> Any:
    ranks.gather("step", None)  # as a run asks at each step whether a signal came
    first = turn % BATCHES * ROWS
    return engine.work(Batch(tuple(("a", first + number) for number in range(ROWS))))[0]


def milliseconds(engine: FastEngine, ranks: Ranks, steps: int) -> float:
    """Of a step, over a block of steps that nobody waits for."""
    synchronize()
    begun = time.perf_counter()
    for turn in range(steps):
        losses = step(engine, ranks, turn)
    assert len(losses.rows) == ROWS
    losses.rows[0]
    synchronize()
    return 1000 * (time.perf_counter() - begun) / steps


def one_of_one() -> Ranks:
    """A group of this process alone."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    places = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    os.environ |= {name: str(number) for name, number in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Group(device_of())


def beside(size: str, ranks: Ranks, quick: bool) -> dict[str, Any]:
    """Both engines at once, in turn, so that a machine that slows down slows both."""
    plain, grouped = engine_of(size, ALONE, recorded=True), engine_of(size, ranks, recorded=True)
    steps, blocks = (4, 3) if quick or not CUDA else (16, 5)
    pairs = [(plain, ALONE), (grouped, ranks)]
    for engine, theirs in pairs:
        milliseconds(engine, theirs, BATCHES)
    found = [
        [milliseconds(engine, theirs, steps) for engine, theirs in pairs] for _ in range(blocks)
    ]
    before, after = (median(column) for column in zip(*found, strict=True))
    ways = {"plain way": plain.paths().steps, "group way": grouped.paths().steps}
    return {"plain ms": before, "group ms": after, "slower %": 100 * (after / before - 1), **ways}


def host_milliseconds(engine: FastEngine, ranks: Ranks, steps: int) -> float:
    """Until a step has launched all of its work, on a device that waited for it."""
    found = []
    for turn in range(steps):
        synchronize()
        begun = time.perf_counter()
        step(engine, ranks, turn)
        found.append(1000 * (time.perf_counter() - begun))
    return median(found)


def after_each_other(size: str, ranks: Ranks, quick: bool, fused: bool) -> dict[str, Any]:
    """The plain path; slices; and slices with a group of FSDP2 for each layer."""
    steps, blocks = (3, 2) if quick or not CUDA else (8, 3)
    found: dict[str, Any] = {}
    ways = {
        "plain": (ALONE, 0),
        "full": (ranks, msft.engine.sharding.SLICED_TOGETHER),
        "by layers": (ranks, 1),
    }
    for way, (theirs, together) in ways.items():
        msft.engine.sharding.SLICED_TOGETHER = together or msft.engine.sharding.SLICED_TOGETHER
        engine = engine_of(size, theirs, fused=fused, full_sharding=bool(together))
        milliseconds(engine, theirs, 3)
        found[f"{way} ms"] = median(milliseconds(engine, theirs, steps) for _ in range(blocks))
        found[f"{way} host ms"] = host_milliseconds(engine, theirs, steps)
        print_kernels(f"{size} {way}, {engine.how()}", partial(step, engine, theirs, 0))
        found[f"{way} GB"] = peak_gb()
        del engine
        free()
    return {**found, "slower %": 100 * (found["full ms"] / found["plain ms"] - 1)}


def digests(size: str, ranks: Ranks, lora: bool) -> dict[str, str]:
    """Of every tensor after a few deterministic steps, from whoever owns it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    engine = engine_of(size, ranks, lora=lora, lanes=2, learning_rate=1e-3)
    for turn in range(4):
        step(engine, ranks, turn).rows[0]
    mine = {
        name: sha256(weight.cpu().numpy().tobytes()).hexdigest()
        for name, weight in engine.weights().items()
    }
    return {name: digest for part in ranks.gather("digests", mine) for name, digest in part.items()}


def in_process(size: str, rank: int, world: int, port: int, lora: bool) -> "subprocess.Popen[str]":
    places = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    variables = {name: str(number) for name, number in places.items()}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    case = "gloo-lora" if lora else "gloo"
    command = [sys.executable, __file__, "--child", "--size", size, "--only", case]
    return subprocess.Popen(  # noqa: S603
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )


def same_bits(size: str, lora: bool = False) -> dict[str, Any]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    found: dict[int, dict[str, str]] = {}
    for world in (1, 2):
        children = [in_process(size, rank, world, port + world, lora) for rank in range(world)]
        said = [child.communicate(timeout=100)[0] for child in children]
        assert all(child.returncode == 0 for child in children), said
        found[world] = json.loads(said[0].splitlines()[-1])
    one, two = found[1], found[2]
    return {"tensors": len(one), "equal": sum(two.get(name) == each for name, each in one.items())}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--only", default="nccl,full,uncompiled,gloo,gloo-lora", help="cases (%(default)s)"
    )
    parser.add_argument("--size", help="one size for all cases, such as tiny")
    parser.add_argument("--child", action="store_true", help="one process of the case gloo")
    options = parser.parse_args()
    if options.child:
        ranks = ALONE if os.environ["WORLD_SIZE"] == "1" else Group(device_of())
        print(json.dumps(digests(options.size, ranks, options.only == "gloo-lora")), flush=True)
        return
    report = Report("ranks", options.out)
    ranks = one_of_one()
    cases: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
        "nccl": ("0.5B", lambda size: beside(size, ranks, options.quick)),
        "full": ("3B", lambda size: after_each_other(size, ranks, options.quick, fused=True)),
        "uncompiled": (
            "3B",
            lambda size: after_each_other(size, ranks, options.quick, fused=False),
        ),
        "gloo": ("135M", same_bits),
        "gloo-lora": ("135M", lambda size: same_bits(size, lora=True)),
    }
    for case in options.only.split(","):
        usual, work = cases[case]
        size = options.size or usual
        report.attempt(
            2 * options.seconds, lambda work=work, size=size: work(size), case=case, size=size
        )  # type: ignore[misc]
    columns = ["case", "size", "plain ms", "group ms", "full ms", "slower %", "plain host ms"]
    columns += ["full host ms", "by layers ms", "by layers host ms", "tensors", "equal"]
    report.table("one process in a group", columns)


if __name__ == "__main__":
    main()
