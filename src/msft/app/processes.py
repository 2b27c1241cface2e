"""What the processes of a run settle before it starts: its lanes, and that they mean one run."""

from typing import Any

import yaml

from msft.app.admission import resolved
from msft.data.corpus import Corpus
from msft.errors import UsageError
from msft.ranks import Ranks
from msft.recipe.recipe import Recipe
from msft.run.environment import versions
from msft.run.folder import RunFolder
from msft.run.log import RunEvent
from msft.text import counted

MOST_SHOWN = 5


def lanes_of_run(recipe: Recipe, folder: RunFolder, world: int) -> int:
    """The lanes that a run has, or will have; UsageError where so many processes cannot share them.

    `auto` is what the run was begun with, and at first one lane for each process.
    """
    begun = next(
        (e.settings.get("lanes", 1) for e in folder.events() if isinstance(e, RunEvent)), 0
    )
    lanes: int = recipe.lanes if recipe.lanes != "auto" else begun or world
    if begun not in (0, lanes):
        raise UsageError(
            f"{folder.path} holds a run with lanes: {begun}, but the recipe says lanes: {lanes}; "
            "leave lanes out, or begin in another folder"
        )
    rows = recipe.train_batch_size
    if world > rows or lanes > rows:
        raise UsageError(
            f"{world} processes were started, but a step has {counted(rows, 'row')} "
            f"(train_batch_size), and each process needs one; start at most {rows}"
        )
    if world > lanes:
        raise UsageError(
            f"{world} processes were started, but this run has lanes: {lanes}, and each process "
            f"needs one; start at most {lanes}, or begin in another folder with lanes: {world}"
        )
    if recipe.sharding == "full" and lanes % world:
        raise UsageError(
            f"{world} processes were started, and this run has lanes: {lanes}; sharding: full "
            f"needs a number of processes that divides the lanes; use sharding: optimizer, or "
            f"start {max(n for n in range(1, world) if lanes % n == 0)}"
        )
    return lanes


def refuse_disagreement(
    ranks: Ranks, recipe: Recipe, folder: RunFolder, corpus: Corpus, schedule: Any
) -> None:
    """UsageError where the processes mean different runs; nothing has been started by then."""
    keys = yaml.safe_load(resolved(recipe).to_yaml())
    specs = {
        f"datasets.{spec['name']}.{key}": value
        for spec in keys.pop("datasets")
        for key, value in spec.items()
    }
    packages = {k: v for k, v in versions(recipe.packages).items() if k != "system"}
    mine = {
        "recipe": {**keys, **specs},
        "data": {n: Corpus({n: d}).fingerprint()[:12] for n, d in corpus.datasets.items()},
        "packages": packages,
        "folder": {"--out": str(folder.path.resolve()), "schedule": schedule and str(schedule)},
    }
    first, *others = ranks.gather("recipe, data and packages", mine)
    for rank, theirs in enumerate(others, start=1):
        for kind, words in _KINDS.items():
            changed = [
                f"{key} is {first[kind].get(key)!r} on rank 0 and {theirs[kind].get(key)!r} there"
                for key in {**first[kind], **theirs[kind]}
                if first[kind].get(key) != theirs[kind].get(key)
            ]
            if changed:
                raise UsageError(
                    f"rank {rank} has {words[0]} than rank 0: {'; '.join(changed[:MOST_SHOWN])}. "
                    f"Nothing was started; {words[1]}"
                )


_KINDS = {
    "packages": ("other packages", "install the same ones everywhere"),
    "folder": ("another run folder", "give every process the same one, on a disk that all share"),
    "recipe": ("another recipe", "give every process the same one"),
    "data": ("other data", "give every process the same files"),
}
