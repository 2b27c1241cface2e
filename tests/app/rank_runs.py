"""Toy runs for one process and for several: recipe, command, what they leave, and how they end."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from toys import RULES

from msft.testing import promised_log


def recipe(data: Path, name: str, **keys: Any) -> str:
    """The file of a toy recipe, whose last sub-dataset is answered by generation."""
    datasets = [
        {
            "name": each,
            "train": f"{each}.train.jsonl",
            "validation": f"{each}.valid.jsonl",
            "metric": "accuracy" if each == "vowel" and name != "msft" else "nll",
        }
        for each in RULES
    ]
    settings = {
        "model_name_or_path": "tiny",
        "learning_rate": 3e-3,
        "train_batch_size": 6,
        "num_train_epochs": 1,
        "compute_budget": 1,
        "evals_per_epoch": 2,
        "lanes": 2,
        "samples": 1,
    }
    path = data / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**settings, **keys, "datasets": datasets}))
    return str(path)


def left_by(folder: Path) -> dict[str, Any]:
    """What must be the same: the log, the verdicts, and the weights of the result."""
    from safetensors import safe_open

    weights: dict[str, bytes] = {}
    for file in sorted((folder / "best").glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118
                assert name not in weights
                weights[name] = held.get_tensor(name).numpy().tobytes()
    files = ("verdicts.jsonl", "samples.jsonl")
    log = {"run.jsonl": promised_log(folder / "run.jsonl")}
    return {**log, **{name: (folder / name).read_bytes() for name in files}, "weights": weights}


def train(file: str, out: Path, *words: str) -> list[str]:
    return ["train", file, "--out", str(out), "--quiet", *words]


def at_step(rank: int, step: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Something happens in a rank before its step."""

    def prepare(mine: int) -> None:
        from msft.engine.train.engine import FastEngine

        work, steps = FastEngine.work, [0]

        def mortal(self: FastEngine, batch: Any) -> Any:
            steps[0] += 1
            if mine == rank and steps[0] == step:
                act()
            return work(self, batch)

        FastEngine.work = mortal  # type: ignore[method-assign]

    return prepare


def die() -> None:
    os._exit(9)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
