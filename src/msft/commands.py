"""What each command does. Heavy imports stay inside, so that `msft --help` answers at once."""

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.folder import RunFolder, UsageError, refuse_unwritable, write_json

if TYPE_CHECKING:
    from msft.recipe import Recipe


def demo(options: argparse.Namespace) -> None:
    """SFT and mSFT on the embedded mixture, then the comparison."""
    from msft.demo import run_demo

    run_demo(Path(options.out), options.seed)


def init(options: argparse.Namespace) -> None:
    """Write a commented recipe."""
    from msft.template import RECIPE

    path = Path(options.file)
    if path.exists():
        raise UsageError(f"{path} exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")
    path.write_text(RECIPE)
    print(f"wrote {path}; next: msft validate {path} --show 2")


def validate(options: argparse.Namespace) -> None:
    """Read recipe and data; no weights are loaded."""
    from msft.corpus import load_corpus
    from msft.engine.tokenizers import load_context, load_tokenizer
    from msft.metrics import own_metric
    from msft.validation import shown_rows, validation_text

    recipe = _recipe(options)
    for note in recipe.notes:
        print(f"note: {note}")
    tokenizer = load_tokenizer(recipe.model(), recipe.trust_remote_code)
    context = load_context(recipe.model(), recipe.trust_remote_code)
    corpus = load_corpus(recipe, tokenizer, context)
    for spec in recipe.datasets:
        if ":" in spec.metric:
            own_metric(spec.metric)
    print(validation_text(recipe, corpus))
    if options.show > 0:
        print(shown_rows(corpus, tokenizer, options.show))


def plan(options: argparse.Namespace) -> None:
    """What a run will cost."""
    from msft.corpus import load_corpus
    from msft.engine.models import count_parameters
    from msft.engine.tokenizers import load_context, load_tokenizer
    from msft.plan import plan_text

    recipe = _recipe(options)
    tokenizer = load_tokenizer(recipe.model(), recipe.trust_remote_code)
    context = load_context(recipe.model(), recipe.trust_remote_code)
    size = count_parameters(recipe.model(), recipe.trust_remote_code)
    print(plan_text(recipe, load_corpus(recipe, tokenizer, context), size))


def train(options: argparse.Namespace) -> None:
    """Train, or go on."""
    _train(options, None, options.out)


def replay(options: argparse.Namespace) -> None:
    """Train a found schedule."""
    _train(options, options.schedule, options.out or "runs/replay")


def _train(options: argparse.Namespace, schedule: str | None, out: str | None) -> None:
    from msft.engine.session import run_folder, train
    from msft.progress import progress
    from msft.validation import result_text

    recipe = _recipe(options)
    for note in recipe.notes:
        _say(f"note: {note}", options.quiet)
    folder = run_folder(recipe, out)
    title = f"{'replay' if schedule else recipe.method} on {recipe.model_name_or_path}"
    finished = folder.is_finished()
    with progress(title, options.quiet or finished) as shown:
        result = train(
            recipe,
            folder.path,
            shown,
            lambda text: _say(f"note: {text}", options.quiet),
            schedule,
        )
    if finished:
        print(f"{folder.path} is finished already; this is its result")
    print(result_text(result.summary, recipe.report_split))
    print(f"model {result.best}\nreport {folder.report}")


def evaluate(options: argparse.Namespace) -> None:
    """Score a model on a recipe's sub-datasets."""
    from msft.engine.assembly import load_evaluator
    from msft.scoreboard import answer_lines, scoreboard

    recipe = _recipe(options)
    if options.out and options.out == options.answers:
        raise UsageError(f"--out and --answers are both {options.out}; give two names")
    for path in (options.out, options.answers):
        if path:
            if Path(path).is_dir():
                raise UsageError(f"{path} is a folder; expected the name of a file")
            refuse_unwritable(Path(path).parent)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    evaluator, groups = load_evaluator(
        recipe, options.model, options.split, lambda text: _say(f"note: {text}", options.quiet)
    )
    answers = evaluator.answered(list(groups), options.split, early=not options.answers)
    scored = evaluator.scored(answers)
    board = scoreboard(answers, scored.scores, groups, recipe.mean)
    print(board.text())
    if options.out:
        content = {"model": options.model, "split": options.split, **board.content()}
        write_json(Path(options.out), {**content, "tokens": scored.tokens})
    if options.answers:
        with Path(options.answers).open("w", encoding="utf-8") as file:
            for line in answer_lines(answers):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def report(options: argparse.Namespace) -> None:
    """Rebuild reports from logs."""
    from msft.report import write_comparison, write_report

    folders = [Path(folder) for folder in options.folders]
    for folder in folders:
        if not RunFolder(folder).log.exists():
            raise UsageError(f"{folder} is not a run folder: it has no run.jsonl")
        print(write_report(folder))
    if len(folders) > 1:
        print(write_comparison(folders, folders[0].parent / "report.html"))


def env(options: argparse.Namespace) -> None:
    """Versions and devices."""
    print(f"python {platform.python_version()} on {platform.platform()}")
    for package in ("msft", "torch", "transformers", "accelerate", "datasets", "safetensors"):
        print(f"{package} {_version(package)}")
    import torch

    print(f"cpu threads {torch.get_num_threads()}")
    if not torch.cuda.is_available():
        print("no cuda device")
    for number in range(torch.cuda.device_count()):
        device: Any = torch.cuda.get_device_properties(number)
        print(f"cuda:{number} {device.name}, {device.total_memory / 2**30:.0f} GiB")


def _recipe(options: argparse.Namespace) -> "Recipe":
    """The recipe with what the command line says about it."""
    from msft.recipe import load_recipe

    overrides = list(options.set)
    if options.data is not None:
        if not options.data.strip():
            raise UsageError("--data is empty; expected a folder with a folder of each benchmark")
        overrides.append(f"data_dir={json.dumps(str(Path(options.data).resolve()))}")
    return load_recipe(options.recipe, overrides)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr)
