"""Kills a run with SIGKILL at random moments, resumes it, and compares it with one left alone.

    python kill_and_resume.py FOLDER KEYS...

KEYS: those that make the recipe of one run, as JSON; `kills` and `rows` are of this script.

Runs in a process of its own and forks the runs. Libraries are imported before, so that the time of
a run is that of its work, and kills hit that. Prints what differs; nothing if all is well. What the
runs left is in FOLDER/0, FOLDER/1, …
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

import torch

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # a process of its own knows no pytest
from toys import recipe_of, write_data

from msft import training
from msft.testing import promised_log, promised_summary
from msft.training import train

KILLS = 2
LIBRARIES = (
    *("msft.engine.build", "msft.training"),
    "transformers.models.llama.modeling_llama",
)
"""What a run imports when it comes to it."""


def main(folder: Path, *every: str) -> int:
    torch.set_num_threads(1)
    setattr(training, "write_report", lambda folder: Path())  # noqa: B010  kills are for training; a report is made anew
    for library in LIBRARIES:
        import_module(library)
    if any(json.loads(keys).get("use_peft") for keys in every):
        import_module("peft")
    wrong = 0
    for number, keys in enumerate(every):
        place = folder / str(number)
        place.mkdir()
        for difference in _differences(place, keys):
            print(f"{keys}: {difference}")
            wrong += 1
    return wrong


def _differences(folder: Path, keys: str) -> list[str]:
    chosen = json.loads(keys)
    kills, rows = chosen.pop("kills", KILLS), chosen.pop("rows", 48)
    write_data(folder, rows, rows // 3)
    recipe = recipe_of(folder, **chosen)
    begun = time.monotonic()
    alone, mortal = folder / "alone", folder / "mortal"
    if _forked(lambda: train(recipe, alone)) != 0:
        return ["the uninterrupted run failed"]
    seconds = time.monotonic() - begun
    random = Random(f"kill {keys}")
    for _ in range(kills):
        _forked(lambda: train(recipe, mortal), kill_after=random.uniform(0.1, 0.7) * seconds)
    if _forked(lambda: train(recipe, mortal)) != 0:
        return ["the resumed run failed"]
    return [what for what in FACTS if FACTS[what](alone) != FACTS[what](mortal)]


def _forked(work: Callable[[], object], kill_after: float | None = None) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _weights(folder: Path) -> str:
    whole = folder / "best" / "model.safetensors"
    file = whole if whole.exists() else whole.with_name("adapter_model.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


FACTS: dict[str, Callable[[Path], object]] = {
    "summary.json differs": lambda folder: promised_summary(folder / "summary.json"),
    "run.jsonl differs": lambda folder: promised_log(folder / "run.jsonl"),
    "verdicts.jsonl differs": lambda folder: (folder / "verdicts.jsonl").read_bytes(),
    "samples.jsonl differs": lambda folder: (folder / "samples.jsonl").read_bytes(),
    "the weights of best/ differ": _weights,
    "files are left over": lambda folder: sorted(
        p.name for p in (folder / "checkpoints").iterdir()
    ),
}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
