"""Who left the mixture of a run, after which stage, and to where training went back."""

from dataclasses import dataclass

from msft.run.history import History
from msft.search.rollout import CheckpointId


@dataclass(frozen=True, slots=True)
class Leaving:
    """A sub-dataset that left: after which stage, by the method's own tick, and to where."""

    name: str
    stage: int
    tick: int
    checkpoint: CheckpointId


def leavings_of(history: History) -> list[Leaving]:
    return [
        Leaving(name, number, decision.tick or 0, decision.checkpoint)
        for number, stage in enumerate(history.stages)
        for decision in stage.decisions
        if decision.what == "exclude"
        for name in decision.names
    ]
