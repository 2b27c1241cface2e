"""Readers: the rows of a file as they stand there, each with its place, in bounded memory."""

import csv
import importlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msft.checks import shown
from msft.errors import DataError
from msft.text import counted

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
MAX_LINE = 10_000_000
"""Bytes of a line, or of a field of a CSV file."""
MAX_JSON = 1_000_000_000
"""Bytes of a .json file, which has to be read at once."""
MOST_PACKED = 100
"""Bytes that a byte of a Parquet file may hold; a small file is taken for one of a megabyte."""
PARQUET_ROWS = 32
"""Rows that are unpacked at a time, since nobody knows before how long they are."""
LARGE_BATCH = 1_000_000

Row = tuple[str, Any]
"""Where it stands, and what was found there: nothing about it is checked yet."""

Bad = Callable[[DataError], None]
"""Told about a row that cannot be read; raises, or returns to go on with the next row."""

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"(\xb5\x2f\xfd": "zstd",
    b"\xfd7zX": "xz",
    b"BZh": "bzip2",
}


LONGEST_PATH = 4095
"""Bytes; Linux allows no more."""


def read_rows(path: Path, bad: Bad) -> Iterator[Row]:
    """Every row of a .jsonl, .json, .csv or .parquet file."""
    refuse_unreadable(path)
    with _in_words(path):
        yield from _READERS[path.suffix.lower()](path, bad)


def refuse_unreadable(path: Path) -> None:
    """DataError where a file is missing, or cannot be one of rows by its first four bytes."""
    suffix = path.suffix.lower()
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise DataError(
            f"{str(path)[:60]}…: a path of {len(str(path)):,} characters, which is longer than any "
            "system allows; name the file"
        )
    with _in_words(path):  # a name may be too long to be asked for
        is_folder = path.is_dir()
    if is_folder:
        raise DataError(
            f"{path}: this is a folder; use path: for a folder with train, validation and test "
            "files, or name a file in it"
        )
    if suffix not in SUFFIXES:
        hint = "; unpack it first" if suffix in (".gz", ".zip", ".zst", ".xz", ".bz2") else ""
        raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}{hint}")
    with _in_words(path):
        _refuse_special(path, suffix)


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """What the system says about a file, as a DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; {_nearest(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder of train, validation and test files."""
    found = [folder / f"{split}{s}" for s in SUFFIXES if (folder / f"{split}{s}").exists()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"{folder}: both {names}; keep one of them")
    return found[0] if found else None


def _refuse_special(path: Path, suffix: str) -> None:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: not a regular file; expected one of {', '.join(SUFFIXES)}")
    with path.open("rb") as stream:
        start = stream.read(4)
    if not start:
        raise DataError(f"{path}: the file is empty; expected at least one row")
    packed = [kind for magic, kind in _MAGIC.items() if start.startswith(magic)]
    if packed:
        raise DataError(f"{path}: this is a {packed[0]} archive named {suffix}; unpack it first")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}, line 1: UTF-16, not UTF-8; save the file as UTF-8")
    if (start == b"PAR1") != (suffix == ".parquet"):
        kind = "a Parquet file" if start == b"PAR1" else "no Parquet file"
        raise DataError(f"{path}: this is {kind}, but named {suffix}; rename or convert it")


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    names = sorted(p.name for p in path.parent.iterdir() if p.suffix.lower() in SUFFIXES)
    near = get_close_matches(path.name, names, n=3) or names[:3]
    return f"did you mean {' or '.join(near)}?" if near else f"{path.parent} has no data files"


def _lines(path: Path, bad: Bad) -> Iterator[tuple[str, str]]:
    """The lines as text with their places; a line that is no text is bad."""
    with path.open("rb") as stream:
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
    for where, line in _lines(path, bad):
        if line.strip():
            try:
                row = _json_value(line.strip(), where, "expected one JSON object per line")
            except DataError as error:
                bad(error)
            else:
                yield where, row


def _json(path: Path, bad: Bad) -> Iterator[Row]:
    if path.stat().st_size > MAX_JSON:
        raise DataError(f"{path}: more than {MAX_JSON:,} bytes; convert it to .jsonl")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None
    found = _json_value(text, str(path), "one object per line is .jsonl, not .json")
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
    most, unpacked = MOST_PACKED * max(1_000_000, path.stat().st_size), 0
    try:
        with parquet.ParquetFile(os.fspath(path)) as file:
            groups = (file.metadata.row_group(each) for each in range(file.metadata.num_row_groups))
            _refuse_bomb(path, sum(group.total_byte_size for group in groups), most)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in _unpacked(batch):
                    number += 1
                    unpacked += _length(row)
                    _refuse_bomb(path, unpacked, most)
                    yield f"{path}, row {number}", row
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(f"{path}: not a readable Parquet file after row {number}: {said}") from None


def _unpacked(batch: Any) -> Iterator[Any]:
    """Rows of a batch; large ones one at a time, since all may be the same text that is there
    once."""
    step = 1 if batch.nbytes > LARGE_BATCH else len(batch)
    for start in range(0, len(batch), max(1, step)):
        yield from batch.slice(start, step).to_pylist()


def _length(value: Any) -> int:
    """Characters in a value, however deep."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, list) else 8


def _refuse_bomb(path: Path, unpacked: int, most: int) -> None:
    if unpacked > most:
        raise DataError(
            f"{path}: a file of {path.stat().st_size:,} bytes that unpacks to more than {most:,}; "
            "expected text that is not made to fill memory: convert it to .jsonl"
        )


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
