"""Files under our names: regular ones only. A link is not followed, a pipe is not waited for.

Somebody who can write into a run folder may have put anything under a name that msft will open. So
all code that reads or writes such a file uses these functions.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import IO

from msft.errors import NotAFile, UsageError, explaining

_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError),
)
"""What the reading of a file can end in that is not as we wrote it."""

FILE, FOLDER = _KINDS[stat.S_IFREG], _KINDS[stat.S_IFDIR]


def kind_of(path: Path) -> str | None:
    """What is at a place, in words; None: nothing. A link is a link, wherever it points."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _KINDS.get(stat.S_IFMT(mode), "something unknown")


def expanded(written: str) -> Path:
    """A path with the home folder in place of `~` or `~user`."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        name = Path(written).parts[0]
        raise UsageError(
            f"{written}: {name} is the home folder of a user that is not known here; write the "
            "whole path"
        ) from None


def refuse_other_kind(path: Path, expected: str = FILE) -> None:
    """NotAFile where something else is at a place; nothing there is fine."""
    found = kind_of(path)
    if found not in (None, expected):
        raise _not_a_file(path, found, expected)


def read_bytes(path: Path) -> bytes:
    with explaining(path), open_to_read(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    return read_bytes(path).decode()


def shown_text(path: Path) -> str:
    """Text for people to read, also of a damaged file."""
    return read_bytes(path).decode(errors="replace")


def open_to_read(path: Path) -> IO[bytes]:
    return os.fdopen(_opened(path, os.O_RDONLY), "rb")


def open_to_append(path: Path) -> IO[bytes]:
    """A file to read and to write at its end, made if it is not there. Not buffered, so that what
    could not be written is not tried again when it is closed."""
    return os.fdopen(_opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b", buffering=0)


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with explaining(path, len(data)), os.fdopen(_opened(temporary, new), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        remove(temporary)
        raise


def remove(path: Path) -> None:
    """Delete whatever is there; a link is deleted, not what it points to."""
    kind = kind_of(path)
    if kind == FOLDER:
        shutil.rmtree(path)
    elif kind is not None:
        path.unlink()


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no hard links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _opened(path: Path, flags: int) -> int:
    """A handle of a regular file. The kind is asked for before, since opening alone can do harm,
    and again of what was opened."""
    refuse_other_kind(path)
    handle = os.open(path, flags | _CAREFUL, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_a_file(path, "something else", FILE)
    return handle


def _not_a_file(path: Path, found: str | None, expected: str) -> NotAFile:
    where = f" to {path.readlink()}" if path.is_symlink() else ""
    return NotAFile(
        f"{path} is {found}{where}; expected {expected} that msft wrote there. It was not opened: "
        "remove it, or choose another folder"
    )
