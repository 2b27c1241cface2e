"""What the first question of a method says: what it trains, and how many checkpoints it needs."""

from typing import Any

import pytest

from msft.search.curves import PeakRule
from msft.search.feeds import Mixture, Part
from msft.search.methods import prepare
from msft.search.rehearsal import FirstRollout, Rehearsal, most_held, rehearse
from msft.search.rollout import CONTENDERS, CheckpointId, Run, Settings

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
        ("soup", {"of": ["span", "last"]}, TICKS + 2),
        (ten_then_none, {}, 10 + 3),
    ],
)
def test_what_is_needed_at_a_time(method: Any, options: dict[str, Any], most: int) -> None:
    assert most_held(prepare(method, options, 12, PeakRule()), SETTINGS) == most


def spoilt(run: Run) -> None:
    raise RuntimeError


def silent(run: Run) -> None:
    pass


@pytest.mark.parametrize("method", [spoilt, silent])
def test_a_method_that_asks_nothing_may_need_what_the_default_does(method: Any) -> None:
    assert most_held(prepare(method, {}, 12, PeakRule()), SETTINGS) == N + 3


def asks(**other: Any) -> Any:
    """A method whose first roll-out is the plain one, but for this."""

    def method(run: Run) -> None:
        how = {"start": run.base, "mixture": run.mixture, **other}
        run.rollout(how.pop("start"), how.pop("mixture"), 7, **how)

    return method


def scores_first(run: Run) -> None:
    run.score(run.base)


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("sft", FirstRollout(TICKS, "best", True)),
        ("msft", FirstRollout(12, CONTENDERS, True)),
        ("continual", FirstRollout(12, CONTENDERS, False)),  # not of the whole mixture
        ("ies", FirstRollout(TICKS, "best", False)),  # not in the usual order
        (asks(), FirstRollout(7, CONTENDERS, True)),
        (asks(optimizer="fresh"), FirstRollout(7, CONTENDERS, True)),
        (asks(optimizer="kept"), FirstRollout(7, CONTENDERS, False)),
        (asks(start=CheckpointId("r0-t1")), FirstRollout(7, CONTENDERS, False)),
        (asks(mixture=MIXTURE.without(("d3",))), FirstRollout(7, CONTENDERS, False)),
        (scores_first, None),
        (silent, None),
    ],
)
def test_the_first_rollout_and_whether_others_may_share_it(
    method: Any, first: FirstRollout | None
) -> None:
    prepared = prepare(method, {}, 12, PeakRule())
    assert rehearse(prepared.carry_out, Rehearsal(MIXTURE, 12, TICKS, 4)) == first
