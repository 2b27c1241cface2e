"""mSFT: multi-task fine-tuning in which every sub-dataset stops where it stops improving.

    import msft
    recipe = msft.load_recipe("recipe.yaml")
    result = msft.train(recipe)
    result.summary, result.best, result.schedule

Importing this loads no torch; `train` does.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msft.app.train import Result
    from msft.recipe.recipe import Recipe, load_recipe

__version__ = "0.1.0"
__all__ = ["Recipe", "__version__", "load_recipe", "train"]


def train(recipe: "Recipe", out: Path | str | None = None, **options: Any) -> "Result":
    """Train a recipe, or go on with it; see `msft.app.train.train`."""
    from msft.app.train import train as run

    return run(recipe, out, **options)


def __getattr__(name: str) -> Any:
    """`Recipe` and `load_recipe`, when they are asked for."""
    if name in ("Recipe", "load_recipe"):
        from msft.recipe import recipe

        return getattr(recipe, name)
    raise AttributeError(f"module 'msft' has no attribute {name!r}")
