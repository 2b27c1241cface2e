"""Row verdicts: who was right on which row, for paired statistics.

One line per point, split and sub-dataset, beside the log. A line whose point is not in the log
(the run was killed between the two) is written again; the last line of a key counts.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msft.search.rollout import CheckpointId

Verdict = str | Sequence[float]
"""Per row: "1" right and "0" wrong, or a number where rows are not right or wrong."""


class Verdicts:
    """Appends to `verdicts.jsonl`; without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is not None and path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a torn last line

    def add(self, checkpoint: CheckpointId, split: str, verdicts: Mapping[str, Verdict]) -> None:
        if self._path is None or not verdicts:
            return
        with self._path.open("a") as file:
            for name, rows in verdicts.items():
                line = {"checkpoint": checkpoint, "split": split, "dataset": name, "rows": rows}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read_verdicts(path: Path) -> dict[tuple[CheckpointId, str, str], Verdict]:
    """The verdicts of every (checkpoint, split, sub-dataset)."""
    found: dict[tuple[CheckpointId, str, str], Verdict] = {}
    lines = path.read_text().split("\n")[:-1]
    for raw in json.loads(f"[{','.join(lines)}]"):  # at once: a long run has 100,000 lines
        found[CheckpointId(raw["checkpoint"]), raw["split"], raw["dataset"]] = raw["rows"]
    return found


VerdictsByKey = Mapping[tuple[CheckpointId, str, str], Verdict]
