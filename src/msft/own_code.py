"""Code of the user's own, `package.module:function`: what is wrong with it, in words."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from typing import Any

from msft.errors import CURE, is_out_of_memory, worded
from msft.files import read_bytes

_RUNNING: dict[str, bytes] = {}
"""The files of modules as they were when they were imported."""


class BadCode(Exception):
    """It cannot be imported; the message says why and where."""


def imported(path: str) -> Any:
    """The function behind `package.module:function`; a `BadCode` for whatever is wrong.

    A module that ends the program as it is imported is wrong too. One that was imported before, as
    in a notebook, and whose file has changed is imported again.
    """
    module, _, name = path.partition(":")
    try:
        with _from_source():
            function = getattr(importlib.import_module(module), name)
            changed = [each for each in _homes(module, function) if _has_changed(each)]
            for each in dict.fromkeys([*changed, module] if changed else []):
                importlib.reload(sys.modules[each])
                _RUNNING[each] = _source(each)
            function = getattr(sys.modules[module], name)
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise BadCode(f"{where}: {error.msg}") from error
    except SystemExit as error:
        raise BadCode(f"it calls sys.exit({error.code!r}) when it is imported") from error
    except Exception as error:
        raise BadCode(f"{_said(error)}{_place(error)}") from error
    if not callable(function):
        raise BadCode(f"{name} is {type(function).__name__}, not a function")
    return function


def source_digest(path: str) -> str | None:
    """Of the files that `package.module:function` names and defines it; None where none is Python.

    What these files import does not count.
    """
    homes = _homes(path.partition(":")[0], imported(path))
    sources = sorted(filter(None, map(_source, homes)))
    return sha256(b"\0".join(sources)).hexdigest() if sources else None


def _homes(module: str, function: Any) -> list[str]:
    """The module that defines a function, and the one that names it."""
    return [*dict.fromkeys((str(getattr(function, "__module__", module)), module))]


def _source(module: str) -> bytes:
    """A module's file; nothing where that is not Python, or in an archive."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return read_bytes(file) if file.suffix == ".py" and file.is_file() else b""


def _has_changed(module: str) -> bool:
    source = _source(module)
    return _RUNNING.setdefault(module, source) != source


@contextmanager
def _from_source() -> Iterator[None]:
    """Leave no bytecode.

    A .pyc is trusted if its time (in seconds) and size match, so an edit within the same second to
    a file of the same length would be missed.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def in_words(error: BaseException) -> str:
    """What an error says; code of ours does not call sys.exit, so that is the user's."""
    if isinstance(error, SystemExit):
        return f"a method or metric of yours called sys.exit({error}); raise an exception instead"
    if is_out_of_memory(error):
        return CURE
    return str(worded(error)).strip() or type(error).__name__


def _said(error: Exception) -> str:
    plain = isinstance(error, ImportError | AttributeError | TypeError | ValueError)
    return str(error) if plain else f"{type(error).__name__}: {error}"


def _place(error: Exception) -> str:
    """The line of the user's file that raised it; nothing where the import machinery did."""
    lines = [
        frame
        for frame in extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
