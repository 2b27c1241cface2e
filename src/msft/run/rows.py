"""The files beside the log that hold rows, and what is made of rows.

`verdicts.jsonl`: who was right on which row, for paired statistics. One line per point, split and
sub-dataset, on disk before the log's own line. A line whose point is not in the log (the run was
killed between the two) is cut off at the next start. The last line of a key counts. Where rows have
losses, a line before their first one says how many tokens each row's loss is summed over.

`samples.jsonl`: a few of the rows that select, with the answers of the base model and of the
result. They are picked from answers that an evaluation gives anyway, and are on disk before the
log's own line, so that a killed run has lost none. When the run ends, the file keeps the base model
and the result. Nothing is decided by samples: they may be lost.

`judgments.jsonl`: of an audit, what each judge said of each row. The log has a digest of the lines
of a judge, so lines that were lost or changed are found and judged again.
"""

import json
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from math import fsum, isfinite, nan
from pathlib import Path
from typing import Any, Protocol

from msft.errors import BadScore
from msft.files import (
    DAMAGED,
    kind_of,
    open_to_append,
    read_bytes,
    read_text,
    replace_bytes,
)
from msft.run.history import History, Stage, selection_of
from msft.run.log import Event, PointEvent, RunEvent, ScoresEvent, append_bytes
from msft.search.curves import SELECTION, Score, accuracy, value
from msft.search.falls import Fall, RowScores, falls
from msft.search.judging import JudgedRows
from msft.search.rollout import BASE, CheckpointId

Verdict = str | Sequence[float]
"""Per row: "1" right and "0" wrong, or a number where rows are not right or wrong."""

Key = tuple[CheckpointId, str, str]
"""Checkpoint, split and sub-dataset."""

VerdictsByKey = Mapping[Key, Verdict]

RowTokens = Mapping[tuple[str, str], Sequence[int]]
"""Tokens that the loss of each row is summed over, by split and sub-dataset."""


# `verdicts.jsonl`: who was right on which row.


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
            self._held |= {(checkpoint, name): _packed(rows) for name, rows in verdicts.items()}
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
            append_bytes(file, self._path, text.encode())

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None:
        """A sub-dataset's rows of the split that selects; None if they are lost."""
        if (checkpoint, name) not in self._held and not self._read:
            self._recall()
        return self._held.get((checkpoint, name))

    def tokens(self, name: str) -> Sequence[int] | None:
        """Tokens of each row that selects, where the score is a loss."""
        if (self._selection, name) not in self._tokens and not self._read:
            self._recall()
        return self._tokens.get((self._selection, name))

    def forget(self, all_but: Collection[CheckpointId]) -> None:
        """Drop the rows of other checkpoints from memory; the file still has them."""
        self._held = {key: rows for key, rows in self._held.items() if key[0] in all_but}
        self._read = False

    def _recall(self) -> None:
        """Read rows back from the file, where memory has no newer ones."""
        self._read = True
        try:
            lines = _lines(self._path) if self._path is not None else []
            verdicts, tokens = _by_checkpoint(lines), _by_split(lines)
        except DAMAGED:  # not ours any more: measured again
            return
        selects = self._selection
        kept = {(c, name): rows for (c, s, name), rows in verdicts.items() if s == selects}
        self._held = {place: _packed(rows) for place, rows in kept.items()} | self._held
        self._tokens = {**tokens, **self._tokens}


def _packed(rows: Verdict) -> Verdict:
    """Rows in a quarter of the memory that a list of numbers takes: they stay for a roll-out."""
    return rows if isinstance(rows, str) else array("d", rows)


def scored_rows(events: Sequence[Event]) -> set[Key]:
    """What a log has scores of that were measured on rows."""
    first = events[0] if events else None
    selection = selection_of(first) if isinstance(first, RunEvent) else SELECTION
    return {
        (event.checkpoint, event.split if isinstance(event, ScoresEvent) else selection, name)
        for event in events
        if isinstance(event, ScoresEvent) or (isinstance(event, PointEvent) and event.steps)
        for name in event.scores
    }


def read_verdicts(path: Path) -> dict[Key, Verdict]:
    """The verdicts of every (checkpoint, split, sub-dataset)."""
    return _by_checkpoint(_lines(path))


def read_row_tokens(path: Path) -> dict[tuple[str, str], Sequence[int]]:
    """The tokens of every row, by split and sub-dataset, of those that have losses."""
    return _by_split(_lines(path))


def _key(line: bytes) -> Key | None:
    """Checkpoint, split and sub-dataset of a line of verdicts; None where the line is none."""
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


# `samples.jsonl`: a few rows with their answers.

_ROOM = 1000
"""Lines that the file may have beyond four times those needed, before it is written anew."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A row that selects, and what a model answered.

    row: its number, from 0.
    answer: None where the metric is a loss and the model was not asked to write (see `unwritten`).
    worth: right or wrong, the loss of a token, or what a metric of the user's own says.
    """

    row: int
    prompt: str
    reference: str
    answer: str | None
    worth: bool | float


SamplesByName = Mapping[str, Sequence[Sample]]

_FIELDS = tuple(each.name for each in fields(Sample))


class Samples:
    """Appends to `samples.jsonl`; without a path nothing is kept."""

    def __init__(
        self,
        path: Path | None = None,
        writes: bool = True,
        selection: str = SELECTION,
        writer: "Writer | None" = None,
    ) -> None:
        """writes: whether the file is this process's, and not that of rank 0, to write.
        selection: the split that the samples are of.
        writer: writes an answer where a score is a loss; None: such rows stay without answers."""
        self._path = path
        self._selection = selection
        self._writer = writer
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
            append_bytes(file, self._path, text.encode())

    def missing(self, checkpoint: CheckpointId, names: Iterable[str]) -> list[str]:
        """The sub-datasets that have no samples at a checkpoint; none where none are kept."""
        held = self._held.get(checkpoint, {})
        return [] if self._path is None else [name for name in names if name not in held]

    def unwritten(self, checkpoint: CheckpointId) -> dict[str, list[int]]:
        """The rows, by sub-dataset, that have a loss at a checkpoint and no answer yet, but could
        have one."""
        held = self._held.get(checkpoint, {}).items() if self._writer else ()
        found = {name: [each.row for each in rows if each.answer is None] for name, rows in held}
        return {name: rows for name, rows in found.items() if rows}

    def write(self, checkpoint: CheckpointId) -> None:
        """Have the engine, which holds a checkpoint, answer the rows that are `unwritten`."""
        unwritten = self.unwritten(checkpoint)
        answers = self._writer(unwritten) if self._writer and unwritten else {}
        for name, texts in answers.items():
            said = iter(texts)
            rows = self._held[checkpoint][name]
            told = [r if r.answer is not None else replace(r, answer=next(said)) for r in rows]
            self.add(checkpoint, self._selection, {name: told})

    def forget(self, all_but: Collection[CheckpointId]) -> None:
        """Drop the samples of checkpoints that nobody can ask for any more."""
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


# `judgments.jsonl`: what the judges of an audit said.


@dataclass(frozen=True, slots=True)
class Judged:
    """What a checkpoint says of rows that it has not seen, and tokens that it took.

    answers: what it answers to each training row; None where no answer is asked for.
    """

    rows: Mapping[str, JudgedRows]
    answers: Mapping[str, Sequence[str | None]]
    tokens: int


class Judgments:
    """The judgments of a run, by checkpoint, and the file that has them, if there is a path."""

    def __init__(
        self,
        path: Path | None = None,
        writes: bool = True,
        judge: "Judge | None" = None,
        questions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """writes: whether the file is this process's, and not that of rank 0, to write.
        judge: judges rows with the weights that the engine holds.
        questions: what each training row of each sub-dataset asks."""
        self._path = path
        self._writes = writes
        self._judge = judge
        self.questions = questions or {}
        self._lines = {} if path is None else _judgment_lines(path)

    def digest(self, checkpoint: CheckpointId) -> str:
        """The SHA-256 of a judge's lines; empty where the judge has none."""
        lines = self._lines.get(checkpoint)
        return sha256(lines.encode()).hexdigest() if lines else ""

    def add(self, checkpoint: CheckpointId, rows: Mapping[str, Sequence[int]]) -> int:
        """Have a checkpoint, which the engine holds, judge these rows, and keep what it says; when
        this returns, it is on disk. The tokens that it took."""
        assert self._judge is not None, "only an audit judges"
        judged = self._judge(rows)
        lines = [
            {"checkpoint": checkpoint, "dataset": name}
            | asdict(each)
            | {"answers": [*judged.answers[name]]}
            for name, each in judged.rows.items()
        ]
        # In ASCII, so that no answer can act on a terminal that shows the file.
        texts = (json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        self._lines[checkpoint] = "".join(texts)
        if self._path is not None and self._writes:
            replace_bytes(self._path, "".join(self._lines.values()).encode())
        return judged.tokens

    def at(self, checkpoint: CheckpointId) -> Judged:
        """What a checkpoint said, its tokens apart."""
        rows: dict[str, JudgedRows] = {}
        answers: dict[str, Sequence[str | None]] = {}
        for line in self._lines[checkpoint].splitlines():
            raw = json.loads(line)
            name, _ = raw.pop("dataset"), raw.pop("checkpoint")
            answers[name] = raw.pop("answers")
            rows[name] = JudgedRows(**raw)
        return Judged(rows, answers, 0)


def _judgment_lines(path: Path) -> dict[CheckpointId, str]:
    """The lines of a file by checkpoint; what is torn or not ours is left out."""
    found: dict[CheckpointId, str] = {}
    try:
        lines = read_text(path).splitlines() if kind_of(path) else []
    except DAMAGED:
        return {}
    for line in lines:
        try:
            checkpoint = CheckpointId(str(json.loads(line)["checkpoint"]))
        except DAMAGED:
            continue
        found[checkpoint] = f"{found.get(checkpoint, '')}{line}\n"
    return found


# What an evaluation gives: scores and their rows.


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of some sub-datasets, tokens it took, and each row's verdict.

    A verdict is "1" or "0" per row where rows are right or wrong, else a number per row.
    row_tokens: of a loss, how many tokens each row's sum is over.
    samples: a few rows with their answers, of the split that selects, where they are asked for.
    losses: of the references, where they are asked for beside the scores.
    """

    scores: Mapping[str, Score]
    tokens: int
    verdicts: Mapping[str, str | Sequence[float]] = field(default_factory=dict)
    row_tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    samples: SamplesByName = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


Judge = Callable[[Mapping[str, Sequence[int]]], Judged]
"""What the engine holds at present says of these training rows and of all validation rows."""
Writer = Callable[[Mapping[str, Sequence[int]]], Mapping[str, Sequence[str]]]
"""What the engine holds at present writes to these rows of the split that selects."""
Scorer = Callable[[Sequence[str], str], Scored]
"""Scores of these sub-datasets on a split, of what the engine holds at present."""


def checked(scored: Scored, names: Sequence[str], checkpoint: CheckpointId) -> Scored:
    """The same scores; BadScore unless every name has a finite one."""
    for name in names:
        score = scored.scores.get(name)
        numbers = (score.total, score.probability or 0.0) if score else (nan,)
        if score is None or score.count < 1 or not all(map(isfinite, numbers)):
            raise BadScore(
                f"{name} at {checkpoint} got {score or 'no score'}; expected a finite number, so "
                "nothing was decided: mend the metric or the data, then run the same command"
            )
    return scored


def coerce_kind(scored: Scored, patterns: Mapping[str, Score]) -> Scored:
    """The scores and verdicts in the kinds of the patterns; BadScore where one cannot be."""
    scores, verdicts = {**scored.scores}, {**scored.verdicts}
    for name, score in scored.scores.items():
        pattern = patterns.get(name, score)
        kinds = (pattern.metric, score.metric)
        if kinds == ("accuracy", "value"):
            verdicts[name] = _marks(name, verdicts.get(name, ()))
            scores[name] = accuracy(int(score.total), score.count)
        if kinds == ("value", "accuracy") and name in verdicts:
            verdicts[name] = [float(row) for row in verdicts[name]]
        if pattern.metric == "value":
            plain = pattern.count == 1  # older logs have means alone
            scores[name] = (
                value(float(score.value)) if plain else value(float(score.total), score.count)
            )
    return replace(scored, scores=scores, verdicts=verdicts)


def _marks(name: str, rows: Verdict) -> str:
    """Numbers as right and wrong rows; BadScore unless each is 0 or 1."""
    other = [row for row in rows if row not in (0, 1)]
    if other or not rows:
        raise BadScore(
            f"{name}: its metric gave {other[0] if other else 'a number'} for a row, but for the "
            "base model only true or false, so this run counts right rows; let the metric return "
            "a number for every row (0.0 instead of False, 1.0 instead of True), then start in "
            "another folder"
        )
    return "".join("1" if row else "0" for row in rows)


# What rows say of falls.

_RIGHT = {"0": 0.0, "1": 1.0}


class RowVerdicts(Protocol):
    """The rows of a run that select, by checkpoint and sub-dataset; None where they are lost."""

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None: ...

    def tokens(self, name: str) -> Sequence[int] | None: ...


def rollout_falls(
    history: History, rows: RowVerdicts, number: int, confidence: float
) -> dict[str, Fall]:
    """The falls of a roll-out's active sub-datasets; ValueError where rows are missing."""
    stage = history.stages[number]
    ticks = trained_ticks(stage)
    scores = {
        name: row_scores(history, rows, name, [*ticks.values()], BASE)
        for name in stage.asked.active
    }
    numbers = [*ticks]
    return {
        name: replace(fall, peaks=(numbers[fall.peaks[0]], numbers[fall.peaks[1]]))
        for name, fall in falls(scores, number, confidence).items()
    }


def trained_ticks(stage: Stage) -> dict[int, CheckpointId]:
    """The start and the ticks with a step: the others are the same model as before."""
    reached = enumerate(stage.points, start=1)
    return {0: stage.asked.start, **{tick: p.checkpoint for tick, p in reached if p.steps}}


def row_scores(
    history: History,
    rows: RowVerdicts,
    name: str,
    checkpoints: Sequence[CheckpointId],
    base: CheckpointId,
) -> RowScores:
    """A sub-dataset's rows at some checkpoints, beside those at another one; ValueError where
    they are missing."""
    loss = history.unit_of(name) == "nll"

    def heights(checkpoint: CheckpointId) -> list[float]:
        found = rows.at(checkpoint, name)
        if found is None:
            raise ValueError(f"there are no rows of {name} at {checkpoint}")
        if isinstance(found, str):  # by far the most rows of a long run
            return [*map(_RIGHT.__getitem__, found)]
        return [-float(row) for row in found] if loss else [float(row) for row in found]

    below = heights(base)
    weights = [1.0] * len(below)
    if loss:
        tokens = rows.tokens(name)
        whole = history.score_of(base, name).count  # a folder of an earlier version has only that
        weights = [*map(float, tokens)] if tokens else [whole / len(below)] * len(below)
    ticks = [heights(checkpoint) for checkpoint in checkpoints]
    if len({len(below), len(weights), *map(len, ticks)}) > 1:
        raise ValueError(f"there are more rows of {name} at one checkpoint than at another")
    return RowScores(ticks, below, weights)


def fits_score(rows: Verdict, score: Score, tokens: Sequence[int] | None) -> bool:
    """Whether rows are those that a score was made from."""
    if score.metric == "accuracy":
        return len(rows) == score.count and sum(row == "1" for row in rows) == score.total
    if score.metric == "nll":
        count = None if tokens is None else (len(tokens), sum(tokens))
        return count == (len(rows), score.count) and fsum(map(float, rows)) == score.total
    if score.count > 1:
        return len(rows) == score.count and fsum(map(float, rows)) == score.total
    return len(rows) > 0  # a mean alone
