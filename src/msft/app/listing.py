"""`msft compare --list`: the commands of the runs that are missing, one a line."""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from msft.app.terminal.guard import unguarded
from msft.errors import UsageError


def refuse_useless(options: argparse.Namespace) -> None:
    """UsageError for an option that the others leave without an effect."""
    idle = "--list" if options.list else "--no-run" if options.no_run else None
    useless = "--devices" if options.devices else "--figures" if options.figures else None
    if idle and useless and (options.list or options.devices):
        raise UsageError(
            f"{idle} starts nothing, so {useless} has no effect; leave one of them out"
        )


def print_missing(recipe: str, out: str, asked: Mapping[str, Any], as_json: bool) -> None:
    """Print the commands for a shell, or by the names of their runs as JSON.

    asked: what `compare` is asked too.
    """
    from msft.app.compare import commands
    from msft.app.jobs import typed

    with redirect_stdout(sys.stderr):
        missing = commands(recipe, out, **asked)
    if as_json:
        print(json.dumps({"commands": missing}, indent=2), file=unguarded(sys.stdout))
        return
    for command in missing.values():
        print(typed(command))
