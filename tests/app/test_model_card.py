"""The model card of a result: how it names the mean, and that it tells of its own path only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msft.report.card import card_of
from msft.report.findings import Departure, Findings, notes
from msft.run.history import History
from msft.run.log import Event, PointEvent, RolloutEvent, RunEvent, ScoresEvent, Tokens
from msft.search.curves import Score, Scores, accuracy, nll
from msft.search.falls import Fall
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import Disk
from msft.testing import scripted

FIRST = CheckpointId("r0-t1")
DEFINITION = "gains over the base model: points for accuracy and own metrics, relative decrease"


def run_of(base: Scores, best: Scores) -> History:
    """A run of one tick that was also scored on test."""
    rows = dict.fromkeys(base, 8)
    peaks = {"smooth": 0, "min_delta": 0.0, "include_start": True}
    settings = {"evals_per_epoch": 1, "compute_budget": 1, "train_ticks": 1, "mean": "macro"}
    events: list[Event] = [
        RunEvent("sft", 20, 1000, rows, settings | {"peaks": peaks}, {}),
        RolloutEvent(0, BASE, rows, {}, 1, {"name": "shuffled"}, "fresh", True),
        ScoresEvent(BASE, "validation", Tokens(), base),
        PointEvent(FIRST, 1, (8.0, 8), Tokens(), Disk(1, 2, 100), best),
        ScoresEvent(BASE, "test", Tokens(), base),
        ScoresEvent(FIRST, "test", Tokens(), best),
    ]
    return History(events)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("tiny", False),
        ("runs/sft/best", False),
        ("models/small.gguf", False),
        ("tests/app", False),
    ],
)
def test_a_card_names_a_base_model_of_the_hub_only(
    model: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # where tests/app is a folder
    scores = {"a": accuracy(1, 2)}
    front = card_of(run_of(scores, scores), model).split("---\n")[1]
    assert (f"base_model: {model}\n" in front) == named
    assert ("base_model" in front) == named


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


# The path of its own checkpoint.

NAMES = ("a", "b", "c")


def history_of(best_stage: int, **options: Any) -> History:
    """Three stages after each of which one leaves, a, b and c; the best is in one of them."""
    peaks = {"a": 1, "b": 2, "c": 3}

    def answer(
        index: int, start: CheckpointId, active: tuple[str, ...], ticks: int
    ) -> dict[str, list[float]]:
        top = 0.9 if index == best_stage else 0.6
        return {
            name: [0.3, *(top - 0.1 * abs(t - peaks[name]) for t in range(1, ticks + 1))]
            for name in NAMES
        }

    return scripted("msft", NAMES, answer, compute_budget=1.5, method_options=options).history


def left_in(card: str) -> list[str]:
    lines = card.split("| left on the way |")[1:]
    return [line.split(" | ")[0][2:] for line in "".join(lines).splitlines()[2:] if line]


@pytest.mark.parametrize(("stage", "left"), [(0, []), (1, ["a"]), (2, ["a", "b"])])
def test_who_left_after_the_checkpoint_is_not_on_its_card(stage: int, left: list[str]) -> None:
    history = history_of(stage)
    assert [each.name for each in history.exclusions] == ["a", "b", "c"]
    assert history.best is not None
    assert history.best.startswith(f"r{stage}-")
    card = card_of(history, "m")
    assert left_in(card) == left
    ticks = dict.fromkeys(NAMES, 0)
    for rollout, count in history.path(history.best):
        for name in history.stages[rollout].asked.active:
            ticks[name] += count
    for name in NAMES:
        assert f"| {name} | 100 | {ticks[name] / 4:g} | 0." in card
    whole = sum(count for _, count in history.path(history.best)) / 4
    assert f"after {whole:g} epoch" in card


def test_what_stays_of_those_who_left_is_said() -> None:
    card = card_of(history_of(2, rehearsal_fraction=0.25), "m")
    said = "Of those that left, 25 rows of a and 25 rows of b stayed in every epoch."
    assert said in card
    assert "stayed" not in card_of(history_of(0, rehearsal_fraction=0.25), "m")
    assert "stayed" not in card_of(history_of(2), "m")


def test_how_sure_an_exclusion_was_is_on_the_card_of_a_finished_run() -> None:
    history = history_of(2)
    fall = Fall((1, 1), 0.2, 0.1, 0.2, False, None)
    left = (
        Departure("a", 0, "value", fall, 0.6, None, True),
        Departure("b", 1, "value", None, None, "short", False),
        Departure("c", 2, "value", fall, 0.6, None, True),
    )
    card = card_of(history, "m", Findings(departures=left))
    assert "| a | 0 | 0.25 | not sure, nothing learned yet |" in card
    assert "| b | 1 | 0.5 | too few ticks to test |" in card
    assert "| c |" not in card.split("left on the way")[1]


def with_ema(history: History) -> History:
    assert history.opened is not None
    settings = {**history.opened.settings, "ema_decay": 0.98}
    history.opened = replace(history.opened, settings=settings)
    return history


def test_a_moving_average_is_said_in_plain_words() -> None:
    said = "the exponential moving average over the steps of training, with a decay of 0.98"
    assert said not in card_of(history_of(1), "m")
    assert f"Its weights are {said} (`ema_decay`)." in card_of(with_ema(history_of(1)), "m")


def test_an_average_and_the_moving_average_in_it() -> None:
    history = scripted(
        "soup",
        NAMES,
        lambda *_: {name: [0.1, 0.5, 0.6, 0.5, 0.4] for name in NAMES},
        num_train_epochs=1,
        method_options={"of": "last", "k": 2},
    ).history
    card = card_of(history, "m")
    assert "Checkpoint `a0`" in card
    assert "the mean of the weights after epochs 0.75 and 1." in card
    assert "chosen" not in card
    assert " Each of these is the exponential moving average " in card_of(with_ema(history), "m")


def test_the_model_that_was_given_has_no_training_in_it() -> None:
    history = scripted(
        "sft", NAMES, lambda *_: {name: [0.9, *[0.1] * 8] for name in NAMES}, num_train_epochs=2
    ).history
    card = card_of(with_ema(history), "m", Findings(base_is_best=True))
    assert "`base` of a run with seed 20 (finished), the model as it was given" in card
    assert "nothing that was trained is better on validation" in card
    assert "moving average" not in card
    assert "| a | 100 | 0 | 0.9000 |" in card


def test_continual_tells_the_epochs_of_its_path() -> None:
    """Not the mean of the stops, which is what the paper's tables have."""
    history = scripted(
        "continual",
        NAMES,
        lambda *_: {name: [0.1, 0.5, 0.6, 0.5, 0.4] for name in NAMES},
        compute_budget=1,
        peaks={"include_start": False},
    ).history
    card = card_of(history, "m")
    assert "after 1.5 epochs on the path to it." in card
    assert left_in(card) == ["a", "b"]
