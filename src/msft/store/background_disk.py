"""Durable writes off the training path: a disk that one thread of ours works for.

The disk is always as it was, or could have been, at some earlier moment of the run: nothing is
removed before what made it superfluous is written. So a crash costs training, never a result.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msft.store.tiers import DiskTier

MOST_WAITING = 4
"""Payloads that may wait: two checkpoints with their moments, besides the one being written."""

_REMOVAL = object()


class BackgroundDisk:
    """A disk tier whose `put` and `drop` return at once; one thread does them in order.

    hand_over: is called with a payload as it is put, in the thread that puts it.
    """

    name = DiskTier.name

    def __init__(
        self,
        disk: DiskTier,
        hand_over: Callable[[Any], Any] = lambda payload: payload,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._disk = disk
        self._hand_over = hand_over
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: dict[str, Any] = {}
        self._current: tuple[str, Any] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __contains__(self, key: str) -> bool:
        with self._changed:
            known, payload = self._pending(key)
        return payload is not None if known else key in self._disk

    def put(self, key: str, payload: Any) -> None:
        """Have it written soon; waits while too much is waiting already."""
        payload = self._hand_over(payload)
        with self._changed:
            self._wait(lambda: self._num_writes(besides=key) < self._most_waiting)
            self._place(key, payload)

    def get(self, key: str) -> Any | None:
        with self._changed:
            known, payload = self._pending(key)
        return payload if known else self._disk.get(key)

    def is_whole(self, key: str) -> bool:
        """Whether it is on disk as it was written; what is still to be done is not."""
        with self._changed:
            known, _ = self._pending(key)
        return not known and self._disk.is_whole(key)

    def drop(self, key: str) -> None:
        """Have it removed once all that waits now is written; what was not begun never will be."""
        with self._changed:
            self._raise_error()
            self._place(key, _REMOVAL)

    def listed(self) -> list[str]:
        self.flush()
        return self._disk.listed()

    def flush(self) -> None:
        """Wait until everything is done; what went wrong is raised here at the latest."""
        with self._changed:
            self._begin()
            self._wait(lambda: not self._waiting and self._current is None)

    def waiting(self) -> list[str]:
        """What is still to be done."""
        with self._changed:
            return [*self._waiting, *([self._current[0]] if self._current else [])]

    def folders(self, key: str) -> list[Path]:
        return self._disk.folders(key)

    def _pending(self, key: str) -> tuple[bool, Any | None]:
        """Whether something is still to be done with a key, and what it will hold then."""
        if key in self._waiting:
            payload = self._waiting[key]
        elif self._current is not None and self._current[0] == key:
            payload = self._current[1]
        else:
            return False, None
        return True, None if payload is _REMOVAL else payload

    def _place(self, key: str, payload: Any) -> None:
        """Let this be the last that waits, in place of what waited for the key before.

        A removal may have waited for a write that is cancelled here, so then all of them wait for
        the writes that are left, and for what was put instead.
        """
        cancelled = self._waiting.pop(key, _REMOVAL) is not _REMOVAL
        self._waiting[key] = payload
        if cancelled:
            for other in [k for k, waits in self._waiting.items() if waits is _REMOVAL]:
                self._waiting[other] = self._waiting.pop(other)
        self._begin()

    def _num_writes(self, besides: str) -> int:
        return sum(k != besides and waits is not _REMOVAL for k, waits in self._waiting.items())

    def _begin(self) -> None:
        """A thread lives as long as there is work, so that nobody has to end it."""
        if self._thread is None and self._waiting:
            self._thread = threading.Thread(target=self._work, name="msft-writer", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Do what has waited longest; False if there is nothing."""
        with self._changed:
            if not self._waiting:
                self._thread = None
                return False
            key = next(iter(self._waiting))
            payload = self._waiting.pop(key)
            self._current = key, payload
        error: BaseException | None = None
        try:
            if payload is _REMOVAL:
                self._disk.drop(key)
            else:
                self._disk.put(key, payload)
        except BaseException as caught:  # it belongs to the thread that trains
            error = caught
        with self._changed:
            self._current = None
            if error is not None:
                self._error = error
                self._waiting.clear()
            self._changed.notify_all()
        return True

    def _wait(self, done: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._error is not None or done())
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
