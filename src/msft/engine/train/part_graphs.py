"""Recorded parts of a step, its lanes or micro-batches: the passes through the model for one part
as a CUDA graph, for each shape of it.

As `step_graphs.py` has it for whole steps; but here a graph ends with the gradients in fixed
tensors. The sum over parts, the optimizer's step and everything that travels between ranks come
behind it, since no collective should be recorded.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from msft.engine.packing import PackedRows, TrainingRow
from msft.engine.paths import Recorder, Way
from msft.engine.train.step_graphs import TOKENS, StepGraphs

Gradients = Callable[[PackedRows, int, Tensor], Tensor]
"""gradients(line, longest, targets): row losses; the gradient over so many targets is left in the
parameters."""


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
        self._graphs: StepGraphs | None = StepGraphs(self._work, self._rehearse, *shape)
        self.way = Way("recorded")

    def run(self, rows: Sequence[TrainingRow], targets: float, most_tokens: int) -> Tensor | None:
        """Losses of a part's rows, with its gradients added to those in the parameters, until the
        next part overwrites both; None: it has to be computed as it comes."""
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

    def _work(self, line: PackedRows, longest: int) -> Tensor:
        self._forget()
        losses = self._gradients(line, longest, self._targets)
        found = [(h, p.grad) for h, p in zip(self._held, self._parameters, strict=True)]
        with torch.no_grad():
            torch._foreach_copy_(
                [held for held, grad in found if grad is not None],
                [grad for _, grad in found if grad is not None],
            )
        self._forget()
        return losses

    def _rehearse(self, line: PackedRows, longest: int) -> Tensor:
        self._forget()
        losses = self._gradients(line, longest, self._targets)
        self._forget()
        return losses

    def _forget(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def room_in(tokens: int) -> int:
    """Tokens of rows for which a recorded part has no more than so many, with its padding."""
    return max(tokens // TOKENS * TOKENS - 1, 1) if tokens > TOKENS else tokens
