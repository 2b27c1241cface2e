"""The command line: parse, call, print, exit code.

`msft.app.commands` does the work. It is imported only when a command is given, so that
`msft --help` answers at once.
"""

import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from shlex import quote
from traceback import print_exception
from typing import Any, NoReturn

from msft import __version__
from msft.errors import DONE, FAILED, STOPPED, WRONG, Explained, RankFailed, Stopped, explaining
from msft.files import expanded
from msft.own_code import in_words
from msft.process import catch_signals, farewell, said, signals_wait, stop_on_signals, take_rank
from msft.text import fitted, safe, screen_width


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (msft.errors has the codes)."""
    if arguments is None:
        catch_signals()
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_not_flags(rest, arguments or sys.argv[1:], options))
    if options.command is None:
        parser.print_help()
        return WRONG
    try:
        _expand(options)
    except Explained as error:
        return _reported(error, options.debug)
    take_rank(options.command, parser.error)
    if "" not in sys.path:
        sys.path.insert(0, "")  # methods and metrics of the user's own, as with `python -m msft`
    try:
        with stop_on_signals(), signals_wait(), explaining():
            from msft.app.terminal.screen import say_first

            say_first(options)
            from msft.app import commands

            getattr(commands, options.function)(options)
    except BrokenPipeError:
        return DONE
    except (Stopped, KeyboardInterrupt) as error:
        print(farewell(str(error) or "SIGINT", arguments), end="", file=sys.stderr, flush=True)
        said()
        return STOPPED
    except (Exception, SystemExit) as error:
        return _reported(error, options.debug)
    finally:
        if arguments is None and getattr(options, "json", False):
            sys.stdout.flush()
            sys.stdout = sys.stderr  # for libraries that say something as the process ends
    return DONE


def _not_flags(rest: Sequence[str], words: Sequence[str], options: Namespace) -> str:
    """The message for unknown flags: of one that is a key of the recipe, the `--set` in its place.

    words: the command line as it was given.
    """
    unknown = f"unrecognized arguments: {' '.join(rest)}"
    if not hasattr(options, "set"):
        return unknown
    from msft.recipe.recipe import set_for_flag

    instead, told = list[str](), list[str]()
    for flag in [word for word in rest if word.startswith("--")]:
        name, equals, value = flag.partition("=")
        behind = takewhile(
            lambda word: not word.startswith("-") or word[1:2].isdigit(),
            words[words.index(flag) + 1 :],
        )
        values = [value] if equals else [w for w in behind if not w.endswith((".yaml", ".yml"))]
        text = values[0] if len(values) == 1 else f"[{', '.join(values)}]" if values else ""
        key, answer = set_for_flag(name, text)
        instead += [f"--set {quote(key)}"] if key else []
        told += [f"{name}: {answer}"] if answer else []
    if instead:
        told.insert(0, f"a key of the recipe is no flag; write {' '.join(instead)}")
    return "; ".join(told) or unknown


_PLACES = (
    *("out", "answers", "model", "base", "file", "source", "recipe", "schedule"),
    *("folder", "folders"),
)
"""Arguments that are files or folders."""


def _expand(options: Namespace) -> None:
    """Put the home folder in place of `~` in files and folders, as shells do not in `--out=~/x`."""

    def at_home(given: str) -> str:
        return str(expanded(given)) if given.startswith("~") else given

    for name in _PLACES:
        given = getattr(options, name, None)
        if isinstance(given, list):
            setattr(options, name, [*map(at_home, given)])
        elif isinstance(given, str):
            setattr(options, name, at_home(given))


def _reported(error: BaseException, debug: bool) -> int:
    """Say what went wrong, once; the exit code is the error's own."""
    if isinstance(error, RankFailed) and error.said:
        return error.exit_code
    if debug:
        print_exception(error)
    text = safe(in_words(error))
    print(fitted(f"msft: {text}", screen_width(sys.stderr)), file=sys.stderr)
    if isinstance(error, Explained):
        return error.exit_code
    if not debug:
        print("(a traceback comes with --debug)", file=sys.stderr)
    return FAILED


def build_parser() -> ArgumentParser:
    """All commands with their help."""
    parser = Parser(
        prog="msft",
        description="Train one language model on several datasets, and know what each of them does "
        "to it. Start with `msft demo`, then `msft init`.",
        epilog="Exit codes: 0 done, 1 error, 2 wrong usage, recipe or data, 3 no room, 4 stopped.",
    )
    parser.add_argument("--version", action="version", version=f"msft {__version__}")
    traceback = "show a traceback on errors"
    parser.add_argument("--debug", action="store_true", help=traceback)
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name, (summary, add_arguments) in COMMANDS.items():
        how: dict[str, Any] = {"help": summary, "description": _sentence(summary)}
        how["epilog"] = f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
        command = commands.add_parser(name, **how, allow_abbrev=False)  # --seed is no --seeds
        command.add_argument("--debug", action="store_true", default=SUPPRESS, help=traceback)
        command.set_defaults(function=name)
        add_arguments(command)
    return parser


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="msft-demo", help="folder for the runs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="mixture and order (%(default)s)")


def _init(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="recipe.yaml", help="the recipe (%(default)s)")
    source = "make it from a config of Axolotl, LLaMA-Factory or TRL"
    parser.add_argument("--from", dest="source", metavar="CONFIG", help=source)


def _validate(parser: ArgumentParser) -> None:
    _recipe(parser)
    show = "show N rows of each sub-dataset as the model sees them"
    parser.add_argument("--show", type=count, default=0, metavar="N", help=show)
    _json(parser)


def _plan(parser: ArgumentParser) -> None:
    _recipe(parser)
    parser.add_argument("--out", help="run folder; its disk is checked (default: as for train)")
    uncalibrated = "do not load the model for a ten-second trial; gives no time"
    parser.add_argument("--no-calibration", action="store_true", help=uncalibrated)
    how = parser.add_mutually_exclusive_group()
    several = "also what it would cost on so many GPUs, computed for H200s"
    how.add_argument("--devices", type=positive, metavar="N", help=several)
    beside = "instead, what the runs of msft compare cost on so many devices, one run on each"
    how.add_argument("--side-by-side", type=positive, metavar="N", help=beside)
    which = "with --side-by-side: as for msft compare"
    for name in ("--methods", "--seeds", "--models"):
        parser.add_argument(name, metavar="A,B,…", help=which)
    _json(parser)


def _train(parser: ArgumentParser) -> None:
    _recipe(parser)
    parser.add_argument("--out", help="run folder (default: the recipe's output_dir)")
    parser.add_argument("--quiet", action="store_true", help="print only the result")
    audit = "audit the rows first, train with and without the suspects, choose by validation"
    parser.add_argument("--audit", action="store_true", help=audit)
    parser.add_argument("--shared", type=Path, help=SUPPRESS)  # of `msft compare`
    _json(parser)


def _audit(parser: ArgumentParser) -> None:
    _recipe(parser)
    parser.add_argument("--out", help="folder of the audit (default: OUTPUT_DIR/audit)")
    rounds = "at most so many; the judges of a later round train without suspects (%(default)s)"
    parser.add_argument("--rounds", type=count, default=2, metavar="N", help=rounds)
    parser.add_argument("--quiet", action="store_true", help="print only the findings")
    _json(parser)


def _evaluate(parser: ArgumentParser) -> None:
    parser.set_defaults(function="evaluate")
    parser.add_argument("model", help="model folder, hub name, .gguf file, smollm2-135m or tiny")
    _recipe(parser)
    splits, default = ["validation", "test"], "default: %(default)s"
    parser.add_argument("--split", default="test", choices=splits, help=default)
    parser.add_argument("--out", help="write the scores and intervals as JSON to this file")
    answers = "write every prompt, answer and verdict to this JSONL file"
    parser.add_argument("--answers", help=answers)
    parser.add_argument("--quiet", action="store_true", help="print only the scores")
    _json(parser)


def _compare(parser: ArgumentParser) -> None:
    _recipe(parser)
    methods = (
        "e.g. sft,msft (default: all eight). Brackets give one method its own options or "
        "settings: 'sft,sft[lr_scheduler_type=cosine],soup[of=last,k=4]'"
    )
    parser.add_argument("--methods", metavar="A,B,…", help=methods)
    parser.add_argument("--seeds", metavar="N,M,…", help="e.g. 20,30 (default: the recipe's)")
    models = "e.g. Qwen/Qwen2.5-0.5B,tiny; run everything on each (default: the recipe's)"
    parser.add_argument("--models", metavar="A,B,…", help=models)
    out = "folder for the runs (METHOD-sSEED or MODEL/METHOD-sSEED) and compare.html"
    parser.add_argument("--out", required=True, help=out)
    devices = "e.g. 0,1,2 or cpu,cpu: a run on each at a time (default: every CUDA device)"
    parser.add_argument("--devices", metavar="A,B,…", help=devices)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--no-run", action="store_true", help="start nothing: only the tables")
    lines = "start nothing: print a command a line for each run that is missing (SLURM, Ray, …)"
    instead.add_argument("--list", action="store_true", help=lines)
    _figures(parser, "OUT")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the tables")
    _json(parser)


def _report(parser: ArgumentParser) -> None:
    folders = "run folders; several are also compared"
    parser.add_argument("folders", nargs="+", metavar="DIR", help=folders)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=5.0,
        metavar="SECONDS",
        help="rebuild the report while the run goes on; looks every 5 s, or SECONDS",
    )
    _figures(parser, "DIR")


def _figures(parser: ArgumentParser, folder: str) -> None:
    files = f"also write every figure into {folder}/figures, e.g. svg or png,pdf"
    parser.add_argument("--figures", metavar="FORMATS", help=files)


def _replay(parser: ArgumentParser) -> None:
    parser.add_argument("schedule", help="a schedule.json, or a finished run")
    _recipe(parser)
    parser.add_argument("--out", help="run folder (default: runs/replay)")
    parser.add_argument("--quiet", action="store_true", help="print only the result")
    _json(parser)


def _merge(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="folder of a run with use_peft: true")
    parser.add_argument("--out", required=True, help="folder for the merged model; a new one")


def _chat(parser: ArgumentParser) -> None:
    parser.description = (
        "Talk to a result, with its base beside it. A run knows its base, and so does an adapter; "
        "another model talks alone. Lines are turns under the model's chat template; without one "
        "each is a prompt of its own. /new begins anew, Ctrl-C leaves an answer. A text on "
        "standard input is answered once, like --prompt."
    )
    model = "run folder, model or adapter folder, hub name, .gguf file, smollm2-135m or tiny"
    parser.add_argument("model", metavar="RUN|MODEL", help=model)
    once = "answer this and end; only the answers are printed"
    parser.add_argument("--prompt", metavar="TEXT", help=once)
    parser.add_argument("--no-base", action="store_true", help="let the result talk alone")
    system = "a system prompt, under a chat template that has a place for one"
    parser.add_argument("--system", metavar="TEXT", help=system)
    plain = (
        "no chat template: what you type is the whole prompt (by itself: as the run was trained)"
    )
    parser.add_argument("--plain", action=BooleanOptionalAction, help=plain)
    most = "the most tokens of an answer (%(default)s)"
    parser.add_argument("--max-new-tokens", type=positive, default=256, metavar="N", help=most)
    trust = "run code that comes with the model (a run: as its recipe says)"
    parser.add_argument("--trust-remote-code", action="store_true", help=trust)
    _json(parser)


def _analyze(parser: ArgumentParser) -> None:
    analyses = parser.add_subparsers(metavar="ANALYSIS", dest="analysis", required=True)
    for name, summary in ANALYSES.items():
        analysis = analyses.add_parser(name, help=summary, description=_sentence(summary))
        analysis.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)
        _json(analysis)
        match name:
            case "headroom":
                analysis.add_argument("folder", metavar="RUN", help="folder of a finished run")
            case "grid":
                shown = "peaks of SFT; training loss of mSFT beside SFT; copies on disk of mSFT"
                analysis.add_argument("kind", choices=["peaks", "loss", "disk"], help=shown)
                runs = "finished runs, or folders with runs in them, such as those of msft compare"
                analysis.add_argument("folders", nargs="+", metavar="DIR", help=runs)
                out = "folder for the figure (%(default)s)"
                analysis.add_argument("--out", default="runs/grid", help=out)
            case "compute":
                runs = "finished runs of sft and other methods; their costs scale the SFT row"
                analysis.add_argument("folders", nargs="*", metavar="RUN", help=runs)
                out = "folder for the result (%(default)s)"
                analysis.add_argument("--out", default="runs/compute", help=out)
            case "divergence" | "budget" | "size":
                _analysis_that_trains(analysis, name)


def _analysis_that_trains(parser: ArgumentParser, name: str) -> None:
    _recipe(parser)
    parser.add_argument("--out", help=f"folder for runs and result (runs/{name})")
    parser.add_argument("--quiet", action="store_true", help="print only the result")
    if name != "size":
        models = "run it on each of these models, and say their mean"
        parser.add_argument("--models", metavar="A,B,…", help=models)
    if name == "budget":
        budgets = parser.add_argument("--budgets", type=numbers(float), metavar="C,…")
        budgets.default = [1.0, 2.0, 3.0]
        budgets.help = "epochs of a roll-out, e.g. 1,2,3 (the default)"
    if name == "size":
        sizes = parser.add_argument("--sizes", type=numbers(int), metavar="N,…", required=True)
        sizes.help = "how many sub-datasets, in recipe order, e.g. 5,10"
        methods = "beside SFT, e.g. continual,ies,msft (default: msft)"
        parser.add_argument("--methods", default="msft", metavar="A,B,…", help=methods)


def _recipe(parser: ArgumentParser) -> None:
    parser.add_argument("recipe", help="the recipe, a YAML file")
    data = "read benchmarks from DIR/NAME/{train,validation,test}.jsonl, not from the hub"
    parser.add_argument("--data", metavar="DIR", help=data)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the recipe; repeatable: --set seed=30 --set peaks.smooth=1",
    )


def _json(parser: ArgumentParser) -> None:
    effect = "print one JSON document on stdout; everything else goes to stderr"
    parser.add_argument("--json", action="store_true", help=effect)


class Parser(ArgumentParser):
    """argparse wraps its help, but not what it says about a mistake."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        said = fitted(f"{self.prog}: error: {message}", screen_width(sys.stderr))
        self.exit(WRONG, f"{said}\n")


def numbers(kind: type[int] | type[float]) -> Callable[[str], list[Any]]:
    """A parser of numbers between commas, each once."""

    def parsed(text: str) -> list[Any]:
        try:
            found = [kind(word) for word in text.split(",")]
        except ValueError:
            found = []
        if not found or len(set(found)) < len(found) or not all(n > 0 for n in found):
            what = "whole numbers" if kind is int else "numbers"
            raise ArgumentTypeError(
                f"{text!r}; expected {what} above 0 between commas, each once, such as 1,2,3"
            )
        return found

    return parsed


def whole(least: int, most: float = float("inf")) -> Callable[[str], int]:
    """A parser of a whole number in this range."""
    end = f"{least} to {most:,}" if most < float("inf") else f"{least} or more"

    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ArgumentTypeError(f"{text!r}; expected a whole number, {end}")
        return int(text)

    return parsed


def seconds(text: str) -> float:
    """A parser of the seconds between two looks."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")  # which no range has
    if not 0.1 <= found <= 86400:
        raise ArgumentTypeError(f"{text!r} is not 0.1 to 86400 seconds; DIR comes first")
    return found


count, positive = whole(0), whole(1, 100_000)


COMMANDS: dict[str, tuple[str, Callable[[ArgumentParser], None]]] = {
    "demo": ("audit and train an embedded mixture with wrong labels, in two minutes", _demo),
    "init": ("write a commented recipe with example rows, ready to run", _init),
    "validate": ("check recipe and data, and show what is in them", _validate),
    "plan": ("forecast steps, FLOPs, memory, disk and time of a run", _plan),
    "audit": ("find sub-datasets with wrong answers, and the rows to look at", _audit),
    "train": ("train; run the same command again to resume", _train),
    "eval": ("score any model on a recipe's sub-datasets", _evaluate),
    "compare": ("train with several methods and seeds, and test the differences", _compare),
    "report": ("rebuild report.html from the logs of runs", _report),
    "replay": ("train the schedule that a search found, in one run", _replay),
    "chat": ("try a result beside its base: ask both, read both answers", _chat),
    "merge": ("write the adapter of a run and its base as one model folder", _merge),
    "analyze": ("run the paper's analyses, or measure headroom", _analyze),
    "env": ("print versions and devices, for bug reports", _json),
}
"""The help of each command, and the function that adds its arguments."""

EXAMPLES = {
    "init": "msft init recipe.yaml && msft train recipe.yaml --out example",
    "validate": "msft validate recipe.yaml --show 2",
    "plan": "msft plan recipe.yaml --set num_train_epochs=5",
    "audit": "msft audit recipe.yaml --out audit",
    "train": "msft train recipe.yaml --out run --set learning_rate=1e-4",
    "eval": "msft eval run/best recipe.yaml --split validation",
    "compare": "msft compare recipe.yaml --methods sft,msft --seeds 20,30,40 --out runs",
    "report": "msft report run --figures svg",
    "replay": "msft replay run recipe.yaml --out replayed",
    "chat": "msft chat run --prompt 'What is ice?'",
    "merge": "msft merge run --out merged",
}
"""A command line for the help of a command."""

ANALYSES = {
    "divergence": "how far peaks move when the first sub-dataset leaves (Fig. 3)",
    "budget": "accuracy and FLOPs of mSFT over its compute budget C (Fig. 6)",
    "size": "gain of methods over SFT on the first n sub-datasets (Fig. 5)",
    "compute": "OLMo 2's training compute and the share of SFT (Fig. 1); needs no runs",
    "homogeneous": "how other teams train: the paper's Table 1; needs no runs",
    "grid": "one figure with a panel of each finished run: peaks, loss or disk",
    "headroom": "what each sub-dataset would gain at its own peak, from the logs",
}

if __name__ == "__main__":
    sys.exit(main())
