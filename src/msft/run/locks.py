"""One writer of a log at a time: a lock that dies with its process."""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from msft.errors import LogError
from msft.files import FILE, kind_of, open_to_read, replace_bytes, shown_text
from msft.system_errors import explaining


def is_being_written(path: Path) -> bool:
    """Whether a process holds the log; a run that ended, was stopped or died holds none."""
    try:
        with open_to_read(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not there, or on a disk without locks
        return False
    return False


def lock(file: IO[bytes], path: Path) -> None:
    """One writer: the lock dies with its process, the file beside it says who holds it."""
    holder = path.with_name("run.lock")
    try:
        with explaining(path):  # a disk may have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        name = shown_text(holder).strip() if kind_of(holder) == FILE else "another process"
        raise LogError(f"{path.parent} is in use by {name}; wait for it or stop it") from error
    replace_bytes(holder, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
