"""Admission: what a run is refused for before anything heavy is loaded. Only the check for FP8
needs torch.

`admit` looks at what was asked for and returns a `Job`: may the folder be written, is it this run's
(`refuse_changed`: a started run goes on with its own recipe only), are packages, files and metrics
there, do engine, processes and lanes go together. Once rows are read, `refuse_disagreement` finds
processes that mean different runs. Other commands use the same checks one by one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from msft.data.corpus import Corpus
from msft.data.exclusions import read_exclusions
from msft.data.readers import fixed_name
from msft.data.sources import may_have, refuse_missing_files
from msft.engine.model.folders import (
    TINY,
    base_of,
    is_adapter,
    refuse_broken_adapter,
    refuse_no_peft,
)
from msft.engine.model.tokenizers import gguf_header
from msft.errors import RecipeError, UsageError
from msft.files import FOLDER, expanded, read_text, refuse_other_kind
from msft.observers.hub import refuse_unpushable
from msft.observers.trackers import refuse_missing
from msft.ranks import ALONE, Ranks
from msft.recipe.dataset import FUNCTION, SPLITS, DatasetSpec, names_files
from msft.recipe.keys import is_template
from msft.recipe.recipe import Recipe
from msft.recipe.templates import TEMPLATES
from msft.recipe.yaml import parse
from msft.run.engine import HasVerbs
from msft.run.environment import versions
from msft.run.folder import RunFolder
from msft.run.log import EndEvent, Event, RunEvent
from msft.scoring.metrics import own_metric
from msft.search.curves import SELECTION, TEST
from msft.search.methods import AUDIT, PreparedMethod
from msft.text import counted

DEFAULTS = {key.name: key.default for key in fields(Recipe) if key.default is not MISSING}
DEFAULTS |= {"options_by_method": {}}
"""What a recipe says that does not name a key."""
SPEC_DEFAULTS = {key.name: key.default for key in fields(DatasetSpec) if key.name != "name"}
"""The same of a sub-dataset."""

FREE = (
    "lanes",
    "sharding",
    "ddp_timeout",
    "rendezvous_timeout",
    "saving_timeout",
    "output_dir",
    "report_to",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
)
"""Keys that a resumed run may change."""

PLACES = (*SPLITS, "path", "data_dir", "exclude_rows", "chat_template")
"""Keys that name files or folders."""


Notice = Callable[[str], None]
"""Is told what a person should know."""
EngineSource = HasVerbs | Callable[[Recipe, Corpus], HasVerbs]
"""An engine of the user's own, or a function that makes one."""


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for, and can be done as far as that is known without rows and model.

    lanes: parts of each batch whose gradients are summed in a fixed order; a process has one or
        several of them.
    resolved: the recipe with data paths that hold wherever it is read from.
    begun, finished: what the folder's log says.
    method: is carried out instead of the recipe's.
    """

    recipe: Recipe
    folder: RunFolder
    notice: Notice
    schedule: Path | None = None
    engine: EngineSource | None = None
    shared: Path | None = None
    ranks: Ranks = ALONE
    lanes: int = 1
    resolved: Recipe | None = None
    begun: bool = False
    finished: bool = False
    method: PreparedMethod | None = None


def admit(
    recipe: Recipe,
    out: Path | str | None,
    notice: Notice,
    schedule: Path | str | None,
    engine: EngineSource | None,
    shared: Path | None,
    ranks: Ranks,
    method: PreparedMethod | None = None,
) -> Job:
    """Refuse what cannot be done, before anything heavy is loaded.

    method: is carried out instead of the recipe's.
    """
    folder = run_folder(recipe, out)
    audits = method is not None and method.finds
    refuse_run(recipe, folder, audits)
    refuse_engine(recipe, engine is not None, shared, ranks.world)
    events = folder.events() if folder.log.exists() else []
    begun = events[0] if events else None
    if isinstance(begun, RunEvent) and audits != (begun.method == AUDIT):
        held, asked = "an audit", "a run"
        if audits:
            held, asked = f"a run of {begun.method}", "an audit"
        raise UsageError(
            f"{folder.path} holds {held}; expected a folder for {asked}: give another --out"
        )
    return Job(
        recipe,
        folder,
        (lambda text: None) if ranks.rank else notice,  # only rank 0 prints
        Path(schedule) if schedule else None,
        engine,
        shared,
        ranks,
        lanes_of_run(recipe, folder, events, ranks.world),
        resolved(recipe),
        begun=bool(events),
        finished=isinstance(events[-1], EndEvent) if events else False,
        method=method,
    )


def run_folder(recipe: Recipe, out: Path | str | None) -> RunFolder:
    """Where a run goes."""
    name = str(out or recipe.output_dir or f"runs/{recipe.method}")
    return RunFolder(expanded(name) if name.startswith("~") else Path(name))


def refuse_run(recipe: Recipe, folder: RunFolder, audits: bool = False) -> None:
    """Refuse what `msft train` cannot do in this folder; audits: what `msft audit` cannot."""
    refuse_unwritable(folder.path)
    refuse_planted(folder, audits)
    refuse_foreign(folder, audits)
    refuse_untrainable(recipe)
    refuse_changed(recipe, folder)


def refuse_engine(recipe: Recipe, own: bool, shared: Path | None, world: int) -> None:
    """UsageError where engine, processes and recipe do not go together.

    own: an engine of the user's own was given.
    """
    if own and recipe.engine != "auto":
        raise UsageError(
            f"an engine of your own was given, but the recipe says engine: {recipe.engine}; keep "
            "the one you mean"
        )
    if own and recipe.lanes not in ("auto", 1):
        raise UsageError(
            f"an engine of your own was given, which has one lane, but the recipe says lanes: "
            f"{recipe.lanes}; leave lanes out"
        )
    if world > 1 and (own or recipe.engine == "simple"):
        kind = "an engine of your own" if own else "engine: simple"
        raise UsageError(
            f"{world} processes were started, but {kind} works in one; start one process, or leave "
            "the engine to msft"
        )
    if world > 1 and shared is not None:
        raise UsageError(
            f"{world} processes were started, but runs that share a roll-out have one each; use "
            "`msft compare --devices` for runs side by side"
        )


def refuse_untrainable(recipe: Recipe) -> None:
    """Refuse what `msft train` cannot do in any folder."""
    if recipe.report_to != "none":
        refuse_missing(recipe.report_to)
    if recipe.push_to_hub:
        refuse_unpushable(recipe)
    refuse_no_packages(recipe)
    recipe.template()
    for spec in recipe.datasets:
        recipe.template_named(spec.chat_template, spec.name)
    refuse_absent(recipe, recipe.model())
    refuse_no_fp8(recipe)  # last, since it needs torch


def refuse_no_fp8(recipe: Recipe) -> None:
    """RecipeError where FP8 is asked for and this device does not compute in it."""
    if not recipe.fp8:
        return
    from msft.engine.adapters.fp8 import fp8_fault
    from msft.engine.kernels import device_here

    if fault := fp8_fault(device_here()):
        raise RecipeError(
            f"fp8 is true, but {fault}; leave fp8 out, or set load_in_4bit: true if memory is "
            "short",
            ("fp8",),
        )


def refuse_no_packages(recipe: Recipe) -> None:
    """RecipeError where an adapter is asked for and what it needs is not installed."""
    if recipe.use_peft:
        why = "load_in_4bit" if recipe.load_in_4bit else "use_peft"
        refuse_no_peft(f"{why} is true", recipe.load_in_4bit)


def refuse_absent(recipe: Recipe, model: str) -> None:
    """RecipeError or DataError where something that is named is not there: a model, the data
    folder, a file of rows, a metric. What the hub should have is not looked for."""
    if recipe.data_dir is not None:
        recipe.data_folder()
    if recipe.exclude_rows is not None:
        read_exclusions(recipe)
    if model != TINY and is_adapter(model):
        base_of(model)
        refuse_broken_adapter(Path(model))
    elif model != TINY:
        gguf_header(model)
    refuse_missing_files(recipe)
    for spec in recipe.datasets:
        if FUNCTION.fullmatch(spec.metric):
            own_metric(spec.metric)


def refuse_no_rows(recipe: Recipe, split: str) -> None:
    """RecipeError where no sub-dataset can have rows to score, before a model is loaded."""
    if split == SELECTION and recipe.selection_split == TEST:
        raise RecipeError(
            "--split is validation, but this recipe has selection_split: test and reads no "
            "validation rows; score test, or leave selection_split out"
        )
    if not may_have(recipe, split):
        raise RecipeError(
            f"no sub-dataset of this recipe has {split} rows; add `{split}: FILE` to one, or try "
            "--split validation"
        )


def refuse_changed(recipe: Recipe, folder: RunFolder) -> None:
    """A started run goes on with its own recipe only."""
    if not folder.recipe.exists() or not folder.log.exists():
        return
    before = {**DEFAULTS, **_recorded(folder.recipe)}  # with keys that are younger than the folder
    now = {**DEFAULTS, **_flat(parse(resolved(recipe).to_yaml()).value)}
    others = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    others -= {*FREE, *_moved(before, now, (recipe.folder or Path()).resolve())}
    changed = [
        f"  {key} was {before.get(key)!r}, now it is {now.get(key)!r}"
        for key in sorted(others, key=str)
    ]
    if changed:
        raise RecipeError(
            f"{folder.path} holds a run of another recipe:\n"
            + "\n".join(changed[:5])
            + "\nundo the change, or give another --out"
        )


def _recorded(file: Path) -> dict[str, Any]:
    """The keys of a run's recipe.yaml."""
    try:
        return _flat(parse(read_text(file)).value)
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise RecipeError(
            f"{file} is damaged: it is not the recipe that msft wrote there; restore it, or remove "
            "it: the same command writes it again if the log fits your recipe"
        ) from error


def _moved(before: dict[str, Any], now: dict[str, Any], folder: Path) -> list[str]:
    """Keys of files in the recipe's folder, if all of them lay in one other folder as they lie in
    this one: it was moved. Whether the rows are the same is for the log to say, by their digest."""
    roots: dict[str, str | None] = {}
    for key in before.keys() & now.keys():
        old, new = (each if isinstance(each, list) else [each] for each in (before[key], now[key]))
        if key.rpartition(".")[2] in PLACES and str(new[0]).startswith(f"{folder}/"):
            roots[key] = _root(old, new, f"{folder}/")
    return [*roots] if len({*roots.values()}) == 1 and None not in roots.values() else []


def _root(old: list[Any], new: list[Any], folder: str) -> str | None:
    """The folder in which files lay as they lie in this one now; None if there is no such one."""
    inside = [str(each).removeprefix(folder) for each in new]
    root = str(next(iter(old), "")).removesuffix(inside[0])
    same = [f"{root}{each}" for each in inside] == old
    return root if same and root.endswith("/") else None


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with data paths that hold wherever it is read from."""
    folder = (recipe.folder or Path()).resolve()

    def placed(source: Any) -> Any:
        if source is None:
            return None
        if isinstance(source, str):
            return fixed_name(source, folder)
        return [fixed_name(name, folder) for name in source] if names_files(source) else source

    def found(template: str | None) -> str | None:
        if template is None or is_template(template) or template in TEMPLATES:
            return template
        return fixed_name(template, folder, or_name=True)

    specs = []
    for spec in recipe.datasets:
        files = {key: placed(getattr(spec, key)) for key in SPLITS}
        path = spec.path and fixed_name(spec.path, folder, or_name=True)
        specs.append(replace(spec, **files, path=path, chat_template=found(spec.chat_template)))
    data_dir = None if recipe.data_dir is None else str(recipe.data_folder().resolve())
    excluding = None if recipe.exclude_rows is None else str(recipe.exclusions_file().resolve())
    return replace(
        recipe,
        datasets=specs,
        data_dir=data_dir,
        exclude_rows=excluding,
        chat_template=found(recipe.chat_template),
    )


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    """Keys and values with the sub-datasets' own under their names."""
    flat = {key: value for key, value in recipe.items() if key != "datasets"}
    for number, spec in enumerate(recipe["datasets"]):
        for key, value in {**SPEC_DEFAULTS, **spec}.items():
            flat[f"datasets.{spec['name']}.{key}"] = value
        flat[f"datasets.{spec['name']}"] = f"number {number + 1}"
    return flat


def refuse_planted(folder: RunFolder, audits: bool = False) -> None:
    """NotAFile where a link, a pipe or anything else has a name that a run reads or writes."""
    for path in (*folder.files_of(audits), folder.log.with_name("run.lock")):
        refuse_other_kind(path)
    for path in folder.folders:
        refuse_other_kind(path, FOLDER)


def refuse_foreign(folder: RunFolder, audits: bool = False) -> None:
    """UsageError where files of somebody else have the names of a run's."""
    if folder.log.exists():
        return
    taken = [path for path in folder.files_of(audits) if path.exists()]
    for path in folder.folders:
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            taken.append(path)
    if taken:
        raise UsageError(
            f"{folder.path} is not the folder of a run (it has no {folder.log.name}), but has "
            f"{', '.join(path.name for path in taken)}, which a run would overwrite; choose "
            "another --out, or move them away"
        )


def refuse_unwritable(folder: Path) -> None:
    """UsageError where a folder can neither be used nor made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"{folder} cannot be a folder: {place} is a file; choose another place")
    if not os.access(place, os.W_OK):
        raise UsageError(
            f"{folder} cannot be written: no permission for {place}; choose another place"
        )


def refuse_places(folders: Sequence[Path]) -> None:
    """UsageError for a run that is named twice, or where no page can be written."""
    for number, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise UsageError(f"{folder} is named twice; name each run once")
    for place in [*folders, folders[0].parent] if len(folders) > 1 else folders:
        refuse_unwritable(place)


# What the processes of a run settle before it starts: its lanes, and that they mean one run.

MOST_SHOWN = 5


def lanes_of_run(recipe: Recipe, folder: RunFolder, events: Sequence[Event], world: int) -> int:
    """The lanes that a run has, or will have; UsageError where so many processes cannot share them.

    `auto` is what the run was begun with, and at first one lane for each process.
    """
    begun = next((e.settings.get("lanes", 1) for e in events if isinstance(e, RunEvent)), 0)
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


def refuse_disagreement(job: Job, corpus: Corpus) -> None:
    """UsageError where the processes mean different runs; nothing has been started by then."""
    recipe, schedule = job.recipe, job.schedule
    packages = {k: v for k, v in versions(recipe.packages).items() if k != "system"}
    mine = {
        "recipe": _flat(parse(resolved(recipe).to_yaml()).value),
        "data": {
            name: replace(corpus, datasets={name: dataset}, watched={}).fingerprint()[:12]
            for name, dataset in corpus.scored.items()
        },
        "packages": packages,
        "folder": {
            "--out": str(job.folder.path.resolve()),
            "schedule": schedule and str(schedule),
            "lanes": job.lanes,
        },
    }
    first, *others = job.ranks.gather("recipe, data and packages", mine)
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
