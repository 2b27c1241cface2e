"""`msft compare`: methods × seeds of one recipe; what is missing is run, then all is compared."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.app.admission import refuse_unwritable
from msft.app.jobs import Job, carry_out, devices, exit_in_words
from msft.errors import RecipeError, RunsFailed, UsageError
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import RunFolder
from msft.search.methods import METHODS, SHARED_OPTIONS

if TYPE_CHECKING:
    from msft.report.compare.compared_run import FolderRuns

Say = Callable[[str], None]


def compare(
    source: Path,
    overrides: Sequence[str],
    methods: str | None,
    seeds: str | None,
    out: Path,
    run: bool,
    quiet: bool,
    say: Say,
) -> None:
    """Run what is missing in `out`, then write the tables there and print them.

    methods, seeds: as on the command line; by default all methods, and the recipe's seed. Without
        `run` nothing is started, and by default everything that is there is compared.
    """
    from msft.app.older_folders import groups_by_recipe
    from msft.report.compare.compared_run import runs_in
    from msft.text import counted

    recipe = load_recipe(source, overrides)
    asked = planned(source, overrides, methods_of(methods), seeds_of(seeds, recipe), out)
    whatever = not run and methods is None and seeds is None
    failed = _run(asked, out, quiet, say) if run else {}
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
    if not wrong or any(each.history.ended for each in found.runs):
        _show_tables(found, [] if whatever else found.empty, recipe, out)
    if wrong:
        raise RunsFailed("\n".join(wrong))


def _failures(failed: dict[str, int], out: Path) -> str:
    """Each run with how it ended, and where it says why, if that was not shown."""
    logs = {name: out / f"{name}.log" for name in failed}
    return "".join(
        f"\n  {name}: {exit_in_words(code)}"
        + (f", see {logs[name]}" if logs[name].exists() else "")
        for name, code in failed.items()
    )


def _run(asked: Sequence["Planned"], out: Path, quiet: bool, say: Say) -> dict[str, int]:
    """Refuse what is wrong before anything starts, then run what is not done."""
    from msft.app.admission import refuse_changed, refuse_untrainable
    from msft.app.train import load_data

    refuse_unwritable(out)
    waiting = [each for each in asked if not each.is_done]
    if waiting:
        refuse_untrainable(waiting[0].recipe)
    for each in asked:
        refuse_changed(each.recipe, each.folder)
    for each in asked:
        if each not in waiting:
            say(f"{each.name}: finished already")
    if not waiting:
        return {}
    load_data(waiting[0].recipe)  # wrong rows come up now, once, and not in every run
    return carry_out([each.job(quiet) for each in waiting], devices(), say, quiet)


def _show_tables(found: "FolderRuns", missing: Sequence[str], recipe: Recipe, out: Path) -> None:
    from msft.report.compare.contest import contest_of
    from msft.report.comparison_page import contest_text, write_contest

    if not found.runs:
        raise UsageError(
            f"none of the runs is in {out}; expected folders such as {out / 'msft-s20'} (without "
            "--no-run they are made)"
        )
    contest = contest_of(found.runs, recipe.report_split, missing, found.unreadable)
    paths = write_contest(contest, out)
    width = max(79, shutil.get_terminal_size((79, 24)).columns - 1)
    print(contest_text(contest, width), *paths, sep="\n")


@dataclass(frozen=True, slots=True)
class Planned:
    """One run: its folder, its recipe, and what makes it from the recipe file."""

    folder: RunFolder
    recipe: Recipe
    source: Path
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def is_done(self) -> bool:
        """Finished, and its result is written: the report is the last of it."""
        return self.folder.is_finished() and self.folder.report.exists()

    def job(self, quiet: bool) -> Job:
        """The command that runs it, or goes on with it; its output, where it is not shown, goes
        beside its folder."""
        sets = [word for override in self.overrides for word in ("--set", override)]
        out = ["--out", str(self.folder.path), *(["--quiet"] if quiet else [])]
        command = (sys.executable, "-m", "msft", "train", str(self.source), *out, *sets)
        return Job(self.name, command, self.folder.path.with_name(f"{self.name}.log"))


def planned(
    source: Path, overrides: Sequence[str], methods: Sequence[str], seeds: Sequence[int], out: Path
) -> list[Planned]:
    """Every run of the comparison; a recipe that a method cannot have is refused here."""
    given = load_recipe(source, overrides)
    runs: list[Planned] = []
    for method in methods:
        for seed in seeds:
            options = json.dumps(options_of(method, given))
            more = (f"method={json.dumps(method)}", f"method_options={options}", f"seed={seed}")
            try:
                recipe = load_recipe(source, (*overrides, *more))
            except RecipeError as error:
                raise RecipeError(f"with method {method}: {error}", error.place) from error
            folder = RunFolder(out / f"{method.replace(':', '.')}-s{seed}")
            runs.append(Planned(folder, recipe, source, (*overrides, *more)))
    return runs


def options_of(method: str, recipe: Recipe) -> dict[str, Any]:
    """The options of a method in a comparison.

    The recipe's own method has all of the recipe's. Another one has those that mean the same for
    it (how roll-outs are done, what remains of excluded sub-datasets); its own are those of
    `options_by_method`, else their defaults.
    """
    own = recipe.options_of(method)
    if method == recipe.method:
        return own
    known = SHARED_OPTIONS.get(method, () if method in METHODS else SHARED_OPTIONS["msft"])
    shared = {key: value for key, value in recipe.method_options.items() if key in known}
    return {**shared, **own}


def methods_of(text: str | None) -> list[str]:
    """`sft,msft` as names; all the built-in ones by default."""
    return list(METHODS) if text is None else _listed(text, "--methods", "sft,msft")


def seeds_of(text: str | None, recipe: Recipe) -> list[int]:
    """`20,30` as numbers; the recipe's seed by default."""
    if text is None:
        return [recipe.seed]
    words = _listed(text, "--seeds", "20,30")
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(f"--seeds has {wrong[0]!r}; expected whole numbers such as 20,30")
    seeds = [int(word) for word in words]
    _refuse_twice(seeds, "--seeds")
    return seeds


def _listed(text: str, option: str, example: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} is {text!r}; expected names between commas, such as {example}")
    _refuse_twice(words, option)
    return words


def _refuse_twice(words: Sequence[object], option: str) -> None:
    twice = [word for number, word in enumerate(words) if word in words[:number]]
    if twice:
        raise UsageError(f"{option} has {twice[0]} twice; name it once")


def folders_in(out: Path) -> list[Path]:
    """What has the name of a run's folder, in the order of the methods and seeds."""
    order = list(METHODS)
    found: list[tuple[int, str, int, Path]] = []
    for folder in out.iterdir() if out.is_dir() else ():
        method, mark, seed = folder.name.rpartition("-s")
        if mark and seed.isascii() and seed.isdigit():
            place = order.index(method) if method in order else len(order)
            found.append((place, method, int(seed), folder))
    return [folder for *_, folder in sorted(found)]
