"""Variants of a method in one comparison: what each is called, in tables and as a folder."""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

_FOLDER = re.compile(r"[^+]+\+(?P<settings>[^+]+=[^+]*)-s\d+")
"""`soup+k=4,of=last-s20`; what a value has that could harm a path or a shell is quoted."""


def variant_text(method: str, settings: Mapping[str, str]) -> str:
    """As on the command line: `soup[k=4,of=last]`, or `soup`."""
    inside = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{method}[{inside}]" if inside else method


def folder_name(method: str, settings: Mapping[str, str], seed: int) -> str:
    """The folder of a run, whatever is in the values."""
    inside = ",".join(f"{_quoted(key)}={_quoted(value)}" for key, value in settings.items())
    return f"{method.replace(':', '.')}{'+' if inside else ''}{inside}-s{seed}"


def settings_in(folder: str) -> dict[str, str]:
    """The settings that a folder's name has; none where it is not that of a variant."""
    found = _FOLDER.fullmatch(folder)
    pairs = found["settings"].split(",") if found else []
    cut = (pair.partition("=") for pair in pairs)
    return {unquote(key): unquote(value) for key, _, value in cut}


def _quoted(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")
