"""The training loss step by step, as a moving average along the path of each roll-out (Fig. 9)."""

from collections.abc import Sequence
from math import fsum

from msft.run.folder import StepLosses
from msft.run.history import History
from msft.search.rollout import CheckpointId

WINDOW = 10
"""Steps that are averaged, as in the paper."""

MOST = 500
"""Points of a roll-out that are drawn; of more, every second, third, …"""

Place = tuple[float, float]
"""Ticks since a roll-out began, and a loss."""


def moving_losses(history: History, steps: StepLosses) -> list[list[Place]]:
    """For each roll-out, the mean loss of the last ten steps up to each of its steps.

    The ten reach back over the start of a roll-out along its path, never into what was discarded.
    """
    return [
        _moving(_losses_to(history, steps, stage.asked.start), _own(history, steps, number))
        for number, stage in enumerate(history.stages)
    ]


def thinned(places: Sequence[Place]) -> Sequence[Place]:
    """Not more than a figure can show; the last is always among them."""
    stride = -(-len(places) // MOST) or 1
    return places[(len(places) - 1) % stride :: stride]


def _moving(before: Sequence[float], own: Sequence[Place]) -> list[Place]:
    losses = [*before, *(loss for _, loss in own)]
    found: list[Place] = []
    for number, (place, _) in enumerate(own, start=len(before) + 1):
        if number >= WINDOW:
            found.append((place, fsum(losses[number - WINDOW : number]) / WINDOW))
    return found


def _own(history: History, steps: StepLosses, rollout: int) -> list[Place]:
    """The steps of a roll-out as far as its ticks are in the log and all their steps are known."""
    found: list[Place] = []
    for tick, point in enumerate(history.stages[rollout].points, start=1):
        losses = steps.get((rollout, tick), ())
        if not point.steps or len(losses) < point.steps:
            continue
        latest = losses[len(losses) - point.steps :]  # a tick may have been trained twice
        found += [(tick - 1 + n / point.steps, loss) for n, loss in enumerate(latest, start=1)]
    return found


def _losses_to(history: History, steps: StepLosses, checkpoint: CheckpointId) -> list[float]:
    """The losses on the way to a checkpoint, as many of the last as a window may need."""
    found: list[float] = []
    for rollout, ticks in reversed(history.path(checkpoint)):
        on_path = [loss for place, loss in _own(history, steps, rollout) if place <= ticks]
        found = [*on_path, *found]
        if len(found) >= WINDOW:
            break
    return found[-(WINDOW - 1) :]
