"""Forecasts of `msft plan` against finished runs.

    PYTHONPATH=src python bench/forecast.py RUN [RUN …]             # their own recipe.yaml
    PYTHONPATH=src python bench/forecast.py RUN --recipe recipe.yaml
    PYTHONPATH=src python bench/forecast.py --watch recipe.yaml RUN # train it first, and watch

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

from msft.app.terminal.plan_text import apart
from msft.planning.planning import planned
from msft.recipe.recipe import Recipe, load_recipe
from msft.text import duration, si, table

PAUSE = 0.02


@dataclass(frozen=True)
class Watched:
    """The most that a process and its folder had, in bytes."""

    memory: int
    disk: int


def main() -> None:
    """One table with a row for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--recipe", help="of all of them (default: recipe.yaml in each)")
    parser.add_argument("--watch", metavar="RECIPE", help="train this into RUN first, watched")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="recipe")
    parser.add_argument("--no-calibration", action="store_true", help="no time")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for run in options.runs:
        watched: dict[str, tuple[float | None, float | None]] = {}
        if options.watch:
            watched = _watched(load_recipe(options.watch, options.set), run, options)
        recipe = load_recipe(options.recipe or run / "recipe.yaml", options.set)
        content = planned(recipe, run, not options.no_calibration, run)["known"]
        found.append({**content, "compared": {**content["compared"], **watched}})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print("\n".join(_lines(found)))


def _watched(
    recipe: Recipe, run: Path, options: argparse.Namespace
) -> dict[str, tuple[float | None, float | None]]:
    """The plan's peaks, then those of the run."""
    plan = planned(recipe, run, calibrated=False)
    command = [sys.executable, "-m", "msft", "train", options.watch, "--out", str(run), "--quiet"]
    command += [part for pair in options.set for part in ("--set", pair)]
    peaks = watch(command, run)
    memory = plan["memory"]
    return {
        "memory, watched": (memory["peak"] + memory["program"], peaks.memory),
        "disk, watched": (plan["disk"]["peak"], peaks.disk),
    }


def watch(command: list[str], folder: Path) -> Watched:
    """Run a command to its end."""
    memory = disk = 0
    with subprocess.Popen(command) as process:  # noqa: S603
        while process.poll() is None:
            memory = max(memory, _peak_memory(process.pid))
            disk = max(disk, _size(folder))
            time.sleep(PAUSE)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return Watched(memory, disk)


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
                found = (Path(place) / name).stat()
            except OSError:  # it has just been removed
                continue
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def _lines(found: list[dict[str, Any]]) -> list[str]:
    rows = [("run", "method", "figure", "forecast", "was", "apart")]
    for known in found:
        for what, (forecast, was) in known["compared"].items():
            if was:
                cells = [_shown(what, forecast), _shown(what, was), apart(forecast, was)]
                rows.append((known["folder"], known["method"], what, *cells))
    return table(rows)


def _shown(what: str, amount: float | None) -> str:
    if amount is None:
        return "?"
    if what == "seconds":
        return duration(amount)
    return si(amount) + ("" if what.endswith("FLOPs") else "B")


if __name__ == "__main__":
    main()
