"""The history of a run: who left, and in which unit scores are."""

from msft.run.history import Exclusion, History
from msft.run.log import (
    DecisionEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
)
from msft.search.curves import Scores, accuracy, nll
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import Disk

SETTINGS = {"evals_per_epoch": 1, "mean": "macro", "peaks": {}}
FIRST = CheckpointId("r0-t1")


def opened(*names: str) -> list[Event]:
    rows = dict.fromkeys(names, 8)
    return [
        RunEvent("msft", 20, 1000, rows, SETTINGS, {}),
        RolloutEvent(0, BASE, rows, {}, 1, {"name": "shuffled"}, "fresh", True),
    ]


def scored(scores: Scores) -> Event:
    return ScoresEvent(BASE, "validation", Tokens(), scores)


def test_exclusions_are_told_with_their_stage_tick_and_checkpoint() -> None:
    events = opened("a", "b", "c")
    events.append(PointEvent(FIRST, 1, (8.0, 8), Tokens(), Disk(1, 1, 1), {"a": accuracy(1, 2)}))
    events.append(DecisionEvent("exclude", FIRST, ("a", "b"), 1))
    events.append(RolloutEvent(1, FIRST, {"c": 8}, {}, 1, {"name": "shuffled"}, "fresh", True))
    events.append(DecisionEvent("go_on", FIRST))
    events.append(DecisionEvent("exclude", BASE, ("c",)))
    assert History(events).exclusions == [
        Exclusion("a", 0, 1, FIRST),
        Exclusion("b", 0, 1, FIRST),
        Exclusion("c", 1, 0, BASE),
    ]
    assert History(opened("a")).exclusions == []


def test_the_unit_of_the_mean_is_that_of_all_or_none() -> None:
    history = History(opened("a", "b"))
    assert history.unit_of("a") == "value", "not scored yet"
    history.add(scored({"a": nll(3.0, 2), "b": nll(4.0, 2)}))
    assert (history.unit_of("a"), history.mean_unit) == ("nll", "nll")
    mixed = History([*opened("a", "b"), scored({"a": nll(3.0, 2), "b": accuracy(1, 2)})])
    assert (mixed.unit_of("a"), mixed.unit_of("b"), mixed.mean_unit) == ("nll", "accuracy", None)
