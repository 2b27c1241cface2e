"""What commands have in common: the recipe with their options, and output as JSON."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.app.terminal.guard import unguarded
from msft.app.terminal.screen import say
from msft.errors import UsageError

if TYPE_CHECKING:
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
    return lambda text: say(f"note: {text}", options.quiet)


def aside(json_only: bool) -> AbstractContextManager[Any]:
    """With --json, what is printed on the way goes to stderr."""
    return redirect_stdout(sys.stderr) if json_only else nullcontext()


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False), file=unguarded(sys.stdout))
