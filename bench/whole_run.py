"""One whole run of a recipe with the time of each part, as `msft train` does it.

    PYTHONPATH=src python bench/whole_run.py --data DIR --from train.jsonl eval.jsonl

recipes/smollm2-ten.yaml (mSFT, C = 3, ten tasks, SmolLM2-135M); `--method sft` for the baseline,
`--shape 0.5B --set compute_budget=1` for the parts' shares in a larger model.
The verbs of engine, worker and store are timed from outside; the device is waited for where a part
begins and ends. A part's time is without that of the parts inside it. What runs in another thread
is shown as `in the background` and is no part of the total.

--from   results of train_speed.py and eval_speed.py: from these, what a plain build of the same
         search on TRL and HF would take is *estimated*, not measured:
         training tokens / TRL's best tok/s + the sum, over all scored tasks, of HF's seconds.
"""

import functools
import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import (
    SHAPES,
    Report,
    Source,
    deadline,
    parser_of,
    peak_gb,
    random_model,
    recipe_of,
    reserved_gb,
    synchronize,
)

import msft
from msft import training
from msft.engine import build
from msft.engine.fast import FastEngine
from msft.engine.model import tokenizers
from msft.engine.saving.best_folder import BestFolder
from msft.run.log import Log
from msft.run.rows import Verdicts
from msft.run.worker import EngineWorker
from msft.scoring.evaluation import Evaluator
from msft.store.store import BackgroundDisk, CheckpointStore, DiskTier

PARTS = {
    "training": [(EngineWorker, "advance")],
    "evaluation": [(Evaluator, "__call__")],
    "snapshots": [
        *((FastEngine, verb) for verb in ("weights", "optimizer", "load", "load_optimizer")),
        *((CheckpointStore, verb) for verb in ("put", "get", "has", "secure", "keep", "park")),
    ],
    "waiting for the disk": [(CheckpointStore, "flush"), (BackgroundDisk, "_wait")],
    "disk": [(DiskTier, verb) for verb in ("put", "get", "drop")],
    "best/": [(BestFolder, verb) for verb in ("update", "card")],
    "loading": [(build, "load_model"), (build, "leak_of"), (tokenizers, "load_corpus")],
    "preparing": [(build, "engine_over"), (training, "settings_of")],
    "log": [(Log, "append"), (Verdicts, "add")],
    "report": [(training, "write_report")],
}
"""What is timed as what; a verb that is not there (any more) is named and left out."""


class Timers:
    """Seconds of each part, without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.behind: dict[str, float] = defaultdict(float)
        self.scored: Counter[str] = Counter()
        self.verbs: dict[str, float] = defaultdict(float)
        self._main = threading.get_ident()
        self._open: list[float] = []

    def install(self) -> None:
        for part, verbs in PARTS.items():
            for owner, verb in verbs:
                if hasattr(owner, verb):
                    setattr(owner, verb, self._timed(part, getattr(owner, verb)))
                else:
                    print(f"  {getattr(owner, '__name__', owner)}.{verb} is not there, not timed")

    def _timed(self, part: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._main:
                begun = time.perf_counter()
                try:
                    return verb(*args, **kwargs)
                finally:
                    self.behind[part] += time.perf_counter() - begun
            synchronize()
            begun = time.perf_counter()
            self._open.append(0.0)
            if part == "evaluation":
                self.scored.update(args[1])
            try:
                return verb(*args, **kwargs)
            finally:
                synchronize()
                took = time.perf_counter() - begun
                own = took - self._open.pop()
                self.seconds[part] += own
                self.verbs[f"{part}: {verb.__qualname__}"] += own
                self.calls[part] += 1
                if self._open:
                    self._open[-1] += took

        return timed


def estimate(files: list[Path], summary: dict[str, Any], scored: Counter[str]) -> dict[str, Any]:
    """What TRL and HF would take, from what was measured of them."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    trl = [
        (line["tok/s"], line["peer"])
        for line in lines
        if line["bench"] == "train" and line["size"] in ("135M", "tiny") and "tok/s" in line
        if line["peer"].startswith("trl")
    ]
    hf = [
        line["tasks"]
        for line in lines
        if line["bench"] == "eval" and line.get("part") == "text, 0 shots" and "tasks" in line
        if line["peer"] != "msft"
    ]
    if not trl or not hf:
        return {"failed": "no TRL row of 135M or no HF row of `text, 0 shots` in --from"}
    if scored.keys() - hf[-1].keys():
        return {"failed": f"HF was not timed on {sorted(scored.keys() - hf[-1].keys())}"}
    rate, peer = max(trl)
    training = summary["tokens"]["train"] / rate
    evaluation = sum(count * hf[-1][name] for name, count in scored.items())
    return {
        "training": training,
        "evaluation": evaluation,
        "total": training + evaluation,
        "how": f"estimated: {summary['tokens']['train']:,} tokens / {rate:,.0f} tok/s ({peer}) "
        f"+ {sum(scored.values())} scored tasks at HF's seconds of each; snapshots not counted",
    }


def random_folder(shape: str) -> str:
    """A model folder with random weights and SmolLM2's tokenizer. It never ends an answer, so an
    evaluation takes the longest it can."""
    folder = tempfile.mkdtemp(prefix="msft-bench-")
    source = Source(shape)
    random_model(source.config(), torch.bfloat16, "sdpa").save_pretrained(folder)
    source.tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    """Three tables: parts, result, estimate."""
    parser = parser_of(__doc__)
    parser.add_argument("--recipe", default="smollm2-ten.yaml")
    parser.add_argument("--method", default="msft")
    parser.add_argument("--minutes", type=float, default=10, help="the target, for the table")
    parser.add_argument("--from", dest="files", nargs="+", type=Path, default=[])
    parser.set_defaults(seconds=540)
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape, as a folder")
    parser.add_argument("--keep", type=Path, help="folder to run in (default: a temporary one)")
    options = parser.parse_args()
    report = Report("run", options.out)
    overrides = [f"method={options.method}", *options.set]
    if options.quick:
        overrides += ["compute_budget=1", "num_train_epochs=1"]
    if options.shape:
        overrides.append(f"model_name_or_path={random_folder(options.shape)}")
    if options.recipe == "tiny.yaml":
        recipe = msft.load_recipe(Path("recipes") / options.recipe, overrides)
    else:
        recipe = recipe_of(options.recipe, options.data, overrides)
    timers = Timers()
    timers.install()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        begun = time.perf_counter()
        try:
            with deadline(options.seconds):
                msft.train(recipe, folder, quiet=True)
        except TimeoutError as error:
            print(f"  CUT OFF: {error}; what follows is of the part that was done")
        synchronize()
        total = time.perf_counter() - begun
        _parts(report, options.method, timers, total)
        summary = json.loads((folder / "summary.json").read_text())
        size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    row = {
        "method": options.method,
        "total": total,
        "minutes": total / 60,
        "target": options.minutes,
        "epochs": summary["epochs_trained"],
        "stages": len(summary["stages"]),
        "train tokens": summary["tokens"]["train"],
        "tok/s": summary["tokens"]["train"] / timers.seconds["training"],
        "snapshots/training": timers.seconds["snapshots"] / timers.seconds["training"],
        "evaluation/total": timers.seconds["evaluation"] / total,
        "tok/s in all": summary["tokens"]["train"] / total,
        "ended by": summary["ended_by"] or summary["status"],
        "mean copies": summary["disk"]["mean_copies"],
        "peak copies": summary["disk"]["peak_copies"],
        "best": summary["best"]["checkpoint"],
        "log bytes": size,
        "GB": peak_gb(),
        "reserved GB": reserved_gb(),
    }
    scores = {split: summary["best"][split] for split in ("validation", "test")}
    for split, found in scores.items():
        row[split] = found["mean"] if found else None
    report.add(kind="run", **row, scores=scores)
    report.table(f"{options.method}: the run", tuple(row), kind="run")
    if options.files:
        work = functools.partial(estimate, options.files, summary, timers.scored)
        report.attempt(60, work, kind="estimate", peer="TRL + HF")
        ours = {part: timers.seconds[part] for part in ("training", "evaluation")}
        report.add(kind="estimate", peer="msft", **ours, total=total, how="measured, everything")
        columns = ("peer", "training", "evaluation", "total", "how")
        report.table("the same search on TRL and HF: an estimate", columns, kind="estimate")


def _parts(report: Report, method: str, timers: Timers, total: float) -> None:
    def add(part: str, seconds: float, calls: int | str = "") -> None:
        share = f"{100 * seconds / total:.1f} %"
        report.add(kind="part", part=part, seconds=seconds, share=share, calls=calls)

    for part in PARTS:
        add(part, timers.seconds[part], timers.calls[part])
    add("everything else", total - sum(timers.seconds.values()))
    for part, seconds in timers.behind.items():
        add(f"{part}, in the background", seconds)
    add("total", total)
    report.table(f"{method}: seconds of each part", ("part", "seconds", "share", "calls"))
    for verb, seconds in sorted(timers.verbs.items(), key=lambda item: -item[1])[:15]:
        print(f"  {seconds:8.2f} s  {verb}")


if __name__ == "__main__":
    main()
