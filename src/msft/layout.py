"""Layout of printed text: the width of a screen, lines that fit it, and tables."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import IO

WIDTH = 80
"""Columns of a file or a pipe."""
LEAST_WIDTH = 40
NARROW_NAMES = 20
"""Columns that names keep before a table puts some of its columns below the others."""
LONGEST_OPENING = 8
"""Characters of a first word such as `note:`; the lines below it begin where its text does."""


def screen_width(stream: IO[str] | None) -> int | None:
    """Columns behind a stream: `COLUMNS` where it is set, else the terminal's; None: no terminal.

    It is never less than 40.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return max(LEAST_WIDTH, int(given))
    try:
        if stream is None or not stream.isatty():
            return None
        return max(LEAST_WIDTH, os.get_terminal_size(stream.fileno()).columns or WIDTH)
    except (OSError, ValueError):  # closed, or not a file
        return None


def columns_of(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns_of_character(char) for char in text)


def _columns_of_character(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, longest: int) -> str:
    """A long text without its middle: names of one family often differ at the end."""
    shown, room = text, longest
    while columns_of(shown) > longest:
        end = (room - 1) // 2
        shown = f"{text[: room - 1 - end]}…{text[-end:] if end else ''}"
        room -= 1
    return shown


def fitted(text: str, width: int | None) -> str:
    """Text whose long lines go on below, broken between words; without a width as it is.

    A word that is longer than a line stands alone on one, unbroken, so that a path can be copied.
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    if columns_of(line) <= width:
        return [line]
    words = line.lstrip(" ").split(" ")
    start = " " * (len(line) - len(line.lstrip(" ")))
    is_opening = words[0].endswith(":") and len(words[0]) <= LONGEST_OPENING
    below = start + " " * (len(words[0]) + 1 if is_opening else 2)
    return flowed(words, width, first=start, below=below)


def flowed(
    pieces: Iterable[str], width: int, between: str = " ", first: str = "", below: str = ""
) -> list[str]:
    """Pieces in lines, as many as fit in each; no piece is broken.

    first, below: what the first line and the ones below it begin with.
    """
    lines, line, is_empty = [], first, True
    for piece in pieces:
        joined = line + (piece if is_empty else between + piece)
        if not is_empty and columns_of(joined) > width:
            lines.append(line.rstrip(" "))
            line, is_empty = below, True
            joined = below + piece
        if piece or not is_empty:
            line, is_empty = joined, False
    return [*lines, line]


def broken(text: str, width: int, below: str) -> list[str]:
    """One line of foreign text in lines that fit; nothing of it is lost.

    It is broken after a space where there is one, and else anywhere. below: as of `flowed`.
    """
    lines, start = list[str](), ""
    while columns_of(start + text) > width:
        end, room = 0, width - columns_of(start)
        while room >= (size := _columns_of_character(text[end])):
            room -= size
            end += 1
        space = text.rfind(" ", 0, end)
        end = space + 1 if space > 0 else max(1, end)
        lines.append(start + text[:end])
        text, start = text[end:], below
    return [*lines, start + text]


def table(
    rows: Sequence[Sequence[str]], width: int | None = None, part: int | None = None
) -> list[str]:
    """Columns of equal width; the first is left-aligned, the others right.

    width: of the screen. Long names in the first column are cut; columns that do not fit then
        follow below the others, with the names again. Without a width nothing is cut.
    part: the first column of a second part, which goes below the first if both do not fit.
    """
    names, *columns = zip(*rows, strict=True)
    sizes = [_size(column) for column in columns]
    room = _size(names) if width is None else width - sum(sizes)
    if width is None or _size(names) - 2 <= room or room >= NARROW_NAMES:
        return _block(names, columns, room)
    if part is not None:
        second = [(row[0], *row[part:]) for row in rows]
        return [*table([row[:part] for row in rows], width), "", *table(second, width)]
    least = min(_size(names) - 2, max(NARROW_NAMES, width // 3))
    most = width - least - 2
    columns = [tuple(cut(cell, most) for cell in column) for column in columns]
    lines: list[str] = []
    while columns:
        taken, room = 1, most + 2 - _size(columns[0])
        while taken < len(columns) and _size(columns[taken]) <= room:
            room -= _size(columns[taken])
            taken += 1
        lines += [*([""] if lines else []), *_block(names, columns[:taken], least)]
        columns = columns[taken:]
    return lines


def _size(column: Sequence[str]) -> int:
    """Columns of the screen, with the gap of two."""
    return max(map(columns_of, column)) + 2


def _block(names: Sequence[str], columns: Sequence[Sequence[str]], longest: int) -> list[str]:
    shown = [cut(name, longest) for name in names]
    first = _size(shown) - 2
    sizes = [_size(column) for column in columns]
    return [
        (
            name
            + " " * (first - columns_of(name))
            + "".join(
                " " * (size - columns_of(column[number])) + column[number]
                for size, column in zip(sizes, columns, strict=True)
            )
        ).rstrip()
        for number, name in enumerate(shown)
    ]
