"""The Python interface: `msft.train`, `msft.audit`, `msft.plan` and the others. Each does what the
command of that name does, and returns what it found as Python objects."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.app.evaluation import evaluation
from msft.app.terminal.progress import Called, Progress, ShownAudit, ShownRun
from msft.errors import UsageError, explaining
from msft.observers.observer import Observer
from msft.planning.admission import (
    refuse_absent,
    refuse_no_packages,
    refuse_no_rows,
    refuse_untrainable,
    refuse_unwritable,
    run_folder,
)
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import RunFolder
from msft.run.log import Event
from msft.search.curves import SELECTION, TEST
from msft.text import shown

if TYPE_CHECKING:
    from msft.app.audit import AuditResult
    from msft.engine.model.tokenizers import Rows
    from msft.planning.admission import EngineSource
    from msft.run.result import Result

AnyRecipe = Recipe | Path | str
"""A recipe, or where its file is."""


@explaining()
def train(
    recipe: AnyRecipe,
    out: Path | str | None = None,
    *,
    quiet: bool = False,
    progress: Progress | Callable[[Event], Any] | None = None,
    notice: Callable[[str], None] | None = None,
    schedule: Path | str | None = None,
    engine: "EngineSource | None" = None,
    datasets: Mapping[str, Any] | None = None,
) -> "Result":
    """Train a recipe, or go on with it: the same call on the same folder resumes.

    Args:
        recipe: a `Recipe`, or the path of its file.
        out: the run folder; by default the recipe's `output_dir`.
        quiet: show nothing. Without it a live table is shown on a terminal, and plain lines in a
            notebook, a file or a pipe.
        progress: a function that is called with every event as it happens, instead of the table; or
            an object with `event(event, live)` and `step(step)`.
        notice: is told what a person should know before training starts; by default it is printed
            to stderr.
        schedule: a `schedule.json` to train in one straight run, instead of the recipe's method.
        engine: an engine of your own, instead of the one that the recipe names; see
            `msft.run.engine`.
        datasets: rows in place of the recipe's files: `{"mine": {"train": rows, "test": rows}}`.
            Rows are dicts, or a `datasets.Dataset`. A resume with other rows is refused.

    Returns:
        `summary` (the content of `summary.json`), `best` (the folder of the model), `schedule`
        and `folder`.
    """
    from msft import training

    recipe = _loaded(recipe)
    folder = run_folder(recipe, out).path
    how: dict[str, Any] = {"schedule": schedule, "engine": engine, "datasets": datasets}
    how["notice"] = notice or printed(quiet)
    watching: list[Observer] = [] if quiet else [shown_run(recipe, schedule)]
    if progress is not None:
        told: Progress = progress if isinstance(progress, Progress) else Called(progress)
        watching = [ShownRun(progress=told)]
    return training.train(recipe, folder, watching, **how)


@explaining()
def audit(
    recipe: AnyRecipe,
    out: Path | str | None = None,
    *,
    rounds: int = 2,
    quiet: bool = False,
    notice: Callable[[str], None] | None = None,
    datasets: Mapping[str, Any] | None = None,
) -> "AuditResult":
    """Find the sub-datasets and the training rows that spoil the model, or go on with it: the same
    call on the same folder resumes.

    Args:
        recipe: a `Recipe`, or the path of its file.
        out: the folder of the audit; by default `audit` in the recipe's `output_dir`.
        rounds: at most so many; the judges of a later round train without suspects.
        quiet: show nothing.
        notice: is told what a person should know before training starts; by default it is printed
            to stderr.
        datasets: rows in place of the recipe's files, as for `train`.

    Returns:
        `content` (what `audit.json` has), `spoiled` (names), `folder`, and two files in it:
        `suspects`, the rows to look at, and `clean`, the recipe without them.
    """
    from msft.app import audit as auditing

    shown = [] if quiet else [ShownAudit()]
    tell = notice or printed(quiet)
    return auditing.audit(_loaded(recipe), out, rounds, shown, tell, datasets)


@explaining()
def evaluate(
    model: Path | str,
    recipe: AnyRecipe,
    *,
    split: str = "test",
    answers: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Score a model on a recipe's sub-datasets.

    Args:
        model: a model folder, a hub name, a `.gguf` file, `smollm2-135m` or `tiny`.
        recipe: a `Recipe`, or the path of its file.
        split: `test` or `validation`.
        answers: also return every prompt, answer and verdict.
        quiet: print no notes.

    Returns:
        What `msft eval --json` prints; with `answers`, also a list under that name.
    """
    if split not in (TEST, SELECTION):
        raise UsageError(f"split is {shown(split)}; expected {TEST} or {SELECTION}")
    recipe = _loaded(recipe)
    refuse_absent(recipe, str(model))
    refuse_no_rows(recipe, split)
    found = evaluation(recipe, str(model), split, answers, printed(quiet))
    return {**found.content, "answers": found.lines()} if answers else found.content


@explaining()
def plan(
    recipe: AnyRecipe,
    out: Path | str | None = None,
    *,
    calibrate: bool = True,
    devices: int | None = None,
) -> dict[str, Any]:
    """What a run will cost, before any training.

    Args:
        recipe: a `Recipe`, or the path of its file.
        out: the run folder, whose disk must hold the checkpoints.
        calibrate: try the model out for ten seconds, so that a time can be forecast.
        devices: compute also what the run would cost on so many GPUs.

    Returns:
        What `msft plan --json` prints: steps, tokens, FLOPs, memory, disk, seconds.
    """
    recipe = _loaded(recipe)
    folder = run_folder(recipe, out).path
    refuse_unwritable(folder)
    refuse_no_packages(recipe)
    refuse_absent(recipe, recipe.model())
    from msft.planning.calibration import SECONDS
    from msft.planning.forecast import forecast

    return forecast(recipe, folder, SECONDS if calibrate else 0, devices)


@explaining()
def validate(recipe: AnyRecipe, *, show: int = 0) -> dict[str, Any]:
    """Read a recipe and its rows, without the weights of the model.

    Args:
        recipe: a `Recipe`, or the path of its file.
        show: so many rows of each sub-dataset as the model will see them, answers between ⟦ and ⟧.

    Returns:
        What `msft validate --json` prints: rows, tokens, steps of an epoch, and notes.
    """
    from msft.app.terminal.validate import validation_content

    recipe = _loaded(recipe)
    rows = validated_rows(recipe)
    return validation_content(recipe, rows.corpus, rows.tokenizer, show)


def validated_rows(recipe: Recipe) -> "Rows":
    """The rows of a recipe in tokens, and what is wrong with the recipe refused."""
    refuse_untrainable(recipe)
    from msft.engine.model.tokenizers import load_rows

    rows = load_rows(recipe)
    if recipe.use_peft:
        from msft.engine.model.shape import shape_for

        shape_for(recipe, len(rows.tokenizer))
    return rows


@explaining()
def merge(source: Path | str, out: Path | str) -> Path:
    """Write an adapter and its base as one model, which transformers loads without peft.

    Args:
        source: the folder of a run with `use_peft: true`, or of an adapter.
        out: a new folder.

    Returns:
        The folder of the model.
    """
    from msft.app import merge as merging

    out = Path(out)
    refuse_unwritable(out.parent)
    merging.merge(RunFolder(Path(source)).path, out)
    return out


@explaining()
def write_report(folder: Path | str) -> Path:
    """Write the report of a run or an audit anew, from its logs; also while it goes on.

    Args:
        folder: the folder of the run.

    Returns:
        The path of `report.html`.
    """
    from msft import report

    files = RunFolder(Path(folder))
    if not files.log.exists():
        raise UsageError(f"{folder} is not a run folder: it has no run.jsonl")
    return report.write_report(files.path)


def shown_run(recipe: Recipe, schedule: Path | str | None) -> ShownRun:
    """The observer that shows the progress of a run."""
    title = f"{'replay' if schedule else recipe.method} on {recipe.model_name_or_path}"
    return ShownRun(title, [spec.name for spec in recipe.datasets if spec.keep])


def _loaded(recipe: AnyRecipe) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load_recipe(recipe)


def printed(quiet: bool) -> Callable[[str], None]:
    """The default receiver of notes, which prints them to stderr."""
    return (lambda text: None) if quiet else (lambda text: print(f"note: {text}", file=sys.stderr))
