"""What records the steps of an engine: whole ones, or lanes of them where a step has several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from msft.engine.packing import PackedRows
from msft.engine.paths import Recorder, Way, recorder_of
from msft.engine.train.adamw import AdamW
from msft.engine.train.lane_graphs import LaneGraphs
from msft.engine.train.schedule import TrainingSettings
from msft.engine.train.step_graphs import StepGraphs

UNRECORDED = "fp32, dropout, a large model or little memory"


class Gradients(Protocol):
    """Row losses of a padded line; its gradient is left in the parameters.

    targets: of the whole step, where the line is a lane of it.
    """

    def __call__(self, line: PackedRows, longest: int, targets: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Recording:
    """way: how steps go. steps, lanes: what replays them; at most one is there."""

    way: Way
    steps: StepGraphs | None = None
    lanes: LaneGraphs | None = None


def recording_of(
    settings: TrainingSettings,
    adamw: AdamW,
    gradients: Gradients,
    parameters: Mapping[str, nn.Parameter] | None,
    longest: int,
    device: torch.device,
    recorder: Callable[[], Recorder] | None,
) -> Recording:
    """Of an engine on a device; parameters: those of a step in lanes, None where it has one."""
    piece = recorder_of(device)
    recorder = recorder or piece.item
    if not settings.batch_rows or recorder is None:
        return Recording(Way("eager", piece.reason or UNRECORDED))
    most = -(-settings.batch_rows // settings.lanes)
    if parameters is not None:
        lanes = LaneGraphs(gradients, parameters, most, longest, device, recorder())
        return Recording(Way("recorded"), lanes=lanes)

    def step(line: PackedRows, longest: int) -> Tensor:
        losses = gradients(line, longest)
        adamw.step(settings.max_grad_norm)
        return losses

    def rehearse(line: PackedRows, longest: int) -> Tensor:
        losses = gradients(line, longest)
        adamw.forget()
        return losses

    steps = StepGraphs(step, rehearse, most, longest, device, recorder())
    return Recording(Way("recorded"), steps)
