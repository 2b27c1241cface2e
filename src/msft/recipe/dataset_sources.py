"""Where a sub-dataset's rows come from, as a recipe says it: files, rows in memory, columns."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from msft.checks import checked_text, recipe_place, refuse_unknown, shown
from msft.errors import OptionError, RecipeError

IN_MEMORY = re.compile(r"<\d+ rows in memory>")


class Rows(Protocol):
    """Rows in memory: a list of dicts, or a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


Source = str | tuple[str, ...] | Rows
"""A file or a pattern of files, several of them, or rows."""

FIELDS = (
    "prompt",
    "completion",
    "choices",
    "answer",
    "messages",
    "tools",
    "conversations",
    "instruction",
    "input",
    "output",
)
"""What `columns` may name: the fields of the row formats."""


def names_files(source: Any) -> bool:
    """Whether a split is given as files, not as rows."""
    several = isinstance(source, tuple) and len(source) > 0
    return isinstance(source, str) or (several and all(isinstance(item, str) for item in source))


def source_of(source: Any, what: str, split: str) -> Any:
    """A split of a sub-dataset, checked: a file, several as a tuple, or rows as a tuple."""
    if source is None:
        return None
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        return _file(source, what, split)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if len(source) and all(isinstance(item, str | os.PathLike) for item in source):
            names = tuple(_file(os.fspath(item), what, split) for item in source)
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise RecipeError(f"{what}: {split} names {twice} twice; name it once", (split,))
            return names
        return tuple(source)
    if type(source).__module__.split(".")[0] == "datasets" and hasattr(source, "__len__"):
        return source
    raise RecipeError(
        f"{what}: {split} is {shown(source)}; expected a file, or from Python a list of dicts or a "
        "datasets.Dataset that is not streamed",
        (split,),
    )


def _file(source: str, what: str, split: str) -> str:
    if IN_MEMORY.fullmatch(source):
        raise RecipeError(
            f"{what}: {split} was given from Python as rows in memory ({source}) and they are "
            "not in this file; write them to a .jsonl file and name it here",
            (split,),
        )
    with recipe_place():
        return checked_text(source, f"{what}: {split}", split)


def columns_of(given: Any, what: str, benchmark: str | None) -> dict[str, str] | None:
    """The block `columns`, checked and copied."""
    if given is None:
        return None
    at = f"{what}: columns"
    if not isinstance(given, Mapping) or not given:
        raise RecipeError(
            f"{at} is {shown(given)}; expected our fields with your columns, such as "
            "{prompt: question, completion: answer}",
            ("columns",),
        )
    if benchmark is not None:
        raise RecipeError(
            f"{what}: both benchmark and columns; a benchmark knows its own columns: leave columns "
            "out",
            ("columns",),
        )
    with recipe_place("columns"):
        refuse_unknown(given, FIELDS, f"field in the columns of {what}:")
        for field, column in given.items():
            if not isinstance(column, str):
                raise OptionError(
                    f"{at}: {field} is {shown(column)}; expected the name of a column", field
                )
            checked_text(column, f"{at}: {field}", field)
    return dict(given)
