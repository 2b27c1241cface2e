"""The parser of the command line: its messages fit the screen; and the kinds of its values."""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any, NoReturn

from msft.errors import WRONG
from msft.layout import fitted, screen_width

MOST_DEVICES = 100_000


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


def count(text: str) -> int:
    """A number of rows, 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r}; expected a whole number, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """A number of devices, 1 or more."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_DEVICES):
        raise ArgumentTypeError(f"{text!r}; expected a whole number, 1 to {MOST_DEVICES:,}")
    return int(text)


def seconds(text: str) -> float:
    """The seconds between two looks."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 86400:
        raise ArgumentTypeError(f"{text!r} is not 0.1 to 86400 seconds; DIR comes first")
    return found
