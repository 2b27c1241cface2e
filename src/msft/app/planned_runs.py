"""The runs that a comparison asks for: methods × seeds × models of one recipe."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import product
from pathlib import Path

from msft.app.jobs import Job
from msft.app.models import MODEL, model_folder
from msft.app.variants import Variant, listed_words, refuse_twice, variants_of
from msft.errors import OptionError, RecipeError, UsageError
from msft.recipe.recipe import Recipe, load_recipe, recipe_keys
from msft.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Planned:
    """One run: its folder, its recipe, and what makes it from the recipe file."""

    folder: RunFolder
    recipe: Recipe
    source: Path
    overrides: tuple[str, ...]
    name: str

    @property
    def is_done(self) -> bool:
        """Finished, and its result is written: the report is the last of it."""
        return self.folder.is_finished() and self.folder.report.exists()

    def job(self, quiet: bool, shared: Path | None) -> Job:
        """The command that runs it, or goes on with it; its output, where it is not shown, goes
        beside its folder.

        shared: where it leaves its first roll-out for others, or finds theirs.
        """
        sets = [word for override in self.overrides for word in ("--set", override)]
        out = ["--out", str(self.folder.path), *(["--quiet"] if quiet else [])]
        out += ["--shared", str(shared)] if shared else []
        command = (sys.executable, "-m", "msft", "train", str(self.source), *out, *sets)
        output = self.folder.path.with_name(f"{self.folder.path.name}.log")
        return Job(self.name, command, output, shared)


def planned(
    source: Path,
    overrides: Sequence[str],
    methods: str | Sequence[str] | None,
    seeds: Sequence[int],
    out: Path,
    models: Sequence[str] = (),
) -> list[Planned]:
    """Every run of the comparison; a recipe that a method cannot have is refused here.

    models: a folder for each; none are the recipe's own, without one.
    """
    given = load_recipe(source, overrides)
    variants = variants_of(methods)
    runs: list[Planned] = []
    known: dict[str, Variant] = {}
    for model, variant, seed in product(models or (None,), variants, seeds):
        named = () if model is None else (f"{MODEL}={json.dumps(model)}",)
        if named and MODEL in variant.settings:
            raise UsageError(f"{variant} has a model of its own; name all of them with --models")
        try:
            more = (*named, *variant.overrides(given), f"seed={seed}", "push_to_hub=false")
            recipe = load_recipe(source, (*overrides, *more))
        except (OptionError, RecipeError) as error:
            raise RecipeError(f"with method {variant}: {error}", error.place) from error
        other = known.setdefault(_all_of(recipe), variant)
        if other is not variant:
            raise UsageError(f"--methods has {variant} twice: {other} is the same run")
        name = variant.folder_name(seed)
        name = name if model is None else f"{model_folder(model)}/{name}"
        runs.append(Planned(RunFolder(out / name), recipe, source, (*overrides, *more), name))
    return runs


def _all_of(recipe: Recipe) -> str:
    """Everything that a run is asked, with the options that its method has by default."""
    method = recipe.prepared()
    own = [(name, each.default) for name, each in signature(method.carry_out).parameters.items()]
    keys = [(key, getattr(recipe, key)) for key in recipe_keys() if key != "method_options"]
    return repr((keys, own, method.rollout_options, method.mixture_options))


def seeds_of(seeds: str | Sequence[int] | None, recipe: Recipe) -> list[int]:
    """`20,30` as numbers; the recipe's seed by default."""
    if seeds is None:
        return [recipe.seed]
    words = listed_words(
        seeds if isinstance(seeds, str) else [str(seed) for seed in seeds], "--seeds", "20,30"
    )
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(f"--seeds has {wrong[0]!r}; expected whole numbers such as 20,30")
    numbers = [int(word) for word in words]
    refuse_twice(numbers, "--seeds")
    return numbers
