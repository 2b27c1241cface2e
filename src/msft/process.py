"""This process: what SIGTERM and SIGINT do, from the first line of the program on, and whether it
is one of several that `torchrun` or `accelerate launch` has started.

A signal ends the program with exit code 4. Where work is under way that can be brought to a safe
end (`graceful`), it raises `Stopped`; everywhere else it ends the process at once, since an
exception in the middle of an import may be swallowed, or turned into another one. A second signal
ends the process at once wherever it is; what is written then is as after a kill.

This file is loaded first, so it imports next to nothing: until it is there, a signal is Python's.
"""

import _signal as signal  # type: ignore[import-not-found]  # without enum, which takes its time
import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT"}
EXIT_CODE = 4
IS_JOB = "MSFT_IS_JOB"
"""The variable in the environment that tells a process that it is a job of another one's, and how
many of them there are at a time."""
progress: "Callable[[str], object] | None" = None
"""Shows on a line how far long work is, over what it showed before; nothing ends the line. Set by
the commands; None: nobody watches."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
_SHOW_CURSOR = b"\x1b[?25h"


class _State:
    """What is known about signals in this process."""

    ours = False
    """The process is the program's own, so it may be ended."""
    graceful = 0
    """How many `graceful` blocks are open."""
    held = 0
    """How many `held` blocks are open."""
    asked: str | None = None
    """The first signal's name."""
    told = False
    done: int | None = None
    """The exit code, once all work is done."""


def catch_signals() -> None:
    """Make the signals of this process the program's; once is enough."""
    if _State.ours:
        return
    _State.ours = True
    atexit.register(_ignore)  # registered first, called last: Python's own end takes a while
    for each in SIGNALS:
        signal.signal(each, _handle)


def all_done(code: int) -> None:
    """A signal does not change the exit code any more; it only shortens the way out."""
    _State.done = code


class graceful:  # noqa: N801  a context manager
    """While it is open, a signal raises `Stopped`."""

    def __enter__(self) -> None:
        _State.graceful += 1

    def __exit__(self, *error: object) -> None:
        _State.graceful -= 1


class held:  # noqa: N801  a context manager
    """Inside `graceful`: a signal waits while a few lines that belong together are done."""

    def __enter__(self) -> None:
        _State.held += 1

    def __exit__(self, *error: object) -> None:
        _State.held -= 1
        if error[0] is None:
            check()


class stop_on_signals:  # noqa: N801  a context manager
    """For a program in somebody else's process: a signal raises `Stopped`, a second one is theirs.
    In a process of our own, and where there is no main thread, nothing changes."""

    def __enter__(self) -> None:
        self._before: dict[int, object] = {}
        if not _State.ours:
            try:
                self._before = {each: signal.signal(each, self._raise) for each in SIGNALS}
            except ValueError:  # not in the main thread: the host program has its own handlers
                return

    def __exit__(self, *error: object) -> None:
        for each, old in self._before.items():
            signal.signal(each, old)
        if self._before:
            _State.asked = None

    def _raise(self, number: int, frame: object) -> None:
        from msft.errors import Stopped

        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if _State.held:
            _State.asked = SIGNALS[number]
            return
        raise Stopped(SIGNALS[number])


def check() -> None:
    """Raise `Stopped` if a signal came that could not: it was held, or a library swallowed it."""
    if _State.asked and not _State.held and _State.graceful:
        from msft.errors import Stopped

        raise Stopped(_State.asked)


def asked() -> str | None:
    """The signal that came and was held, if one did."""
    return _State.asked


def farewell(name: str, arguments: "Sequence[str] | None" = None) -> str:
    """What happened and what resumes, for stderr; nothing where a job's owner says it, or where
    this process has said it."""
    if _State.told or IS_JOB in os.environ:
        return ""
    if os.environ.get("WORLD_SIZE", "1") != "1" and "MASTER_ADDR" in os.environ:
        return f"stopped by {name}; nothing is lost. To go on, start the same command again\n"
    words = sys.argv[1:] if arguments is None else arguments
    again = " ".join(["msft", *(_quoted(word) for word in words)])
    try:
        from msft.text import safe

        again = safe(again)
    except Exception:  # the signal came in the middle of an import, here or of the library
        again = "the same command"
    return f"stopped by {name}; nothing is lost. To go on:\n  {again}\n"


def said() -> None:
    """The farewell is on stderr, and not only made: a second signal between the two says it."""
    _State.told = _State.ours


def _handle(number: int, frame: object) -> None:
    if _State.done is not None:
        os._exit(_State.done)
    name = SIGNALS[number]
    if _State.asked is not None or not _State.graceful:
        _end(_State.asked or name)
    _State.asked = name
    _watch()
    check()


def _watch() -> None:
    """End at the next signal even if Python does not come to handle it, in a long write, say."""
    import _thread

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _thread.start_new_thread(_end_at_byte, (reading,))


def _end_at_byte(reading: int) -> None:
    os.read(reading, 1)
    _end(str(_State.asked))


def _end(name: str) -> None:
    """End this process now."""
    if os.isatty(1):
        os.write(1, _SHOW_CURSOR)
    try:
        os.write(2, farewell(name).encode(errors="replace"))  # sys.stderr may be busy
        said()
    except OSError:
        pass  # nobody listens
    os._exit(EXIT_CODE if _State.done is None else _State.done)


def _ignore() -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _quoted(word: str) -> str:
    """As shlex.quote has it; a signal may come before that is loaded."""
    if word and _PLAIN.issuperset(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


# One of several processes: both launchers say so in the environment.
def world() -> int:
    """How many processes do this run together; one, unless they know where to meet."""
    return _number("WORLD_SIZE", 1) if {"RANK", "MASTER_ADDR"} <= os.environ.keys() else 1


def rank() -> int:
    """The number of this one, from 0; the first one speaks for all."""
    return _number("RANK", 0) if world() > 1 else 0


def local_rank() -> int:
    """Its number on this machine."""
    return _number("LOCAL_RANK", rank()) if world() > 1 else 0


def local_world() -> int:
    """How many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", world())


def jobs() -> int:
    """How many jobs of another process go on at a time, this one included."""
    return max(1, _number(IS_JOB, 1))


def take_rank(command: str, refuse: "Callable[[str], object]") -> None:
    """Be silent, unless this is the first process; refuse what only one process does."""
    if world() > 1 and command not in ("train", "replay", "audit"):
        refuse(
            f"{world()} processes were started, but `msft {command}` works in one; start it "
            "without torchrun or accelerate launch"
        )
    if rank():
        os.environ[IS_JOB] = "1"


class signals_wait:  # noqa: N801  a context manager
    """Inside, a signal to one of several processes waits until all know of it, which is at their
    next meeting; alone, nothing changes."""

    def __enter__(self) -> None:
        self._several = world() > 1
        self._graceful, self._held = graceful(), held()
        if self._several:
            self._graceful.__enter__()
            self._held.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._several:
            try:
                self._held.__exit__(*error)
            finally:
                self._graceful.__exit__(*error)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default
