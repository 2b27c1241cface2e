"""What records the steps of an engine: whole ones, or parts of them where a step has several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from msft.engine.packing import PackedRows, TrainingRow
from msft.engine.paths import Recorder, Way, recorder_of
from msft.engine.train.adamw import AdamW
from msft.engine.train.part_graphs import PartGraphs, room_in
from msft.engine.train.schedule import TrainingSettings
from msft.engine.train.step_graphs import StepGraphs

UNRECORDED = "fp32, dropout, a large model or little memory"


class Gradients(Protocol):
    """Row losses of a padded line; its gradient is left in the parameters.

    targets: of the whole step, where the line is a part of it.
    """

    def __call__(self, line: PackedRows, longest: int, targets: Tensor | None = None) -> Tensor: ...


class Recording:
    """Replays steps. The first one that does not fit in one piece ends the recording of whole
    steps, so that their memory is free for parts.

    steps: what replays whole steps. parts: makes what replays parts of them. None: nothing does.
    """

    def __init__(
        self,
        way: Way,
        steps: StepGraphs | None = None,
        parts: Callable[[], PartGraphs] | None = None,
    ) -> None:
        self._way = way
        self._steps = steps
        self._make_parts = parts
        self._parts: PartGraphs | None = None
        if steps is None:
            self._begin_parts()

    @property
    def way(self) -> Way:
        """How steps go."""
        return self._way if self._parts is None else self._parts.way

    def is_whole(self, rows: Sequence[TrainingRow], most_tokens: int) -> bool:
        """Whether a step on these rows is replayed in one piece, of so many tokens at most."""
        if self._steps is None:
            return False
        if self._steps.shape_of(rows).tokens <= most_tokens:
            return True
        if self._make_parts is not None:
            self._steps = None
            self._begin_parts()
        return False

    def step(self, rows: Sequence[TrainingRow], most_tokens: int) -> Tensor | None:
        """Losses of a whole step; None: from now on steps are taken as they come."""
        assert self._steps is not None, "is_whole has said so"
        losses = self._steps.tried(rows, most_tokens)
        if losses is None:
            self._way, self._steps = self._steps.way, None
        return losses

    def part(self, rows: Sequence[TrainingRow], targets: float, most_tokens: int) -> Tensor | None:
        """As `PartGraphs.run`."""
        return None if self._parts is None else self._parts.run(rows, targets, most_tokens)

    def room(self, most_tokens: int) -> int:
        """Tokens of the rows of one pass, where it has so many with its padding."""
        return most_tokens if self._parts is None else room_in(most_tokens)

    def _begin_parts(self) -> None:
        self._parts = None if self._make_parts is None else self._make_parts()


def recording_of(
    settings: TrainingSettings,
    adamw: AdamW,
    gradients: Gradients,
    parameters: Mapping[str, nn.Parameter],
    in_lanes: bool,
    longest: int,
    device: torch.device,
    recorder: Callable[[], Recorder] | None,
) -> Recording:
    """Of an engine on a device; parameters: those that are trained."""
    piece = recorder_of(device)
    recorder = recorder or piece.item
    if not settings.batch_rows or recorder is None:
        return Recording(Way("eager", piece.reason or UNRECORDED))
    most = -(-settings.batch_rows // settings.lanes)
    make = recorder

    def parts() -> PartGraphs:
        return PartGraphs(gradients, parameters.values(), most, longest, device, make())

    if in_lanes:
        return Recording(Way("recorded"), parts=parts)

    def step(line: PackedRows, longest: int) -> Tensor:
        losses = gradients(line, longest)
        adamw.step(settings.max_grad_norm)
        return losses

    def rehearse(line: PackedRows, longest: int) -> Tensor:
        losses = gradients(line, longest)
        adamw.forget()
        return losses

    steps = StepGraphs(step, rehearse, most, longest, device, recorder())
    return Recording(Way("recorded"), steps, parts)
