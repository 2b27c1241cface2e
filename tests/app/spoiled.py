"""A mixture that the tiny model learns in a second: it answers with the first letter of a word. Two
fifths of the training answers of `bad` are wrong, and no answer of `good`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

TRAIN, VALIDATION, TEST = 60, 50, 20
WRONG = range(24)
"""The wrong rows of `bad`."""
LETTERS = "abcdefgh"

Rows = Sequence[Mapping[str, Any]]


def words(name: str, count: int) -> list[str]:
    random, found = Random(name), dict[str, None]()
    while len(found) < count:
        found["".join(random.choice(LETTERS) for _ in range(3))] = None
    return [*found]


def rows(name: str, train: int = TRAIN) -> dict[str, list[dict[str, str]]]:
    """Rows of every split, right ones."""
    every = [
        {"prompt": f"{word}:", "completion": f" {word[0].upper()}"}
        for word in words(name, train + VALIDATION + TEST)
    ]
    held_out = every[train:]
    return {
        "train": every[:train],
        "validation": held_out[:VALIDATION],
        "test": held_out[VALIDATION:],
    }


def spoil(split: list[dict[str, str]], wrong: Sequence[int] = WRONG) -> None:
    """Make some answers wrong."""
    random = Random(0)
    for number in wrong:
        right = split[number]["completion"]
        others = [f" {letter.upper()}" for letter in LETTERS if f" {letter.upper()}" != right]
        split[number]["completion"] = random.choice(others)


def spoiled_rows() -> dict[str, dict[str, list[dict[str, str]]]]:
    """The rows of both sub-datasets."""
    found = {"good": rows("good"), "bad": rows("bad")}
    spoil(found["bad"]["train"])
    return found


def write_rows(folder: Path, name: str, splits: Mapping[str, Rows]) -> dict[str, Any]:
    """Files of the splits of a sub-dataset, and its keys of a recipe."""
    keys = {"name": name}
    for split, part in splits.items():
        file = folder / f"{name}.{split}.jsonl"
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part))
        keys[split] = file.name
    return keys


def recipe(folder: Path, datasets: Sequence[Mapping[str, Any]] | None = None, **keys: Any) -> str:
    """The file of a recipe; by default of the spoiled mixture."""
    if datasets is None:
        datasets = [write_rows(folder, n, splits) for n, splits in spoiled_rows().items()]
    settings = {
        "model_name_or_path": "tiny",
        "method": "sft",
        "learning_rate": 3e-3,
        "train_batch_size": 8,
        "num_train_epochs": 4,
        "evals_per_epoch": 1,
        "seed": 1,
    }
    path = folder / f"{'-'.join(map(str, keys)) or 'recipe'}.yaml"
    path.write_text(yaml.safe_dump({**settings, **keys, "datasets": [*map(dict, datasets)]}))
    return str(path)
