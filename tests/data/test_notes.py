"""Notes on settings that do not fit the steps of an epoch."""

from types import SimpleNamespace
from typing import Any

import pytest

from msft.data.corpus import epoch_notes


def notes(steps: int, decay: float | None, evals: int = 1) -> list[str]:
    recipe: Any = SimpleNamespace(ema_decay=decay, evals_per_epoch=evals)
    return epoch_notes(recipe, steps)


@pytest.mark.parametrize(
    ("steps", "decay"),
    [(30, 0.95), (70, 0.98), (280, 0.99), (1000, 0.997), (3000, 0.999), (9, None)],
)
def test_what_the_docs_advise_needs_no_note(steps: int, decay: float | None) -> None:
    assert notes(steps, decay) == []


def test_an_average_that_is_older_than_an_epoch_lags_behind() -> None:
    assert notes(69, 0.99) == [], "half of it is as old as 69 steps"
    (note,) = notes(29, 0.99)
    assert note == (
        "ema_decay 0.99: half of the average is as old as 69 steps, and an epoch has 29, so it "
        "lags behind training; a third of an epoch is usual, which is ema_decay: 0.93 here"
    )
    assert notes(29, 0.93) == []


def test_an_average_that_is_younger_than_a_tenth_of_an_epoch_averages_nothing() -> None:
    assert notes(689, 0.99) == []
    (note,) = notes(3000, 0.99)
    assert "an epoch has 3,000, so it hardly averages anything" in note
    assert note.endswith("which is ema_decay: 0.9993 here")
    assert notes(3000, 0.9993) == []


@pytest.mark.parametrize("steps", [2, 5, 40, 666, 31_000])
def test_what_a_note_advises_needs_none(steps: int) -> None:
    (note,) = notes(steps, 0.3 if steps > 10 else 0.999)
    assert notes(steps, float(note.split("ema_decay: ")[1].split()[0])) == []


def test_fewer_steps_than_evaluations_are_noted() -> None:
    assert notes(4, None, evals=4) == []
    (note,) = notes(3, None, evals=4)
    assert note.startswith("an epoch has 3 steps but 4 evaluations; some ticks will have no step")
