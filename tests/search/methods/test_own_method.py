"""A method of the user's own: a function of a run, or `package.module:function` in a recipe."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from msft.run.log import EndEvent, Log
from msft.search.curves import PeakRule
from msft.search.methods import METHODS, prepare
from msft.search.options import Ge
from msft.search.rollout import EndedBy, Method, Run
from msft.testing import Learner, Scripted, scripted, simulate

RISING = {"a": [0.0, 1.0, 2.0, 3.0], "b": [0.0, 1.0, 2.0, 3.0]}


def halves(
    run: Run,
    *,
    times: Annotated[int, Ge(1)] = 2,
    order: Literal["up", "down"] = "up",
) -> EndedBy | None:
    """Trains everybody in so many roll-outs, one after the other."""
    theta = run.base
    for _ in range(times):
        theta = run.rollout(theta, run.mixture, run.compute_budget).end
        run.go_on(theta)
    return "max_stages" if order == "down" else None


def run_own(method: str | Method = halves, **options: Any) -> Scripted:
    return scripted(
        method,
        ["a", "b"],
        lambda *question: RISING,
        compute_budget=3,
        evals_per_epoch=1,
        method_options=options,
    )


def test_a_function_is_a_method() -> None:
    out = run_own()
    assert out.rollouts == [("base", ("a", "b"), 3), ("r0-t3", ("a", "b"), 3)]
    assert out.history.start.method == "halves"


def test_its_keyword_parameters_are_its_options() -> None:
    out = run_own(times=3)
    assert len(out.rollouts) == 3
    assert out.history.start.settings["method"] == {"times": 3}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"times": 0}, "method halves: times is 0; expected 1 or more"),
        ({"times": "2"}, "method halves: times is '2'; expected a whole number"),
        ({"order": "left"}, "method halves: order is 'left'; expected 'up' or 'down'"),
        ({"tims": 1}, "unknown option of method halves: 'tims'; did you mean 'times'?"),
    ],
)
def test_its_options_are_checked_like_those_of_the_built_in_ones(
    option: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        run_own(**option)
    assert str(refused.value).startswith(message)


def test_it_takes_the_options_of_rollout_and_mixture_too() -> None:
    out = run_own(on_rollback="restore", patience=2, rehearsal_fraction=0.5)
    assert [stage.asked.optimizer for stage in out.history.stages] == ["fresh", "kept"]


@pytest.mark.parametrize(("order", "by"), [("up", "budget"), ("down", "max_stages")])
def test_what_it_returns_is_what_ended_the_run(order: str, by: str) -> None:
    out = run_own(order=order)
    assert out.history.ended is not None
    assert out.history.ended.by == by


def test_a_function_with_a_built_in_name_is_still_the_users_own() -> None:
    def sft(run: Run, *, times: int = 1) -> None:
        for _ in range(times):
            run.rollout(run.base, run.mixture, 1)

    assert len(run_own(sft, times=2, score_excluded="rollback").rollouts) == 2


def test_a_callable_without_a_name_is_a_method_too() -> None:
    assert len(run_own(partial(halves, times=1)).rollouts) == 1
    assert len(run_own(partial(halves, order="down"), times=3).rollouts) == 3
    with pytest.raises(ValueError, match="times is 0; expected 1 or more"):
        run_own(partial(halves), times=0)


def test_what_it_reports_is_the_result_whatever_scored_best() -> None:
    def last(run: Run) -> None:
        run.report(run.rollout(run.base, run.mixture, 2).end)

    falling = {"a": [5.0, 3.0, 2.0]}
    out = scripted(last, ["a"], lambda *question: falling)
    assert (out.best, out.best_mean) == ("r0-t2", 2)


def test_a_checkpoint_that_is_not_kept_cannot_be_the_result() -> None:
    def modest(run: Run) -> None:
        run.report(run.rollout(run.base, run.mixture, 3).at(1))

    log = Log()
    with pytest.raises(ValueError, match="r0-t1 was asked for, which is not kept"):
        scripted(modest, ["a", "b"], lambda *question: RISING, log=log)
    assert not any(isinstance(event, EndEvent) for event in log.events)


def test_it_may_score_the_base_model_before_any_rollout() -> None:
    seen: list[float] = []

    def curious(run: Run) -> None:
        seen.append(float(run.score(run.base)["a"].value))
        run.rollout(run.base, run.mixture, 3)

    out = scripted(
        curious,
        ["a"],
        lambda index, start, active, ticks: {"a": [0.5, 0.6, 0.7, 0.8][: ticks + 1]},
    )
    assert seen == [0.5]
    assert out.best == "r0-t3"


def test_points_that_it_says_are_not_eligible_cannot_be_the_best() -> None:
    def probing(run: Run) -> None:
        run.rollout(run.base, run.mixture, 3, eligible=False)
        run.rollout(run.base, run.mixture, 2)

    assert run_own(probing).best == "r1-t2"


def test_on_a_tie_the_earlier_point_wins_even_if_it_was_fully_scored_later() -> None:
    def looking_back(run: Run) -> None:
        only_a = run.mixture.without(("b",))
        first = run.rollout(run.base, only_a, 1)
        second = run.rollout(first.end, only_a, 1)
        run.score(second.end)
        run.score(first.end)

    curves = {"a": [0.0, 1.0], "b": [0.0, 1.0]}
    out = scripted(
        looking_back,
        ["a", "b"],
        lambda *question: curves,
        method_options={"score_excluded": "rollback"},
    )
    assert out.history.candidates == 3
    assert out.best == "r0-t1"


def test_a_checkpoint_that_is_not_kept_cannot_be_started_from() -> None:
    def greedy(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 3)
        run.rollout(rollout.at(1), run.mixture, 3)

    with pytest.raises(ValueError, match="from r0-t1 was asked for, which is not kept"):
        run_own(greedy)


def test_a_rollout_of_no_ticks_is_refused() -> None:
    def idle(run: Run) -> None:
        run.rollout(run.base, run.mixture, 0)

    with pytest.raises(ValueError, match="0 ticks was asked for; expected at least 1"):
        run_own(idle)


def test_it_runs_over_the_simulated_engine_too() -> None:
    history = simulate(halves, {"a": Learner()}, compute_budget=1)
    assert [stage.ticks for stage in history.stages] == [4, 4]


# By name


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_methods.py").write_text(
        "NUMBER = 3\n"
        "def once(run, *, ticks: int = 2):\n"
        "    run.rollout(run.base, run.mixture, ticks)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_methods"
    sys.modules.pop("my_methods", None)


def test_a_recipe_can_name_it_as_package_module_function(plugin: str) -> None:
    out = run_own(f"{plugin}:once", ticks=1)
    assert out.rollouts == [("base", ("a", "b"), 1)]
    assert out.history.start.method == "my_methods:once"


def test_a_file_that_changed_within_a_second_is_read_again(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / f"{plugin}.py"
    for ticks in (1, 2):
        file.write_text(f"def own(run):\n    run.rollout(run.base, run.mixture, {ticks})\n")
        os.utime(file, (1e9, 1e9))
        assert run_own(f"{plugin}:own").rollouts == [("base", ("a", "b"), ticks)]
        del sys.modules[plugin]
    assert sys.dont_write_bytecode is False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_methods:twice", "'my_methods:twice' cannot be imported: .*twice"),
        ("my_metods:once", "'my_metods:once' cannot be imported: .*my_metods"),
        ("my_methods:NUMBER", "NUMBER is int, not a function"),
        (":once", "':once' cannot be imported"),
        (".my_methods:once", "'.my_methods:once' cannot be imported"),
        ("my_methods:", "'my_methods:' cannot be imported"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(plugin: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_own(name)


@pytest.mark.parametrize(
    ("name", "hint"), [("msf", "did you mean 'msft'?"), ("softsro", "did you mean 'soft_sro'?")]
)
def test_an_unknown_method_is_refused_with_the_nearest_and_the_known_ones(
    name: str, hint: str
) -> None:
    with pytest.raises(ValueError, match="unknown method") as refused:
        run_own(name)
    message = str(refused.value)
    assert repr(name) in message
    assert hint in message
    assert all(known in message for known in METHODS)
    assert "package.module:function" in message


def test_the_seven_methods_of_the_paper_are_there() -> None:
    assert {"continual", "dynamix", "ies", "msft", "sft", "soft_sro", "sro"} <= set(METHODS)
    for name in METHODS:
        assert prepare(name, {}, 12, PeakRule()).name == name
