"""Analyses on several base models, each model with its runs in a folder of its own: how far peaks
move (paper, Fig. 3b), and what the compute budget changes (Fig. 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from msft.app.admission import refuse_untrainable
from msft.app.analyses import Analysis, Runner, budgets, divergence
from msft.app.models import model_folder
from msft.errors import UsageError
from msft.recipe.recipe import Recipe
from msft.text import SELECTED_ON_TEST, counted, epochs, si


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
        *(
            [SELECTED_ON_TEST]
            if any("selection_split" in e.content for e in found.values())
            else []
        ),
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


def budgets_on_models(
    recipes: Mapping[str, Recipe], out: Path, run: Runner, values: Sequence[float]
) -> Analysis:
    """Accuracy and FLOPs of mSFT over its compute budget C on each model, and their mean."""
    found = {
        model: budgets(recipe, out / model_folder(model), run, values)
        for model, recipe in recipes.items()
    }
    contents = [each.content for each in found.values()]
    average = [
        _mean_of(each, [content["msft"][place] for content in contents], contents)
        for place, each in enumerate(values)
    ]
    head, *_ = next(iter(found.values())).rows
    rows: list[tuple[str, ...]] = [("model", *head)]
    rows += [(model, *row) for model, each in found.items() for row in each.rows[1:]]
    several = counted(len(found), "model")
    notes = [*next(iter(found.values())).notes]
    for each in average:
        more = "more" if each["flops"] > 0 else "less"
        notes.append(
            f"C = {epochs(each['compute_budget'])}, mean over {several}: gain {each['gain']:+.4f}, "
            f"{si(abs(each['flops']))} FLOPs {more} than SFT"
        )
    models = [{"model": model, **each.content} for model, each in found.items()]
    folders = [folder for each in found.values() for folder in each.folders]
    split = next(iter(recipes.values())).report_split
    content = {"models": models, "mean": average}
    return Analysis("budgets", content, rows, notes, folders, split)


def _mean_of(
    budget: float, searches: Sequence[Mapping[str, Any]], contents: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Gain and FLOPs of one budget beside SFT on the same model, mean over the models."""
    costs = [
        search["flops"]["total"] - content["sft"]["flops"]["total"]
        for search, content in zip(searches, contents, strict=True)
    ]
    gain = fmean(search["gain"] for search in searches)
    return {"compute_budget": budget, "gain": gain, "flops": fmean(costs)}
