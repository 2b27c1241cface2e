"""`steps.jsonl`: a line per step. It may be lost without harm, so nothing fails for it."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msft.files import open_to_append


class StepLines:
    """Gathers lines and adds them to the file at each `flush`."""

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self._path = path
        self._notice = notice
        self._lines: list[str] = []
        self._file: IO[bytes] | None = open_to_append(path)

    def add(self, line: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(line) + "\n")

    def flush(self) -> None:
        text, self._lines = "".join(self._lines), []
        if self._file is None or not text:
            return
        try:
            self._file.write(text.encode())
        except OSError as error:
            self._notice(
                f"{self._path} is not written any more ({error.strerror}); the run goes on"
            )
            self._stop()

    def close(self) -> None:
        self.flush()
        self._stop()

    def _stop(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
