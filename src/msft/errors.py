"""What can go wrong, and the exit code of each.

Their messages are complete: what was found, what was expected and what to do.
So the command line prints the message alone; for all other exceptions it offers a traceback.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

from msft.text import masked

KeyPath = tuple[str | int, ...]
"""Where a value stands in a recipe: keys and list indices from the top."""

DONE, FAILED, WRONG, NO_ROOM, STOPPED = 0, 1, 2, 3, 4
"""Exit codes, as the README has them."""


class Explained(Exception):
    """An error whose message needs no traceback, and holds no key: libraries say what a server
    answered, and a server may answer with what it was sent."""

    exit_code: int = FAILED

    def __init__(self, message: str = "") -> None:
        super().__init__(masked(str(message)))


class RecipeError(Explained, ValueError):
    """A wrong recipe; `place` says which key, so that the line can be found.

    because: other keys that this follows from. If one of them is wrong itself, this may not be.
    """

    exit_code = WRONG

    def __init__(self, message: str, place: KeyPath = (), because: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.place = place
        self.because = because


class OptionError(ValueError):
    """An option that does not fit, or contradicts another one; `option` says which.

    because: as of a `RecipeError`.
    """

    def __init__(self, message: str, option: str, because: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.option = option
        self.place: KeyPath = (option,)
        self.because = because


class YamlError(Explained, ValueError):
    """A file that is not YAML, or YAML that could do harm; `line` counts from 1."""

    exit_code = WRONG

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class DataError(Explained, ValueError):
    """Data that cannot be used; the message starts with the file and the line."""

    exit_code = WRONG


class UsageError(Explained, ValueError):
    """A command was given something that it cannot work with."""

    exit_code = WRONG


class WrongWeights(Explained, ValueError):
    """A file's tensors are not those of the model that its config.json describes."""

    exit_code = WRONG


class HubError(Explained):
    """The hub did not take a model; the run is finished and its folder complete."""


class WrongMethod(Explained, ValueError):
    """A method of the user's own did what no method may do."""

    exit_code = WRONG


class Diverged(Explained):
    """The method, the recipe or the data is not what it was when the log was written."""

    exit_code = WRONG


class NoRoom(Explained):
    """The run cannot fit; nothing was started."""

    exit_code = NO_ROOM


class LogError(Explained):
    """The log cannot be used as it is; the message says why and what to do."""


class NotAFile(Explained, OSError):
    """A link, a pipe or a folder has the name of a file of ours, or the other way round."""

    exit_code = WRONG


class DiskFull(Explained, OSError):
    """A file could not be written for lack of space; what was there before is whole."""


class SystemFault(Explained, OSError):
    """The system does not do what a file needs; the message names the file and what to do."""


class StoreError(Explained):
    """A checkpoint that is needed cannot be kept or found."""


class NotReproducible(Explained):
    """Training a lost checkpoint again did not go as the log says it went."""


class BadScore(Explained):
    """An evaluation gave no usable number, so nothing may be decided from it."""


class NotANumber(Explained):
    """A loss was NaN or infinite; the step was not taken."""


class RunsFailed(Explained):
    """Some runs failed, or their logs cannot be read; the others are done."""


class RankFailed(Explained):
    """Something went wrong in another process of this run, which ends in all of them.

    said: rank 0 says it, so this one need not.
    """

    def __init__(self, message: str, exit_code: int, said: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.said = said


class RanksDisagree(Explained):
    """The processes of a run came to different results."""


class Unsuited(Exception):
    """A fast path does not compute what this model does; another path takes over."""


class NotRecorded(Exception):
    """This model's step cannot be recorded; it waits for the host, say."""


class Stopped(BaseException):
    """A signal asked the run to stop; what is done is safe. Not for `except Exception` to take."""

    exit_code: ClassVar[int] = STOPPED


# What the system says about a file, in words: what it means, and what to do. Every `OSError` that
# nobody has explained yet becomes a `SystemFault` or a `DiskFull`. The command line and the Python
# interface do all their work inside `explaining()`, so no other code has to. Code that works
# through an open handle says which file that is, since the system does not.
AGAIN = "What was saved before is whole: {}, then run the same command again to go on"
_DISK = "check the disk, its connection and the system's own messages (`dmesg`)"
_SERVER = "see that the file system is mounted and its server answers"
_RIGHTS = "give this user the right to it (`ls -ld`), or choose another place"
_OTHERS = "see that no other program works in that folder"

_FULL = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large (a limit on the size of files, see `ulimit -f`)",
}

_CURES = {
    errno.EIO: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ESTALE: "mount the network disk again",
    errno.ENOTCONN: _SERVER,
    errno.ETIMEDOUT: _SERVER,
    errno.EHOSTDOWN: _SERVER,
    errno.EHOSTUNREACH: _SERVER,
    errno.ENOLCK: _SERVER,
    errno.EPERM: "take away a mark against changes (`lsattr`), or choose another place",
    errno.EACCES: _RIGHTS,
    errno.EROFS: "mount the disk so that it can be written, or choose another place",
    errno.ENOENT: "find out what removed it, and bring it back",
    errno.EEXIST: _OTHERS,
    errno.ENOTEMPTY: _OTHERS,
    errno.EBUSY: _OTHERS,
    errno.ENOTDIR: "move the file away that stands where a folder is expected",
    errno.EISDIR: "move the folder away that stands where a file is expected",
    errno.ELOOP: "mend the symbolic links on the way, which lead in a circle",
    errno.EMLINK: "choose a place on another file system",
    errno.EXDEV: "choose a place on one file system",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
    errno.ENFILE: "close other programs, since the whole system has too many open files",
    errno.ENOMEM: "close other programs, or give it more memory",
}
_UNKNOWN = "find out why the system refuses this"

_SAID = (Explained, BrokenPipeError, BlockingIOError)
"""Errors that have words, or that tell the caller something."""

Raised = TypeVar("Raised", bound=BaseException)

LONGEST = 100
"""Characters of a path that are shown; of a longer one the beginning and the end."""


def worded(
    error: Raised, path: Path | None = None, needed: int | None = None
) -> Raised | Explained:
    """An error with words in place of one of the system's; every other error as it is.

    path: the file, where the error does not name one.
    needed: bytes that were to be written.
    """
    code = getattr(error, "errno", None)
    if isinstance(error, _SAID) or not isinstance(error, OSError) or not code:
        return error
    given = (error.filename, error.filename2)
    named = [os.fsdecode(each) for each in given if isinstance(each, str | bytes | os.PathLike)]
    clear = _explained(code, error.strerror, [str(path)] if path else named, needed)
    clear.__cause__ = error
    return clear


def _explained(code: int, said: str | None, paths: list[str], needed: int | None) -> Explained:
    place = " and ".join(map(_short, paths)) or "a file"
    if code == errno.ENAMETOOLONG:
        return _too_long(place, max(paths, key=len, default=""))
    if code in _FULL:
        return _full(_FULL[code], Path(paths[-1] if paths else "."), needed)
    cure = AGAIN.format(_CURES.get(code, _UNKNOWN))
    return SystemFault(f"{place}: {said or os.strerror(code)}. {cure}")


@contextmanager
def explaining(path: Path | None = None, needed: int | None = None) -> Iterator[None]:
    """Inside, an error of the system has words, and is about this file; as `worded`."""
    try:
        yield
    except OSError as error:
        clear = worded(error, path, needed)
        if clear is error:
            raise
        raise clear from error


def _full(said: str, path: Path, needed: int | None) -> DiskFull:
    wanted = f"{said}: {path}" + ("" if needed is None else f" needs {_size(needed)}")
    try:
        place = next(each for each in (path, *path.parents) if each.is_dir())
        free, counts = _size(shutil.disk_usage(place).free), os.statvfs(place)
    except (OSError, StopIteration):
        return DiskFull(f"{wanted}. {AGAIN.format('make room')}")
    if counts.f_files and not counts.f_favail and said == _FULL[errno.ENOSPC]:
        many = f"the disk has {free} free, but no inode: it holds as many files as it can"
        return DiskFull(f"{wanted}; {many}. {AGAIN.format('remove files')}")
    return DiskFull(f"{wanted}, and the disk has {free} free. {AGAIN.format('make room')}")


def _too_long(place: str, longest: str) -> UsageError:
    name = max(map(len, Path(longest).parts), default=0)
    return UsageError(
        f"{place}: File name too long: {len(longest):,} characters, {name:,} in one name; expected "
        "what file systems allow, mostly 4,095 bytes and 255 in one name; choose a shorter one"
    )


def _short(path: str) -> str:
    return path if len(path) <= LONGEST else f"{path[: LONGEST // 2]}…{path[-LONGEST // 3 :]}"


def _size(count: int) -> str:
    return f"{count:,} bytes" if count < 1e5 else f"{count / 1e6:,.1f} MB"


# Want of memory: how it is told from other errors, and what to do about it.
CURE = (
    "memory ran out; set micro_batch_tokens lower or gradient_checkpointing: true, or give it more "
    "memory. What is done is safe: the same command goes on"
)
_SIGNS = ("can't allocate memory", "out of memory", "not enough memory", "bad allocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on a device, or on the CPU, where torch has no class for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
