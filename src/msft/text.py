"""How amounts and names are written, on a terminal and in a report alike."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import Any

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
