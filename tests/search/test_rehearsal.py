"""How many checkpoints a method will need at a time, as its first question says."""

from typing import Any

import pytest

from msft.search.methods import prepare
from msft.search.mixture import Mixture, Part
from msft.search.peaks import PeakRule
from msft.search.rehearsal import most_held
from msft.search.rollout import Run, Settings

N, TICKS = 10, 40
MIXTURE = Mixture(tuple(Part(f"d{number}", 9, 9) for number in range(N)))
SETTINGS = Settings(MIXTURE, compute_budget=12, train_ticks=TICKS, evals_per_epoch=4)


def ten_then_none(run: Run) -> None:
    run.rollout(run.base, run.mixture, 12, keep=tuple(range(1, 11)))


@pytest.mark.parametrize(
    ("method", "options", "most"),
    [
        ("msft", {}, N + 3),  # a peak each, start, newest, best
        ("continual", {}, N + 3),
        ("sft", {}, 4),  # start, newest, best, the next one
        ("ies", {}, 4),
        ("dynamix", {}, 4),
        ("sro", {}, 4),
        ("soft_sro", {}, 4),
        ("soup", {}, TICKS + 1),
        ("soup", {"of": "last", "k": 3}, 3 + 3),
        (ten_then_none, {}, 10 + 3),
    ],
)
def test_what_is_needed_at_a_time(method: Any, options: dict[str, Any], most: int) -> None:
    assert most_held(prepare(method, options, 12, PeakRule()), SETTINGS) == most
