"""The screen: prints what commands say, in lines that fit it."""

import sys
from pathlib import Path

from msft.layout import WIDTH, fitted, screen_width


def width() -> int:
    """Columns for results: those of the terminal, and 80 in a file or a pipe."""
    return screen_width(sys.stdout) or WIDTH


def show(text: str) -> None:
    """Print a result. Tables in it fit already; sentences are wrapped."""
    print(fitted(text, width()))


def show_paths(*paths: Path | str) -> None:
    """Print paths, each on a line of its own and never broken, so that they can be copied."""
    print(*paths, sep="\n")


def show_path(name: str, path: Path | str) -> None:
    """Print a path with its name before it, or above it if both do not fit on a line."""
    line = f"{name} {path}"
    print(line if len(line) <= width() else f"{name}\n{path}")


def say(text: str, quiet: bool = False) -> None:
    """Tell a person something on stderr: wrapped on a terminal, one line for a program."""
    if not quiet:
        print(fitted(text, screen_width(sys.stderr)), file=sys.stderr)
