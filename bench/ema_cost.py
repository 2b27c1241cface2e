"""What `ema_decay` costs: a step with and without it, what an evaluation pays, and is it right?

    PYTHONPATH=src python bench/ema_cost.py [--size 135M] --out ema.jsonl

The shape of SmolLM2-135M with random weights and synthetic rows (`growth.py`); two engines over the
same rows take blocks of steps in turn, so that both see the same machine. All shapes are recorded
and compiled before. A block counts with its device time; the median block counts.

Then, on the same engine: the average against one by hand over a few steps, raw weights and average
after a snapshot and its restore, and likelihoods against an engine that holds just the average.
"""

import time
import warnings
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import torch
from common import SHAPES, Report, Source, engine_for, parser_of, peak_gb, random_model, synchronize
from growth import ANSWER, BATCH, SHAPE, TOKENS, synthetic
from transformers import AutoConfig

from msft.engine.model.loading import LoadedModel
from msft.example import Encoded
from msft.search.feeds import Batch

DECAY, RATE = 0.98, 1e-3
BATCHES = 8
LIMIT = 2.0
"""Per cent of a step that it may cost."""


def engine_of(size: str, decay: float | None) -> Any:
    recipe, corpus = synthetic(TOKENS, BATCH, spread=True)
    model = random_model(AutoConfig.for_model(**SHAPES[size]), torch.float32, "msft")
    loaded = LoadedModel(model, Source("tiny").tokenizer, size)
    return engine_for(replace(recipe, ema_decay=decay, learning_rate=RATE), corpus, loaded)


def step(engine: Any, number: int) -> Any:
    first = number % BATCHES * BATCH
    return engine.work(Batch(tuple(("a", first + place) for place in range(BATCH))))[0]


def block(engine: Any, steps: int) -> float:
    """Milliseconds of a step."""
    synchronize()
    begun = time.perf_counter()
    for number in range(steps):
        step(engine, number)
    synchronize()
    return 1000 * (time.perf_counter() - begun) / steps


def raw_of(engine: Any) -> dict[str, torch.Tensor]:
    tensors = engine.optimizer()["tensors"]
    return {key.removesuffix(".raw"): t for key, t in tensors.items() if key.endswith(".raw")}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def likelihoods(engine: Any) -> list[float]:
    random = Random(1)
    mask = tuple(place >= TOKENS - ANSWER for place in range(TOKENS))
    rows = [Encoded(tuple(random.choices(range(2, 250), k=TOKENS)), mask) for _ in range(BATCH)]
    found: list[float] = engine.predictor().measure(rows, [0] * BATCH)().rows
    return found


def main() -> None:
    """Two tables: what it costs, and whether it is right."""
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.add_argument("--size", default=SHAPE, choices=SHAPES)
    options = parser.parse_args()
    report = Report("ema", options.out)
    blocks, steps = (5, 16) if options.quick else (15, 48)
    engines, memory = dict[str, Any](), dict[str, float]()
    for name, decay in (("off", None), ("on", DECAY)):
        before = peak_gb()
        engines[name] = engine_of(options.size, decay)
        for number in range(2 * BATCHES):
            list(step(engines[name], number).rows)
        memory[name] = peak_gb() - before
    paths = engines["on"].paths()
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(blocks):
        for name, engine in engines.items():
            times[name].append(block(engine, steps))
    for name, found in times.items():
        row = {"ms/step": median(found), "least": min(found), "GB": memory[name]}
        way = {"size": options.size, "optimizer": paths.optimizer, "steps": paths.steps}
        report.add(kind="step", ema=name, **way, **row)
    pairs = zip(times["off"], times["on"], strict=True)
    cost = 100 * median(with_it / without - 1 for without, with_it in pairs)
    report.add(kind="check", check="cost of a step, %", found=cost, limit=LIMIT)

    engine = engines["on"]
    engine.load(None)
    engine.load_optimizer(None)
    by_hand = {name: weight.double() for name, weight in raw_of(engine).items()}
    for number in range(10):
        step(engine, number)
        raw = raw_of(engine)
        by_hand = {n: DECAY * by_hand[n] + (1 - DECAY) * raw[n] for n in raw}
    average = engine.weights()
    report.add(
        kind="check",
        check="average, from one by hand",
        found=difference(average, by_hand),
        limit=1e-6,
    )
    report.add(
        kind="check", check="average, from raw (not 0)", found=difference(average, raw), limit=1.0
    )
    moments, seen = engine.optimizer(), likelihoods(engine)
    synchronize()
    begun = time.perf_counter()
    step(engine, 0)
    synchronize()
    shown = 1000 * (time.perf_counter() - begun) - median(times["on"])
    report.add(
        kind="check", check="back to the raw weights, ms", found=shown, limit=median(times["on"])
    )
    for number in range(1, 4):
        step(engine, number)
    ahead, ahead_raw = engine.weights(), raw_of(engine)
    engine.load(average)
    engine.load_optimizer(moments)
    for number in range(4):
        step(engine, number)
    same = max(difference(ahead, engine.weights()), difference(ahead_raw, raw_of(engine)))
    report.add(kind="check", check="four steps after a restore", found=same, limit=0.0)
    engines["off"].load(average)
    pairs = zip(seen, likelihoods(engines["off"]), strict=True)
    report.add(
        kind="check", check="likelihoods of it", found=max(abs(a - b) for a, b in pairs), limit=0.0
    )
    report.table("a step", ("ema", *way, *row), kind="step")
    report.table("checks: found is at most the limit", ("check", "found", "limit"), kind="check")


if __name__ == "__main__":
    main()
