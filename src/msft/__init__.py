"""mSFT: fine-tune a language model on several datasets at once, each for as long as it improves.

    import msft
    recipe = msft.load_recipe("recipe.yaml")
    msft.validate(recipe)              # what the rows are, and what there is to note
    msft.plan(recipe)                  # what it costs
    msft.audit(recipe)                 # who spoils the model, and which rows
    result = msft.train(recipe)        # shows progress; the same call resumes
    result.best                        # a folder that transformers loads
    msft.evaluate(result.best, recipe)
    msft.compare("recipe.yaml", "runs", methods=["sft", "msft"])
    msft.merge(result.folder, "merged")     # an adapter and its base as one model
    msft.write_report(result.folder)        # report.html anew

Importing msft does not import torch; `train`, `audit` and `evaluate` do.
"""

TYPE_CHECKING = False  # without typing, which takes as long to load as Python itself
if TYPE_CHECKING:
    from typing import Any

    from msft.app.compare import compare
    from msft.app.interface import audit, evaluate, merge, plan, train, validate, write_report
    from msft.recipe.recipe import Recipe, load_recipe
    from msft.training import Result

__version__ = "0.8.0"
__all__ = [
    "Recipe",
    "Result",
    "__version__",
    "audit",
    "compare",
    "evaluate",
    "load_recipe",
    "merge",
    "plan",
    "train",
    "validate",
    "write_report",
]

_HOMES = {
    "Recipe": "msft.recipe.recipe",
    "Result": "msft.training",
    "audit": "msft.app.interface",
    "compare": "msft.app.compare",
    "evaluate": "msft.app.interface",
    "load_recipe": "msft.recipe.recipe",
    "merge": "msft.app.interface",
    "plan": "msft.app.interface",
    "train": "msft.app.interface",
    "validate": "msft.app.interface",
    "write_report": "msft.app.interface",
}


def __getattr__(name: str) -> "Any":
    """What is at home elsewhere, when somebody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'msft' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for `dir(msft)` and the completion of a shell or a notebook."""
    return sorted({*__all__, "__doc__"})
