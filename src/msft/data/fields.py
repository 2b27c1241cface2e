"""Fields of a row that must be text."""

import re
from collections.abc import Mapping
from typing import Any

from msft.errors import DataError
from msft.text import shown

Row = Mapping[str, Any]

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def text_in(row: Row, key: str, prefix: str = "") -> str:
    """A field that must be text; messages call it `prefix` and `key`."""
    text = row[key]
    if not isinstance(text, str):
        found = "null" if text is None else shown(text)
        raise DataError(f"{prefix}{key} is {found}; expected text")
    bad = _NOT_TEXT.search(text)
    if bad:
        kind = "a NUL character" if bad.group() == "\x00" else f"half a character, {bad.group()!a}"
        raise DataError(f"{prefix}{key} has {kind} at position {bad.start()}; remove or mend it")
    return text


def answer_in(row: Row, key: str, prefix: str = "") -> str:
    """The same, and it may not be blank."""
    text = text_in(row, key, prefix)
    if not text.strip():
        raise DataError(f"{prefix}{key} is {shown(text)}; expected text that is not blank")
    return text
