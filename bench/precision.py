"""Does the fast path compute the same? Losses over 200 steps, and repeats to the bit.

    PYTHONPATH=src python bench/precision.py --data DIR --out precision.jsonl

drift    SmolLM2-135M on the ten tasks, the same batches: bf16 with recorded steps, fused layers and
         our kernels, against fp32 with padded attention and nothing recorded. The mean of the
         differences is shown too, so that a drift cannot hide behind noise; and beside it what
         bf16 without compiling differs by.
repeats  the same steps twice from the same weights: are losses and weights the same bits? As a run
         has it, and with `deterministic: true`; and what that costs.
"""

import os
import time
import warnings
from statistics import fmean
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product

import torch
from common import (
    Report,
    Rows,
    Source,
    corpus_of,
    engine_for,
    free,
    parser_of,
    recipe_of,
    synchronize,
    training_rows,
)

from msft.search.feeds import Batch

BATCH = 64 if torch.cuda.is_available() else 4


def trained(source: Source, options: Any, steps: int, *overrides: str) -> tuple[list[float], Any]:
    """Mean losses of each step, and the engine afterwards."""
    given = ["num_fewshot=0", "learning_rate=2e-5", *overrides, *options.set]
    recipe = recipe_of("ten-tasks.yaml", options.data, given)
    loaded = source.loaded()
    corpus = corpus_of(recipe, loaded.tokenizer, loaded.model.config)
    engine = engine_for(recipe, corpus, loaded)
    return losses_of(engine, training_rows(corpus), steps), engine


def losses_of(engine: Any, rows: Rows, steps: int) -> list[float]:
    found = []
    for number in range(steps):
        places = tuple(rows.places[i] for i in rows.batch(number, BATCH))
        found.append(engine.work(Batch(places, use="train"))[0].rows)
    return [fmean(losses) for losses in found]


def drift(source: Source, options: Any, steps: int) -> dict[str, Any]:
    fast, _ = trained(source, options, steps, "torch_compile=true")
    free()
    exact, _ = trained(source, options, steps, "bf16=false", "torch_compile=false")
    free()
    plain, _ = trained(source, options, steps, "torch_compile=false")
    apart = [a - b for a, b in zip(fast, exact, strict=True)]
    of_bf16 = [a - b for a, b in zip(plain, exact, strict=True)]
    worst = max(range(steps), key=lambda step: abs(apart[step]))
    return {
        "steps": steps,
        "mean": fmean(apart),
        "quarters": [round(fmean(part), 5) for part in quarters(apart)],
        "of bf16 alone": [round(fmean(part), 5) for part in quarters(of_bf16)],
        "mean size": fmean(map(abs, apart)),
        "largest": abs(apart[worst]),
        "at step": worst,
        "loss from": exact[0],
        "to": fmean(exact[-10:]),
    }


def quarters(numbers: list[float]) -> list[list[float]]:
    size = max(1, len(numbers) // 4)
    return [numbers[start : start + size] for start in range(0, len(numbers), size)][:4]


def repeats(source: Source, options: Any, steps: int, deterministic: bool) -> dict[str, Any]:
    """Steps, back to the first weights, the same steps again, timed."""
    torch.use_deterministic_algorithms(deterministic)
    try:
        way = ["deterministic=true"] if deterministic else ["torch_compile=true"]
        recipe = recipe_of("ten-tasks.yaml", options.data, ["num_fewshot=0", *way, *options.set])
        loaded = source.loaded()
        corpus = corpus_of(recipe, loaded.tokenizer, loaded.model.config)
        engine, rows = engine_for(recipe, corpus, loaded), training_rows(corpus)
        runs = []
        for _ in range(3):  # the first one records
            engine.load(None)
            engine.load_optimizer(None)
            engine.seed(0)
            synchronize()
            begun = time.perf_counter()
            losses = losses_of(engine, rows, steps)
            synchronize()
            runs.append((losses, engine.weights(), time.perf_counter() - begun))
        (_, _, _), (one, some, seconds), (other, more, _) = runs
        same = sum(torch.equal(some[name], more[name]) for name in some)
        return {
            "losses": "bitwise equal" if one == other else "differ",
            "weights": f"{same} of {len(some)} tensors bitwise equal",
            "ms/step": 1000 * seconds / steps,
        }
    finally:
        torch.use_deterministic_algorithms(False)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", default=["repeats", "drift"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", default="135M")
    parser.set_defaults(seconds=200)
    options = parser.parse_args()
    report = Report("precision", options.out)
    source = Source(options.size)
    if "repeats" in options.parts:
        for deterministic in (True, False):
            report.attempt(
                options.seconds,
                lambda way=deterministic: repeats(source, options, min(30, options.steps), way),
                part="repeats",
                deterministic=str(deterministic),
            )
        columns = ("deterministic", "losses", "weights", "ms/step")
        report.table("the same steps twice", columns, part="repeats")
    if "drift" in options.parts:
        report.attempt(options.seconds, lambda: drift(source, options, options.steps), part="drift")
        columns = ("steps", "mean", "quarters", "of bf16 alone", "mean size", "largest", "at step")
        report.table("bf16 fast path - fp32", (*columns, "loss from", "to"), part="drift")


if __name__ == "__main__":
    main()
