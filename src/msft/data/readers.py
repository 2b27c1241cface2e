"""Readers: the rows of a file as they stand there, each with its place, in bounded memory.

A file is JSON lines, JSON, CSV, TSV or Parquet, by its suffix; all but Parquet may be packed
(`.gz`). A packed file may be made to fill memory, so its size bounds the bytes and rows that may
come out of it. A folder that `datasets.save_to_disk` wrote is read like a file.
"""

import csv
import glob
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from msft.errors import DataError
from msft.files import expanded
from msft.text import counted, shown

# Files

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
PACKED = ".gz"
SUFFIXES = (*KINDS, *(f"{kind}{PACKED}" for kind in KINDS[:4]))
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files by which a folder of `datasets.save_to_disk` is known: of one dataset, and of splits."""
MOST_PACKED = 100
"""Bytes that a byte of a packed file may hold; a small file is taken for one of a megabyte."""
BYTES_A_ROW = 4
"""Bytes of a packed file that a row takes at least: rows that differ take more."""
MARKS_A_BYTE = 4
"""Lines of CSV, or commas and brackets of JSON, that a byte of a packed file may hold."""
_PIECE = 2**20
LONGEST_PATH = 4095
"""Bytes; Linux allows no more."""

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"(\xb5\x2f\xfd": "zstd",
    b"\xfd7zX": "xz",
    b"BZh": "bzip2",
}
_PATTERN = re.compile(r"[*?\[]")


def suffix_of(path: Path) -> str:
    """`.jsonl` of `rows.jsonl` and of `rows.jsonl.gz`; empty for files of rows of no known kind."""
    name = path.name.lower()
    found = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return found.removesuffix(PACKED)


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == PACKED


def open_unpacked(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is packed."""
    return gzip.open(path, "rb") if is_packed(path) else path.open("rb")  # type: ignore[return-value]


def most_unpacked(path: Path) -> int:
    """Bytes that may come out of a packed file."""
    return MOST_PACKED * max(1_000_000, path.stat().st_size)


def most_rows(path: Path) -> int:
    """Rows that may come out of a packed file."""
    return max(1_000_000, path.stat().st_size) // BYTES_A_ROW


def refuse_bomb(path: Path, unpacked: int, most: int, what: str = "bytes") -> None:
    if unpacked > most:
        raise DataError(
            f"{path}: a file of {path.stat().st_size:,} bytes that unpacks to more than {most:,} "
            f"{what}; expected text that is not made to fill memory: unpack it, or convert it to "
            ".jsonl"
        )


def refuse_gzip_bomb(path: Path, marks: bytes, rows: bool) -> None:
    """DataError where a packed file holds too much: it is unpacked once before its rows are read,
    since to count is a hundred times faster than to read.

    marks: what each line or item of the text has.
    rows: whether each mark is a row.
    """
    if not is_packed(path):
        return
    most, unpacked, found = most_unpacked(path), 0, 0
    most_marks = most_rows(path) if rows else most // MOST_PACKED * MARKS_A_BYTE
    with open_unpacked(path) as stream:
        while piece := stream.read(_PIECE):
            unpacked += len(piece)
            refuse_bomb(path, unpacked, most)
            found += sum(piece.count(mark) for mark in marks)
            refuse_bomb(path, found, most_marks, "rows" if rows else "lines or items")


def files_named(written: str, folder: Path) -> list[Path]:
    """The file of this name, or the files that fit this pattern in order of name; from `folder`."""
    path = folder / expanded(written)
    _refuse_endless(path)
    with errors_named(path):  # a name may be too long to be asked for
        is_name = not _PATTERN.search(written) or path.exists()
    if is_name:
        return [path]
    pattern = str(expanded(written))
    names = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207  may be absolute
    found = [folder / name for name in sorted(names) if (folder / name).is_file()]
    if not found:
        raise DataError(f"{path}: no file fits this pattern; expected one at least")
    return found


def fixed_name(written: str, folder: Path, or_name: bool = False) -> str:
    """An absolute name of a file or pattern, which holds wherever the recipe is read from.

    or_name: a name that is no file may name something on the hub, so it stays as it was written.
    """
    path = folder / expanded(written)
    if path.exists():
        return str(path)
    if _PATTERN.search(written) and not expanded(written).is_absolute():
        return f"{glob.escape(str(folder))}/{written}"
    return written if or_name else str(path)


def refuse_unreadable(path: Path) -> None:
    """DataError where a file is missing, or its first four bytes say that it holds no rows."""
    _refuse_endless(path)
    with errors_named(path):  # a name may be too long to be asked for
        is_folder = path.is_dir()
    if is_folder and is_saved(path):
        return
    if is_folder and (path / SAVED_SPLITS).is_file():
        raise DataError(
            f"{path}: this folder of save_to_disk has splits; write path: instead of train:, or "
            f"name the folder of one split, such as {path / 'train'}"
        )
    if is_folder:
        raise DataError(
            f"{path}: this is a folder; use path: for a folder with train, validation and test "
            "files, or name a file in it"
        )
    if not suffix_of(path):
        suffix = path.suffix.lower()
        hint = "; unpack it first" if suffix in (".gz", ".zip", ".zst", ".xz", ".bz2") else ""
        raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}{hint}")
    with errors_named(path):
        _refuse_special(path)


def _refuse_endless(path: Path) -> None:
    """DataError, in a few words, for a path that is longer than any system allows."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise DataError(
            f"{str(path)[:60]}…: a path of {len(str(path)):,} characters, which is longer than any "
            "system allows; name the file"
        )


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Errors of the system about a file become DataErrors that name the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; {_nearest(path)}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: a damaged gzip file: {error}; pack or download it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def is_saved(folder: Path) -> bool:
    """Whether `datasets.save_to_disk` wrote this folder, for one split."""
    return (folder / SAVED).is_file()


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder of train, validation and test files."""
    found = [folder / f"{split}{s}" for s in SUFFIXES if (folder / f"{split}{s}").exists()]
    found += [folder / split] if is_saved(folder / split) else []
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"{folder}: both {names}; keep one of them")
    return found[0] if found else None


def _refuse_special(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"{path}: not a regular file; expected one of {', '.join(SUFFIXES)}")
    with path.open("rb") as stream:
        start = stream.read(4)
    if not start:
        raise DataError(f"{path}: the file is empty; expected at least one row")
    kind, suffix = suffix_of(path), path.suffix.lower()
    archive = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if is_packed(path):
        if archive != "gzip":
            raise DataError(f"{path}: this is no gzip file, but named {suffix}; rename it")
        with open_unpacked(path) as stream:
            start, archive = stream.read(4), None
    if archive:
        cure = f"name it {kind}{PACKED}, or unpack it" if archive == "gzip" else "unpack it first"
        raise DataError(f"{path}: this is a {archive} archive named {suffix}; {cure}")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}, line 1: UTF-16, not UTF-8; save the file as UTF-8")
    if (start == b"PAR1") != (kind == ".parquet"):
        found = "a Parquet file" if start == b"PAR1" else "no Parquet file"
        raise DataError(f"{path}: this is {found}, but named {suffix}; rename or convert it")


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    names = sorted(p.name for p in path.parent.iterdir() if suffix_of(p))
    near = get_close_matches(path.name, names, n=3) or names[:3]
    return f"did you mean {' or '.join(near)}?" if near else f"{path.parent} has no data files"


# Rows

MAX_LINE = 10_000_000
"""Bytes of a line, or of a field of a CSV file."""
MAX_JSON = 1_000_000_000
"""Bytes of a .json file, which has to be read at once."""
PARQUET_ROWS = 32
"""Rows that are unpacked at a time: how long they are is known only afterwards."""
LARGE_BATCH = 1_000_000

RawRow = tuple[str, Any]
"""The row's place for messages, and the row as it was read, unchecked."""

Bad = Callable[[DataError], None]
"""Told about a row that cannot be read; raises, or returns to go on with the next row."""


def refuse(error: DataError) -> None:
    """What is told of a bad row where one ends the reading."""
    raise error


class LongLine(DataError):
    """A line that may have no end: the rest of the file is read only where bad rows are skipped."""


def read_rows(path: Path, bad: Bad) -> Iterator[RawRow]:
    """Every row of a .jsonl, .json, .csv, .tsv or .parquet file, all but the last perhaps packed
    (.gz), or of a folder of save_to_disk."""
    refuse_unreadable(path)
    if path.is_dir():
        yield from _saved(path)
        return
    with errors_named(path):
        rows = _READERS[suffix_of(path)](path, bad)
        most = most_rows(path) if is_packed(path) or suffix_of(path) == ".parquet" else None
        for number, row in enumerate(rows, 1):
            if most is not None:
                refuse_bomb(path, number, most, "rows")
            yield row


def _lines(path: Path, bad: Bad) -> Iterator[tuple[str, str]]:
    """The lines as text with their places; a line that is not UTF-8 is a bad row."""
    with open_unpacked(path) as stream:
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
        raise LongLine(f"{where}: more than {MAX_LINE:,} bytes; expected one row per line")
    if b"\x00" in line:
        raise DataError(f"{where}: a NUL byte; expected UTF-8 text; mend the file")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 at byte {error.start + 1}; save the file as UTF-8"
        ) from None
    return text.removeprefix("\ufeff") if first else text


def json_lines(path: Path, bad: Bad = refuse) -> Iterator[RawRow]:
    """One object per line. One list of all rows is read too, since other tools take either."""
    with open_unpacked(path) as stream:
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


def _listed(path: Path, hint: str) -> Iterator[RawRow]:
    """The rows of a file that is one JSON value."""
    refuse_gzip_bomb(path, b",{[", rows=False)
    with open_unpacked(path) as stream:
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


def _csv(path: Path, bad: Bad) -> Iterator[RawRow]:
    refuse_gzip_bomb(path, b"\n", rows=False)  # a row may have lines
    limit = csv.field_size_limit(MAX_LINE)
    try:
        tab = "\t"
        mark = tab if suffix_of(path) == ".tsv" else ","
        lines = (line for _, line in _lines(path, refuse))
        reader = csv.reader(lines, delimiter=mark, strict=True)
        header = next(reader, [])
        if not any(header) or len(set(header)) < len(header):
            raise DataError(
                f"{path}, line 1: the columns are {shown(header)}; expected a header with "
                "different names, such as prompt,completion"
            )
        other = next((m for m in ",;\t|" if m in header[0] and m != mark), None)
        if len(header) == 1 and other:
            expected = {",": "commas", "\t": "tabs"}
            cure = "name it .tsv" if other == "\t" else "convert the file"
            raise DataError(
                f"{path}, line 1: one column {shown(header[0])}; separated by {other!r}? expected "
                f"{expected[mark]}: {cure}"
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
                        f"quote fields that hold a {'tab' if mark == tab else 'comma'} or a line "
                        "break"
                    )
                )
    except csv.Error as error:
        kind = suffix_of(path).removeprefix(".").upper()
        raise DataError(f"{path}, line {reader.line_num}: not valid {kind}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path, bad: Bad) -> Iterator[RawRow]:
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    most, unpacked = most_unpacked(path), 0
    try:
        with parquet.ParquetFile(os.fspath(path)) as file:
            groups = (file.metadata.row_group(each) for each in range(file.metadata.num_row_groups))
            refuse_bomb(path, sum(group.total_byte_size for group in groups), most)
            refuse_bomb(path, file.metadata.num_rows, most_rows(path), "rows")
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in _unpacked(batch, path, number):
                    number += 1
                    unpacked += _length(row)
                    refuse_bomb(path, unpacked, most)
                    yield f"{path}, row {number}", row
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(f"{path}: not a readable Parquet file after row {number}: {said}") from None


def _saved(folder: Path) -> Iterator[RawRow]:
    import datasets  # type: ignore[import-untyped]

    number = 0
    try:
        saved = datasets.load_from_disk(os.fspath(folder)).with_format("arrow")
        for batch in saved.iter(PARQUET_ROWS):
            for row in _unpacked(batch, folder, number):
                number += 1
                yield f"{folder}, row {number}", row
    except DataError:
        raise
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(
            f"{folder}: datasets cannot read this folder of save_to_disk after row {number} "
            f"({said}); save the dataset again"
        ) from None


def _unpacked(batch: Any, path: Path, done: int) -> Iterator[Any]:
    """Rows of a batch; large ones one at a time, since all may be the same text that is there
    once. Dates and times come as text, since Python has no value for some of them.

    done: rows before the batch.
    """
    import pyarrow as arrow

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


_READERS: dict[str, Callable[[Path, Bad], Iterator[RawRow]]] = {
    ".jsonl": json_lines,
    ".json": lambda path, bad: _listed(path, "one object per line is .jsonl, not .json"),
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}
