"""How amounts and names are written, on a terminal and in a report alike."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import IO, Any

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_MARKDOWN = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {char: f"\\{char}" for char in "\\`*_[]|#$~!"}
)
_ENDS_AUTHORITY = frozenset("/?#\\ \t\n\r'\"<>|")
"""What cannot stand in the user, password and host of a URL."""
SECRETS = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "COMET_API_KEY",
    "MLFLOW_TRACKING_TOKEN",
)
"""Variables that hold the user's keys."""
SHORTEST_SECRET = 8
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 80, 80, 80


def counted(amount: float, noun: str) -> str:
    """1 row, 1,234 rows, 0.5 epochs"""
    text = f"{amount:,}" if isinstance(amount, int) else f"{amount:,g}"
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def one_line(text: str) -> str:
    """Text in which whatever is no letter, sign or blank is escaped, breaks of lines among them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def si(amount: float) -> str:
    """Three digits and a prefix: 1234567 is 1.23 M."""
    step = 0
    while abs(amount) >= 999.5 and step < len(_PREFIXES) - 1:
        amount /= 1000
        step += 1
    digits = 0 if amount >= 99.95 or (step == 0 and amount == int(amount)) else 1
    digits = 2 if step and amount < 9.995 else digits
    return f"{amount:.{digits}f} {_PREFIXES[step]}".rstrip()


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360000 else f"{seconds / 86400:.0f} days"


def epochs(amount: float) -> str:
    """A number of epochs: 1, 0.5, 0.33"""
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def epochs_in_words(amount: float) -> str:
    """1 epoch, 0.5 epochs"""
    return counted(round(amount, 2), "epoch")


def named_mean(mean: float | None, mixed: bool) -> tuple[str, str]:
    """What the mean of a result is called, and its text; mixed: it is one of gains."""
    name, form = ("mean gain over base", "+.4f") if mixed else ("mean", ".4f")
    return name, "" if mean is None else format(mean, form)


def no_test_mean(without: Sequence[str]) -> str:
    """Why a result has scores on test and no mean of them; `without`: who has no test rows."""
    have = "has" if len(without) == 1 else "have"
    return (
        f"no mean on test: {listed(without)} {have} no test rows; the other sub-datasets are "
        "scored there one by one"
    )


SELECTED_ON_TEST = "Selected on test rows (the paper's protocol): these scores are optimistic."
"""What stands beside every score of a run with `selection_split: test`."""


def plain(text: str, keep: str = "\n\t") -> str:
    """Text without control characters, escapes, direction marks and lone surrogates."""
    return "".join(
        char if char in keep or unicodedata.category(char)[0] != "C" else "\ufffd" for char in text
    )


def masked(text: str) -> str:
    """Text without the keys of this machine's user, whose URLs have no user, password or token in
    them: https://***@host/path.

    A URL that was taken for a path has one slash less.
    """
    for secret in _secrets():
        text = text.replace(secret, "***")
    first, *rest = text.split(":/")
    for part in rest:
        slash = part[:1] if part[:1] == "/" else ""
        place = part[len(slash) :]
        end = next((at for at, char in enumerate(place) if char in _ENDS_AUTHORITY), len(place))
        _, found, host = place[:end].rpartition("@")
        first += f":/{slash}***@{host}{place[end:]}" if found else f":/{part}"
    return first


def _secrets() -> list[str]:
    """What the hub and the trackers know the user by; a short value is no key."""
    found = [os.environ.get(name, "") for name in SECRETS]
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    found.append(_content(os.environ.get("HF_TOKEN_PATH") or f"{home}/token"))
    return [secret for secret in map(str.strip, found) if len(secret) >= SHORTEST_SECRET]


@cache
def _content(place: str) -> str:
    try:
        path = Path(place).expanduser()
        return path.read_text(errors="replace") if path.is_file() else ""
    except (OSError, ValueError, RuntimeError):
        return ""


def safe(text: str) -> str:
    """Text that may go to a terminal: no escapes in it, no credentials in its URLs."""
    return plain(masked(text))


def in_markdown(text: str) -> str:
    """Text that stands in Markdown as it is: no HTML, no marks, one line."""
    return plain(masked(text), keep="").translate(_MARKDOWN)


def label(text: str, longest: int = 28) -> str:
    """A name for a figure or a table on the terminal: one line, not too long."""
    line = plain(text, keep="")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def listed(names: Iterable[str]) -> str:
    """a, b and c"""
    *rest, last = [*names] or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def shown(value: Any) -> str:
    """A value for a message: escaped, on one line, cut."""
    text = _SHORT.repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


# Layout of printed text: the width of a screen, lines that fit it, and tables.
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
