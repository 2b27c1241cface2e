"""Likelihoods of answers: lines through the model, recorded where they come again.

The rows that a run is scored on are the same at every tick. The first time their lines go through
a model of moderate size as they are, the second time the device's work is recorded, and from then
on it is replayed beside whatever else the device does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from msft.engine.decode.batch_plans import AnswerPlan
from msft.engine.decode.shared_attention import Line
from msft.engine.memory_model import HEAD_TOKENS
from msft.engine.packing import answer_losses
from msft.engine.paths import Recorder

RECORDS_KEPT = 4

Forward = Callable[[Line, int], Tensor]
"""forward(line, reach): logits at the line's targets."""


@dataclass(slots=True)
class Record:
    """What a plan's lines are recorded as, and where their losses are found."""

    plan: AnswerPlan
    graph: torch.cuda.CUDAGraph | None = None
    losses: Tensor | None = None


class Measurer:
    """-log p of answers.

    recorder: records what comes again; None: nothing is.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._records: list[Record] = []

    def forget(self) -> None:
        """What was recorded knows weights by address: they lie elsewhere now."""
        self._records.clear()
        if self._recorder is not None:
            self._recorder.renew()

    def begin(self, plan: AnswerPlan, rows: int, forward: Forward) -> Callable[[], list[float]]:
        """Put it in train; the sums of so many rows, when they are asked for.

        What is handed out holds the plan, which a replay reads, but nobody's memory of keys.
        """
        losses, aside = self._losses(plan, forward)

        def sums() -> list[float]:
            if aside is not None:
                torch.cuda.current_stream().wait_stream(aside)
            total = torch.zeros(rows, dtype=torch.float64)
            if losses is not None:
                total.index_add_(0, plan.owners, losses.double().cpu())
            return total.tolist()

        return sums

    def _losses(
        self, plan: AnswerPlan, forward: Forward
    ) -> tuple[Tensor | None, torch.cuda.Stream | None]:
        """Losses of a plan's targets, and the stream that they come from, if it is another."""
        if not plan.lines:
            return None, None
        if self._recorder is None or plan.prefixes:  # others may write where prefixes are kept
            return _work(plan, forward), None
        record = next((record for record in self._records if record.plan is plan), None)
        if record is None:
            losses = _work(plan, forward)
            if len(self._records) == RECORDS_KEPT:
                self.forget()  # graphs of one recorder end together
            self._records.append(Record(plan))
            return losses, None
        if record.graph is None:
            self._record(record, self._recorder, forward)
        if record.graph is None:
            return _work(plan, forward), None
        aside = self._recorder.stream
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            record.graph.replay()
        return record.losses, aside

    def _record(self, record: Record, recorder: Recorder, forward: Forward) -> None:
        def work() -> None:
            record.losses = _work(record.plan, forward)

        record.graph = recorder.recorded(work)
        if record.graph is None:  # a model that waits for the host: as it stands, then
            self._recorder = None
            self._records.clear()


def _work(plan: AnswerPlan, forward: Forward) -> Tensor:
    return torch.cat([_line(forward(line, plan.reach), line.labels) for line in plan.lines])


def _line(logits: Tensor, labels: Tensor) -> Tensor:
    parts = (torch.split(tensor, HEAD_TOKENS) for tensor in (logits, labels))
    return torch.cat([answer_losses(*part) for part in zip(*parts, strict=True)])
