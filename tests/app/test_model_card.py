"""The model card of a result: how it names the mean."""

import pytest

from msft.app.model_card import card_of
from msft.report.in_words import notes
from msft.run.history import History
from msft.run.log import Asked, Event, Measured, Opened, Reached
from msft.search.rollout import BASE, CheckpointId, Tokens
from msft.search.scores import Score, Scores, accuracy, nll
from msft.store.store import Disk

FIRST = CheckpointId("r0-t1")
DEFINITION = "gains over the base model: points for accuracy and own metrics, relative decrease"


def run_of(base: Scores, best: Scores) -> History:
    """A run of one tick that was also scored on test."""
    rows = dict.fromkeys(base, 8)
    peaks = {"smooth": 0, "min_delta": 0.0, "include_start": True}
    settings = {"evals_per_epoch": 1, "compute_budget": 1, "train_ticks": 1, "mean": "macro"}
    events: list[Event] = [
        Opened("sft", 20, 1000, rows, settings | {"peaks": peaks}, {}),
        Asked(0, BASE, rows, {}, 1, {"name": "shuffled"}, "fresh", True),
        Measured(BASE, "validation", Tokens(), base),
        Reached(FIRST, 1, (8.0, 8), Tokens(), Disk(1, 2, 100), best),
        Measured(BASE, "test", Tokens(), base),
        Measured(FIRST, "test", Tokens(), best),
    ]
    return History(events)


@pytest.mark.parametrize(
    ("second", "row"),
    [
        ((nll(20.0, 10), nll(5.0, 10)), "| **mean gain over base** | | | +0.6250 | +0.6250 |"),
        ((accuracy(0, 4), accuracy(1, 4)), "| **mean** | | | 0.5000 | 0.5000 |"),
    ],
)
def test_a_mean_of_gains_is_called_one(second: tuple[Score, Score], row: str) -> None:
    """Accuracy from 0.25 to 0.75, and nll from 2.0 to 0.5: (0.5 + 0.75) / 2."""
    base, best = ({"a": accuracy(n, 4), "b": b} for n, b in zip((1, 3), second, strict=True))
    history = run_of(base, best)
    lines = card_of(history, "m").splitlines()
    assert row in lines
    said = [line for line in lines if DEFINITION in line]
    assert len(said) == ("gain" in row)
    assert set(said) <= set(notes(history, "finished")), "the report says the same"
