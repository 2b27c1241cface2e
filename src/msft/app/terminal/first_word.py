"""The first word: says on a terminal that a command has begun, before libraries are loaded."""

import argparse
import os
import sys

from msft.layout import fitted, screen_width
from msft.stopping import IS_JOB

_LOADING = "loading libraries takes some seconds …"
_RECIPE = f"reading recipe and data; {_LOADING}"
_WORDS = {
    "demo": f"three short runs on an embedded model; {_LOADING}",
    "validate": "reading recipe and data …",
    "plan": _RECIPE,
    "train": _RECIPE,
    "eval": _RECIPE,
    "compare": _RECIPE,
    "replay": _RECIPE,
    "report": "reading the logs …",
    "analyze": _LOADING,
    "env": _LOADING,
}
"""What each command begins with; `init` is done at once."""


def say_first(options: argparse.Namespace) -> None:
    """Say it on stderr. A program that reads stderr finds there what went wrong and nothing else,
    so it is said on a terminal only; and not with --quiet, with --json, or as another's job."""
    quiet = getattr(options, "quiet", False) or getattr(options, "json", False)
    word = _WORDS.get(options.command)
    if word and not quiet and IS_JOB not in os.environ and sys.stderr.isatty():
        said = fitted(f"msft {options.command}: {word}", screen_width(sys.stderr))
        print(said, file=sys.stderr, flush=True)
