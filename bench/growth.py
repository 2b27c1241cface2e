"""How cost grows: tok/s with model, row and batch; evaluation with rows and shots; log and store.

    PYTHONPATH=src python bench/growth.py --data DIR --out growth.jsonl

Six short tables (`--parts`): layers, length, batch, rows, shots, stages. The first three train the
135M shape with random weights on synthetic rows (95 tokens, 17 of them answer, unless that is what
grows); `rows` and `shots` score SmolLM2-135M on the ten tasks, style `letters`, 16 new tokens, 200
for aqua_rat and gsm8k; `stages` runs the whole search over the simulated engine on the CPU, log,
verdicts and checkpoints on disk: what is left is the cost of the search itself.
"""

import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from common import (
    SHAPES,
    Clock,
    Report,
    Source,
    corpus_of,
    device_of,
    engine_for,
    evaluator_for,
    parser_of,
    peak_gb,
    random_model,
    recipe_of,
    synchronize,
    with_limits,
)
from transformers import AutoConfig

from msft.data.corpus import Corpus, SubDataset
from msft.data.encoding import EncodedSplit
from msft.engine.model.loading import LoadedModel
from msft.example import Encoded, Example
from msft.recipe.recipe import Recipe
from msft.search.feeds import Batch
from msft.testing.simulated import Learner, simulate

CUDA = torch.cuda.is_available()
LAYERS = (6, 15, 30) if CUDA else (1, 2)
LENGTHS = (32, 128, 512, 1024) if CUDA else (16, 32)
BATCHES = (8, 32, 64, 256) if CUDA else (2, 4)
ROWS = (50, 200, 800) if CUDA else (1, 2)
SHOTS = (0, 2, 5, 10) if CUDA else (0, 1)
STAGES = (2, 5, 10, 20, 40)
SHAPE = "135M" if CUDA else "tiny"
STEPS, BATCH, TOKENS, ANSWER = 20, 64 if CUDA else 4, 95, 17
PARTS = ("layers", "length", "batch", "rows", "shots", "stages")


def synthetic(length: int, batch: int, spread: bool) -> Any:
    """A recipe and a corpus of random rows for eight batches; `spread`: of half to one and a half
    times the length, as real rows are."""
    random, count = Random(0), 8 * batch
    rows = []
    for _ in range(count):
        size = random.randrange(length // 2, length * 3 // 2 + 1) if spread else length
        tokens = tuple(random.randrange(2, 250) for _ in range(size))
        rows.append(Encoded(tokens, tuple(i >= size - ANSWER for i in range(size))))
    examples = tuple(Example("q", "a", where=f"row {n}") for n in range(count))
    split = EncodedSplit(examples, tuple(rows), ())
    own = [{"prompt": "q", "completion": "a"}]
    spec = {"name": "a", "train": own, "validation": own}
    given = {"max_length": 2048, "train_batch_size": batch, "torch_compile": True}
    recipe = Recipe(model_name_or_path="tiny", datasets=[spec], **given)
    data = SubDataset(recipe.datasets[0], "prompt", split, split, None, (), None, "", ())
    return recipe, Corpus({"a": data})


def trained(layers: int, length: int, batch: int, spread: bool, options: Any) -> dict[str, Any]:
    """tok/s of the 135M shape."""
    config = AutoConfig.for_model(**(SHAPES[SHAPE] | {"num_hidden_layers": layers}))
    model = random_model(config, torch.float32, "msft")
    recipe, corpus = synthetic(length, batch, spread)
    tokenizer = Source("tiny").tokenizer
    engine = engine_for(recipe, corpus, LoadedModel(model, tokenizer, SHAPE))
    clock = Clock(6 if options.quick else STEPS, options.seconds)
    number = 0
    while True:
        places = tuple(("a", (number * batch + i) % (8 * batch)) for i in range(batch))
        number += 1
        if not clock.step(engine.work(Batch(places, use="train"))[1]):
            return clock.result(engine.num_parameters)


def scored(source: Source, rows: int, shots: int, split: str, options: Any) -> dict[str, Any]:
    """Seconds of one evaluation of the ten tasks."""
    names = [spec.name for spec in recipe_of("ten-tasks.yaml", options.data).datasets]
    sizes = [f"datasets.{n}.{split}_rows={rows}" for n in names]
    overrides = [f"num_fewshot={shots}", *sizes, *options.set]
    recipe = recipe_of("ten-tasks.yaml", options.data, overrides)
    recipe = with_limits(recipe, {"aqua_rat": 200, "gsm8k": 200}, 16)
    loaded = source.loaded()
    corpus = corpus_of(recipe, loaded.tokenizer, loaded.model.config)
    engine = engine_for(recipe, corpus, loaded)
    score = evaluator_for(recipe, corpus, loaded, engine)
    held, runs, count = engine.weights(), [], 0
    for _ in range(3):  # the first is warm-up
        engine.load(held)
        synchronize()
        begun = time.perf_counter()
        found = score(names, split)
        synchronize()
        runs.append(time.perf_counter() - begun)
        count = sum(score.count for score in found.scores.values())
    seconds = median(runs[1:])
    tokens = found.tokens
    return {"scored": count, "seconds": seconds, "rows/s": count / seconds, "GB": peak_gb()} | {
        "tokens": tokens,
        "first": runs[0],
    }


def searched(count: int) -> dict[str, Any]:
    """Seconds of a search of `count` sub-datasets in numbers alone, and of its replay."""
    learners = {
        f"task{n}": Learner(rows=64, passes=0.5 + n / count, limit=0.5 + 2 * n / count)
        for n in range(count)
    }
    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for _ in range(2):  # the second only reads the log
            begun = time.perf_counter()
            history = simulate("msft", learners, folder=Path(folder))
            seconds.append(time.perf_counter() - begun)
        ticks = sum(stage.ticks for stage in history.stages)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.jsonl"))
    found = {"stages": len(history.stages), "ticks": ticks, "seconds": seconds[0]}
    found |= {"ms/tick": 1000 * seconds[0] / ticks, "replayed s": seconds[1]}
    return found | {"log and verdicts, bytes": size, "bytes/tick": size // ticks}


def main() -> None:
    """One table for each part."""
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    report = Report("growth", options.out)
    deepest = SHAPES[SHAPE]["num_hidden_layers"]
    training = ("tok/s", "MFU", "GB", "reserved GB", "ms/step")
    for part in options.parts:
        columns: tuple[str, ...] = training
        if part == "layers":
            for layers in LAYERS:
                work = partial(trained, layers, TOKENS, BATCH, True, options)
                report.attempt(options.seconds, work, part=part, layers=layers)
        elif part == "length":
            for length in LENGTHS:
                work = partial(trained, deepest, length, BATCH, False, options)
                report.attempt(options.seconds, work, part=part, length=length)
        elif part == "batch":
            for batch in BATCHES:
                work = partial(trained, deepest, TOKENS, batch, True, options)
                report.attempt(options.seconds, work, part=part, batch=batch)
        elif part in ("rows", "shots"):
            columns = ("scored", "seconds", "rows/s", "tokens", "first", "GB")
            source = Source(SHAPE)
            for number in ROWS if part == "rows" else SHOTS:
                given = (number, 5, "test") if part == "rows" else (ROWS[1 if CUDA else 0], number)
                split = "validation" if part == "shots" else "test"
                work = partial(scored, source, given[0], given[1], split, options)
                report.attempt(options.seconds, work, part=part, **{part: number})
        else:
            columns = ("stages", "ticks", "seconds", "ms/tick", "replayed s", "bytes/tick")
            for count in STAGES:
                report.attempt(options.seconds, partial(searched, count), part=part, tasks=count)
        first = "tasks" if part == "stages" else part
        report.table(f"growth with {part} ({device_of()})", (first, *columns), part=part)


if __name__ == "__main__":
    main()
