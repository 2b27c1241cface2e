"""The settings of a run: what its log is a function of, beside the method and the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msft.search.mixture import Mixture
from msft.search.peaks import PeakRule
from msft.search.scores import MeanRule

ScoreTest = Literal["none", "best", "rollbacks", "every"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is: together with the method and the data it determines the log.

    optim: the optimizer, where it is not the usual one in full precision.
    score_test: which points are also scored on the test split, which never decides anything.
    fingerprint: digests of what the log does not spell out (data, tokenizer, base model).
    """

    mixture: Mixture
    compute_budget: int
    train_ticks: int
    evals_per_epoch: int
    seed: int = 20
    peaks: PeakRule = field(default_factory=PeakRule)
    mean: MeanRule = "macro"
    score_test: ScoreTest = "none"
    optim: str = "adamw"
    fingerprint: Mapping[str, str] = field(default_factory=dict)
