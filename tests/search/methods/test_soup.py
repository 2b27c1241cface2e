"""Soup on scripted curves: which ticks are averaged, and that the average is the result."""

from collections.abc import Sequence
from typing import Any

import pytest

from msft.errors import OptionError
from msft.run.history import summary_of
from msft.run.log import Log, RolloutEvent
from msft.search.draws import sampled
from msft.testing import Learner, Scripted, scripted, simulate

CURVES = {
    "a": [0.9, 0.2, 0.5, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1],
    "b": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.4],
    "c": [0.0, 0.1, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.1],
}
"""Peaks from tick 1 on: 2, 6 and 2; the start of a is higher than all that follows."""
T = 8


def soup(
    curves: dict[str, list[float]] = CURVES, peaks: dict[str, Any] | None = None, **options: Any
) -> Scripted:
    return scripted(
        "soup",
        list(curves),
        lambda index, start, active, ticks: curves,
        num_train_epochs=T / 2,
        evals_per_epoch=2,
        peaks=peaks,
        method_options=options,
    )


def ticks(*numbers: int) -> list[str]:
    return [f"r0-t{number}" for number in numbers]


DRAWN = sorted(tick + 1 for tick in sampled(T, 3, 20, "soup"))


@pytest.mark.parametrize(
    ("options", "averaged"),
    [
        ({}, ticks(2, 3, 4, 5, 6)),
        ({"of": "span"}, ticks(2, 3, 4, 5, 6)),
        ({"of": "peaks"}, ticks(2, 6, 2)),
        ({"of": "last", "k": 3}, ticks(6, 7, 8)),
        ({"of": "last", "k": 1}, ticks(8)),
        ({"of": "last"}, ticks(*range(1, 9))),
        ({"of": "last", "k": 20}, ticks(*range(1, 9))),
        ({"of": "random", "k": 3}, ticks(*DRAWN)),
        ({"of": "random", "k": 20}, ticks(*range(1, 9))),
        ({"of": "all"}, ticks(*range(1, 9))),
    ],
)
def test_what_each_kind_averages(options: dict[str, Any], averaged: list[str]) -> None:
    out = soup(**options)
    assert out.averaged == [averaged]
    assert out.rollouts == [("base", ("a", "b", "c"), T)]
    assert out.excluded == []
    assert out.best == "a0"
    at = [int(each.removeprefix("r0-t")) for each in averaged]
    mean = sum(sum(curve[tick] for tick in at) / len(at) for curve in CURVES.values()) / 3
    assert out.best_mean == pytest.approx(mean)


def test_without_k_eight_ticks_are_averaged() -> None:
    long = {"a": [float(tick) for tick in range(21)]}
    for of in ("last", "random"):
        out = scripted("soup", ["a"], lambda *_: long, 0.5, 10, 2, method_options={"of": of})
        assert len(out.averaged[0]) == 8


def test_the_average_is_the_result_whatever_scored_best() -> None:
    out = soup(of="last", k=1)
    assert out.history.best_tick == "r0-t2"
    assert out.best == "a0"
    assert out.best_mean == pytest.approx((0.1 + 0.4 + 0.1) / 3)


def test_the_draw_is_by_seed_and_without_repeats() -> None:
    def drawn(seed: int) -> tuple[str, ...]:
        history = simulate(
            "soup",
            {"a": Learner(rows=160)},
            num_train_epochs=5,
            evals_per_epoch=4,
            train_batch_size=8,
            seed=seed,
            method_options={"of": "random", "k": 6},
        )
        return history.averages[history.best or "a0"].of  # type: ignore[index]

    draws = [drawn(seed) for seed in (1, 2, 3, 1)]
    assert draws[0] == draws[3]
    assert len(set(draws)) == 3
    for draw in draws:
        numbers = [int(each.removeprefix("r0-t")) for each in draw]
        assert numbers == sorted(set(numbers)), "each once, in the order of training"
        assert len(numbers) == 6


def test_of_equal_ticks_the_earliest_is_the_peak() -> None:
    flat = {"a": [0.0, 0.3, 0.3, 0.3, 0.3], "b": [0.0, 0.1, 0.4, 0.4, 0.2]}
    out = scripted("soup", ["a", "b"], lambda *_: flat, 1, 2, 2)
    assert out.averaged == [ticks(1, 2)]


@pytest.mark.parametrize("include_start", [False, True])
def test_the_start_is_never_a_peak(include_start: bool) -> None:
    falling = {"a": [1.0, 0.5, 0.4, 0.3, 0.2], "b": [1.0, 0.1, 0.2, 0.1, 0.0]}
    out = scripted(
        "soup", ["a", "b"], lambda *_: falling, 1, 2, 2, peaks={"include_start": include_start}
    )
    assert out.averaged == [ticks(1, 2)]
    assert out.history.rule.include_start is False, "the log says what was applied"
    assert summary_of(out.history)["stages"][0]["peaks"] == {"a": 0.5, "b": 1.0}


def test_peaks_follow_the_recipe_s_smoothing_and_least_difference() -> None:
    noisy = {"a": [0.0, 0.1, 0.9, 0.1, 0.5, 0.6, 0.5, 0.5, 0.2]}
    assert soup(noisy, of="peaks").averaged == [ticks(2)]
    # means of three: 0.33 0.37 0.5 0.4 0.53 0.53 0.4 0.35
    assert soup(noisy, {"smooth": 1}, of="peaks").averaged == [ticks(5)]
    assert soup(noisy, {"smooth": 1, "min_delta": 0.1}, of="peaks").averaged == [ticks(3)]
    assert soup(noisy, {"smooth": 1, "min_delta": 0.1}).averaged == [ticks(3)]


def test_a_list_averages_each_of_the_same_roll_out_and_reports_the_first() -> None:
    out = soup(of=["peaks", "span", "last", "random", "all"], k=3)
    assert out.averaged == [
        ticks(2, 6, 2),
        ticks(2, 3, 4, 5, 6),
        ticks(6, 7, 8),
        ticks(*DRAWN),
        ticks(*range(1, 9)),
    ]
    assert len(out.rollouts) == 1
    assert out.best == "a0"
    assert list(out.history.averages) == ["a0", "a1", "a2", "a3", "a4"]


def few_steps(of: str | Sequence[str], **more: Any) -> list[list[str]]:
    """Two steps an epoch and four ticks: ticks 1 and 3 of an epoch have a step, 2 and 4 none."""
    history = simulate(
        "soup",
        {"a": Learner(rows=16)},
        num_train_epochs=2,
        evals_per_epoch=4,
        train_batch_size=8,
        method_options={"of": of, **more},
    )
    steps = [point.steps for point in history.stages[0].points]
    assert steps == [1, 0, 1, 0, 1, 0, 1, 0]
    return [list(average.of) for average in history.averages.values()]


def test_a_tick_without_a_step_does_not_count_again() -> None:
    assert few_steps("all") == [ticks(1, 3, 5, 7)]
    assert few_steps("last", k=4) == [ticks(5, 7)]
    assert few_steps("last", k=3) == [ticks(6, 7)], "tick 6 is the model of tick 5, which is out"
    drawn = [tick + 1 for tick in sampled(8, 5, 20, "soup")]
    models = {(tick + 1) // 2 for tick in drawn}
    assert len(models) < 5
    assert len(few_steps("random", k=5)[0]) == len(models)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"of": "best"}, "expected one of span, peaks, last, random, all|expected 'span' or"),
        ({"of": []}, "expected one of span, peaks, last, random, all"),
        ({"of": ["span", "mine"]}, "expected one of span, peaks, last, random, all"),
        ({"of": ["span", "span"]}, "each once"),
        ({"of": ["span", "last", "span"]}, "each once"),
        ({"k": 3}, "of: span has no number of ticks; leave k out"),
        ({"of": ["span", "peaks"], "k": 3}, "of: span, peaks has no number"),
        ({"of": "last", "k": 0}, "k is 0; expected 1 or more"),
        ({"patience": 2}, "unknown option of method soup"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    options: dict[str, Any], why: str
) -> None:
    log = Log()
    with pytest.raises(OptionError, match=why):
        scripted("soup", ["a"], lambda *_: CURVES, method_options=options, log=log)
    assert log.events == []


@pytest.mark.parametrize(
    ("options", "keep"),
    [
        ({}, "span"),
        ({"of": "peaks"}, "contenders"),
        ({"of": "last", "k": 3}, (6, 7, 8)),
        ({"of": "all"}, "all"),
        ({"of": ["last", "random"], "k": 2}, "all"),
    ],
)
def test_it_holds_no_more_ticks_than_it_may_average(options: dict[str, Any], keep: Any) -> None:
    asked = soup(**options).history.stages[0].asked
    assert isinstance(asked, RolloutEvent)
    assert asked.keep == keep
