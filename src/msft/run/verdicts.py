"""Row verdicts: who was right on which row, for paired statistics.

One line per point, split and sub-dataset, beside the log, on disk before the log's own line. A line
whose point is not in the log (the run was killed between the two) is cut off at the next start. The
last line of a key counts. Where rows have losses, a line before their first one says how many
tokens each row's loss is summed over.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msft.files import DAMAGED, append, kind_of, open_to_append, read_bytes, read_text
from msft.search.rollout import CheckpointId
from msft.search.scores import SELECTION

Verdict = str | Sequence[float]
"""Per row: "1" right and "0" wrong, or a number where rows are not right or wrong."""

Key = tuple[CheckpointId, str, str]
"""Checkpoint, split and sub-dataset."""

VerdictsByKey = Mapping[Key, Verdict]

RowTokens = Mapping[tuple[str, str], Sequence[int]]
"""Tokens that the loss of each row is summed over, by split and sub-dataset."""


class Verdicts:
    """Appends to `verdicts.jsonl`, if there is a path. Those of the split that selects are at hand
    until they are forgotten, and after a resume as far as the file has them."""

    def __init__(
        self,
        path: Path | None = None,
        notice: Callable[[str], None] = lambda text: None,
        writes: bool = True,
        selection: str = SELECTION,
    ) -> None:
        """writes: whether the file is this process's, and not that of rank 0, to write.
        selection: the split that selects."""
        self._path = path
        self._selection = selection
        self._writes = writes
        self._notice = notice
        self._held: dict[tuple[CheckpointId, str], Verdict] = {}
        self._tokens: dict[tuple[str, str], Sequence[int]] = {}
        self._read = False

    def resume(self, logged: Collection[Key]) -> None:
        """Bring the file to where the log ends: cut what the log does not know, and say what the
        file has lost.

        logged: what the log has scores of, measured on rows.
        """
        if self._path is None or not self._writes:
            return
        data = read_bytes(self._path) if kind_of(self._path) else b""
        lines = data.splitlines(keepends=True)
        keys = [_key(line) for line in lines]
        there = [number for number, key in enumerate(keys) if key in logged]
        kept = there[-1] + 1 if there else 0
        if kept < len(lines):
            os.truncate(self._path, sum(map(len, lines[:kept])))
        lost = len({*logged} - {*keys})
        if lost:
            self._notice(
                f"{self._path.name} has lost the rows of {lost} of {len(logged)} scores; "
                "statistics over rows leave them out"
            )

    def add(
        self,
        checkpoint: CheckpointId,
        split: str,
        verdicts: Mapping[str, Verdict],
        row_tokens: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if split == self._selection:
            self._held.update({(checkpoint, name): rows for name, rows in verdicts.items()})
        counts = row_tokens or {}
        if any((split, name) not in self._tokens for name in counts) and not self._read:
            self._recall()  # a resumed run has them in its file
        new = {n: t for n, t in counts.items() if (split, n) not in self._tokens}
        self._tokens.update({(split, name): tokens for name, tokens in new.items()})
        if self._path is None or not self._writes or not verdicts:
            return
        lines: list[Mapping[str, Any]] = [
            {"split": split, "dataset": name, "tokens": [*tokens]} for name, tokens in new.items()
        ]
        lines += [
            {"checkpoint": checkpoint, "split": split, "dataset": name, "rows": rows}
            for name, rows in verdicts.items()
        ]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with open_to_append(self._path) as file:  # on disk before the log says that it is there
            append(file, self._path, text.encode())

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None:
        """A sub-dataset's rows of the split that selects; None if they are lost."""
        if (checkpoint, name) not in self._held and not self._read:
            self._recall()
        return self._held.get((checkpoint, name))

    def tokens(self, name: str) -> Sequence[int] | None:
        """Of each of these rows, where the score is a loss."""
        if (self._selection, name) not in self._tokens and not self._read:
            self._recall()
        return self._tokens.get((self._selection, name))

    def forget(self, all_but: Collection[CheckpointId]) -> None:
        """Keep no others in memory; the file still has them."""
        self._held = {key: rows for key, rows in self._held.items() if key[0] in all_but}
        self._read = False

    def _recall(self) -> None:
        """What the file has, where memory has nothing newer."""
        self._read = True
        try:
            lines = _lines(self._path) if self._path is not None else []
            verdicts, tokens = _by_checkpoint(lines), _by_split(lines)
        except DAMAGED:  # not ours any more: measured again
            return
        selects = self._selection
        there = {(c, name): rows for (c, s, name), rows in verdicts.items() if s == selects}
        self._held = there | self._held
        self._tokens = {**tokens, **self._tokens}


def read_verdicts(path: Path) -> dict[Key, Verdict]:
    """The verdicts of every (checkpoint, split, sub-dataset)."""
    return _by_checkpoint(_lines(path))


def read_row_tokens(path: Path) -> dict[tuple[str, str], Sequence[int]]:
    """The tokens of every row, by split and sub-dataset, of those that have losses."""
    return _by_split(_lines(path))


def _key(line: bytes) -> Key | None:
    """Whose verdicts a line has; None if it has none."""
    try:
        raw = json.loads(line)
        return CheckpointId(raw["checkpoint"]), raw["split"], raw["dataset"]
    except DAMAGED:
        return None


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = read_text(path).split("\n")[:-1]
    found: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")  # at once: a long run has
    return found  # 100,000 lines


def _by_checkpoint(lines: Sequence[Mapping[str, Any]]) -> dict[Any, Verdict]:
    return {
        (CheckpointId(raw["checkpoint"]), raw["split"], raw["dataset"]): raw["rows"]
        for raw in lines
        if "tokens" not in raw
    }


def _by_split(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Sequence[int]]:
    return {(raw["split"], raw["dataset"]): raw["tokens"] for raw in lines if "tokens" in raw}
