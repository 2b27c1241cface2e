"""The study: methods × options × seeds × mixtures, many runs in one process.

python bench/study.py --data DIR --out DIR --rows clean-soup-70..79,noisy-msft-70,fifteen

bench/study_rows.py says what rows and lists of them are called. Each run goes to OUT/NAME, one JSON
line to OUT/study.jsonl, its logs to OUT/logs/NAME; weights are removed. What has a line already is
skipped, and what was cut off is resumed. All runs share one engine for each shape of it, so that
layers are compiled and steps recorded once. `bench/study_tables.py` makes tables of the lines.
Several such processes may share a GPU and OUT; each run is one process's. Give each its part of the
memory (--gb). --in-memory N is for models whose checkpoints do not fit on the disk: it holds N of
them on the GPU and the others in host memory. Such a run is not resumed.
"""

import argparse
import fcntl
import gc
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import deadline, free, smaller_card
from study_logs import LINES, keep_logs
from study_rows import KINDS, Row, rows_of

import msft
from msft import training
from msft.data.corpus import Corpus
from msft.engine import build
from msft.engine import memory as checkpoint_sizes
from msft.engine.fast import FastEngine
from msft.engine.memory import FreeMemory
from msft.engine.packing import TrainingRow
from msft.engine.saving import best_folder, stores
from msft.recipe.recipe import Recipe
from msft.run.folder import RunFolder, read_history
from msft.search.feeds import steps_of
from msft.search.methods import most_held
from msft.store.store import CheckpointStore


class SharedEngines:
    """One engine for each shape of it, instead of one for each run.

    The learning rate and its schedule are asked for at every step and rows are packed on the host,
    so compiled layers, recorded steps and plans of evaluations serve the next run as they are.
    An adapter's first matrices follow from the seed, so each seed has an engine of its own; the one
    before is let go. Where they hold more than half of the memory, all are let go for another one.
    """

    SHAPE = (
        "model_name_or_path", "train_batch_size", "max_length", "weight_decay", "max_grad_norm",
        "bf16", "gradient_checkpointing", "optim", "torch_compile", "micro_batch_tokens",
        "deterministic", "engine", "ema_decay", "lanes",
    )  # fmt: skip
    """What of a recipe makes another engine."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._engines: dict[tuple[Any, ...], Any] = {}
        # The engine that the next run takes already has its memory.
        checkpoint_sizes.refuse_no_room = lambda *given, **more: None

    def __call__(self, recipe: Recipe, corpus: Corpus, *rest: Any) -> Any:
        adapter = recipe.adapter
        key = (*(getattr(recipe, name, None) for name in self.SHAPE), adapter)
        rows = {
            name: [TrainingRow.of(row) for row in dataset.train.rows]
            for name, dataset in corpus.datasets.items()
        }
        longest = max(len(row.tokens) for part in rows.values() for row in part)
        engine = self._engines.get(key)
        if engine is None or longest > engine._longest:  # recorded steps know the longest row
            if adapter is not None or memory_left() < 0.5:
                engine = None
                self._engines.clear()
                free()
            made = self._make(recipe, corpus, *rest)
            if not isinstance(made, FastEngine):
                return made
            self._engines[key] = made
            return made
        every = sum(map(len, rows.values()))
        steps = steps_of(every, recipe.train_batch_size) * recipe.num_train_epochs
        engine._rows = rows
        engine._settings = replace(
            engine._settings,
            learning_rate=recipe.learning_rate,
            schedule=recipe.lr_scheduler_type,
            warmup_steps=recipe.warmup_steps,
        )
        engine._schedule_steps = round(steps)
        engine.plan_steps(0)  # of a whole run; an audit's halves say theirs
        engine.load(None)
        engine.load_optimizer(None)
        return engine


class Weights(CheckpointStore):
    """A store without moments: of a run that never goes on after its process."""

    def enter(self, checkpoint: str, moments: bool = True) -> None:
        super().enter(checkpoint, moments=False)


class NoFolder:
    """In place of `best/`: the study keeps logs, no weights."""

    def __init__(self, *places: Any) -> None: ...

    def follow(self, history: Any, now: bool = False) -> None: ...

    def verify(self, history: Any) -> None: ...

    def has_export(self, checkpoint: str) -> bool:
        return False

    def give_back(self, checkpoint: str) -> None: ...

    def card(self, card: str) -> None: ...


def keep_in_memory(on_device: int) -> None:
    """Let checkpoints be in memory alone: so many where training is, the others on the host."""

    def held_in(each: int, aside: int, most: int, room: FreeMemory) -> tuple[int, int]:
        here = min(on_device, most) if room.kind == "cuda" else most
        return here, most - here

    def store_of(
        recipe: Recipe, method: Any, settings: Any, engine: Any, folder: RunFolder, *rest: Any
    ) -> stores.RunStore:
        weights = checkpoint_sizes.FP32 * engine.num_trainable
        tiers, _ = engine.memory(weights, 0, most_held(method, settings))
        folder.path.mkdir(parents=True, exist_ok=True)
        return stores.RunStore(Weights(tiers, None, weights), lambda: None, 0, 0)

    checkpoint_sizes.held_in = held_in
    stores.store_of = store_of  # type: ignore[assignment]
    best_folder.BestFolder = NoFolder  # type: ignore[assignment, misc]


def memory_left() -> float:
    """The share of the device's memory that is free; a CPU is not asked."""
    if not torch.cuda.is_available():
        return 1.0
    left, all_of_it = torch.cuda.mem_get_info()
    return float(left / all_of_it)


@contextmanager
def claimed(name: str, out: Path, lines: str = LINES) -> Iterator[bool]:
    """Whether this process may make a run: no other one is at it, and it has no line yet.

    The claim ends with the process.
    """
    with (out / f"{name}.claim").open("w") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield name not in names_in(out / lines)


def names_in(lines: Path) -> set[str]:
    """The runs that have a line."""
    if not lines.exists():
        return set()
    return {json.loads(line)["name"] for line in lines.read_text().splitlines()}


def line_of(row: Row, recipe: Recipe, folder: Path, seconds: float) -> dict[str, Any]:
    """What is kept of a run."""
    summary, history = json.loads((folder / "summary.json").read_text()), read_history(folder)
    best = summary["best"]
    return {
        "name": row.name,
        "mixture": row.mixture,
        "variant": row.variant,
        "label": row.label,
        "seed": row.seed,
        "seconds": round(seconds, 1),
        "checkpoint": best["checkpoint"],
        "epochs": best["epochs"],
        "candidates": best["candidates"],
        "validation": best["validation"],
        "test": best["test"],
        "averages": averages_of(summary),
        "exclusions": [
            {"name": e.name, "stage": e.stage, "epochs": e.tick / history.evals_per_epoch}
            for e in history.exclusions
        ],
        "noisy": [spec.name for spec in recipe.datasets if spec.label_noise],
        "ended_by": summary["ended_by"],
        "stages": len(summary["stages"]),
        "epochs_trained": summary["epochs_trained"],
        "tokens": summary["tokens"],
        "learning_rate": recipe.learning_rate,
        "num_train_epochs": recipe.num_train_epochs,
    }


def averages_of(summary: dict[str, Any]) -> dict[str, Any]:
    """Of a run with several averages each one by its kind, and the best tick as `sft`."""
    controls = summary.get("controls", [])
    if not controls:
        return {}
    kinds = iter(KINDS)
    found = {}
    for each in (summary["best"], *controls):
        kind = next(kinds) if each.get("average_of") else "sft"
        keys = ("checkpoint", "average_of", "validation", "test")
        found[kind] = {key: each.get(key) for key in keys}
    return found


def expected(row: Row, took: Sequence[tuple[str, float]]) -> float:
    """Seconds of the next run: those of the last one of its variant, else of the longest."""
    same = [seconds for variant, seconds in took if variant == row.variant]
    return same[-1] if same else max((seconds for _, seconds in took), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmarks' rows")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", required=True, type=rows_of, help="names with commas between")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all")
    parser.add_argument("--decay", default="0.99", help="of the variants with ema_decay")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run is begun that passes it")
    parser.add_argument("--gb", type=float, help="of the GPU's memory; by itself all of it")
    parser.add_argument("--in-memory", type=int, metavar="N", help="checkpoints are not on disk")
    options = parser.parse_args()
    begun = time.perf_counter()
    if options.gb is not None:
        smaller_card(options.gb)
    options.out.mkdir(parents=True, exist_ok=True)
    build.engine_of = SharedEngines(build.engine_of)  # type: ignore[assignment]
    training.write_report = lambda folder: None  # `msft report` makes it from the logs
    if options.in_memory is not None:
        keep_in_memory(options.in_memory)
    compiled = ["torch_compile=true"] if torch.cuda.is_available() else []
    took: list[tuple[str, float]] = []
    for row in options.rows:
        left = options.seconds - (time.perf_counter() - begun)
        if expected(row, took) > left:
            print(f"{row.name}: left out, {left:.0f} s are left", flush=True)
            continue
        with claimed(row.name, options.out) as mine:
            if not mine:
                print(f"{row.name}: there already, or another process is at it", flush=True)
                continue
            recipe = row.recipe(options.data, options.decay, [*compiled, *options.set])
            line = trained(row, recipe, options.out, left)
        if line is None:
            print(f"{row.name}: cut off at the limit; the same command resumes it", flush=True)
            break
        took.append((row.variant, line["seconds"]))
        print(said(line), flush=True)
        gc.collect()
        free()


def trained(row: Row, recipe: Recipe, out: Path, left: float) -> dict[str, Any] | None:
    """Make a run and keep its line and logs; None where the time that is left was too short."""
    folder, start = out / row.name, time.perf_counter()
    earlier = out / f"{row.name}.seconds"
    before = float(earlier.read_text()) if earlier.exists() else 0.0
    try:
        with deadline(max(1.0, left)):
            msft.train(recipe, folder, quiet=True)
    except TimeoutError:
        earlier.write_text(f"{before + time.perf_counter() - start:.1f}")
        return None
    line = line_of(row, recipe, folder, before + time.perf_counter() - start)
    keep_logs(folder, out / "logs" / row.name)
    for weights in (RunFolder(folder).best, RunFolder(folder).checkpoints):
        shutil.rmtree(weights, ignore_errors=True)
    with (out / LINES).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return line


def said(line: dict[str, Any]) -> str:
    """One line for who watches."""
    means = [line[split]["mean"] if line[split] else None for split in ("validation", "test")]
    shown = ", ".join("-" if mean is None else f"{100 * mean:.2f}" for mean in means)
    beside = {
        k: round(100 * a["test"]["mean"], 2) for k, a in line["averages"].items() if a["test"]
    }
    left = [exclusion["name"] for exclusion in line["exclusions"]]
    return (
        f"{line['name']}: {line['seconds']:.0f} s, {line['checkpoint']} after {line['epochs']:g} "
        f"epochs of {line['epochs_trained']:g}, validation and test {shown}"
        + (f", {beside}" if beside else "")
        + (f", left: {' '.join(left)}" if left else "")
    )


if __name__ == "__main__":
    main()
