"""Toy runs for one process and for several: recipe, command, what they leave, and how they end."""

import os
import signal
from importlib import import_module
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


def at_step(rank: int, step: int, act: signal.Signals) -> str:
    """A rank gets a signal before its step; Python for `in_processes`."""
    here = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import rank_runs; "
    return f"{here}rank == {rank} and rank_runs.get_signal({step}, {int(act)})"


def before_call(rank: int, of: str, act: str, times: int = 1) -> str:
    """A rank does something before one of its calls of a function, `module:Class.method`, say;
    Python for `in_processes`."""
    here = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import rank_runs; "
    return f"{here}rank == {rank} and rank_runs.act_before({of!r}, {act!r}, {times})"


def act_before(of: str, act: str, times: int) -> None:
    module, _, path = of.partition(":")
    owner: Any = import_module(module)
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    known, calls = getattr(owner, name), [0]

    def acting(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == times:
            exec(act, {})  # noqa: S102  of a test
        return known(*given, **more)

    setattr(owner, name, acting)


def get_signal(step: int, number: int) -> None:
    from msft.engine.fast import FastEngine

    work, steps = FastEngine.work, [0]

    def mortal(self: FastEngine, batch: Any) -> Any:
        steps[0] += 1
        if steps[0] == step:
            os.kill(os.getpid(), number)
        return work(self, batch)

    FastEngine.work = mortal  # type: ignore[method-assign]
