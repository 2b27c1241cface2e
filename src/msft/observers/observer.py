"""An observer is told of everything that happens in a run, and decides nothing.

The log alone says what a run is: whatever an observer loses, the run goes on and can be resumed.
Only rank 0 has observers. `msft.training.train(…, observers=[…])` takes observers of your own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import Event
from msft.run.worker import Step

Losses = Mapping[str, float]
"""The loss of each sub-dataset's references: the mean over answer tokens."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that is watched.

    recipe: the `Recipe`.
    settings: the keys of the recipe, for people to read.
    told: lines of the log of a finished run, 0 of another.
    losses: of the latest event: the loss of each sub-dataset's references, where the recipe asks.
    """

    folder: RunFolder
    recipe: Any
    settings: Mapping[str, Any]
    told: int
    notice: Callable[[str], None]
    losses: Callable[[], Losses]


class Observer:
    """Every verb does nothing unless it is overridden."""

    def begin(self, run: Watched) -> None:
        """The log is open; what it has already is told next."""

    def step(self, step: Step) -> None:
        """An optimizer step was taken."""

    def event(self, history: History, event: Event, live: bool) -> None:
        """An event of the log; `history` has taken it in.

        live: it happened now; else an earlier process did it.
        """

    def close(self) -> None:
        """Nothing more happens, whatever the reason."""
