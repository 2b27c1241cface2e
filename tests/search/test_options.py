"""Options: what is mistyped, out of range or contradictory is refused before anything starts."""

from typing import Annotated, Any, Literal

import pytest

from msft.errors import OptionError
from msft.search.curves import PeakRule
from msft.search.feeds import Mixture
from msft.search.methods import METHODS, prepare
from msft.search.options import Ge, Gt, Interval, checked, refuse_unknown
from msft.search.rehearsal import Rehearsal, rehearse
from msft.search.rollout import CheckpointId, Run, ticks_of
from msft.testing import scripted


def refusal(method: str, **options: Any) -> str:
    with pytest.raises(ValueError, match=f"method {method}") as refused:
        prepare(method, options, 12, PeakRule())
    return str(refused.value)


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_option_is_refused_by_every_method(method: str) -> None:
    assert "unknown option" in refusal(method, no_such_option=1)


@pytest.mark.parametrize(
    ("method", "option", "near"),
    [
        ("msft", "max_stage", "max_stages"),
        ("msft", "drop_tie", "drop_ties"),
        ("msft", "patient", "patience"),
        ("continual", "rehearsal", "rehearsal_fraction"),
        ("dynamix", "betta", "beta"),
        ("ies", "treshold", "threshold"),
        ("sro", "scored_excluded", "score_excluded"),
    ],
)
def test_the_nearest_known_one_is_named(method: str, option: str, near: str) -> None:
    assert f"{option!r}; did you mean {near!r}?" in refusal(method, **{option: 1})


def test_all_known_ones_are_listed() -> None:
    message = refusal("msft", xyz=1)
    listed = message[message.index("(known: ") :]
    for option in (
        "drop_ties",
        "max_stages",
        "max_epochs",
        "patience",
        "on_rollback",
        "score_excluded",
        "rehearsal_fraction",
    ):
        assert option in listed
    assert "did you mean" not in message


def test_a_method_without_options_says_so() -> None:
    assert refusal("sft", patience=2).endswith("(known: none)")


@pytest.mark.parametrize(
    ("method", "option", "value", "expected"),
    [
        ("msft", "drop_ties", "some", "'one' or 'all'"),
        ("msft", "drop_ties", True, "'one' or 'all'"),
        ("msft", "max_stages", 0, "1 or more"),
        ("msft", "max_stages", 2.5, "a whole number"),
        ("msft", "max_stages", True, "a whole number"),
        ("msft", "max_stages", "3", "a whole number"),
        ("msft", "max_epochs", 0, "more than 0"),
        ("msft", "max_epochs", -1.0, "more than 0"),
        ("msft", "max_epochs", float("nan"), "more than 0"),
        ("msft", "max_epochs", float("inf"), "more than 0"),
        ("msft", "patience", 0, "1 or more"),
        ("msft", "patience", 1.0, "a whole number"),
        ("msft", "on_rollback", "keep", "'reset' or 'restore'"),
        ("msft", "on_rollback", None, "'reset' or 'restore'"),
        ("msft", "score_excluded", "never", "'every' or 'rollback'"),
        ("msft", "rehearsal_fraction", -0.1, "0 to "),
        ("msft", "rehearsal_fraction", 1, "0 to "),
        ("continual", "rehearsal_fraction", "a bit", "a number"),
        ("ies", "permanent", 1, "true or false"),
    ],
)
def test_wrong_types_and_values_out_of_range_are_refused(
    method: str, option: str, value: object, expected: str
) -> None:
    message = refusal(method, **{option: value})
    assert f"{option} is {value!r}; expected" in message
    assert expected in message


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ({"confidence": 0.4}, "exclude: confidence is 0.4; expected 0.5 or more, below 1"),
        ({"confidence": 1}, "exclude: confidence is 1; expected 0.5 or more, below 1"),
        ({"confidence": float("nan")}, "exclude: confidence is nan; expected 0.5 or more"),
        ({"confidence": "high"}, "exclude: confidence is 'high'; expected a number"),
        ({"confidance": 0.9}, "exclude: 'confidance'; did you mean 'confidence'?"),
        (0.95, "exclude is 0.95; expected keys and values, of the keys confidence or null"),
        (True, "exclude is True; expected keys and values"),
    ],
)
def test_the_option_with_an_option_is_checked(exclude: object, message: str) -> None:
    assert message in refusal("msft", exclude=exclude)


def test_it_is_in_the_log_as_it_stands_in_a_recipe() -> None:
    options = prepare("msft", {"exclude": {"confidence": 0.9}}, 12, PeakRule()).options
    assert options == {"exclude": {"confidence": 0.9}}
    assert prepare("msft", {"exclude": {}}, 12, PeakRule()).options == {
        "exclude": {"confidence": 0.95}
    }
    assert prepare("msft", {"exclude": None}, 12, PeakRule()).options == {"exclude": None}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "msft"])
def test_sure_exclusion_is_refused_by_other_methods(method: str) -> None:
    assert "unknown option" in refusal(method, exclude={"confidence": 0.95})


def test_sure_exclusion_needs_rollouts_of_four_ticks() -> None:
    with pytest.raises(OptionError, match="compute_budget is 3 ticks") as refused:
        prepare("msft", {"exclude": {}}, 3, PeakRule())
    assert refused.value.option == "compute_budget"
    with pytest.raises(OptionError, match="patience is 3 ticks"):
        prepare("msft", {"exclude": {}, "patience": 3}, 12, PeakRule())
    prepare("msft", {"exclude": {}, "patience": 4}, 4, PeakRule())
    prepare("msft", {"exclude": None, "patience": 1}, 1, PeakRule())


@pytest.mark.parametrize("option", ["max_stages", "max_epochs", "patience"])
def test_null_means_left_out(option: str) -> None:
    prepared = prepare("msft", {option: None}, 12, PeakRule())
    assert prepared.options.get(option) is None
    assert prepared.rollout_options.patience is None


def test_a_whole_number_is_a_number() -> None:
    options = prepare("msft", {"max_epochs": 3}, 12, PeakRule()).options
    assert options == {"max_epochs": 3.0}


def test_the_defaults_of_rollout_and_mixture_are_the_papers() -> None:
    prepared = prepare("msft", {}, 12, PeakRule())
    assert prepared.rollout_options.patience is None
    assert prepared.rollout_options.on_rollback == "reset"
    assert prepared.rollout_options.score_excluded == "every"
    assert prepared.mixture_options.rehearsal_fraction == 0


@pytest.mark.parametrize(
    ("peaks", "message"),
    [
        ({"smoth": 1}, "unknown option of peaks: 'smoth'; did you mean 'smooth'?"),
        ({"smooth": -1}, "peaks.smooth is -1; expected 0 or more"),
        ({"smooth": 0.5}, "peaks: smooth is 0.5; expected a whole number"),
        ({"min_delta": -0.1}, "peaks.min_delta is -0.1; expected 0 or more"),
        ({"min_delta": float("nan")}, "peaks: min_delta is nan; expected a finite number"),
        ({"min_delta": float("inf")}, "peaks: min_delta is inf; expected a finite number"),
        ({"include_start": "no"}, "peaks: include_start is 'no'; expected true or false"),
    ],
)
def test_the_peak_rule_is_checked_too(peaks: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="peaks") as refused:
        scripted("msft", ["a"], lambda *question: {}, peaks=peaks)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("method", "options", "peaks"),
    [
        ("msft", {"max_stage": 3}, {}),
        ("msft", {}, {"include_start": False}),  # with a budget of one tick
        ("msft", {"max_epochs": 0.5}, {}),  # not a multiple of an epoch
        ("ies", {"permanent": False, "track_excluded": False}, {}),
    ],
)
def test_a_refused_recipe_starts_nothing(
    method: str, options: dict[str, Any], peaks: dict[str, Any]
) -> None:
    asked: list[CheckpointId] = []

    def answer(
        index: int, start: CheckpointId, active: tuple[str, ...], ticks: int
    ) -> dict[str, list[float]]:
        asked.append(start)
        return {"a": [0.0] * (ticks + 1)}

    with pytest.raises(ValueError, match=r"."):
        scripted(
            method,
            ["a"],
            answer,
            compute_budget=1,
            evals_per_epoch=1,
            peaks=peaks,
            method_options=options,
        )
    assert asked == []


# The checker itself


def settings(
    *,
    share: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    least: Annotated[int, Ge(2)] = 2,
    positive: Annotated[float | None, Gt(0)] = None,
    word: Literal["a", "b"] | int = "a",
    free: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    "good",
    [
        {"share": 0},
        {"share": 1},
        {"least": 2},
        {"positive": 1e-9},
        {"positive": None},
        {"word": "b"},
        {"word": 7},
        {"free": [1, 2]},
        {},
    ],
)
def test_values_at_the_edge_of_a_bound_pass(good: dict[str, Any]) -> None:
    assert checked(settings, good, "it") == good


@pytest.mark.parametrize(
    "bad",
    [{"share": 1.0001}, {"least": 1}, {"positive": 0}, {"word": "c"}, {"share": None}],
)
def test_values_beyond_it_do_not(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"it: \w+ is .*; expected"):
        checked(settings, bad, "it")


@pytest.mark.parametrize(
    ("method", "options", "budget", "option"),
    [
        ("msft", {"patience": 3, "xyz": 1}, 12, "xyz"),
        ("msft", {"patience": 3, "max_stages": 0}, 12, "max_stages"),
        ("msft", {"patience": 0}, 12, "patience"),
        ("msft", {"rehearsal_fraction": 2}, 12, "rehearsal_fraction"),
        ("msft", {}, 1, "compute_budget"),
        ("msfd", {}, 12, "method"),
        ("no.such:method", {}, 12, "method"),
        ("math:pi", {}, 12, "method"),
    ],
)
def test_the_error_says_which_option_is_wrong(
    method: str, options: dict[str, Any], budget: int, option: str
) -> None:
    with pytest.raises(OptionError) as refused:
        prepare(method, options, budget, PeakRule(include_start=False))
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("method", "options", "option"),
    [
        ("msft", {"max_epochs": 0.3}, "max_epochs"),
        ("ies", {"track_excluded": False, "permanent": False}, "permanent"),
    ],
)
def test_a_rehearsal_finds_what_a_method_has_against_its_options(
    method: str, options: dict[str, Any], option: str
) -> None:
    run = Rehearsal(Mixture.of({"a": 1, "b": 1}), 12, 40, 4)
    with pytest.raises(OptionError) as refused:
        rehearse(prepare(method, options, 12, PeakRule()).carry_out, run)
    assert refused.value.option == option


@pytest.mark.parametrize("method", METHODS)
def test_a_rehearsal_ends_with_the_first_question(method: str) -> None:
    run, steps = Rehearsal(Mixture.of({"a": 1, "b": 1}), 12, 40, 4), list[str]()

    def watched(run: Run) -> None:
        steps.append("starts")
        METHODS[method](run)
        steps.append("has an answer")

    rehearse(watched, run)
    assert steps == ["starts"]


def test_refuse_unknown_passes_known_keys() -> None:
    refuse_unknown(["a"], ["a", "b"], "key")
    with pytest.raises(ValueError, match=r"unknown key 'c' \(known: a, b\)"):
        refuse_unknown(["a", "c"], ["a", "b"], "key")


# Budgets


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "ticks"), [(3, 4, 12), (0.25, 4, 1), (1.5, 4, 6), (0.1, 10, 1)]
)
def test_epochs_become_ticks(epochs: float, per_epoch: int, ticks: int) -> None:
    assert ticks_of(epochs, per_epoch, "compute_budget") == ticks


@pytest.mark.parametrize("epochs", [0, -1, 0.3, 2.1])
def test_a_budget_that_is_not_whole_ticks_is_refused(epochs: float) -> None:
    with pytest.raises(ValueError, match=rf"budget is {epochs} epochs; expected .* 1/4"):
        ticks_of(epochs, 4, "compute_budget")
