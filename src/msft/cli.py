"""The command line: parse, call, print, exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from traceback import print_exception
from typing import Any

from msft import __version__
from msft.app import commands
from msft.app.jobs import stop_on_signals
from msft.errors import Stopped

DONE, FAILED, WRONG, NO_ROOM, STOPPED = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code as the contract has them."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return WRONG
    if "" not in sys.path:
        sys.path.insert(0, "")  # methods and metrics of the user's own, as with `python -m msft`
    try:
        with stop_on_signals():
            options.run(options)
    except BrokenPipeError:
        return DONE
    except (Stopped, KeyboardInterrupt) as error:
        again = shlex.join(["msft", *(sys.argv[1:] if arguments is None else arguments)])
        by = str(error) or "SIGINT"
        print(f"stopped by {by}; nothing is lost. To go on: {again}", file=sys.stderr)
        return STOPPED
    except Exception as error:
        return _reported(error, options.debug)
    finally:
        if arguments is None and getattr(options, "json", False):
            sys.stdout.flush()
            sys.stdout = sys.stderr  # for libraries that say something as the process ends
    return DONE


def _reported(error: Exception, debug: bool) -> int:
    """Say what went wrong, once, and choose the exit code by its kind."""
    kind = type(error).__name__
    if debug:
        print_exception(error)
    message = str(error).strip() or kind
    print(f"msft: {message}", file=sys.stderr)
    if kind == "NoRoom":
        return NO_ROOM
    if kind in ("RecipeError", "DataError", "Diverged", "UsageError"):
        return WRONG
    said = ("LogError", "StoreError", "BadScore", "NotANumber", "NotReproducible", "RunsFailed")
    if kind not in said and not debug:
        print("(a traceback comes with --debug)", file=sys.stderr)
    return FAILED


def build_parser() -> argparse.ArgumentParser:
    """All commands with their help; nothing heavy is imported."""
    parser = argparse.ArgumentParser(
        prog="msft",
        description="Fine-tune a language model on several datasets at once, each for as long as "
        "it still improves. Start with `msft demo`, then `msft init recipe.yaml`.",
        epilog="Exit codes: 0 done, 1 error, 2 wrong usage, recipe or data, 3 no room, 4 stopped.",
    )
    parser.add_argument("--version", action="version", version=f"msft {__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback on errors")
    parser.set_defaults(command=None)
    add = _Adder(parser)

    demo = add(commands.demo, "demo", "SFT and mSFT on an embedded mixture, in two minutes")
    demo.add_argument("--out", default="msft-demo", help="folder of both runs (%(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="another mixture and order (%(default)s)")

    init = add(commands.init, "init", "write a commented recipe to start from")
    init.add_argument("file", nargs="?", default="recipe.yaml", help="default: %(default)s")

    validate = add(commands.validate, "validate", "read recipe and data, say what is there")
    _recipe(validate)
    validate.add_argument(
        "--show", type=_count, default=0, metavar="N", help="show N rows as the model sees them"
    )

    plan = add(commands.plan, "plan", "what a run will cost, before any training")
    _recipe(plan)
    plan.add_argument("--out", help="run folder, whose disk must hold it (default: as train has)")
    plan.add_argument(
        "--no-calibration",
        action="store_true",
        help="do not try the model out for ten seconds, so no time is forecast",
    )

    train = add(commands.train, "train", "train; the same command on the same folder resumes")
    _recipe(train)
    train.add_argument("--out", help="run folder (default: the recipe's output_dir)")
    train.add_argument("--quiet", action="store_true", help="no progress, only the result")

    evaluate = add(commands.evaluate, "eval", "score any model on a recipe's sub-datasets")
    evaluate.add_argument("model", help="model folder, hub name, .gguf, smollm2-135m or tiny")
    _recipe(evaluate)
    evaluate.add_argument(
        "--split", default="test", choices=["validation", "test"], help="default: %(default)s"
    )
    evaluate.add_argument("--out", help="write the scores and intervals as JSON to this file")
    evaluate.add_argument("--answers", help="write every prompt, answer and verdict as JSONL")
    evaluate.add_argument("--quiet", action="store_true", help="no notes, only the scores")

    compare = add(commands.compare, "compare", "run methods and seeds, then the paper's tables")
    _recipe(compare)
    compare.add_argument(
        "--methods", metavar="A,B,…", help="e.g. sft,msft (default: all seven built-in ones)"
    )
    compare.add_argument("--seeds", metavar="N,M,…", help="e.g. 20,30 (default: the recipe's)")
    compare.add_argument(
        "--out", required=True, help="folder of the runs (METHOD-sSEED) and of compare.html"
    )
    compare.add_argument(
        "--no-run", action="store_true", help="start nothing: tables of what is there"
    )
    compare.add_argument("--quiet", action="store_true", help="no progress, only the tables")

    report = add(commands.report, "report", "rebuild report.html from logs alone")
    report.add_argument("folders", nargs="+", metavar="DIR", help="run folders")
    report.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=5.0,
        metavar="SECONDS",
        help="build it anew while the run goes on, whenever there is something new (every 5 s)",
    )
    report.add_argument(
        "--figures",
        metavar="FORMATS",
        help="also write every figure as a file into DIR/figures: svg, png, pdf, or e.g. svg,pdf",
    )

    replay = add(commands.replay, "replay", "train a found schedule in one straight run")
    replay.add_argument("schedule", help="a schedule.json")
    _recipe(replay)
    replay.add_argument("--out", help="run folder (default: runs/replay)")
    replay.add_argument("--quiet", action="store_true", help="no progress, only the result")

    analyze = add(commands.analyze, "analyze", "the paper's analyses that need runs of their own")
    kinds = analyze.add_subparsers(metavar="ANALYSIS", dest="analysis", required=True)
    for name, summary in (
        ("divergence", "how far peaks move when the first sub-dataset to overfit leaves (Fig. 3)"),
        ("budget", "accuracy and FLOPs of mSFT over its compute budget C (Fig. 6)"),
        ("size", "gain of mSFT over SFT on the first n sub-datasets (Fig. 5)"),
    ):
        kind = kinds.add_parser(name, help=summary, description=f"{_sentence(summary)}")
        _recipe(kind)
        kind.add_argument("--out", help=f"folder of the runs and the result (runs/{name})")
        kind.add_argument("--quiet", action="store_true", help="no progress, only the result")
        kind.add_argument("--debug", action="store_true", default=argparse.SUPPRESS)
        _json(kind)
        if name == "budget":
            kind.add_argument(
                "--budgets",
                type=_numbers(float),
                default=[1.0, 2.0, 3.0],
                metavar="C,…",
                help="epochs of a roll-out, e.g. 1,2,3 (the default)",
            )
        if name == "size":
            kind.add_argument(
                "--sizes",
                type=_numbers(int),
                required=True,
                metavar="N,…",
                help="how many sub-datasets, in recipe order, e.g. 5,10",
            )

    env = add(commands.env, "env", "versions and devices, for bug reports")
    for each in (validate, plan, train, evaluate, replay, env):
        _json(each)
    return parser


class _Adder:
    """Adds commands to a parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(metavar="COMMAND", dest="command")

    def __call__(
        self, run: Callable[[argparse.Namespace], None], name: str, summary: str
    ) -> argparse.ArgumentParser:
        parser = self._commands.add_parser(name, help=summary, description=_sentence(summary))
        parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS)
        parser.set_defaults(run=run)
        return parser


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _numbers(kind: type[int] | type[float]) -> Callable[[str], list[Any]]:
    """Numbers between commas, each once."""

    def parsed(text: str) -> list[Any]:
        try:
            numbers = [kind(word) for word in text.split(",")]
        except ValueError:
            numbers = []
        if not numbers or len(set(numbers)) < len(numbers) or not all(n > 0 for n in numbers):
            what = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(
                f"{text!r}; expected {what} above 0 between commas, each once, such as 1,2,3"
            )
        return numbers

    return parsed


def _count(text: str) -> int:
    """How many rows; 0 is none."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number, 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    """A time between two looks."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not 0.1 to 86400 seconds; DIR comes first")
    return seconds


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document on stdout and nothing else there; the rest goes to stderr",
    )


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe.yaml")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="a folder with a folder of each benchmark (train.jsonl, validation.jsonl, test.jsonl) "
        "instead of the hub",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the recipe, e.g. --set seed=30 --set method_options.patience=4",
    )


if __name__ == "__main__":
    sys.exit(main())
