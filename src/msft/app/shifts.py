"""Divergence on several base models, each with its branches, and the mean change of each (paper,
Fig. 3b)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from msft.app.admission import refuse_untrainable
from msft.app.analyses import Analysis, Runner, divergence
from msft.app.models import model_folder
from msft.errors import UsageError
from msft.recipe.recipe import Recipe
from msft.text import counted, epochs


def with_models(recipe: Recipe, models: Sequence[str]) -> dict[str, Recipe]:
    """The recipe for each model; what cannot be trained is refused here, before anything starts."""
    from msft.app.train import load_data

    found = {model: replace(recipe, model_name_or_path=model) for model in models}
    for each in found.values():
        refuse_untrainable(each)
        load_data(each)
    return found


def shifts(recipes: dict[str, Recipe], out: Path, run: Runner) -> Analysis:
    """The mean absolute change of optimal compute of each model.

    A model on which no sub-dataset overfits has none: it is named and left out.
    """
    found: dict[str, Analysis] = {}
    without: dict[str, str] = {}
    for model, recipe in recipes.items():
        try:
            found[model] = divergence(recipe, out / model_folder(model), run)
        except UsageError as error:
            without[model] = str(error)
    if not found:
        raise UsageError("; ".join(f"{model}: {why}" for model, why in without.items()))
    moved = {model: each.content["mean_absolute_change"] for model, each in found.items()}
    rows: list[tuple[str, ...]] = [("model", "overfits first", "at epoch", "mean |change|")]
    for model, each in found.items():
        at = epochs(each.content["fork_epochs"])
        rows.append((model, each.content["excluded"], at, f"{moved[model]:.2f}"))
    notes = [
        f"mean absolute change {fmean(moved.values()):.2f} epochs over "
        f"{counted(len(found), 'model')}, {min(moved.values()):.2f} to {max(moved.values()):.2f}",
        *(f"note: {model} is left out: {why}" for model, why in without.items()),
        *(
            f"note: {model}: still rising at the end of a branch, so their changes are bounds: "
            + ", ".join(each.content["still_rising"])
            for model, each in found.items()
            if each.content["still_rising"]
        ),
    ]
    content = {
        "models": [{"model": model, **each.content} for model, each in found.items()],
        "left_out": without,
        "mean_absolute_change": fmean(moved.values()),
    }
    folders = [folder for each in found.values() for folder in each.folders]
    split = next(iter(recipes.values())).report_split
    return Analysis("shifts", content, rows, notes, folders, split)
