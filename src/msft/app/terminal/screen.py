"""The screen: prints what commands say in lines that fit it. Whatever is printed, by us or by a
library, moves no cursor and shows no credentials."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from msft import process
from msft.text import WIDTH, cut, fitted, masked, plain, screen_width

KEPT = "\n\t\r"
"""Control characters that may pass; a progress bar needs the last one."""


class GuardedStream:
    """A text stream that lets through what is safe on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(plain(masked(text), keep=KEPT))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "writelines":  # would go around the guard
            return lambda lines: self.write("".join(lines))
        return getattr(self.unguarded, name)


def guard_streams() -> None:
    """Guard what this process prints from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, GuardedStream(stream))


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for JSON and for tables that draw with escapes of their own."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream


def width() -> int:
    """Columns for results: those of the terminal, and 80 in a file or a pipe."""
    return screen_width(sys.stdout) or WIDTH


def show(text: str) -> None:
    """Print a result. Tables in it fit already; sentences are wrapped."""
    print(fitted(text, width()))


def show_paths(*paths: Path | str) -> None:
    """Print paths, each on a line of its own and never broken, so that they can be copied."""
    for path in paths:
        print(path)


def show_path(name: str, path: Path | str) -> None:
    """Print a path with its name before it, or above it if both do not fit on a line."""
    line = f"{name} {path}"
    print(line if len(line) <= width() else f"{name}\n{path}")


def say(text: str, quiet: bool = False) -> None:
    """Tell a person something on stderr: wrapped on a terminal, one line for a program."""
    if not quiet:
        print(fitted(text, screen_width(sys.stderr)), file=sys.stderr)


def print_json(content: Mapping[str, Any]) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False), file=unguarded(sys.stdout))


def emit(
    options: argparse.Namespace,
    content: Mapping[str, Any],
    text: Callable[[int], str],
    paths: Sequence[Path] = (),
) -> None:
    """Print what a command found: with --json for a program, else in words that fit the screen, and
    the paths of the files that it wrote."""
    if options.json:
        print_json(content)
        return
    show(text(width()))
    show_paths(*paths)


class ProgressLine:
    """A line that is written over, a few times a second; nothing of it stays."""

    def __init__(self, stream: TextIO, between: float | None = None) -> None:
        """between: seconds between two states of the line (default: `BETWEEN`)."""
        self._stream, self._shown, self._last = stream, 0, 0.0
        self._between = between

    def __call__(self, text: str) -> None:
        now = monotonic()
        if text and now - self._last < (BETWEEN if self._between is None else self._between):
            return
        self._last = now if text else 0.0
        line = cut(text, (screen_width(self._stream) or WIDTH) - 1)
        if line or self._shown:
            end = "" if line else "\r"
            print(f"\r{line:<{self._shown}}", end=end, file=self._stream, flush=True)
        self._shown = len(line)


BETWEEN = 0.2
"""Seconds between two states of a progress line."""
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
    "chat": "loading libraries and models takes some seconds …",
    "env": _LOADING,
}
"""What each command begins with; `init` is done at once."""


def say_first(options: argparse.Namespace) -> None:
    """Say it on stderr. A program that reads stderr finds there what went wrong and nothing else,
    so it is said on a terminal only; and not with --quiet, with --json, or as another's job."""
    quiet = getattr(options, "quiet", False) or getattr(options, "json", False)
    word = _WORDS.get(options.command)
    process.progress = None
    if word and not quiet and process.IS_JOB not in os.environ and sys.stderr.isatty():
        process.progress = ProgressLine(sys.stderr)
        said = fitted(f"msft {options.command}: {word}", screen_width(sys.stderr))
        print(said, file=sys.stderr, flush=True)
