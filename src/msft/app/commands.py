"""One function a command: it reads the options, calls the work, prints the result. Imports that
take long stand in the functions, behind all that can be refused without them."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft import process
from msft.app.terminal.screen import emit, print_json, say, show, show_path, show_paths, width
from msft.errors import LogError, UsageError
from msft.planning.admission import refuse_places, refuse_unwritable
from msft.run.folder import RunFolder, read_history, write_json

if TYPE_CHECKING:
    from msft.observers.observer import Observer
    from msft.planning.admission import Notice
    from msft.ranks import Ranks
    from msft.recipe.recipe import Recipe


def recipe_of(options: argparse.Namespace) -> "Recipe":
    """The recipe with what the command line says about it."""
    from msft.recipe.recipe import load_recipe

    return load_recipe(options.recipe, overrides_of(options))


def overrides_of(options: argparse.Namespace) -> list[str]:
    overrides = list(options.set)
    if options.data is not None:
        if not options.data.strip():
            raise UsageError("--data is empty; expected a folder with a folder of each benchmark")
        overrides.append(f"data_dir={json.dumps(str(Path(options.data).resolve()))}")
    return overrides


def noting(options: argparse.Namespace) -> Callable[[str], None]:
    """Tells a person what should be known; nobody, with --quiet."""
    return (lambda text: None) if options.quiet else (lambda text: say(f"note: {text}"))


def stdout_to_stderr(json_only: bool) -> AbstractContextManager[Any]:
    """With --json, everything printed before the document goes to stderr."""
    return redirect_stdout(sys.stderr) if json_only else nullcontext()


def _met(options: argparse.Namespace) -> "tuple[Ranks, Recipe, Notice]":
    """The processes of a run, its recipe, and who is told notes; those of the recipe are told. Only
    rank 0 prints."""
    from msft.recipe.recipe import load_recipe
    from msft.training import meet

    file, overrides = options.recipe, overrides_of(options)
    options.quiet = options.quiet or process.rank() > 0
    tell = noting(options)
    ranks, recipe = meet(lambda: load_recipe(file, overrides))
    for note in recipe.notes:
        tell(note)
    return ranks, recipe, tell


def demo(options: argparse.Namespace) -> None:
    """SFT, an average and mSFT on the embedded mixture, then the comparison."""
    from msft.app.demo import run_demo

    run_demo(Path(options.out), options.seed)


def init(options: argparse.Namespace) -> None:
    """Write a commented recipe and example rows, or a recipe from another tool's config."""
    from msft.app.starter import write_import, write_starter

    if options.source is not None:
        show(write_import(Path(options.source), Path(options.file)))
    else:
        show(write_starter(Path(options.file)))


def validate(options: argparse.Namespace) -> None:
    """Read recipe and data; no weights are loaded."""
    from msft.app.interface import validated_rows
    from msft.app.terminal.validate import shown_rows, validation_content, validation_text

    recipe = recipe_of(options)
    with stdout_to_stderr(options.json):
        for note in recipe.notes:
            show(f"note: {note}")
        rows = validated_rows(recipe)
    tokenizer, corpus = rows.tokenizer, rows.corpus
    if options.json:
        print_json(validation_content(recipe, corpus, tokenizer, options.show))
        return
    show(validation_text(recipe, corpus, width()))
    if options.show > 0:
        print(shown_rows(corpus, tokenizer, options.show, width()))


def plan(options: argparse.Namespace) -> None:
    """What a run will cost, or those of a comparison, before any training."""
    if options.side_by_side is not None:
        _plan_side_by_side(options)
        return
    for name in ("methods", "seeds", "models"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} goes with --side-by-side; one run has those of its recipe")
    from msft.app.interface import plan
    from msft.app.terminal.plan import plan_text

    recipe, calibrate = recipe_of(options), not options.no_calibration
    with stdout_to_stderr(options.json):
        content = plan(recipe, options.out, calibrate=calibrate, devices=options.devices)
    emit(options, content, lambda width: plan_text(content, width))


def _plan_side_by_side(options: argparse.Namespace) -> None:
    from msft.app.compare import planned
    from msft.planning.admission import refuse_absent, refuse_no_packages

    overrides, out = overrides_of(options), Path(options.out or "runs/compare")
    asked = (options.methods, options.seeds, out, options.models)
    runs = planned(Path(options.recipe), overrides, *asked)
    recipes = {run.name: run.recipe for run in runs}
    named = {(each.model_name_or_path, each.exclude_rows): each for each in recipes.values()}
    for recipe in named.values():
        refuse_no_packages(recipe)
        refuse_absent(recipe, recipe.model())
    from msft.app.terminal.plan import side_by_side_text
    from msft.planning.calibration import SECONDS
    from msft.planning.forecast import side_by_side

    with stdout_to_stderr(options.json):
        trial = 0 if options.no_calibration else SECONDS
        content = side_by_side(recipes, options.side_by_side, trial)
    emit(options, content, lambda width: side_by_side_text(content, width))


def audit(options: argparse.Namespace) -> None:
    """Find the sub-datasets and rows that spoil the model, or go on with it."""
    from msft.app.audit import audit
    from msft.app.terminal.progress import ShownAudit

    with stdout_to_stderr(options.json):
        ranks, recipe, tell = _met(options)
        shown = [] if options.quiet else [ShownAudit()]
        found = audit(recipe, options.out, options.rounds, shown, tell, ranks=ranks)
    if ranks.rank:
        return
    if options.json:
        print_json({**found.content, "folder": str(found.folder)})
        return
    if found.was_finished:
        show(f"{found.folder} is finished already; this is its result")
    _show_audit(found.folder)
    show_path("report", RunFolder(found.folder).report)


def _show_audit(folder: Path) -> None:
    from msft.app.terminal.audit import audit_text
    from msft.report.audit_page import read_audit

    show(audit_text(read_audit(folder), folder, width()))


def train(options: argparse.Namespace) -> None:
    """Train, or go on."""
    if options.audit:
        _train_audited(options)
    else:
        _train(options, None, options.out)


def _train_audited(options: argparse.Namespace) -> None:
    from msft.app.audit import train_audited
    from msft.app.interface import shown_run
    from msft.app.terminal.progress import ShownAudit
    from msft.app.terminal.results import choice_text

    def shown(what: str, recipe: "Recipe") -> "list[Observer]":
        if options.quiet:
            return []
        return [ShownAudit()] if what == "audit" else [shown_run(recipe, None)]

    with stdout_to_stderr(options.json):
        ranks, recipe, tell = _met(options)
        speak = (lambda text: None) if options.quiet else say
        found = train_audited(recipe, options.out, shown=shown, say=speak, notice=tell, ranks=ranks)
    if ranks.rank:
        return
    if options.json:
        print_json({**found.content, "folder": str(found.best.parent), "model": str(found.best)})
        return
    _show_audit(found.audit.folder)
    show(choice_text(found.content, width()))
    show_path("model", found.best)
    for run in found.runs.values():
        show_path("report", run.folder / "report.html")


def replay(options: argparse.Namespace) -> None:
    """Train a found schedule."""
    _train(options, options.schedule, options.out or "runs/replay")


def _train(options: argparse.Namespace, schedule: str | None, out: str | None) -> None:
    from msft.app.interface import shown_run
    from msft.app.terminal.results import result_text
    from msft.training import train

    with stdout_to_stderr(options.json):
        ranks, recipe, tell = _met(options)
        shown = [] if options.quiet else [shown_run(recipe, schedule)]
        shared = getattr(options, "shared", None)  # `msft replay` has none
        result = train(recipe, out, shown, tell, schedule, shared=shared, ranks=ranks)
    if ranks.rank:
        return
    folder = RunFolder(result.folder)
    if options.json:
        places = {"folder": folder.path, "model": result.best, "report": folder.report}
        print_json({**result.summary, **{key: str(path) for key, path in places.items()}})
        return
    if result.was_finished:
        show(f"{folder.path} is finished already; this is its result")
    history = read_history(folder.path)
    metrics = {name: history.unit_of(name) for name in history.start.datasets}
    show(result_text(result.summary, recipe.report_split, metrics, width()))
    show_path("model", result.best)
    show_path("report", folder.report)


def evaluate(options: argparse.Namespace) -> None:
    """Score a model on a recipe's sub-datasets."""
    from msft.planning.admission import refuse_absent, refuse_no_rows

    recipe = recipe_of(options)
    refuse_absent(recipe, options.model)
    if options.out and options.out == options.answers:
        raise UsageError(f"--out and --answers are both {options.out}; give two names")
    for path in (options.out, options.answers):
        if path:
            if Path(path).is_dir():
                raise UsageError(f"{path} is a folder; expected the name of a file")
            refuse_unwritable(Path(path).parent)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    refuse_no_rows(recipe, options.split)
    from msft.app.evaluation import evaluation

    with stdout_to_stderr(options.json):
        whole = bool(options.answers)
        found = evaluation(recipe, options.model, options.split, whole, noting(options))
    if options.out:
        write_json(Path(options.out), found.content)
    if options.answers:
        with Path(options.answers).open("w", encoding="utf-8") as file:
            for line in found.lines():
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    emit(options, found.content, found.text)


def compare(options: argparse.Namespace) -> None:
    """Run what is missing for methods and seeds, then the paper's tables."""
    from msft.app.compare import compare, missing_commands, planned
    from msft.app.jobs import shell_command

    idle = "--list" if options.list else "--no-run" if options.no_run else None
    useless = "--devices" if options.devices else "--figures" if options.figures else None
    if idle and useless and (options.list or options.devices):
        raise UsageError(
            f"{idle} starts nothing, so {useless} has no effect; leave one of them out"
        )
    overrides, out = overrides_of(options), Path(options.out)

    def tell(text: str) -> None:
        say(text, options.quiet)

    if options.list:
        with redirect_stdout(sys.stderr):
            named = (options.methods, options.seeds, out, options.models)
            runs = planned(Path(options.recipe), overrides, *named)
            missing = missing_commands(runs, out, tell)
        if options.json:
            print_json({"commands": missing})
            return
        for command in missing.values():
            print(shell_command(command))
        return
    content = compare(
        options.recipe,
        out,
        methods=options.methods,
        seeds=options.seeds,
        models=options.models,
        overrides=overrides,
        figures=options.figures,
        run=not options.no_run,
        devices=options.devices,
        quiet=options.quiet or options.json,  # the output of the runs goes to files then
        say=tell,
        shown=not options.json,
    )
    if options.json:
        print_json(content)


def report(options: argparse.Namespace) -> None:
    """Rebuild reports from logs."""
    from msft.report import write_comparison, write_report
    from msft.report.compare.runs import compared_runs, refuse_mixed_selection

    folders = [Path(folder) for folder in options.folders]
    formats = _figure_formats(options)
    refuse_places(folders)
    audits = [folder for folder in folders if RunFolder(folder).is_audit()]
    if audits and len(folders) > 1:
        raise UsageError(
            f"{audits[0]} is the folder of an audit, which is not compared with other folders; "
            "give `msft report` an audit by itself, and the runs without it"
        )
    if options.watch is not None:
        from msft.app.watch import watch

        watch(folders, options.watch)
        return
    for folder in folders:
        if not RunFolder(folder).log.exists() and folder not in audits:
            raise UsageError(f"{folder} is not a run folder: it has no run.jsonl")
    if len(folders) > 1:
        refuse_mixed_selection(compared_runs(folders))
    for folder in audits:
        if RunFolder(folder).audit.is_file():  # the audit has ended
            _show_audit(folder)
    for folder in folders:
        show_paths(write_report(folder))
    if len(folders) > 1:
        show_paths(write_comparison(folders, folders[0].parent / "report.html"))
    if formats:
        from msft.report.comparison_page import write_all_figures

        show_paths(*dict.fromkeys(path.parent for path in write_all_figures(folders, formats)))


def _figure_formats(options: argparse.Namespace) -> tuple[str, ...]:
    """The formats of `--figures`, none without it."""
    if options.figures is None:
        return ()
    from msft.report.page import formats_of

    if options.watch is not None:
        raise UsageError("--figures and --watch do not go together; write figures afterwards")
    return formats_of(options.figures)


def merge(options: argparse.Namespace) -> None:
    """A run's adapter and its base as one model."""
    from msft.app.merge import merge

    out = Path(options.out)
    refuse_unwritable(out.parent)
    run = RunFolder(Path(options.folder))
    merge(run.path, out)
    unfinished = False
    with suppress(LogError):  # a damaged log is no matter of the model
        unfinished = run.log.exists() and not run.is_finished()
    if unfinished:
        say(f"note: the run in {run.path} is not finished; this is the best that it has so far")
    show_path("model", out)


def chat(options: argparse.Namespace) -> None:
    """Ask a result, and its base beside it."""
    from msft.app.chat import ChatOptions, load_chat, resolved_names

    prompt = options.prompt
    if prompt is None and (sys.stdin is None or not sys.stdin.isatty()):
        try:
            prompt = sys.stdin.read().removesuffix("\n") if sys.stdin is not None else ""
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is no text: {error}; expected UTF-8") from error
    if prompt is None and options.json:
        raise UsageError("--json goes with a single prompt: give --prompt, or a text on stdin")
    if prompt is not None and not prompt.strip():
        raise UsageError(
            "the prompt is empty; expected a text in --prompt or on stdin (on a terminal, leave "
            "--prompt out to talk)"
        )
    how = ChatOptions(options.system, options.plain, options.max_new_tokens)
    named = resolved_names(options.model, not options.no_base, options.trust_remote_code)
    with stdout_to_stderr(True):
        loaded = load_chat(named, how, lambda text: say(f"note: {text}"))
    from msft.app.terminal.chat import answer, answers_content, converse

    if prompt is None:
        converse(loaded)
        return
    answers = loaded.ask(prompt)
    if not options.json:
        answer(answers)
        return
    for each in answers:
        each.write()
    print_json(answers_content(loaded, prompt, answers))


def analyze(options: argparse.Namespace) -> None:
    """Train what an analysis needs, then its table."""
    from msft.app import analyses
    from msft.app.variants import models_named

    if options.analysis in analyses.WITHOUT_RUNS:
        analyses.WITHOUT_RUNS[options.analysis](options)
        return
    recipe = recipe_of(options)
    out = Path(options.out or f"runs/{options.analysis}")
    refuse_unwritable(out)
    with stdout_to_stderr(options.json):
        for note in recipe.notes:
            say(f"note: {note}", options.quiet)
        run = analyses.runner(options.quiet)
        models = models_named(getattr(options, "models", None))
        recipes = analyses.with_models(recipe, models)
        match options.analysis:
            case "divergence" if models:
                found = analyses.shifts(recipes, out, run)
            case "divergence":
                found = analyses.divergence(recipe, out, run)
            case "budget" if models:
                found = analyses.budgets_on_models(recipes, out, run, options.budgets)
            case "budget":
                found = analyses.budgets(recipe, out, run, options.budgets)
            case _:
                found = analyses.sizes(recipe, out, run, options.sizes, options.methods)
        paths = found.write(out)
    files = {"folder": str(out), "files": [str(path) for path in paths]}
    emit(options, {**found.content, **files}, found.text, paths)


def env(options: argparse.Namespace) -> None:
    """Versions and devices."""
    from msft.app.terminal.env_text import env_content, env_text

    content = env_content()
    emit(options, content, lambda width: env_text(content))
