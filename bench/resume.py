"""On a GPU: a run that is killed and resumed leaves the bytes of a run that was left alone.

    PYTHONPATH=src:tests/engine:tests/app python bench/resume.py --data DIR

recipes/smollm2-ten.yaml, cut down to two stages of one epoch. Every run is a process of its own, so
compiling, recording and the first evaluation come again at each resume. SIGKILL comes a moment
after so many lines of the log. `--recipe tiny.yaml` tries it on a CPU.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Report, parser_of
from kill_and_resume import FACTS

CUT_DOWN = ("compute_budget=1", "num_train_epochs=1", "method_options.max_stages=2")
KILLS = ((6, 0.3), (9, 0.2))
"""Lines of the log, and seconds after them."""


def run(options: Any, folder: Path, kill: tuple[int, float] | None = None) -> float:
    """`msft train` to its end or to its kill; seconds."""
    command = [sys.executable, "-m", "msft", "train", f"recipes/{options.recipe}", "--out", folder]
    command += ["--data", options.data] if options.recipe != "tiny.yaml" else []
    for override in (*CUT_DOWN, *options.set):
        command += ["--set", override]
    begun = time.perf_counter()
    with (folder.parent / f"{folder.name}.txt").open("a") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603
        try:
            while child.poll() is None:
                if kill is not None and lines_of(folder) >= kill[0]:
                    time.sleep(kill[1])
                    os.kill(child.pid, signal.SIGKILL)
                    break
                time.sleep(0.02)
            code = child.wait()
        finally:
            child.kill()
    wanted = 0 if kill is None else -signal.SIGKILL
    if code != wanted:
        raise RuntimeError(f"exit {code}: {Path(said.name).read_text()[-2000:]}")
    return time.perf_counter() - begun


def lines_of(folder: Path) -> int:
    log = folder / "run.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def compared(options: Any, folder: Path) -> dict[str, Any]:
    """Seconds of each run, and what differs in the end."""
    alone, mortal = folder / "alone", folder / "mortal"
    seconds = [run(options, alone)]
    kills = KILLS[: options.kills]
    seconds += [run(options, mortal, kill) for kill in kills]
    seconds.append(run(options, mortal))
    found = [what for what in FACTS if FACTS[what](alone) != FACTS[what](mortal)]
    verdicts = [(each / "verdicts.jsonl").read_bytes() for each in (alone, mortal)]
    found += ["verdicts.jsonl differs"] * (verdicts[0] != verdicts[1])
    return {
        "lines": lines_of(alone),
        "killed after": ", ".join(f"{count} lines + {later} s" for count, later in kills),
        "seconds": ", ".join(f"{each:.0f}" for each in seconds),
        "differs": "; ".join(found) or "nothing",
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--recipe", default="smollm2-ten.yaml")
    parser.add_argument("--kills", type=int, choices=range(1, len(KILLS) + 1), default=len(KILLS))
    parser.set_defaults(seconds=400)
    options = parser.parse_args()
    report = Report("resume", options.out)
    with tempfile.TemporaryDirectory() as folder:
        report.attempt(options.seconds, lambda: compared(options, Path(folder)))
    report.table("killed and resumed", ("lines", "killed after", "seconds", "differs"))


if __name__ == "__main__":
    main()
