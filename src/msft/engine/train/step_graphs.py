"""Recorded steps: a whole training step as one CUDA graph for each shape of line.

A model of under a billion weights is bound by the launching of its kernels, not by their work. A
step that was recorded once is replayed with one launch. Lines are padded to a few shapes, the
graphs share one pool of memory, and what they read and write lies in fixed tensors: the line's
buffer, weights, moments and losses.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from msft.engine.packing import BufferShape, PackedRows, TrainingRow, fill
from msft.engine.paths import Recorder, Way, say_once
from msft.errors import NotRecorded

TOKENS, TARGETS = 256, 512
"""Lines are padded to multiples of these."""
STAGES = 3
"""Host buffers in turn: one may still be on its way while the next is filled."""

TrainingStep = Callable[[PackedRows, int], Tensor]
"""step(line, longest): row losses, the weights moved on."""


class StepGraphs:
    """Replays steps; those of a new shape are recorded first.

    rehearse: the step without its effect, so that everything lazy has happened before recording.
    rows: the most rows of a step.
    longest: tokens of the longest row there is.
    """

    def __init__(
        self,
        step: TrainingStep,
        rehearse: TrainingStep,
        rows: int,
        longest: int,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self._step = step
        self._rehearse = rehearse
        self._rows = rows
        self._longest = max(longest, TOKENS)  # the padding's row is a row too
        self._device = device
        self._graphs: dict[BufferShape, torch.cuda.CUDAGraph] = {}
        self._recorder = recorder
        self._losses = torch.zeros(rows, device=device)
        self._buffer = torch.zeros(0, dtype=torch.int64, device=device)
        self._stages: list[tuple[Tensor, torch.cuda.Event]] = []
        self._turn = 0
        self.way = Way("recorded")

    def shape_of(self, rows: Sequence[TrainingRow]) -> BufferShape:
        return BufferShape.of(rows).rounded(TOKENS, TARGETS, self._rows)

    def tried(self, rows: Sequence[TrainingRow], most_tokens: int) -> Tensor | None:
        """As `run`; None where it is to be done as it comes: it is too large to be recorded, or,
        from now on and for the reason in `way`, nothing can be."""
        if self.way.reason or self.shape_of(rows).tokens > most_tokens:
            return None
        try:
            return self.run(rows)
        except (torch.OutOfMemoryError, NotRecorded) as error:  # what it held is free afterwards
            why = str(error) if isinstance(error, NotRecorded) else "no memory to record steps"
        self.way = Way("eager", why)
        say_once(f"steps are no longer recorded: {why}; they are taken one by one")
        return None

    def run(self, rows: Sequence[TrainingRow]) -> Tensor:
        """One step on these rows: their losses, which the next step overwrites."""
        shape = self.shape_of(rows)
        self._room_for(shape.size)
        self._send(rows, shape)
        if shape not in self._graphs:
            self._record(shape)
        self._graphs[shape].replay()
        return self._losses[: len(rows)]

    def _record(self, shape: BufferShape) -> None:
        line = PackedRows.over(self._buffer, shape)
        with self._recorder.rehearsing():
            self._rehearse(line, self._longest)

        def work() -> None:
            self._losses.copy_(self._step(line, self._longest))

        graph = self._recorder.recorded(work)
        if graph is None:
            raise NotRecorded("the model waits for the host within a step")
        self._graphs[shape] = graph

    def _send(self, rows: Sequence[TrainingRow], shape: BufferShape) -> None:
        """Fill a host buffer and copy it over, behind whatever the device still does."""
        host, sent = self._stages[self._turn]
        self._turn = (self._turn + 1) % STAGES
        sent.synchronize()
        fill(host.numpy()[: shape.size], rows, shape)
        self._buffer[: shape.size].copy_(host[: shape.size], non_blocking=True)
        sent.record()

    def _room_for(self, size: int) -> None:
        """Larger buffers where they are needed; what was recorded on the old ones is gone."""
        if size <= len(self._buffer):
            return
        self._graphs.clear()
        self._recorder.renew()
        torch.cuda.synchronize()
        cuda = self._device.type == "cuda"
        self._buffer = torch.zeros(2 * size, dtype=torch.int64, device=self._device)
        self._stages = [
            (torch.zeros(2 * size, dtype=torch.int64, pin_memory=cuda), torch.cuda.Event())  # type: ignore[no-untyped-call]
            for _ in range(STAGES)
        ]
