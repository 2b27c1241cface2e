"""The demo: SFT, an average and mSFT on the embedded mixture, side by side on unseen rows."""

import sys
import time
from pathlib import Path

from msft.app.jobs import Job, beside
from msft.app.terminal.screen import show, show_path, width
from msft.benchmarks.synthetic import MISLABELLED, WRONG
from msft.errors import UsageError
from msft.planning.admission import refuse_unwritable
from msft.recipe.recipe import load_recipe
from msft.report import comparison_text, write_comparison
from msft.run.folder import RunFolder, read_history
from msft.run.log import RunEvent
from msft.text import listed
from msft.threads import usable_cores

RECIPE = Path(__file__).parent / "tiny.yaml"
SFT = ["method=sft", "method_options={}"]
METHODS: dict[str, tuple[str, list[str]]] = {
    "sft": (
        "SFT with cosine decay (the schedule that is best for it here)",
        [*SFT, "ema_decay=null", "lr_scheduler_type=cosine"],
    ),
    "sft-ema": ("SFT with a constant rate and a moving average of its weights", SFT),
    "msft": ("mSFT on a moving average; a sub-dataset that surely falls leaves", []),
}
"""The runs: a folder's name, what it is in words, and how it differs from the recipe."""


SHOWN = "msft"
"""The run that the terminal follows."""


def run_demo(out: Path, seed: int, recipe: Path = RECIPE, cores: int | None = None) -> None:
    """The runs into `out`, resuming or skipping what is done, and the comparison.

    With two cores or more the runs of SFT train in processes of their own beside mSFT's.
    """
    begun = time.monotonic()
    refuse_unwritable(out)
    folders = [out / method for method in METHODS]
    missing = [method for method in METHODS if not _is_finished(out / method, seed)]
    if missing:
        print("Six synthetic sub-datasets, a random model of 410,000 weights, three methods.\n")
        apart = [method for method in missing if method != SHOWN]
        if (usable_cores() if cores is None else cores) < 2:
            apart = []
        if apart:
            show(f"In processes of their own: {listed([METHODS[method][0] for method in apart])}.")
        with beside([_job(method, seed, recipe, out) for method in apart]):
            if SHOWN in missing and apart:
                _run(SHOWN, seed, recipe, out)
        for method in missing:
            if not _is_finished(out / method, seed):
                _run(method, seed, recipe, out)
        print(f"the three runs took {time.monotonic() - begun:.0f} s\n")
    page = write_comparison(folders, out)
    show(comparison_text(folders, width()))
    show(f"{_excluded(out / 'msft')} The mixture is synthetic (seed {seed}).")
    show_path("Look at", page)


def _job(method: str, seed: int, recipe: Path, out: Path) -> Job:
    """A run in a process of its own. If it fails, it is taken up again here, where errors show."""
    command = [sys.executable, "-m", "msft", "train", str(recipe), "--quiet"]
    command += ["--out", str(out / method)]
    command += [part for each in _overrides(method, seed) for part in ("--set", each)]
    return Job(method, tuple(command), out / f"{method}.log")


def _overrides(method: str, seed: int) -> list[str]:
    return [*METHODS[method][1], f"seed={seed}"]


def _excluded(folder: Path) -> str:
    """Which sub-datasets have wrong labels, and which ones mSFT excluded."""
    names = [exclusion.name for exclusion in read_history(folder).exclusions]
    hit = sum(name in MISLABELLED for name in names)
    left = f"mSFT excluded {listed(names)}: {hit} of {len(names)} are among them."
    return (
        f"{100 * WRONG:.0f} % of the training labels of {listed(MISLABELLED)} are wrong; "
        "mSFT is not told. "
        f"{left if names else 'mSFT excluded none.'}"
    )


def _run(method: str, seed: int, recipe: Path, out: Path) -> None:
    from msft.app.terminal.progress import ShownRun
    from msft.training import train

    print(f"{METHODS[method][0]}:")
    asked = load_recipe(recipe, _overrides(method, seed))
    train(asked, out / method, [ShownRun(f"{method} on the demo mixture")])
    print()


def _is_finished(folder: Path, seed: int) -> bool:
    run = RunFolder(folder)
    opened = run.events()[:1]
    if opened and isinstance(opened[0], RunEvent) and opened[0].seed != seed:
        raise UsageError(
            f"{folder} holds a run with seed {opened[0].seed}; give another --out, or that --seed"
        )
    return run.is_finished()
