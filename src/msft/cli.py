"""The command line: parse, call, print, exit code."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence

from msft import __version__, commands
from msft.signals import Stopped, stop_on_signals

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
        if options.debug:
            raise
        return _reported(error)
    return DONE


def _reported(error: Exception) -> int:
    """Say what went wrong, once, and choose the exit code by its kind."""
    kind = type(error).__name__
    message = str(error).strip() or kind
    print(f"msft: {message}", file=sys.stderr)
    if kind == "NoRoom":
        return NO_ROOM
    if kind in ("RecipeError", "DataError", "Diverged", "UsageError"):
        return WRONG
    if kind not in ("LogError", "StoreError", "BadScore", "NotANumber", "NotReproducible"):
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
        "--show", type=int, default=0, metavar="N", help="show N rows as the model sees them"
    )

    plan = add(commands.plan, "plan", "what a run will cost, before any training")
    _recipe(plan)

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

    report = add(commands.report, "report", "rebuild report.html from logs alone")
    report.add_argument("folders", nargs="+", metavar="DIR", help="run folders")

    replay = add(commands.replay, "replay", "train a found schedule in one straight run")
    replay.add_argument("schedule", help="a schedule.json")
    _recipe(replay)
    replay.add_argument("--out", help="run folder (default: runs/replay)")
    replay.add_argument("--quiet", action="store_true", help="no progress, only the result")

    add(commands.env, "env", "versions and devices, for bug reports")
    return parser


class _Adder:
    """Adds commands to a parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(metavar="COMMAND", dest="command")

    def __call__(
        self, run: Callable[[argparse.Namespace], None], name: str, summary: str
    ) -> argparse.ArgumentParser:
        said = summary[0].upper() + summary[1:] + "."
        parser = self._commands.add_parser(name, help=summary, description=said)
        parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS)
        parser.set_defaults(run=run)
        return parser


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
