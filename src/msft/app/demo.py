"""The demo: SFT, an average and mSFT on the embedded mixture, side by side on unseen rows."""

import time
from pathlib import Path

from msft.app.admission import refuse_unwritable
from msft.app.terminal.screen import show, show_path, width
from msft.benchmarks.synthetic import MISLABELLED, WRONG
from msft.errors import UsageError
from msft.recipe.recipe import Recipe, load_recipe
from msft.report import comparison_text, write_comparison
from msft.run.folder import RunFolder, read_history
from msft.run.log import Opened
from msft.text import listed

RECIPE = Path(__file__).parent / "tiny.yaml"
SFT = ["method=sft", "method_options={}"]
METHODS: dict[str, tuple[str, list[str]]] = {
    "sft": (
        "SFT with cosine decay, the schedule that is best for it here",
        [*SFT, "ema_decay=null", "lr_scheduler_type=cosine"],
    ),
    "sft-ema": ("SFT with a constant rate, and a moving average of its weights", SFT),
    "msft": ("mSFT on a moving average: who falls for sure leaves", []),
}
"""The runs: a folder's name, what it is in words, and how it differs from the recipe."""


def run_demo(out: Path, seed: int, recipe: Path = RECIPE) -> None:
    """The runs into `out`, resuming or skipping what is done, and the comparison."""
    begun = time.monotonic()
    refuse_unwritable(out)
    folders = [out / method for method in METHODS]
    if not all(_is_finished(folder, seed) for folder in folders):
        print("Six synthetic sub-datasets, a random model of 410,000 weights, three methods.\n")
        for method, (words, overrides) in METHODS.items():
            print(f"{words}:")
            _run(method, load_recipe(recipe, [*overrides, f"seed={seed}"]), out / method)
        print(f"the three runs took {time.monotonic() - begun:.0f} s\n")
    page = write_comparison(folders, out)
    show(comparison_text(folders, width()))
    show(f"{_who_left(out / 'msft')} The mixture is synthetic (seed {seed}).")
    show_path("Look at", page)


def _who_left(folder: Path) -> str:
    """Which sub-datasets have wrong labels, and which ones mSFT excluded."""
    names = [exclusion.name for exclusion in read_history(folder).exclusions]
    hit = sum(name in MISLABELLED for name in names)
    left = f"mSFT excluded {listed(names)}: {hit} of {len(names)} are among them."
    return (
        f"{100 * WRONG:.0f} % of the training labels of {listed(MISLABELLED)} are wrong; "
        "nobody told mSFT. "
        f"{left if names else 'mSFT excluded nobody.'}"
    )


def _run(method: str, recipe: Recipe, folder: Path) -> None:
    from msft.app.terminal.progress import progress
    from msft.app.train import train

    with progress(f"{method} on the demo mixture", folder=folder) as shown:
        train(recipe, folder, shown)
    print()


def _is_finished(folder: Path, seed: int) -> bool:
    run = RunFolder(folder)
    opened = run.events()[:1]
    if opened and isinstance(opened[0], Opened) and opened[0].seed != seed:
        raise UsageError(
            f"{folder} holds a run with seed {opened[0].seed}; give another --out, or that --seed"
        )
    return run.is_finished()
