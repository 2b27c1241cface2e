"""Which runs of a comparison ask the same first roll-out, and where they leave it."""

import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msft.recipe.recipe import Recipe, recipe_keys
from msft.run.folder import RunFolder
from msft.run.sharing import SharedRollout
from msft.search.methods import METHODS, ROLLING_BACK
from msft.search.mixture import Mixture
from msft.search.rehearsal import Rehearsal, rehearse
from msft.search.rollout import ticks_of

PLACE = ".shared"
"""The folder in a comparison's, while runs that share something are not done."""

_NO_MATTER = (
    "method",
    "method_options",
    "output_dir",
    "report_to",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
    "peaks",
    "mean",
    "report_split",
    "disk_policy",
)
"""Keys that do not change what a first roll-out answers; of `peaks`, all but `by`."""


def question_of(recipe: Recipe) -> str | None:
    """A digest of all that the first roll-out of a run depends on; None where it shares none.

    Methods that roll back are apart from the others: on a GPU their kernels may be others. A
    method of the user's own always trains by itself, and so does one with patience, or with an
    optimizer that goes on after a rollback.
    """
    method = recipe.prepared()
    how = method.rollout_options
    if recipe.method not in METHODS or how.patience is not None or how.on_rollback == "restore":
        return None
    if recipe.validation_loss:  # a run that takes over does not measure it
        return None
    per_epoch = recipe.evals_per_epoch
    budget, ticks = (
        ticks_of(getattr(recipe, key), per_epoch, key)
        for key in ("compute_budget", "num_train_epochs")
    )
    mixture = Mixture.of({spec.name: 1 for spec in recipe.datasets})
    first = rehearse(method.carry_out, Rehearsal(mixture, budget, ticks, per_epoch))
    if first is None or not first.plain:
        return None
    ignored = _NO_MATTER if recipe.method in ROLLING_BACK else (*_NO_MATTER, "compute_budget")
    told = [(key, getattr(recipe, key)) for key in recipe_keys() if key not in ignored]
    by = recipe.peaks.get("by", "score")
    return sha256(repr((first.ticks, by, told)).encode()).hexdigest()[:12]


def shared_places(recipes: Mapping[str, Recipe], out: Path) -> dict[str, Path]:
    """The folder of each run that may share its first roll-out with another one."""
    questions = {name: question_of(recipe) for name, recipe in recipes.items()}
    asked = [*questions.values()]
    return {
        name: out / PLACE / question
        for name, question in questions.items()
        if question is not None and asked.count(question) > 1
    }


def side_by_side(names: Sequence[str], places: Mapping[str, Path]) -> list[str]:
    """The same names, those that share right after each other, so that little lies on disk."""
    firsts = {name: names.index(_first(name, names, places)) for name in names}
    return sorted(names, key=lambda name: (firsts[name], names.index(name)))


def _first(name: str, names: Sequence[str], places: Mapping[str, Path]) -> str:
    place = places.get(name)
    return name if place is None else next(n for n in names if places.get(n) == place)


def is_lent(place: Path) -> bool:
    """Whether a run has left its first roll-out here, so that others can begin."""
    return SharedRollout(place, RunFolder(place)).found() is not None


def remove_shared(place: Path) -> None:
    """Nobody needs it any more."""
    shutil.rmtree(place, ignore_errors=True)
    if place.parent.is_dir() and not any(place.parent.iterdir()):
        place.parent.rmdir()
