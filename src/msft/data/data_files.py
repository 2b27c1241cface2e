"""Data files: which there are, what kind each is, and how much may come out of a packed one."""

import glob
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from msft.errors import DataError
from msft.files import expanded

KINDS = (".jsonl", ".json", ".csv", ".parquet")
PACKED = ".gz"
SUFFIXES = (*KINDS, *(f"{kind}{PACKED}" for kind in KINDS[:3]))
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


def kind_of(path: Path) -> str:
    """`.jsonl` of `rows.jsonl` and of `rows.jsonl.gz`; empty where it is no kind that is read."""
    name = path.name.lower()
    found = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return found.removesuffix(PACKED)


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == PACKED


def opened(path: Path) -> IO[bytes]:
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
    with opened(path) as stream:
        while piece := stream.read(_PIECE):
            unpacked += len(piece)
            refuse_bomb(path, unpacked, most)
            found += sum(piece.count(mark) for mark in marks)
            refuse_bomb(path, found, most_marks, "rows" if rows else "lines or items")


def files_named(written: str, folder: Path) -> list[Path]:
    """The file that this names, or those that fit the pattern, by name; from `folder`."""
    path = folder / expanded(written)
    _refuse_endless(path)
    with in_words(path):  # a name may be too long to be asked for
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
    """The same file or pattern, named so that it holds wherever it is read from.

    or_name: what is no file here may be a name of something else, and stays as it was written.
    """
    path = folder / expanded(written)
    if path.exists():
        return str(path)
    if _PATTERN.search(written) and not expanded(written).is_absolute():
        return f"{glob.escape(str(folder))}/{written}"
    return written if or_name else str(path)


def refuse_unreadable(path: Path) -> None:
    """DataError where a file is missing, or cannot be one of rows by its first four bytes."""
    _refuse_endless(path)
    with in_words(path):  # a name may be too long to be asked for
        is_folder = path.is_dir()
    if is_folder:
        raise DataError(
            f"{path}: this is a folder; use path: for a folder with train, validation and test "
            "files, or name a file in it"
        )
    if not kind_of(path):
        suffix = path.suffix.lower()
        hint = "; unpack it first" if suffix in (".gz", ".zip", ".zst", ".xz", ".bz2") else ""
        raise DataError(f"{path}: unknown kind of file; expected {', '.join(SUFFIXES)}{hint}")
    with in_words(path):
        _refuse_special(path)


def _refuse_endless(path: Path) -> None:
    """DataError, in a few words, for a path that no system has."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise DataError(
            f"{str(path)[:60]}…: a path of {len(str(path)):,} characters, which is longer than any "
            "system allows; name the file"
        )


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """What the system says about a file, as a DataError."""
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


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a folder of train, validation and test files."""
    found = [folder / f"{split}{s}" for s in SUFFIXES if (folder / f"{split}{s}").exists()]
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
    kind, suffix = kind_of(path), path.suffix.lower()
    archive = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if is_packed(path):
        if archive != "gzip":
            raise DataError(f"{path}: this is no gzip file, but named {suffix}; rename it")
        with opened(path) as stream:
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
    names = sorted(p.name for p in path.parent.iterdir() if kind_of(p))
    near = get_close_matches(path.name, names, n=3) or names[:3]
    return f"did you mean {' or '.join(near)}?" if near else f"{path.parent} has no data files"
