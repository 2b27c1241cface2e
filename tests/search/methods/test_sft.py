"""SFT: one roll-out on the whole mixture; the best checkpoint by mean score is reported."""

from collections.abc import Sequence

from msft.testing import Scripted, scripted


def run(a: Sequence[float], b: Sequence[float], epochs: float = 3, evals: int = 1) -> Scripted:
    return scripted(
        "sft",
        ["a", "b"],
        lambda index, start, active, ticks: {"a": a, "b": b},
        num_train_epochs=epochs,
        evals_per_epoch=evals,
    )


def test_one_rollout_of_everybody_from_the_base_model() -> None:
    out = run([0, 1, 0, 0], [0, 1, 2, 3])
    assert out.rollouts == [("base", ("a", "b"), 3)]
    assert out.excluded == []
    assert out.history.ended is not None
    assert out.history.ended.by == "budget"


def test_ten_epochs_with_four_evaluations_each_by_default() -> None:
    curves = {"a": [0.0] * 41}
    out = scripted("sft", ["a"], lambda index, start, active, ticks: curves)
    assert out.rollouts == [("base", ("a",), 40)]


def test_num_train_epochs_is_in_epochs_not_in_ticks() -> None:
    assert run([0] * 7, [0] * 7, epochs=1.5, evals=4).rollouts[0][2] == 6


def test_the_best_is_by_the_mean_over_all() -> None:
    out = run([0, 6, 5, 0], [0, 1, 3, 5])
    assert (out.best, out.best_mean) == ("r0-t2", 4)


def test_the_base_model_may_be_the_best() -> None:
    out = run([9, 6, 5, 0], [9, 1, 3, 5])
    assert (out.best, out.best_mean) == ("base", 9)
    assert out.history.candidates == 4


def test_the_earliest_of_equals_is_the_best() -> None:
    assert run([0, 1, 2, 3], [0, 3, 2, 1]).best == "r0-t1"
