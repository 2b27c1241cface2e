"""Losses of answers: lines through the model, recorded where they come again.

The rows that a run is scored on are the same at every tick. The first time their lines go through
a model of moderate size as they are, the second time the device's work is recorded, and from then
on it is replayed beside whatever else the device does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from msft.engine.plans import AnswerPlan
from msft.engine.shared import Line

HEAD_TOKENS = 4096
"""Predictions whose losses are computed at once, since they are in fp32."""
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

    recorded: what comes again may be recorded.
    """

    def __init__(self, forward: Forward, recorded: bool) -> None:
        self._forward = forward
        self._recorded = recorded
        self._records: list[Record] = []
        if recorded:
            self._pool = torch.cuda.graph_pool_handle()
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """What was recorded knows weights by address: they lie elsewhere now."""
        self._records.clear()

    def begin(self, plan: AnswerPlan, rows: int) -> Callable[[], list[float]]:
        """Put it in train; the sums of so many rows, when they are asked for."""
        losses, aside = self._losses(plan)

        def sums() -> list[float]:
            if aside:
                torch.cuda.current_stream().wait_stream(self._aside)
            total = torch.zeros(rows, dtype=torch.float64)
            if losses is not None:
                total.index_add_(0, plan.owners, losses.double().cpu())
            return total.tolist()

        return sums

    def _losses(self, plan: AnswerPlan) -> tuple[Tensor | None, bool]:
        """Losses of a plan's targets, and whether they come from beside."""
        if not plan.lines:
            return None, False
        if not self._recorded or plan.prefixes:  # others may write where prefixes are kept
            return self._work(plan), False
        record = next((record for record in self._records if record.plan is plan), None)
        if record is None:
            self._records = [*self._records[1 - RECORDS_KEPT :], Record(plan)]
            return self._work(plan), False
        if record.graph is None:
            self._record(record)
        if record.graph is None:
            return self._work(plan), False
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            record.graph.replay()
        return record.losses, True

    def _record(self, record: Record) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                record.losses = self._work(record.plan)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a model that waits for the host: as it stands, then
            self._recorded = False
            return
        record.graph = graph

    def _work(self, plan: AnswerPlan) -> Tensor:
        return torch.cat([self._line(line, plan.reach) for line in plan.lines])

    def _line(self, line: Line, reach: int) -> Tensor:
        logits = torch.split(self._forward(line, reach), HEAD_TOKENS)
        labels = torch.split(line.labels, HEAD_TOKENS)
        losses = [
            functional.cross_entropy(some.float(), right, reduction="none")
            for some, right in zip(logits, labels, strict=True)
        ]
        return torch.cat(losses)
