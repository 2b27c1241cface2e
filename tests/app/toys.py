"""A toy recipe on the tiny model: three sub-datasets of a few rows, quick enough to run often."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from msft.recipe.recipe import Recipe

RULES: dict[str, Callable[[str], str]] = {
    "upper": lambda word: word.upper(),
    "first": lambda word: word[0],
    "vowel": lambda word: "yes" if any(letter in "aeiou" for letter in word) else "no",
}
"""What each sub-dataset asks for."""


def rows(name: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    random = Random(f"{name}{seed}")
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(random.choice("abcdefgh") for _ in range(4))] = None
    return [{"prompt": f"{name} {w}:", "completion": f" {RULES[name](w)}"} for w in words]


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_data(folder: Path, train: int = 48, held_out: int = 16) -> None:
    """Files of every sub-dataset."""
    for name in RULES:
        every = rows(name, train + 2 * held_out)
        splits = {
            "train": every[:train],
            "valid": every[train : train + held_out],
            "test": every[train + held_out :],
        }
        for split, part in splits.items():
            write_lines(folder / f"{name}.{split}.jsonl", part)


def recipe_of(folder: Path, **keys: Any) -> Recipe:
    """The toy recipe over the files of a folder."""
    datasets = [
        {
            "name": name,
            "train": str(folder / f"{name}.train.jsonl"),
            "validation": str(folder / f"{name}.valid.jsonl"),
            "test": str(folder / f"{name}.test.jsonl"),
            "metric": "nll" if keys.get("method") in ("msft", "continual", "sro") else "accuracy",
        }
        for name in RULES
    ]
    settings: dict[str, Any] = {
        "model_name_or_path": "tiny",
        "learning_rate": 3e-3,
        "train_batch_size": 16,
        "compute_budget": 1,
        "num_train_epochs": 2,
        "evals_per_epoch": 2,
        "seed": 1,
    }
    if keys.get("method") == "dynamix":
        keys["method_options"] = {"lookahead_batch_size": 8, "update_every": 3}
    if keys.get("method") == "ies":
        keys = {**keys, "num_train_epochs": 5, "method_options": {"threshold": 0.3}}
    return Recipe(**{**settings, **keys}, datasets=datasets)
