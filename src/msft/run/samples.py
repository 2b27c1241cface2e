"""Sample answers: a few of the rows that select, with what the base model and the result say.

They are picked from answers that an evaluation gives anyway. A line is on disk before the log's own
line, so that a killed run has lost none. When the run ends, the file keeps the base model and the
result. Nothing is decided by it, and the log says nothing of it.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from msft.files import (
    DAMAGED,
    append,
    kind_of,
    open_to_append,
    read_bytes,
    read_text,
    replace_bytes,
)
from msft.search.rollout import CheckpointId
from msft.search.scores import SELECTION

LONGEST_PROMPT = 1200
LONGEST_ANSWER = 600
"""Characters that are kept; the middle of a longer text is cut out."""

_ROOM = 1000
"""Lines that the file may have beyond four times those needed, before it is written anew."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A row that selects, and what a model answered.

    row: its number, from 0.
    answer: None where the metric is a loss, and no answer is asked for.
    worth: right or wrong, the loss of a token, or what a metric of the user's own says.
    """

    row: int
    prompt: str
    reference: str
    answer: str | None
    worth: bool | float


SamplesByName = Mapping[str, Sequence[Sample]]

_FIELDS = tuple(each.name for each in fields(Sample))


def picked(rows: int, most: int) -> list[int]:
    """Numbers of the rows that are shown: evenly over the split, whatever was answered."""
    count = min(rows, most)
    return [number * rows // count for number in range(count)]


def cut(text: str, longest: int) -> str:
    """A text without its middle, if it is too long."""
    if len(text) <= longest:
        return text
    end = longest // 3
    begin = longest - end
    return f"{text[:begin]} [… {len(text) - longest:,} characters …] {text[-end:]}"


class Samples:
    """Appends to `samples.jsonl`; without a path nothing is kept."""

    def __init__(
        self, path: Path | None = None, writes: bool = True, selection: str = SELECTION
    ) -> None:
        """writes: whether the file is this process's, and not that of rank 0, to write.
        selection: the split that the samples are of."""
        self._path = path
        self._selection = selection
        self._writes = writes
        self._held = {} if path is None else read_samples(path)
        self._lines = _count(self._held)
        self._torn = path is not None and _is_torn(path)

    def add(self, checkpoint: CheckpointId, split: str, samples: SamplesByName) -> None:
        if self._path is None or split != self._selection or not samples:
            return
        self._held.setdefault(checkpoint, {}).update(samples)
        if not self._writes:
            return
        if self._torn:  # a kill left half a line, which the next one must not join
            self._write(self._held)
            return
        text = _text(checkpoint, self._selection, samples)
        self._lines += text.count("\n")
        with open_to_append(self._path) as file:
            append(file, self._path, text.encode())

    def missing(self, checkpoint: CheckpointId, names: Iterable[str]) -> list[str]:
        """The sub-datasets that have no samples at a checkpoint; none where none are kept."""
        held = self._held.get(checkpoint, {})
        return [] if self._path is None else [name for name in names if name not in held]

    def forget(self, all_but: Collection[CheckpointId]) -> None:
        """Checkpoints that nobody can ask for any more."""
        self._held = {place: held for place, held in self._held.items() if place in all_but}
        if self._lines > 4 * _count(self._held) + _ROOM:
            self._write(self._held)

    def finish(self, checkpoints: Iterable[CheckpointId], names: Sequence[str]) -> None:
        """Keep these checkpoints only, each with its sub-datasets in this order."""
        found = {place: self._held.get(place, {}) for place in dict.fromkeys(checkpoints)}
        self._write(
            {place: {n: held[n] for n in names if n in held} for place, held in found.items()}
        )

    def _write(self, held: Mapping[CheckpointId, SamplesByName]) -> None:
        if self._path is None or not self._writes:
            return
        text = "".join(_text(place, self._selection, each) for place, each in held.items())
        replace_bytes(self._path, text.encode())
        self._lines, self._torn = _count(held), False


def read_samples(path: Path) -> dict[CheckpointId, dict[str, Sequence[Sample]]]:
    """What a file has, by checkpoint and sub-dataset; lines that are torn or no samples are left
    out, and the last one of a row counts."""
    rows: dict[tuple[CheckpointId, str], dict[int, Sample]] = {}
    try:
        lines = read_text(path).split("\n") if kind_of(path) else []
    except DAMAGED:
        return {}
    for line in lines:
        try:
            raw = json.loads(line)
            key = (CheckpointId(raw.pop("checkpoint")), str(raw.pop("dataset")))
            raw.pop("split")
            sample = Sample(**raw)
            if _is_sample(sample):
                rows.setdefault(key, {})[sample.row] = sample
        except DAMAGED:
            continue
    found: dict[CheckpointId, dict[str, Sequence[Sample]]] = {}
    for (checkpoint, name), held in rows.items():
        found.setdefault(checkpoint, {})[name] = [held[row] for row in sorted(held)]
    return found


def _is_torn(path: Path) -> bool:
    try:
        data = read_bytes(path) if kind_of(path) else b""
    except OSError:
        return False
    return bool(data) and not data.endswith(b"\n")


def _is_sample(sample: Sample) -> bool:
    """Whether every field has its type: files may be somebody else's."""
    texts = isinstance(sample.prompt, str) and isinstance(sample.reference, str)
    said = sample.answer is None or isinstance(sample.answer, str)
    return texts and said and isinstance(sample.row, int) and isinstance(sample.worth, int | float)


def _text(checkpoint: CheckpointId, split: str, samples: SamplesByName) -> str:
    """Lines in ASCII, so that no answer can act on a terminal that shows the file."""
    return "".join(
        json.dumps(
            {"checkpoint": checkpoint, "split": split, "dataset": name}
            | {key: getattr(each, key) for key in _FIELDS}
        )
        + "\n"
        for name, rows in samples.items()
        for each in rows
    )


def _count(held: Mapping[CheckpointId, SamplesByName]) -> int:
    return sum(len(rows) for samples in held.values() for rows in samples.values())
