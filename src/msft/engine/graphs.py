"""Recorded steps: training steps as CUDA graphs, and losses that the host reads later.

A training step launches thousands of kernels, each from Python. A GPU computes most of them in
microseconds where a model has under a billion weights, and then waits for the host to launch the
next. A CUDA graph (https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs) records the
kernels of a step once and replays all of them with one launch. torch has `make_graphed_callables`
for this, and `torch.compile(mode="reduce-overhead")`. They record forward and backward passes. Here
the graph has the whole step, AdamW included, for packed lines of one of a few shapes.

A replay reads and writes the very addresses that the recording saw. This asks for four things:

- *Fixed tensors.* The line's buffer, weights, moments, learning rate and losses lie where they lay
  (`AdamW` in `optimizer.py` keeps its own). What a step is told goes into them before the replay.
- *Few shapes.* Each shape of a line is a graph of its own. So lines are padded to multiples of 256
  tokens and 512 targets, with the most rows that a batch has (`packing.py`). All graphs share one
  memory pool (`accel/cuda_graphs.py`), which works because they never run side by side.
- *A rehearsal.* A recording may not allocate for good, compile, or wait for the host. The step runs
  once without its effect before it is recorded, so that everything lazy has happened.
- *No decisions by the host.* Whether a loss is NaN is a number on the device (`AdamW.bad`), and the
  step multiplies by it. `PendingLosses` copies losses to the host without waiting, so that the next
  step is prepared while this one runs. The first read of a loss waits for its copy.

`StepGraphs` records whole steps: forward, backward and AdamW. `PartGraphs` records forward and
backward of one lane or micro-batch and leaves the gradients in fixed tensors. The sum over parts,
the optimizer's step and everything between ranks follow outside the graph, since no collective
should be recorded. `Recording` chooses between the two. Where a device has no memory for graphs or
a model waits for the host within a step, steps are taken one by one from then on, and the run says
so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from msft.engine.kernels import KernelChoice, Recorder, recorder_of, say_once
from msft.engine.optimizer import AdamW, TrainingSettings
from msft.engine.packing import BufferShape, PackedRows, TrainingRow, fill
from msft.errors import NotANumber, NotRecorded
from msft.search.feeds import RowId


class PendingNumbers:
    """Numbers on their way from the device; the first look waits for them."""

    def __init__(self, numbers: Tensor) -> None:
        self._host = torch.empty(numbers.shape, pin_memory=numbers.is_cuda)
        self._host.copy_(numbers, non_blocking=True)
        self._done = torch.cuda.Event() if numbers.is_cuda else None  # type: ignore[no-untyped-call]
        if self._done is not None:
            self._done.record()

    def look(self) -> Any:
        """A list, or a number."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.tolist()


class PendingLosses(Sequence[float]):
    """The losses of a step's rows.

    where: the rows, to name one whose loss is not a number.
    """

    def __init__(self, losses: Tensor, where: Sequence[RowId]) -> None:
        self._where = where
        self._numbers = PendingNumbers(losses[: len(where)])

    @cached_property
    def _values(self) -> list[float]:
        values: list[float] = self._numbers.look()
        refuse_not_numbers(values, self._where)
        return values

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]


def refuse_not_numbers(losses: Sequence[float], where: Sequence[RowId]) -> None:
    """NotANumber, with the first row whose loss is NaN or infinite."""
    for (name, number), loss in zip(where, losses, strict=True):
        if not isfinite(loss):
            raise NotANumber(
                f"the loss of row {number} of {name} is not a number; lower learning_rate or set "
                "max_grad_norm"
            )


TOKENS, TARGETS = 256, 512
"""Lines are padded to multiples of these."""
STAGES = 3
"""Host buffers in turn: one may still be on its way while the next is filled."""

TrainingStep = Callable[[PackedRows, int], Tensor]
"""step(line, longest) takes an optimizer step and returns the row losses before it."""


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
        self.way = KernelChoice("recorded")

    def shape_of(self, rows: Sequence[TrainingRow]) -> BufferShape:
        return BufferShape.of(rows).rounded(TOKENS, TARGETS, self._rows)

    def tried(self, rows: Sequence[TrainingRow], most_tokens: int) -> Tensor | None:
        """As `run`. None: nothing was computed, since the step is too large to be recorded, or
        since nothing can be recorded any more, for the reason in `way`."""
        if self.way.reason or self.shape_of(rows).tokens > most_tokens:
            return None
        try:
            return self.run(rows)
        except (torch.OutOfMemoryError, NotRecorded) as error:  # what it held is free afterwards
            why = str(error) if isinstance(error, NotRecorded) else "no memory to record steps"
        self.way = KernelChoice("eager", why)
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
        """Fill a host buffer and start its copy, which the device makes after its present work."""
        host, sent = self._stages[self._turn]
        self._turn = (self._turn + 1) % STAGES
        sent.synchronize()
        fill(host.numpy()[: shape.size], rows, shape)
        self._buffer[: shape.size].copy_(host[: shape.size], non_blocking=True)
        sent.record()

    def _room_for(self, size: int) -> None:
        """Make larger buffers where they are needed, and drop what was recorded on the old ones."""
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


class Gradients(Protocol):
    """Row losses of a padded line; their gradient, divided by the mass of the step's rows, is left
    in the parameters.

    targets: the mass, where the line is a part of the step; None: the line has all of the rows.
    """

    def __call__(self, line: PackedRows, longest: int, targets: Tensor | None = None) -> Tensor: ...


class PartGraphs:
    """Replays parts.

    rows: the most rows of a part.
    longest: tokens of the longest row there is.
    """

    def __init__(
        self,
        gradients: Gradients,
        parameters: Iterable[nn.Parameter],
        rows: int,
        longest: int,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self._gradients = gradients
        self._parameters = list(parameters)
        self._targets = torch.ones((), device=device)
        self._held: list[Tensor] = []
        shape = (rows, longest, device, recorder)
        self._graphs: StepGraphs | None = StepGraphs(
            self._work, partial(self._work, keep=False), *shape
        )
        self.way = KernelChoice("recorded")

    def run(self, rows: Sequence[TrainingRow], targets: float, most_tokens: int) -> Tensor | None:
        """Losses of the rows of a part; its gradients are added to those in the parameters. The
        next part overwrites both. None: nothing was computed: the part cannot be replayed."""
        if self._graphs is None:
            return None
        self._targets.fill_(targets)
        if not self._held:
            self._held = [torch.zeros_like(parameter) for parameter in self._parameters]
        earlier = [None if p.grad is None else p.grad.clone() for p in self._parameters]
        losses = self._graphs.tried(rows, most_tokens)
        found: list[Tensor | None] = [*self._held]
        if losses is None:
            found = [None] * len(self._held)
            if self._graphs.way.reason:
                self.way, self._graphs, self._held = self._graphs.way, None, []
        for parameter, before, gradient in zip(self._parameters, earlier, found, strict=True):
            if before is None or gradient is None:
                parameter.grad = gradient if before is None else before
            else:
                parameter.grad = before.add_(gradient)
        return losses

    def _work(self, line: PackedRows, longest: int, keep: bool = True) -> Tensor:
        """keep: copy the gradients to where a replay leaves them."""
        self._forget()
        losses = self._gradients(line, longest, self._targets)
        found = [(h, p.grad) for h, p in zip(self._held, self._parameters, strict=True)]
        if keep:
            with torch.no_grad():
                torch._foreach_copy_(
                    [held for held, grad in found if grad is not None],
                    [grad for _, grad in found if grad is not None],
                )
        self._forget()
        return losses

    def _forget(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


UNRECORDED = "fp32, dropout, a large model or little memory"


class Recording:
    """Replays steps: whole ones, or their parts where ranks divide a step or a step does not fit in
    one piece. The first one that does not fit ends the recording of whole steps, so that their
    memory is free for parts.

    gradients, parameters: the backward pass, and the parameters that are trained.
    in_lanes: a step is a sum over lanes.
    recorder: makes the recorder; None: the one that this device has.
    way: how steps go now.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        adamw: AdamW,
        gradients: Gradients,
        parameters: Mapping[str, nn.Parameter],
        in_lanes: bool,
        longest: int,
        device: torch.device,
        recorder: Callable[[], Recorder] | None,
    ) -> None:
        self._steps: StepGraphs | None = None
        self._parts: PartGraphs | None = None
        self._make_parts: Callable[[], PartGraphs] | None = None
        found = recorder_of(device)
        make = recorder or found.item
        if not settings.batch_rows or make is None:
            self.way = KernelChoice("eager", found.reason or UNRECORDED)
            return
        self.way = KernelChoice("recorded")
        most = -(-settings.batch_rows // settings.lanes)

        def parts() -> PartGraphs:
            return PartGraphs(gradients, parameters.values(), most, longest, device, make())

        self._make_parts = parts
        if in_lanes:
            self._parts = parts()
            return

        def step(line: PackedRows, longest: int) -> Tensor:
            losses = gradients(line, longest)
            adamw.step(settings.max_grad_norm)
            return losses

        def rehearse(line: PackedRows, longest: int) -> Tensor:
            losses = gradients(line, longest)
            adamw.forget()
            return losses

        self._steps = StepGraphs(step, rehearse, most, longest, device, make())

    def fits_one_graph(self, rows: Sequence[TrainingRow], most_tokens: int) -> bool:
        """Whether a step on these rows is replayed in one piece, of so many tokens at most."""
        if self._steps is None:
            return False
        if self._steps.shape_of(rows).tokens <= most_tokens:
            return True
        if self._make_parts is not None:
            self._steps, self._parts = None, self._make_parts()
        return False

    def step(self, rows: Sequence[TrainingRow], most_tokens: int) -> Tensor | None:
        """Losses of a whole step. None: no step was taken, and none is replayed from now on."""
        assert self._steps is not None, "fits_one_graph has said so"
        losses = self._steps.tried(rows, most_tokens)
        if losses is None:
            self.way, self._steps = self._steps.way, None
        return losses

    def part(self, rows: Sequence[TrainingRow], targets: float, most_tokens: int) -> Tensor | None:
        """As `PartGraphs.run`."""
        if self._parts is None:
            return None
        losses = self._parts.run(rows, targets, most_tokens)
        self.way = self._parts.way
        return losses

    def room(self, most_tokens: int) -> int:
        """The most tokens of rows in one pass of `most_tokens` tokens, which has a token of padding
        at least where it is recorded."""
        if self._parts is None or most_tokens <= TOKENS:
            return most_tokens
        return most_tokens // TOKENS * TOKENS - 1
