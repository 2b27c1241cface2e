"""`msft.testing.scripted` and "Which points can be the best", as contract.md has them."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msft.run.history import summary_of
from msft.run.log import Log, to_line
from msft.search.methods import METHODS
from msft.search.rollout import BASE, CheckpointId, Run
from msft.testing import Scripted, scripted

Curves = Mapping[str, Sequence[float]]
RolloutEvent = tuple[int, CheckpointId, tuple[str, ...], int]


class Answers:
    """Answers from a list, the last one again and again, and notes what it was asked."""

    def __init__(self, *curves: Curves) -> None:
        self._curves = curves
        self.asked: list[RolloutEvent] = []

    def __call__(
        self, index: int, start: CheckpointId, active: tuple[str, ...], ticks: int
    ) -> Curves:
        self.asked.append((index, start, active, ticks))
        return self._curves[min(index, len(self._curves) - 1)]


TWO: tuple[Curves, ...] = (
    {"a": [0, 2, 1, 0], "b": [0, 1, 2, 1]},
    {"a": [2, 9, 9, 9], "b": [1, 2, 3, 0]},
)


def run(method: str, *curves: Curves, epochs: float = 3) -> Scripted:
    return scripted(
        method,
        ["a", "b"],
        Answers(*curves),
        compute_budget=3,
        num_train_epochs=epochs,
        evals_per_epoch=1,
    )


# answer


def test_answer_is_asked_once_per_rollout_with_index_start_active_and_ticks() -> None:
    answers = Answers(*TWO)
    scripted("msft", ["a", "b"], answers, evals_per_epoch=1)
    assert answers.asked == [(0, "base", ("a", "b"), 3), (1, "r0-t1", ("b",), 3)]


def test_it_is_asked_for_the_whole_rollout_even_if_patience_ends_it() -> None:
    curves = {"a": [5.0, 4.0, 3.0, 2.0]}
    answers = Answers(curves)
    out = scripted("msft", ["a"], answers, evals_per_epoch=1, method_options={"patience": 1})
    assert answers.asked[0][3] == 3
    assert out.rollouts[0][2] == 1


@pytest.mark.parametrize(
    "curves", [{"a": [0, 1, 2, 3]}, {"a": [0, 1, 2, 3], "b": [0, 1, 2]}, {"a": [], "b": []}]
)
def test_an_answer_that_lacks_a_subdataset_or_a_tick_is_refused(curves: Curves) -> None:
    with pytest.raises(ValueError, match=r"answer\(0, 'base', \('a', 'b'\), 3\) gave .*4 scores"):
        run("sft", curves)


def test_excluded_subdatasets_must_be_answered_for_too() -> None:
    with pytest.raises(ValueError, match=r"answer\(1, 'r0-t1', \('b',\), 3\) gave \[\] for 'a'"):
        run("msft", TWO[0], {"b": [1, 2, 3, 0]})


def test_scores_are_floats_and_higher_is_better() -> None:
    out = run("sft", {"a": [-3, -2.5, -1, -9], "b": [-3, -2.5, -1, -9]})
    assert (out.best, out.best_mean) == ("r0-t2", -1)


def test_tick_0_has_the_scores_first_recorded_for_that_checkpoint() -> None:
    """The second answer's scores of its start are not looked at: r0-t1 had been scored before."""
    out = run("msft", TWO[0], {"a": [0, 9, 9, 9], "b": [77, 2, 3, 0]})
    assert out.excluded == [("a", 1), ("b", 2)]
    assert out.history.known(CheckpointId("r0-t1"))["b"].value == 1


# What comes out


def test_rollouts_are_start_active_and_ticks_as_run_in_order() -> None:
    assert run("msft", *TWO).rollouts == [("base", ("a", "b"), 3), ("r0-t1", ("b",), 3)]


@pytest.mark.parametrize(
    ("method", "excluded"),
    [
        ("msft", [("a", 1), ("b", 2)]),
        ("sro", [("a", 1), ("b", 2)]),
        ("continual", [("a", 1), ("b", 2)]),
        ("sft", []),
        ("soft_sro", []),
        ("dynamix", []),
        ("ies", []),
    ],
)
def test_excluded_are_name_and_tick_of_leaving(
    method: str, excluded: list[tuple[str, int]]
) -> None:
    assert run(method, *TWO).excluded == excluded


@pytest.mark.parametrize("method", METHODS)
def test_no_rollout_has_no_ticks(method: str) -> None:
    falling = {"a": [5, 4, 3, 2], "b": [5, 4, 3, 2]}
    out = run(method, falling)
    assert out.rollouts
    assert all(ticks > 0 for _, _, ticks in out.rollouts)


@pytest.mark.parametrize("method", METHODS)
def test_best_mean_is_the_mean_of_the_best_over_all_datasets(method: str) -> None:
    out = run(method, *TWO)
    scores = out.history.known(out.best)
    assert sorted(scores) == ["a", "b"]
    assert out.best_mean == float(scores["a"].value + scores["b"].value) / 2


@settings(deadline=None)
@given(
    st.sampled_from(sorted(METHODS)),
    st.lists(st.lists(st.integers(0, 5), min_size=9, max_size=9), min_size=3, max_size=3),
    st.integers(0, 3),
)
def test_every_method_ends_and_is_deterministic_whatever_the_curves(
    method: str, numbers: list[list[int]], twist: int
) -> None:
    def answer(index: int, start: CheckpointId, active: tuple[str, ...], ticks: int) -> Curves:
        curves = dict(zip("abc", numbers, strict=True))
        return {
            name: [curve[(tick + twist * index) % 9] for tick in range(ticks + 1)]
            for name, curve in curves.items()
        }

    def go() -> tuple[Scripted, bytes]:
        log = Log()
        out = scripted(method, ["a", "b", "c"], answer, 1, 2, log=log)
        return out, b"".join(to_line(event) for event in log.events)

    (first, one), (second, other) = go(), go()
    assert one == other
    assert (first.best, first.excluded) == (second.best, second.excluded)
    assert first.history.ended is not None
    assert len({name for name, _ in first.excluded}) == len(first.excluded)


# Its parameters


def test_defaults_are_three_and_ten_epochs_with_four_evaluations_each() -> None:
    rising = {"a": [float(tick) for tick in range(41)]}
    assert scripted("msft", ["a"], Answers(rising)).rollouts[0][2] == 12
    assert scripted("sft", ["a"], Answers(rising)).rollouts[0][2] == 40


def test_sizes_are_equal_if_none_and_may_be_a_list_or_a_mapping() -> None:
    def active(sizes: Mapping[str, int] | Sequence[int] | None) -> dict[str, int]:
        out = scripted("sft", ["a", "b"], Answers({"a": [0] * 41, "b": [0] * 41}), sizes=sizes)
        return dict(out.history.stages[0].asked.active)

    assert len(set(active(None).values())) == 1
    assert active([3, 8]) == {"a": 3, "b": 8}
    assert active({"b": 8, "a": 3}) == {"a": 3, "b": 8}


@pytest.mark.parametrize(
    ("key", "value"),
    [("compute_budget", 0), ("compute_budget", 0.3), ("num_train_epochs", 2.1)],
)
def test_budgets_must_be_whole_ticks(key: str, value: float) -> None:
    epochs = {"compute_budget": 3.0, "num_train_epochs": 10.0, key: value}
    with pytest.raises(ValueError, match=f"{key} is {value} epochs"):
        scripted("msft", ["a"], Answers(), epochs["compute_budget"], epochs["num_train_epochs"])


def test_a_scripted_run_resumes_from_its_log() -> None:
    log = Log()
    whole = scripted("msft", ["a", "b"], Answers(*TWO), evals_per_epoch=1, log=log)
    lines = [to_line(event) for event in log.events]
    for length in range(len(lines)):
        part = Log(events=log.events[:length])
        out = scripted("msft", ["a", "b"], Answers(*TWO), evals_per_epoch=1, log=part)
        assert [to_line(event) for event in part.events] == lines
        assert (out.best, out.rollouts) == (whole.best, whole.rollouts)


# Which points can be the best


@pytest.mark.parametrize("method", ["msft", "sft", "dynamix", "ies"])
@pytest.mark.parametrize("best", range(4))
def test_every_point_can_be_the_best_the_base_model_included(method: str, best: int) -> None:
    spike = [9 if tick == best else 0 for tick in range(4)]
    out = run(method, {"a": spike, "b": spike}, {"a": [0] * 4, "b": [0] * 4})
    assert (out.best, out.best_mean) == (f"r0-t{best}" if best else "base", 9)


@pytest.mark.parametrize("method", ["sro", "soft_sro"])
def test_of_a_search_only_the_base_model_can_be_the_best(method: str) -> None:
    search = {"a": [1, 2, 9, 2], "b": [1, 2, 9, 2]}
    assert run(method, search, {"a": [9, 0, 3, 0], "b": [9, 0, 3, 0]}).best == "r1-t2"
    out = run(method, search, {"a": [9, 0, 0, 0], "b": [9, 0, 0, 0]})
    assert (out.best, out.best_mean) == ("base", 1)


def test_of_continual_only_the_model_after_the_last_stop() -> None:
    out = run("continual", TWO[0], {"a": [2, 0, 0, 0], "b": [1, 0, 2, 0]})
    assert (out.best, out.best_mean) == ("r1-t2", 1)


def test_the_earlier_rollout_wins_on_a_tie_and_then_the_earlier_tick() -> None:
    level = {"a": [0, 2, 1, 1], "b": [0, 1, 2, 1]}
    assert run("sft", level).best == "r0-t1"
    tie = ({"a": [0, 2, 1, 0], "b": [0, 0, 1, 3]}, {"a": [2, 1, 1, 1], "b": [0, 2, 0, 0]})
    out = run("msft", *tie)
    assert out.excluded[0] == ("a", 1)
    assert (out.best, out.best_mean) == ("r0-t3", 1.5)


def test_means_of_floats_do_not_depend_on_the_order_of_the_datasets() -> None:
    """0.1 + 0.2 + 0.3 is another float than 0.3 + 0.2 + 0.1; as means they must tie."""
    names = ["a", "b", "c"]
    curves = {"a": [0.0, 0.1, 0.3], "b": [0.0, 0.2, 0.2], "c": [0.0, 0.3, 0.1]}
    out = scripted("sft", names, Answers(curves), num_train_epochs=2, evals_per_epoch=1)
    assert out.best == "r0-t1"


def test_candidates_says_how_many_points_the_best_was_chosen_from() -> None:
    expected = {"msft": 7, "sft": 4, "sro": 1 + 2, "soft_sro": 1 + 3, "continual": 1}
    for method, candidates in expected.items():
        assert summary_of(run(method, *TWO).history)["best"]["candidates"] == candidates


# Checkpoint ids


def test_ids_count_rollouts_from_0_and_ticks_from_1() -> None:
    out = run("msft", *TWO)
    points = [[point.checkpoint for point in stage.points] for stage in out.history.stages]
    assert points == [["r0-t1", "r0-t2", "r0-t3"], ["r1-t1", "r1-t2", "r1-t3"]]


def test_tick_0_has_no_id_of_its_own() -> None:
    seen: list[CheckpointId] = []

    def method(run: Run) -> None:
        first = run.rollout(run.base, run.mixture, 2)
        second = run.rollout(first.end, run.mixture, 2)
        third = run.rollout(second.at(0), run.mixture, 2)
        seen.extend([first.at(0), second.at(0), third.at(0), third.at(1)])

    scripted(method, ["a"], Answers({"a": [0, 1, 2]}, {"a": [2, 1, 0]}, {"a": [2, 1, 0]}))
    assert seen == [BASE, "r0-t2", "r0-t2", "r2-t1"]
