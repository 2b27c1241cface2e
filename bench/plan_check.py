"""The forecast of `msft plan` against finished runs of the same recipe.

    PYTHONPATH=src python bench/plan_check.py RECIPE RUN [RUN …]   # RECIPE may be RUN/recipe.yaml
    PYTHONPATH=src python bench/plan_check.py RECIPE RUN --watch   # train it first, and watch

FLOPs and disk are of the path that the run took, by its log. With --watch the run is trained in a
process of its own, whose memory and whose folder's size are looked at fifty times a second, and
held against the plan's peaks, which are made before the run. Time is forecast from a calibration
on this machine as it is now, so it means something only if the run was on it too, and alone.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from run_path import path_disk, path_tokens, seconds_of

from msft.data.corpus import Corpus, load_corpus
from msft.engine.memory import Checkpoints, EvaluationSize, room_of
from msft.engine.model.shape import ModelShape, named_shape
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.errors import UsageError
from msft.planning.calibration import SECONDS, Calibration
from msft.planning.forecast import evaluations_of, flops_of_tokens, forecast, forecast_of
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import RunFolder
from msft.run.history import History, disk_of, flops_of
from msft.run.log import ScoresEvent
from msft.search.curves import Score
from msft.text import duration, si, table

PAUSE = 0.02

Pairs = dict[str, tuple[float | None, float | None]]
"""By figure, what was forecast and what was; None: not known."""


@dataclass(frozen=True)
class Peaks:
    """The most that a process and its folder had, in bytes."""

    memory: int
    disk: int


def main(arguments: list[str] | None = None) -> None:
    """One table with a row for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="of all the runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--watch", action="store_true", help="train the runs first, watched")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="recipe")
    parser.add_argument("--no-calibration", action="store_true", help="no time")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args(arguments)
    checks: list[dict[str, Any]] = []
    for run in options.runs:
        recipe = load_recipe(options.recipe, options.set)
        watched = _watched(recipe, run, options) if options.watch else {}
        check = plan_check(recipe, run, 0 if options.no_calibration else SECONDS)
        checks.append({**check, "figures": {**check["figures"], **watched}})
    if options.json:
        options.json.write_text(json.dumps(checks, indent=1))
    print("\n".join(_lines(checks)))


def plan_check(recipe: Recipe, run: Path, seconds: float) -> dict[str, Any]:
    """FLOPs, disk and time of the path that a run took: by the plan, and by its log.

    seconds: of calibration; 0: none, so no time is forecast.
    UsageError if it is no run of this recipe's model and data.
    """
    name, trust = recipe.model(), recipe.trust_remote_code
    tokenizer = load_tokenizer(name, trust)
    corpus = load_corpus(recipe, tokenizer, load_context(name, trust))
    shape = named_shape(name, trust, len(tokenizer))
    folder = RunFolder(run)
    history = History(folder.events())
    _refuse_other(history, run, recipe, corpus, shape)
    room = room_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    plan = forecast_of(recipe, corpus, tokenizer, shape, room, run, seconds)
    evaluations = evaluations_of(recipe, corpus, tokenizer, room)
    train = {n: [len(r.tokens) for r in d.train.rows] for n, d in corpus.datasets.items()}
    tokens = path_tokens(
        history,
        [event for event in folder.events() if isinstance(event, ScoresEvent)],
        train,
        lambda name, split, score: _tokens_at(evaluations[name, split], score),
        recipe.train_batch_size,
    )
    settings = history.start.settings
    rollback, optim = settings["rollout"]["on_rollback"], settings.get("optim", "adamw")
    averaged = "ema_decay" in settings
    each = Checkpoints.of(shape.parameters, optim, rollback, len(train), averaged=averaged)
    disk = path_disk(history, each.weights, each.moments, plan["disk"]["checkpoints_in_memory"])
    speed = Calibration(**plan["calibration"]) if plan["calibration"] else None
    flops, was = flops_of_tokens(tokens, shape.parameters), flops_of(history)
    figures: Pairs = {
        "train FLOPs": (flops["train"], was.train),
        "evaluation FLOPs": (flops["evaluation"], was.evaluation),
        "look-ahead FLOPs": (flops["lookahead"], was.lookahead),
        "all FLOPs": (sum(flops.values()), was.total),
        "disk, at most": (disk, disk_of(history)["peak_bytes"]),
        "seconds": (speed.seconds(tokens) if speed else None, seconds_of(folder.steps)),
    }
    return {"folder": str(run), "method": history.start.method, "figures": figures}


def _tokens_at(size: EvaluationSize, score: Score) -> int:
    """Tokens of an evaluation that came out like this."""
    if not size.cut_short or score.metric != "accuracy":
        return size.tokens
    return size.tokens - round(size.written * (1 - score.value))


def _refuse_other(
    history: History, run: Path, recipe: Recipe, corpus: Corpus, shape: ModelShape
) -> None:
    if history.opened is None:
        raise UsageError(f"{run} is not a run folder: it has no run.jsonl with events in it")
    start = history.start
    rows = {name: len(dataset.train.rows) for name, dataset in corpus.datasets.items()}
    if dict(start.datasets) != rows:
        raise UsageError(
            f"{run} is a run on {dict(start.datasets)} (rows by sub-dataset), but the recipe has "
            f"{rows}; give the recipe of that run, which is {run}/recipe.yaml"
        )
    if start.num_parameters != shape.parameters:
        raise UsageError(
            f"{run} is a run of a model with {start.num_parameters:,} weights, but "
            f"{recipe.model_name_or_path} has {shape.parameters:,}; give the recipe of that run, "
            f"which is {run}/recipe.yaml"
        )


def _watched(recipe: Recipe, run: Path, options: argparse.Namespace) -> Pairs:
    """The plan's peaks, then those of the run."""
    plan = forecast(recipe, run, seconds=0)
    command = [sys.executable, "-m", "msft", "train", options.recipe, "--out", str(run), "--quiet"]
    command += [part for pair in options.set for part in ("--set", pair)]
    peaks = watch(command, run)
    memory = plan["memory"]
    return {
        "memory, watched": (memory["peak"] + memory["program"], peaks.memory),
        "disk, watched": (plan["disk"]["peak"], peaks.disk),
    }


def watch(command: list[str], folder: Path) -> Peaks:
    """Run a command to its end."""
    memory = disk = 0
    with subprocess.Popen(command) as process:  # noqa: S603
        while process.poll() is None:
            memory = max(memory, _peak_memory(process.pid))
            disk = max(disk, _size(folder))
            time.sleep(PAUSE)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return Peaks(memory, disk)


def _peak_memory(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has just ended
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else 0


def _size(folder: Path) -> int:
    """Bytes of a folder's files; one that has two names counts once."""
    sizes: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = (Path(place) / name).stat()
            except OSError:  # it has just been removed
                continue
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def _lines(checks: list[dict[str, Any]]) -> list[str]:
    rows = [("run", "method", "figure", "forecast", "was", "apart")]
    for check in checks:
        for figure, (planned, was) in check["figures"].items():
            if was:
                cells = [_shown(figure, planned), _shown(figure, was), apart(planned, was)]
                rows.append((check["folder"], check["method"], figure, *cells))
    return table(rows)


def apart(planned: float | None, was: float) -> str:
    """How far a forecast lies from what was, in per cent of that."""
    return "-" if planned is None else f"{planned / was - 1:+.1%}"


def _shown(figure: str, amount: float | None) -> str:
    if amount is None:
        return "?"
    if figure == "seconds":
        return duration(amount)
    return si(amount) + ("" if figure.endswith("FLOPs") else "B")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:  # of recipe, data or run folder
        sys.exit(str(error))
