"""The demo: SFT and mSFT on the embedded mixture, then both beside each other on unseen rows."""

import time
from pathlib import Path

from msft.app.admission import refuse_unwritable
from msft.errors import UsageError
from msft.recipe.recipe import Recipe, load_recipe
from msft.report import comparison_text, write_comparison
from msft.run.folder import RunFolder
from msft.run.log import Opened

RECIPE = Path(__file__).parent / "tiny.yaml"
METHODS = {"sft": ["method=sft", "method_options={}"], "msft": []}


def run_demo(out: Path, seed: int, recipe: Path = RECIPE) -> None:
    """Both runs into `out`, resuming or skipping what is done, and the comparison."""
    begun = time.monotonic()
    refuse_unwritable(out)
    folders = [out / method for method in METHODS]
    if not all(_is_finished(folder, seed) for folder in folders):
        print("Six synthetic sub-datasets, a random model of 410,000 weights, two methods.\n")
        for method, overrides in METHODS.items():
            _run(method, load_recipe(recipe, [*overrides, f"seed={seed}"]), out / method)
        print(f"both runs took {time.monotonic() - begun:.0f} s\n")
    page = write_comparison(folders, out)
    print(comparison_text(folders))
    print(f"\nThe mixture is synthetic (seed {seed}). Look at {page}")


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
