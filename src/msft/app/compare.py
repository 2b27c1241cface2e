"""`msft compare`: methods × seeds × models of one recipe; what is missing is run, then compared.

The file has, in this order: which runs share their first roll-out, the runs that a comparison asks
for, the comparison itself, and the tables that it writes.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.app.jobs import Job, Say, carry_out, device_slots, exit_in_words
from msft.app.terminal.screen import show, show_paths, width
from msft.app.variants import (
    MODEL,
    listed_words,
    model_folder,
    models_named,
    refuse_twice,
    variants_of,
)
from msft.errors import OptionError, RecipeError, RunsFailed, UsageError, explaining
from msft.planning.admission import refuse_unwritable
from msft.recipe.recipe import Recipe, load_recipe, recipe_keys
from msft.run.folder import RunFolder
from msft.run.log import is_being_written
from msft.run.sharing import SharedRollout
from msft.search.methods import METHODS, ROLLING_BACK

SHARED = ".shared"
"""The folder in a comparison's, while runs that share something are not done."""

_IGNORED = (
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


def rollout_digest(recipe: Recipe) -> str | None:
    """A digest of all that the first roll-out of a run depends on; None where it shares none.

    Methods that roll back are apart from the others: on a GPU their kernels may be others. A
    method of the user's own always trains by itself, and so does one with patience, or with an
    optimizer that goes on after a rollback.
    """
    method = recipe.prepared
    how = method.rollout_options
    if recipe.method not in METHODS or how.patience is not None or how.on_rollback == "restore":
        return None
    if recipe.early_stopping_patience is not None:  # it may be shorter than was asked for
        return None
    if recipe.validation_loss:  # a run that takes over does not measure it
        return None
    first = recipe.first_rollout
    if first is None or not first.plain:
        return None
    ignored = _IGNORED if recipe.method in ROLLING_BACK else (*_IGNORED, "compute_budget")
    told = [(key, getattr(recipe, key)) for key in recipe_keys() if key not in ignored]
    by = recipe.peaks.get("by", "score")
    return sha256(repr((first.ticks, by, told)).encode()).hexdigest()[:12]


def shared_folders(recipes: Mapping[str, Recipe], out: Path) -> dict[str, Path]:
    """The folder of each run that may share its first roll-out with another one."""
    digests = {name: rollout_digest(recipe) for name, recipe in recipes.items()}
    asked = [*digests.values()]
    return {
        name: out / SHARED / digest
        for name, digest in digests.items()
        if digest is not None and asked.count(digest) > 1
    }


def grouped_by_rollout(names: Sequence[str], places: Mapping[str, Path]) -> list[str]:
    """The names in an order in which runs that share a roll-out follow each other, so that few
    roll-outs lie on disk at a time."""
    groups: dict[Path | str, list[str]] = {}
    for name in names:
        groups.setdefault(places.get(name, name), []).append(name)
    return [name for group in groups.values() for name in group]


def has_rollout(place: Path) -> bool:
    """Whether this folder has a first roll-out that other runs can begin with."""
    return SharedRollout(place, RunFolder(place)).found() is not None


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
    seeds: str | Sequence[int] | None,
    out: Path,
    models: str | Sequence[str] | None = None,
) -> list[Planned]:
    """Every run of the comparison, asked for as in `compare`; a recipe that a method cannot have is
    refused here."""
    given = load_recipe(source, overrides)
    numbers, named_models = seeds_of(seeds, given), models_named(models)
    variants = variants_of(methods)
    runs: list[Planned] = []
    for model, variant, seed in product(named_models or (None,), variants, numbers):
        named = () if model is None else (f"{MODEL}={json.dumps(model)}",)
        if named and MODEL in variant.settings:
            raise UsageError(f"{variant} has a model of its own; name all of them with --models")
        try:
            more = (*named, *variant.overrides(given), f"seed={seed}", "push_to_hub=false")
            recipe = load_recipe(source, (*overrides, *more))
        except (OptionError, RecipeError) as error:
            raise RecipeError(f"with method {variant}: {error}", error.place) from error
        name = variant.folder_name(seed)
        name = name if model is None else f"{model_folder(model)}/{name}"
        runs.append(Planned(RunFolder(out / name), recipe, source, (*overrides, *more), name))
    return runs


def seeds_of(seeds: str | Sequence[int] | None, recipe: Recipe) -> list[int]:
    """`20,30` as numbers; the recipe's seed by default."""
    if seeds is None:
        return [recipe.seed]
    given = seeds if isinstance(seeds, str) else [*map(str, seeds)]
    words = listed_words(given, "--seeds", "20,30")
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(f"--seeds has {wrong[0]!r}; expected whole numbers such as 20,30")
    numbers = [int(word) for word in words]
    refuse_twice(numbers, "--seeds")
    return numbers


if TYPE_CHECKING:
    from msft.report.compare.runs import FolderRuns


@explaining()
def compare(
    recipe: str | Path,
    out: str | Path,
    *,
    methods: str | Sequence[str] | None = None,
    seeds: str | Sequence[int] | None = None,
    models: str | Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    figures: str | Sequence[str] | None = None,
    run: bool = True,
    devices: str | Sequence[str | int] | None = None,
    quiet: bool = False,
    say: Say = lambda text: None,
    shown: bool = True,
) -> dict[str, Any]:
    """Run what is missing in `out`, then write the tables there and print them. Returns what they
    say: `headline`, `remarks`, `warnings`, `runs`, the `cells` of all tables, and `files`.

    recipe: the recipe file.
    methods: names such as "sft,msft", or a list of them (default: all methods).
    seeds: numbers such as "20,30", or a list of them (default: the recipe's seed).
    models: base models, each in a folder of its own (default: the recipe's model, in `out` itself).
    run: False starts no run. Without methods, seeds and models it compares all runs in `out`.
    devices: where runs go on beside each other: CUDA devices such as "0,1,2", or "cpu,cpu"
        (default: every CUDA device if there are several).
    overrides: `key=value`, as with --set.
    figures: formats in which every figure is written too, into `out/figures`.
    quiet: the runs print nothing.
    say: is told which run starts and ends.
    shown: whether the tables are printed.
    """
    from msft.report.compare.runs import runs_in
    from msft.report.page import formats_of
    from msft.text import counted

    source, out = Path(recipe), Path(out)
    loaded = load_recipe(source, overrides)
    formats = () if figures is None else formats_of(figures)
    asked = planned(source, overrides, methods, seeds, out, models)
    compares_all = not run and methods is None and seeds is None and models is None
    failed = _run(asked, out, devices, quiet, say) if run else {}
    folders = run_folders_in(out) if compares_all else [each.folder.path for each in asked]
    found = runs_in(folders)
    wrong: list[str] = []
    if failed:
        wrong.append(
            f"{len(failed)} of {len(asked)} runs failed:{_failures(failed, out)}\nthe same command "
            "tries them again and skips the others"
        )
    if found.unreadable:
        reasons = [f"\n  {name}: {why}" for name, why in found.unreadable.items()]
        wrong.append(f"{counted(len(reasons), 'run')} cannot be read:{''.join(reasons)}")
    content: dict[str, Any] = {}
    if not wrong or any(each.history.ended for each in found.runs):
        content = _tables(found, [] if compares_all else found.empty, loaded, out, formats, shown)
    if wrong:
        raise RunsFailed("\n".join(wrong))
    return content


def _failures(failed: dict[str, int], out: Path) -> str:
    """A line for each failed run: its exit code, and the file of an output that was hidden."""
    logs = {name: out / f"{name}.log" for name in failed}
    return "".join(
        f"\n  {name}: {exit_in_words(code)}"
        + (f", see {logs[name]}" if logs[name].exists() else "")
        for name, code in failed.items()
    )


def missing_commands(asked: Sequence[Planned], out: Path, say: Say) -> dict[str, tuple[str, ...]]:
    """The command of every run that `compare` would start, by its name.

    They need nothing of each other. A run that another process is training is left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    for each in _missing(asked, out, say):
        if is_being_written(each.folder.log):
            say(f"{each.name}: is being trained")
        else:
            found[each.name] = each.job(quiet=False, shared=None).command
    if not found:
        say("nothing is missing; without --list the tables are made")
    return found


def _missing(asked: Sequence[Planned], out: Path, say: Say) -> list[Planned]:
    """The runs that are not done; wrong rows, models and places are refused before any starts."""
    from msft.engine.model.tokenizers import load_rows
    from msft.planning.admission import refuse_changed, refuse_untrainable

    refuse_unwritable(out)
    waiting = [each for each in asked if not each.is_done]
    for each in waiting:
        refuse_untrainable(each.recipe)
    for each in asked:
        refuse_changed(each.recipe, each.folder)
    for each in asked:
        if each not in waiting:
            say(f"{each.name}: finished already")
    first_of = {_rows_key(each.recipe): each.recipe for each in reversed(waiting)}
    for recipe in first_of.values():
        load_rows(recipe)  # wrong rows and models come up now, once, and not in every run
    return waiting


def _rows_key(recipe: Recipe) -> tuple[str, str | None]:
    """The recipe's keys that decide which rows a variant has, and their tokens."""
    return recipe.model_name_or_path, recipe.exclude_rows


def _run(
    asked: Sequence[Planned],
    out: Path,
    devices: str | Sequence[str | int] | None,
    quiet: bool,
    say: Say,
) -> dict[str, int]:
    """Run what is not done; the exit codes of what failed."""
    named = [] if devices is None else device_slots(devices)  # wrong ones come up at once
    waiting = _missing(asked, out, say)
    if not waiting:
        return {}
    places = shared_folders({each.name: each.recipe for each in asked}, out)

    def tidy() -> None:
        """Remove a shared roll-out once all runs that need it are done."""
        for place in {*places.values()}:
            if all(each.is_done for each in asked if places.get(each.name) == place):
                shutil.rmtree(place, ignore_errors=True)
                if place.parent.is_dir() and not any(place.parent.iterdir()):
                    place.parent.rmdir()

    by_name = {each.name: each for each in waiting}
    order = grouped_by_rollout([*by_name], places)
    jobs: list[Job] = []
    for name in order:
        place = places.get(name)
        alone = sum(places.get(other) == place for other in order) == 1
        useful = place is not None and (place.exists() or not alone)
        jobs.append(by_name[name].job(quiet, place if useful else None))
    return carry_out(jobs, named or device_slots(None), say, quiet, tidy, has_rollout)


def _tables(
    found: "FolderRuns",
    missing: Sequence[str],
    recipe: Recipe,
    out: Path,
    formats: Sequence[str],
    shown: bool,
) -> dict[str, Any]:
    """Write them, show them if asked to, and return what they say."""
    from msft.report.compare.comparison import model_comparisons
    from msft.report.comparison_page import (
        content_of,
        report_of,
        text_of,
        write_comparison_figures,
        write_files,
    )

    if not found.runs:
        raise UsageError(
            f"none of the runs is in {out}; expected folders such as {out / 'msft-s20'} (without "
            "--no-run they are made)"
        )
    comparisons = model_comparisons(found.runs, recipe.report_split, missing, found.unreadable)
    report = report_of(comparisons)
    paths = write_files(report, out)
    drawn = write_comparison_figures(report, out, formats) if formats else []
    if shown:
        show(text_of(report, width()))
        show_paths(*paths, *dict.fromkeys(path.parent for path in drawn))
    return {**content_of(report), "files": [str(path) for path in (*paths, *drawn)]}


def run_folders_in(out: Path) -> list[Path]:
    """Folders with the name of a run, in the order of methods and seeds: in this folder, then in
    those of models."""
    inside = sorted(out.iterdir()) if out.is_dir() else []
    models = [each for each in inside if each.is_dir() and not each.name.startswith(".")]
    return [each for place in (out, *models) for each in _runs_below(place)]


def _runs_below(out: Path) -> list[Path]:
    order = list(METHODS)
    found: list[tuple[int, str, int, Path]] = []
    for folder in out.iterdir() if out.is_dir() else ():
        name, mark, seed = folder.name.rpartition("-s")
        if mark and seed.isascii() and seed.isdigit():
            method = name.partition("+")[0]
            place = order.index(method) if method in order else len(order)
            found.append((place, name, int(seed), folder))
    return [folder for *_, folder in sorted(found)]
