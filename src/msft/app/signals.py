"""Signals: SIGTERM and SIGINT stop a run where it is safe."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from msft.errors import Stopped


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise `Stopped`; a second one ends the process at once."""

    def handler(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        raise Stopped(signal.Signals(number).name)

    try:
        before = {each: signal.signal(each, handler) for each in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not in the main thread: the host program has its own handlers
        yield
        return
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)
