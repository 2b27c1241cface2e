"""The test of falls: a question of the method, answered from the log, else from row verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Protocol

from msft.errors import BadScore
from msft.run.history import History, Stage
from msft.run.journal import Journal
from msft.run.log import Tested
from msft.run.recovery import Recovery
from msft.run.score_kinds import alike
from msft.run.verdicts import Verdict, Verdicts
from msft.run.worker import Worker
from msft.search.falls import Fall, RowScores, falls
from msft.search.rollout import BASE, CheckpointId, Rollout, place_of
from msft.search.scores import Score

_RIGHT = {"0": 0.0, "1": 1.0}


class Rows(Protocol):
    """The rows of a run that select, by checkpoint and sub-dataset; None where they are lost."""

    def at(self, checkpoint: CheckpointId, name: str) -> Verdict | None: ...

    def tokens(self, name: str) -> Sequence[int] | None: ...


def rollout_falls(history: History, rows: Rows, number: int, confidence: float) -> dict[str, Fall]:
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
    rows: Rows,
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
        whole = history.known(base)[name].count  # a folder of an earlier version has only that
        weights = [*map(float, tokens)] if tokens else [whole / len(below)] * len(below)
    ticks = [heights(checkpoint) for checkpoint in checkpoints]
    if len({len(below), len(weights), *map(len, ticks)}) > 1:
        raise ValueError(f"there are more rows of {name} at one checkpoint than at another")
    return RowScores(ticks, below, weights)


class FallTest:
    """Brings rows together. Those that are lost are measured again, which is in no line of the
    log: the same weights give the same verdicts."""

    def __init__(
        self,
        journal: Journal,
        history: History,
        verdicts: Verdicts,
        recovery: Recovery,
        worker: Worker,
    ) -> None:
        self._journal = journal
        self._history = history
        self._verdicts = verdicts
        self._recovery = recovery
        self._worker = worker

    def answer(self, rollout: Rollout, confidence: float) -> Mapping[str, Fall]:
        """The falls of a roll-out's active sub-datasets."""
        number = place_of(rollout.end)[0]
        event = self._journal.answer(Tested, rollout.end)
        if event is None:
            event = Tested(rollout.end, number, confidence, self._falls(rollout, confidence))
            self._journal.record(event)
            self._journal.take(event)
        else:  # the same question as then
            self._journal.ask(replace(event, rollout=number, confidence=confidence))
        return event.falls

    def _falls(self, rollout: Rollout, confidence: float) -> dict[str, Fall]:
        number = place_of(rollout.end)[0]
        checkpoints = trained_ticks(self._history.stages[number]).values()
        self._complete([BASE, *checkpoints], rollout.mixture.active)
        return rollout_falls(self._history, self._verdicts, number, confidence)

    def _complete(self, checkpoints: Sequence[CheckpointId], names: Sequence[str]) -> None:
        """Measure again what neither memory nor the file has."""
        for checkpoint in dict.fromkeys(checkpoints):
            lost = [name for name in names if not self._has(checkpoint, name)]
            if not lost:
                continue
            self._recovery.hold(checkpoint)
            selection = self._history.selection
            scored = alike(self._worker.score(lost, selection), self._history.patterns)
            missing = [name for name in lost if name not in scored.verdicts]
            if missing:
                raise BadScore(
                    f"{missing[0]} at {checkpoint} has no verdicts of single rows, without which "
                    "no fall can be tested; leave method_options.exclude out, or have the engine "
                    "give them (in msft.testing.scripted: rows=)"
                )
            self._verdicts.add(checkpoint, selection, scored.verdicts, scored.row_tokens)

    def _has(self, checkpoint: CheckpointId, name: str) -> bool:
        """Whether there are rows, and as many as the base model's score and tokens say."""
        rows, score = self._verdicts.at(checkpoint, name), self._history.known(checkpoint)[name]
        tokens = self._verdicts.tokens(name)
        try:
            return rows is not None and _fits(rows, score, tokens)
        except (TypeError, ValueError):
            return False


def _fits(rows: Verdict, score: Score, tokens: Sequence[int] | None) -> bool:
    """Whether rows are those that a score was made from."""
    if score.metric == "accuracy":
        return len(rows) == score.count and sum(row == "1" for row in rows) == score.total
    if score.metric == "nll":
        count = None if tokens is None else (len(tokens), sum(tokens))
        return count == (len(rows), score.count) and fsum(map(float, rows)) == score.total
    if score.count > 1:
        return len(rows) == score.count and fsum(map(float, rows)) == score.total
    return len(rows) > 0  # a mean alone
