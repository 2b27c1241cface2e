"""What safety costs: the share of a run that goes into hashes, checksums, syncing and checks.

    PYTHONPATH=src python bench/safety_cost.py [RECIPE] [--set KEY=VALUE ...]

The functions that make a run safe are timed while a real run goes on; time within another one of
them counts once. What a background thread does is listed too, though training does not wait for it.
"""

import argparse
import functools
import os
import tempfile
import threading
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import msft

ROOT = Path(__file__).parent.parent
SAFETY = (
    ("os", "fsync"),
    ("msft.store.store", "Hashes.fresh"),
    ("msft.store.store", "Hashes.fault"),
    ("msft.run.log", "Chain.seal"),
    ("msft.run.log", "Chain.fault"),
    ("msft.files", "_opened"),
    ("msft.engine.model.loading", "refuse_other_numbers"),
    ("msft.engine.model.loading", "refuse_other_weights"),
    ("msft.planning.admission", "refuse_planted"),
)
"""Modules, and their functions or methods."""


class Clock:
    """Seconds by function and by whether the main thread waited."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, bool], float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inside = threading.local()

    def timed(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def measured(*given: Any, **named: Any) -> Any:
            if getattr(self._inside, "busy", False):
                return function(*given, **named)
            self._inside.busy = True
            begun = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                waited = threading.current_thread() is threading.main_thread()
                self.seconds[name, waited] += time.perf_counter() - begun
                self.calls[name] += 1
                self._inside.busy = False

        return measured


def watch(clock: Clock) -> None:
    """Time every function of `SAFETY` from now on."""
    for module, path in SAFETY:
        owner: Any = import_module(module)
        *classes, last = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        setattr(owner, last, clock.timed(f"{module}.{path}", getattr(owner, last)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", type=Path, default=ROOT / "recipes" / "tiny.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    clock = Clock()
    watch(clock)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        msft.train(msft.load_recipe(options.recipe, options.set), Path(folder) / "run", quiet=True)
        whole = time.perf_counter() - begun
    for (name, waited), seconds in sorted(clock.seconds.items(), key=lambda each: -each[1]):
        where = "waited for" if waited else "in the background"
        print(f"{seconds:8.3f} s  {clock.calls[name]:6} calls  {name}, {where}")
    waited = sum(seconds for (_, main), seconds in clock.seconds.items() if main)
    print(f"{waited:.3f} s of {whole:.1f} s were waited for: {100 * waited / whole:.2f} %")


if __name__ == "__main__":
    main()
