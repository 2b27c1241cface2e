"""Readers: the rows of a file as they stand there, each with its place, in bounded memory."""

import csv
import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msft.data.data_files import (
    in_words,
    is_packed,
    kind_of,
    most_rows,
    most_unpacked,
    opened,
    refuse_bomb,
    refuse_gzip_bomb,
    refuse_unreadable,
)
from msft.errors import DataError
from msft.text import counted, shown

MAX_LINE = 10_000_000
"""Bytes of a line, or of a field of a CSV file."""
MAX_JSON = 1_000_000_000
"""Bytes of a .json file, which has to be read at once."""
PARQUET_ROWS = 32
"""Rows that are unpacked at a time, since nobody knows before how long they are."""
LARGE_BATCH = 1_000_000

Row = tuple[str, Any]
"""Where it stands, and what was found there: nothing about it is checked yet."""

Bad = Callable[[DataError], None]
"""Told about a row that cannot be read; raises, or returns to go on with the next row."""


def read_rows(path: Path, bad: Bad) -> Iterator[Row]:
    """Every row of a .jsonl, .json, .csv or .parquet file; the first three may be packed (.gz)."""
    refuse_unreadable(path)
    with in_words(path):
        rows = _READERS[kind_of(path)](path, bad)
        most = most_rows(path) if is_packed(path) or kind_of(path) == ".parquet" else None
        for number, row in enumerate(rows, 1):
            if most is not None:
                refuse_bomb(path, number, most, "rows")
            yield row


def _lines(path: Path, bad: Bad) -> Iterator[tuple[str, str]]:
    """The lines as text with their places; a line that is no text is bad."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            try:
                text = _decoded(line, where, first=number == 1)
            except DataError as error:
                bad(error)
                while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = stream.readline(MAX_LINE)
            else:
                yield where, text


def _decoded(line: bytes, where: str, first: bool) -> str:
    if len(line) > MAX_LINE:
        raise DataError(f"{where}: more than {MAX_LINE:,} bytes; expected one row per line")
    if b"\x00" in line:
        raise DataError(f"{where}: a NUL byte; expected UTF-8 text; mend the file")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 at byte {error.start + 1}; save the file as UTF-8"
        ) from None
    return text.removeprefix("\ufeff") if first else text


def _jsonl(path: Path, bad: Bad) -> Iterator[Row]:
    """One object per line. One list of all rows is read too, since other tools take either."""
    with opened(path) as stream:
        is_list = stream.read(1000).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if is_list:
        yield from _listed(path, "expected one JSON object per line, or one list of them")
        return
    refuse_gzip_bomb(path, b"\n", rows=True)
    for where, line in _lines(path, bad):
        if line.strip():
            try:
                row = _json_value(line.strip(), where, "expected one JSON object per line")
            except DataError as error:
                bad(error)
            else:
                yield where, row


def _json(path: Path, bad: Bad) -> Iterator[Row]:
    return _listed(path, "one object per line is .jsonl, not .json")


def _listed(path: Path, hint: str) -> Iterator[Row]:
    """The rows of a file that is one JSON value."""
    refuse_gzip_bomb(path, b",{[", rows=False)
    with opened(path) as stream:
        raw = stream.read(MAX_JSON + 1)
    if len(raw) > MAX_JSON:
        raise DataError(f"{path}: more than {MAX_JSON:,} bytes; convert it to one object per line")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
    found = _json_value(text, str(path), hint)
    rows = found.get("data") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        raise DataError(
            f'{path}: found {shown(found)}; expected a list of rows, or {{"data": [rows]}}'
        )
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row


def _json_value(text: str, where: str, hint: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        at = where if ", line " in where else f"{where}, line {error.lineno}"
        raise DataError(
            f"{at}: not valid JSON: {error.msg} at character {error.colno}; {hint}"
        ) from None
    except RecursionError:
        raise DataError(f"{where}: JSON nested too deep; expected fields with text") from None
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the field {twice!r} is given twice; keep one of them")
    return row


def _csv(path: Path, bad: Bad) -> Iterator[Row]:
    refuse_gzip_bomb(path, b"\n", rows=False)  # a row may have lines
    limit = csv.field_size_limit(MAX_LINE)
    try:
        reader = csv.reader((line for _, line in _lines(path, _raise)), strict=True)
        header = next(reader, [])
        if not any(header) or len(set(header)) < len(header):
            raise DataError(
                f"{path}, line 1: the columns are {shown(header)}; expected a header with "
                "different names, such as prompt,completion"
            )
        if len(header) == 1 and (mark := next((m for m in ";\t|" if m in header[0]), None)):
            raise DataError(
                f"{path}, line 1: one column {shown(header[0])}; separated by {mark!r}? expected "
                "commas: convert the file"
            )
        line = reader.line_num + 1
        for fields in reader:
            where, line = f"{path}, line {line}", reader.line_num + 1
            if len(fields) == len(header):
                yield where, dict(zip(header, fields, strict=True))
            elif fields:
                found = counted(len(fields), "field")
                bad(
                    DataError(
                        f"{where}: {found}; expected {len(header)} as in the header; "
                        "quote fields that hold a comma or a line break"
                    )
                )
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path, bad: Bad) -> Iterator[Row]:
    parquet, arrow = needed("pyarrow.parquet", path), needed("pyarrow", path)
    number = 0
    most, unpacked = most_unpacked(path), 0
    try:
        with parquet.ParquetFile(os.fspath(path)) as file:
            groups = (file.metadata.row_group(each) for each in range(file.metadata.num_row_groups))
            refuse_bomb(path, sum(group.total_byte_size for group in groups), most)
            refuse_bomb(path, file.metadata.num_rows, most_rows(path), "rows")
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in _unpacked(batch, arrow, path, number):
                    number += 1
                    unpacked += _length(row)
                    refuse_bomb(path, unpacked, most)
                    yield f"{path}, row {number}", row
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(f"{path}: not a readable Parquet file after row {number}: {said}") from None


def _unpacked(batch: Any, arrow: Any, path: Path, done: int) -> Iterator[Any]:
    """Rows of a batch; large ones one at a time, since all may be the same text that is there
    once. Dates and times come as text, since Python has no value for some of them.

    done: rows before the batch.
    """
    step = 1 if batch.nbytes > LARGE_BATCH else len(batch)
    for number, column in enumerate(batch.schema):
        if arrow.types.is_temporal(column.type):
            with suppress(arrow.ArrowException):  # a time zone that nobody knows
                texts = batch.column(number).cast(arrow.string())
                if not any(str(text).startswith("<") for text in texts):  # "<value out of range"
                    batch = batch.set_column(number, column.name, texts)
    for start in range(0, len(batch), max(1, step)):
        part = batch.slice(start, step)
        try:
            yield from part.to_pylist()
        except (ArithmeticError, ValueError, arrow.ArrowException) as error:
            raise _unreadable(part, path, done + start, error) from error


def _unreadable(part: Any, path: Path, done: int, error: Exception) -> DataError:
    """The first value that has no place in Python, such as a date in the year 3000000."""
    for row in range(len(part)):
        for column, values in zip(part.schema, part.columns, strict=True):
            try:
                values[row].as_py()
            except type(error) as found:
                return DataError(
                    f"{path}, row {done + row + 1}: a value of the column {shown(column.name)}, "
                    f"{column.type}, cannot be read: {shown(str(found))}; convert it to text"
                )
    return DataError(f"{path}, row {done + 1}: cannot be read: {shown(str(error))}")


def _length(value: Any) -> int:
    """Characters in a value, however deep."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list) else 8


def needed(module: str, what: object) -> Any:
    """An optional dependency, imported when something needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise DataError(
            f"{what}: reading this needs {package}, which cannot be imported ({error}); "
            f"pip install {package}"
        ) from error


def _raise(error: DataError) -> None:
    raise error


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
