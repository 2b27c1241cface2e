"""mSFT: multi-task fine-tuning in which every sub-dataset stops where it stops improving.

    import msft
    recipe = msft.load_recipe("recipe.yaml")
    result = msft.train(recipe)
    result.summary, result.best, result.schedule

Importing this loads no torch; `train` does.
"""

TYPE_CHECKING = False  # without typing, which takes as long to load as Python itself
if TYPE_CHECKING:
    from typing import Any

    from msft.app.compare import compare
    from msft.app.train import train
    from msft.recipe.recipe import Recipe, load_recipe

__version__ = "0.1.0"
__all__ = ["Recipe", "__version__", "compare", "load_recipe", "train"]

_HOMES = {
    "Recipe": "msft.recipe.recipe",
    "compare": "msft.app.compare",
    "load_recipe": "msft.recipe.recipe",
    "train": "msft.app.train",
}


def __getattr__(name: str) -> "Any":
    """What is at home elsewhere, when somebody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'msft' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
