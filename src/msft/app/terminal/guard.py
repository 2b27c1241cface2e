"""The guard of the terminal: whatever is printed, by us or by a library, moves no cursor and shows
no credentials."""

import sys
from typing import Any, TextIO

from msft.text import masked, plain

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
