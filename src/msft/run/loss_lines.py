"""`losses.jsonl`: the loss of the references at each evaluation (`validation_loss: true`). Like
`steps.jsonl` it may be lost without harm: nothing is decided by it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from msft.files import DAMAGED, kind_of, read_text
from msft.run.log import Event, Measured, Reached
from msft.run.step_lines import StepLines
from msft.run.worker import Scored
from msft.search.scores import SELECTION

Losses = Mapping[str, float]
"""By sub-dataset: the mean over answer tokens."""


class LossLines:
    """Gathers the losses of evaluations, and writes those of a checkpoint when the log has it."""

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self._known = read_losses(path)
        self._lines = StepLines(path, notice)
        self._gathered: dict[str, float] = {}
        self.close = self._lines.close

    def gather(self, scored: Scored) -> None:
        self._gathered |= scored.losses

    def of(self, event: Event, live: bool) -> Losses:
        """The losses that belong to an event of the log; nothing where there are none."""
        if not isinstance(event, Reached | Measured):
            return {}
        if isinstance(event, Measured) and event.split != SELECTION:
            return {}
        if not live:
            return self._known.get(event.checkpoint, {})
        losses, self._gathered = self._gathered, {}
        if losses:
            self._lines.add({"checkpoint": event.checkpoint, "losses": losses})
            self._lines.flush()
        return losses


def read_losses(path: Path) -> dict[str, Losses]:
    """By checkpoint; lines that cannot be read are left out."""
    found: dict[str, Losses] = {}
    try:
        lines = read_text(path).splitlines() if kind_of(path) else []
    except DAMAGED:
        return found
    for line in lines:
        try:
            content = json.loads(line)
            losses = {str(name): float(loss) for name, loss in content["losses"].items()}
            found[str(content["checkpoint"])] = losses
        except DAMAGED:
            continue
    return found
