"""Options: a mistyped or contradictory one is refused before anything starts.

A method's options are the keyword parameters of its function, so they are written once, with
their defaults and bounds. The options of the roll-out and of the mixture belong to no method's
file; they stand here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msft.checks import AtLeast, Between, Within


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How every roll-out of a run is done.

    patience: end a roll-out when this many ticks have passed since the earliest peak.
    on_rollback: the next stage starts with a fresh optimizer (the paper: parameters only), or
        with the moments that were saved with the peak.
    score_excluded: excluded sub-datasets are scored at every tick, or once per stage at the
        checkpoint that goes on (the paper's FLOPs accounting; only fully scored points can then
        become the best).
    """

    patience: Annotated[int | None, AtLeast(1)] = None
    on_rollback: Literal["reset", "restore"] = "reset"
    score_excluded: Literal["every", "rollback"] = "every"


@dataclass(frozen=True, slots=True)
class MixtureOptions:
    """What remains of an excluded sub-dataset: see `Mixture.rehearsal_fraction`."""

    rehearsal_fraction: Annotated[float, Between(0, 0.999)] = 0.0


@dataclass(frozen=True, slots=True)
class SureExclusion:
    """Only those leave whose fall after the peak is real; see `falls.py`.

    confidence: that nobody leaves by chance after a roll-out in which nobody falls.
    """

    confidence: Annotated[float, Within(0.5, 1)] = 0.95
