"""Recorded lanes: the passes through the model for one lane as a CUDA graph, for each shape of it.

As `step_graphs.py` has it for whole steps; but here a graph ends with the gradients in fixed
tensors. The sum over lanes, the optimizer's step and everything that travels between ranks come
behind it, since no collective should be recorded.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from msft.engine.packing import PackedRows, TrainingRow
from msft.engine.paths import Recorder, Way
from msft.engine.train.step_graphs import StepGraphs

Gradients = Callable[[PackedRows, int, Tensor], Tensor]
"""gradients(line, longest, targets): row losses; the gradient over so many targets is left in the
parameters."""


class LaneGraphs:
    """Replays lanes.

    rows: the most rows of a lane.
    longest: tokens of the longest row there is.
    """

    def __init__(
        self,
        gradients: Gradients,
        parameters: Mapping[str, nn.Parameter],
        rows: int,
        longest: int,
        device: torch.device,
        recorder: Recorder,
    ) -> None:
        self._gradients = gradients
        self._parameters = list(parameters.values())
        self._targets = torch.ones((), device=device)
        self._held: list[Tensor] = []
        shape = (rows, longest, device, recorder)
        self._graphs: StepGraphs | None = StepGraphs(self._work, self._rehearse, *shape)
        self.way = Way("recorded")

    def run(self, rows: Sequence[TrainingRow], targets: float, most_tokens: int) -> Tensor | None:
        """Losses of a lane's rows, with its gradients in the parameters, until the next lane
        overwrites both; None: it has to be computed as it comes."""
        if self._graphs is None:
            return None
        self._targets.fill_(targets)
        if not self._held:
            self._held = [torch.zeros_like(parameter) for parameter in self._parameters]
        losses = self._graphs.tried(rows, most_tokens)
        if losses is None:
            if self._graphs.way.reason:
                self.way, self._graphs, self._held = self._graphs.way, None, []
            self._forget()
            return None
        for parameter, gradient in zip(self._parameters, self._held, strict=True):
            parameter.grad = gradient
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
