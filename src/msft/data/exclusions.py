"""Exclusions: the training rows that the recipe's `exclude_rows` names, which are not trained.

The file has JSON lines with `dataset` and `sha256`; what else stands in a line is for people.
`row_sha256` is the one place that says what is hashed. A row is known by its text and not by its
number, so a file holds when rows are added, and a row that somebody has mended is trained again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from msft.data.readers import errors_named, json_lines
from msft.data.splits import LoadedDataset
from msft.errors import DataError
from msft.example import Example
from msft.files import expanded
from msft.recipe.recipe import Recipe
from msft.recipe.yaml import place_of
from msft.search.options import unknown
from msft.text import counted, shown

KEY = "exclude_rows"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def row_sha256(example: Example) -> str:
    """The hash by which a training row is known: of `[prompt, completion]`, also where they are
    turns by `format: chat`, or of the messages of a conversation, as compact JSON in UTF-8.

    A message has role and content, then `name`, `tool_call_id` and `tool_calls` if the row has
    them. Templates of conversations and exemplars are not in it; a wrong label of `label_noise` is.
    """
    said: list[Any] = [example.prompt, example.completion]
    if example.messages and not example.prompt:
        said = [{"role": m.role, "content": m.content, **m.more} for m in example.messages]
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"), default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A line of the file; `where` is its place in it, for messages."""

    dataset: str
    sha256: str
    where: str


@dataclass(frozen=True, slots=True)
class Exclusions:
    """A file of rows that are not trained.

    digest: of its content.
    at: how a message about it starts: with the line of the recipe, where that is known.
    note: what a person should know of it; empty if nothing.
    """

    file: Path
    lines: tuple[Exclusion, ...]
    digest: str
    at: str
    note: str = ""


def read_exclusions(recipe: Recipe) -> Exclusions:
    """The file that `exclude_rows` names; RecipeError where there is none, DataError for the first
    line that is wrong."""
    file = recipe.exclusions_file()
    at = f"{place_of((KEY,), '', recipe.places)}{KEY}: "
    try:
        with errors_named(file):
            lines = tuple(_exclusion(line, where) for where, line in json_lines(file))
            with file.open("rb") as stream:
                digest = file_digest(stream, "sha256").hexdigest()
    except DataError as error:
        raise DataError(f"{at}{error}") from error
    if not lines:
        raise DataError(
            f"{at}{file} has no lines; expected one at least with dataset and sha256, or leave "
            f"{KEY} out"
        )
    beside, note = (recipe.folder or Path()) / expanded(str(recipe.exclude_rows)), ""
    if beside.is_file() and not beside.samefile(file):  # such as that of an audit
        note = f"{KEY}: {file.resolve()} is read, and not the file of this name beside the recipe"
    return Exclusions(file, lines, digest, at, note)


def _exclusion(line: Any, where: str) -> Exclusion:
    expected = 'expected an object such as {"dataset": "mine", "sha256": "64 hex digits"}'
    if not isinstance(line, Mapping):
        raise DataError(f"{where}: found {shown(line)}; {expected}")
    missing = [key for key in ("dataset", "sha256") if key not in line]
    if missing:
        raise DataError(f"{where}: {missing[0]} is missing (found {shown(sorted(line))}); add it")
    dataset, digest = line["dataset"], line["sha256"]
    if not isinstance(dataset, str):
        raise DataError(f"{where}: dataset is {shown(dataset)}; {expected}")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise DataError(
            f"{where}: sha256 is {shown(digest)}; expected 64 hex digits, as sha256 gives them"
        )
    return Exclusion(dataset, digest.lower(), where)


def marked(loaded: Sequence[LoadedDataset], found: Exclusions) -> list[LoadedDataset]:
    """The sub-datasets with the numbers of their training rows that are not trained; DataError
    where a line names none of them, where no line fits a row, or where no row would be left."""
    names = [each.spec.name for each in loaded if not each.spec.is_watched]
    by_name: dict[str, list[Exclusion]] = {name: [] for name in names}
    for line in found.lines:
        if line.dataset not in by_name:
            said = unknown(line.dataset, names, "sub-dataset")
            raise DataError(
                f"{found.at}{line.where}: {said}; name one of this recipe, or remove the line"
            )
        by_name[line.dataset].append(line)
    result = [_marked(each, by_name.get(each.spec.name, []), found) for each in loaded]
    if not any(each.excluded for each in result):
        raise DataError(
            f"{found.at}{found.file}: no line fits a train row (found {len(found.lines):,}); "
            "expected hashes of rows that are trained: take the file of an audit of these rows, or "
            "hash them as docs/exclude-rows.md says"
        )
    return result


def _marked(loaded: LoadedDataset, lines: Sequence[Exclusion], found: Exclusions) -> LoadedDataset:
    if not lines:
        return loaded
    hashes, rows = [row_sha256(row) for row in loaded.train], len(loaded.train)
    wanted = {line.sha256 for line in lines}
    numbers = frozenset(number for number, each in enumerate(hashes) if each in wanted)
    if rows and len(numbers) == rows:
        raise DataError(
            f"{found.at}{found.file} names every train row of {loaded.spec.name} ({rows:,}), so "
            "nothing would be left to train; remove some of its lines, or leave the sub-dataset "
            "out of the recipe"
        )
    verb = "is" if len(numbers) == 1 else "are"
    notes = [f"{KEY}: {len(numbers):,} of {counted(rows, 'train row')} {verb} not trained"]
    known = {*hashes}
    idle = [line for line in lines if line.sha256 not in known]
    if idle:
        fits, first = "fits" if len(idle) == 1 else "fit", idle[0].where
        notes.append(
            f"{KEY}: {len(idle):,} of {counted(len(lines), 'line')} {fits} no train row (first: "
            f"{first.removeprefix(f'{found.file}, ')}); the row was edited, or is not trained"
        )
    return replace(loaded, notes=(*loaded.notes, *notes), excluded=numbers)
