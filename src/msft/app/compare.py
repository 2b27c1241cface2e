"""`msft compare`: methods × seeds of one recipe; what is missing is run, then all is compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.app.admission import refuse_unwritable
from msft.app.jobs import Job, Say, carry_out, exit_in_words
from msft.app.models import models_named
from msft.app.places import places_named
from msft.app.planned_runs import Planned, planned, seeds_of
from msft.app.shared_training import is_lent, remove_shared, shared_places, side_by_side
from msft.app.terminal.screen import show, show_paths, width
from msft.errors import RunsFailed, UsageError
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.log import is_being_written
from msft.search.methods import METHODS
from msft.system_errors import explaining

if TYPE_CHECKING:
    from msft.report.compare.compared_run import FolderRuns


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
    from msft.app.older_folders import groups_by_recipe
    from msft.report.compare.compared_run import runs_in
    from msft.report.figure_files import formats_of
    from msft.text import counted

    source, out = Path(recipe), Path(out)
    loaded = load_recipe(source, overrides)
    formats = () if figures is None else formats_of(figures)
    named = models_named(models)
    asked = planned(source, overrides, methods, seeds_of(seeds, loaded), out, named)
    whatever = not run and methods is None and seeds is None and models is None
    failed = _run(asked, out, devices, quiet, say) if run else {}
    folders = folders_in(out) if whatever else [each.folder.path for each in asked]
    found = runs_in(folders, groups_by_recipe)
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
        content = _tables(found, [] if whatever else found.empty, loaded, out, formats, shown)
    if wrong:
        raise RunsFailed("\n".join(wrong))
    return content


def _failures(failed: dict[str, int], out: Path) -> str:
    """Each run with how it ended, and where it says why, if that was not shown."""
    logs = {name: out / f"{name}.log" for name in failed}
    return "".join(
        f"\n  {name}: {exit_in_words(code)}"
        + (f", see {logs[name]}" if logs[name].exists() else "")
        for name, code in failed.items()
    )


def commands(
    recipe: str | Path,
    out: str | Path,
    *,
    methods: str | Sequence[str] | None = None,
    seeds: str | Sequence[int] | None = None,
    models: str | Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    say: Say = lambda text: None,
) -> dict[str, tuple[str, ...]]:
    """The command of every run that `compare` with the same arguments would start, by its name.

    They need nothing of each other. A run that another process is training is left out.
    """
    source, out = Path(recipe), Path(out)
    seen = seeds_of(seeds, load_recipe(source, overrides))
    asked = planned(source, overrides, methods, seen, out, models_named(models))
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
    """What is not done; what is wrong is refused before anything starts."""
    from msft.app.admission import refuse_changed, refuse_untrainable
    from msft.app.train import load_data

    refuse_unwritable(out)
    waiting = [each for each in asked if not each.is_done]
    for each in waiting:
        refuse_untrainable(each.recipe)
    for each in asked:
        refuse_changed(each.recipe, each.folder)
    for each in asked:
        if each not in waiting:
            say(f"{each.name}: finished already")
    first_of = {each.recipe.model_name_or_path: each.recipe for each in reversed(waiting)}
    for recipe in first_of.values():
        load_data(recipe)  # wrong rows and models come up now, once, and not in every run
    return waiting


def _run(
    asked: Sequence[Planned],
    out: Path,
    devices: str | Sequence[str | int] | None,
    quiet: bool,
    say: Say,
) -> dict[str, int]:
    """Run what is not done; the exit codes of what failed."""
    named = [] if devices is None else places_named(devices)  # wrong ones come up at once
    waiting = _missing(asked, out, say)
    if not waiting:
        return {}
    places = shared_places({each.name: each.recipe for each in asked}, out)

    def tidy() -> None:
        """What all have that need it is removed."""
        for place in {*places.values()}:
            if all(each.is_done for each in asked if places.get(each.name) == place):
                remove_shared(place)

    by_name = {each.name: each for each in waiting}
    order = side_by_side([*by_name], places)
    jobs: list[Job] = []
    for name in order:
        place = places.get(name)
        alone = sum(places.get(other) == place for other in order) == 1
        useful = place is not None and (place.exists() or not alone)
        jobs.append(by_name[name].job(quiet, place if useful else None))
    return carry_out(jobs, named or places_named(None), say, quiet, tidy, is_lent)


def _tables(
    found: "FolderRuns",
    missing: Sequence[str],
    recipe: Recipe,
    out: Path,
    formats: Sequence[str],
    shown: bool,
) -> dict[str, Any]:
    """Write them, show them if asked to, and return what they say."""
    from msft.report.compare.model_contests import model_contests
    from msft.report.comparison_page import comparison_of, content_of, text_of, write_files
    from msft.report.figure_files import write_comparison_figures

    if not found.runs:
        raise UsageError(
            f"none of the runs is in {out}; expected folders such as {out / 'msft-s20'} (without "
            "--no-run they are made)"
        )
    contests = model_contests(found.runs, recipe.report_split, missing, found.unreadable)
    comparison = comparison_of(contests)
    paths = write_files(comparison, out)
    drawn = write_comparison_figures(comparison, out, formats) if formats else []
    if shown:
        show(text_of(comparison, width()))
        show_paths(*paths, *dict.fromkeys(path.parent for path in drawn))
    return {**content_of(comparison), "files": [str(path) for path in (*paths, *drawn)]}


def folders_in(out: Path) -> list[Path]:
    """What has the name of a run's folder, in the order of the methods and seeds: in this folder,
    then in those of models."""
    inside = sorted(out.iterdir()) if out.is_dir() else []
    models = [each for each in inside if each.is_dir() and not each.name.startswith(".")]
    return [each for place in (out, *models) for each in _runs_in(place)]


def _runs_in(out: Path) -> list[Path]:
    order = list(METHODS)
    found: list[tuple[int, str, int, Path]] = []
    for folder in out.iterdir() if out.is_dir() else ():
        name, mark, seed = folder.name.rpartition("-s")
        if mark and seed.isascii() and seed.isdigit():
            method = name.partition("+")[0]
            place = order.index(method) if method in order else len(order)
            found.append((place, name, int(seed), folder))
    return [folder for *_, folder in sorted(found)]
