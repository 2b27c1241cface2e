"""What an audit finds: values by hand, odd rows, and a small version of bench/audit_power.py."""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msft.search.judging import LARGE, SPOILED, Estimate, Finding, JudgedRows, found_in

BENCH = Path(__file__).parents[2] / "bench"
Z = 1.959963984540054


def rights(right: int, rows: int) -> list[float]:
    return [1.0] * right + [0.0] * (rows - right)


def chosen(
    validation: Sequence[float], train: Sequence[float], k: int = 2, **rest: Any
) -> JudgedRows:
    """Rows with k choices each. The judge doubts the wrong rows, the last of them most."""
    n = len(train)
    doubts = [(1 - x) * (1 + row) for row, x in enumerate(train)]
    of = {"train_choices": [k] * n, "validation_choices": [k] * len(validation)} | rest
    return JudgedRows("choices", range(n), train, validation, doubts, **of)


def generated(validation: Sequence[float], train: Sequence[float], chance: float) -> JudgedRows:
    n = len(train)
    return JudgedRows("generated", range(n), train, validation, [0.0] * n, chance=chance)


def losses(validation: Sequence[float], train: Sequence[float], tokens: int = 10) -> JudgedRows:
    """Rows with these losses a token, of as many tokens each."""
    return JudgedRows(
        "nll",
        range(len(train)),
        [loss * tokens for loss in train],
        [loss * tokens for loss in validation],
        train,
        train_weights=[tokens] * len(train),
        validation_weights=[tokens] * len(validation),
    )


def valued(validation: Sequence[float], train: Sequence[float]) -> JudgedRows:
    return JudgedRows("value", range(len(train)), train, validation, [-x for x in train])


def one(rows: JudgedRows) -> Finding:
    return found_in({"a": rows})["a"]


def share_of(finding: Finding) -> Estimate:
    assert finding.wrong_share is not None
    return finding.wrong_share


CLEAN = chosen(rights(160, 200), rights(320, 400))
WRONG = chosen(rights(160, 200), rights(200, 400))


# By hand.


@pytest.mark.parametrize(("k", "share"), [(2, 0.5), (3, 0.3 / 0.7), (5, 0.3 / 0.75)])
def test_the_share_is_the_gap_over_what_a_wrong_answer_loses(k: int, share: float) -> None:
    """0.8 right of k choices: 0.8 - 0.2 / (k - 1) is lost."""
    found = one(chosen(rights(160, 200), rights(200, 400), k))
    assert (found.validation, found.train, found.rows) == (0.8, 0.5, 400)
    assert found.gap.value == pytest.approx(0.3)
    assert share_of(found).value == pytest.approx(share)
    assert found.verdict == "spoiled"
    assert len(found.suspects) == round(share * 400)


def test_the_intervals_are_those_of_agresti_and_caffo_and_of_fieller() -> None:
    """With two rows more: 161 of 202 and 201 of 402. For two choices the scale is 2 V - 1, so the
    validation rows enter gap - r D with the weight 1 - 2 r."""
    found = one(WRONG)
    v, t = 161 / 202, 201 / 402
    var_v, var_t = v * (1 - v) / 201, t * (1 - t) / 401
    half = Z * sqrt(var_v + var_t)
    assert (found.gap.low, found.gap.high) == pytest.approx((v - t - half, v - t + half))
    for sign, r in ((1, share_of(found).low), (-1, share_of(found).high)):
        error = sqrt((1 - 2 * r) ** 2 * var_v + var_t)
        assert v - t - r * (2 * v - 1) == pytest.approx(sign * Z * error)


def test_generated_answers_lose_less_where_wrong_answers_are_given_by_chance_too() -> None:
    found = one(generated(rights(120, 200), rights(140, 400), chance=0.1))
    assert share_of(found).value == pytest.approx((0.6 - 0.35) / (0.6 - 0.1))


def test_generated_answers_that_are_drawn_evenly_are_like_choices() -> None:
    found = one(generated(rights(160, 200), rights(200, 400), chance=0.2 / 3))
    like = one(chosen(rights(160, 200), rights(200, 400), 4))
    assert found.gap == like.gap
    for one_, other in zip(_numbers(share_of(found)), _numbers(share_of(like)), strict=True):
        assert one_ == pytest.approx(other)


def _numbers(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def test_the_nll_is_a_ratio_of_sums_and_its_gap_is_turned() -> None:
    validation, train = [10.0, 40.0] * 50, [30.0, 60.0] * 50
    rows = JudgedRows(
        "nll",
        range(100),
        train,
        validation,
        [0.0] * 100,
        train_weights=[10.0, 50.0] * 50,
        validation_weights=[10.0, 50.0] * 50,
    )
    found = one(rows)
    assert (found.validation, found.train) == pytest.approx((50 / 60, 90 / 60))
    assert found.gap.value == pytest.approx(40 / 60)
    assert found.wrong_share is None
    # Residuals of a pair: 10 - 10 V and 40 - 50 V for validation rows; T alike.
    size = 3000**2 / (50 * (10**2 + 50**2))
    squares = 50 * sum((x - w * r) ** 2 for x, w, r in (
        (10, 10, 5 / 6), (40, 50, 5 / 6), (30, 10, 1.5), (60, 50, 1.5)
    ))  # fmt: skip
    error = sqrt(squares * size / (size - 1)) / 3000
    assert found.gap.high - found.gap.value == pytest.approx(Z * error)


def test_where_splits_differ_in_their_choices_rows_are_compared_with_their_like() -> None:
    """Rows of two choices are right in 0.9, of five in 0.5. Training has them 1 : 3, validation
    1 : 1, and that alone is no gap."""
    rows = chosen(
        rights(90, 100) + rights(50, 100),
        rights(90, 100) + rights(150, 300),
        validation_choices=[2] * 100 + [5] * 100,
        train_choices=[2] * 100 + [5] * 300,
    )
    found = one(rows)
    assert found.validation == pytest.approx((0.9 + 3 * 0.5) / 4)
    assert found.train == pytest.approx(0.6)
    assert found.gap.value == pytest.approx(0, abs=1e-12)
    assert found.gap.low < 0 < found.gap.high
    wrong = one(replace(rows, train=rights(50, 100) + rights(150, 300)))
    scale = (0.8 + 3 * (0.5 - 0.5 / 4)) / 4
    assert share_of(wrong).value == pytest.approx(0.1 / scale)


def test_rows_with_choices_that_the_other_split_does_not_have_count_nothing() -> None:
    train = [*CLEAN.train, *rights(0, 100)]
    rows = chosen(CLEAN.validation, train, train_choices=[2] * 400 + [7] * 100)
    found = one(rows)
    assert found.train == pytest.approx(0.8)
    assert found.rows == 500
    assert found.verdict == "fine"


# Verdicts.


def test_a_clean_sub_dataset_is_fine_and_has_no_suspects() -> None:
    found = one(CLEAN)
    assert (found.verdict, found.suspects) == ("fine", ())
    assert share_of(found).high < LARGE
    assert found.why == (
        "Of validation rows 80 % are right, of unseen training rows 80 %: at most 10 % of the "
        "training answers are wrong."
    )


def test_a_negative_share_is_shown_as_it_is() -> None:
    found = one(chosen(rights(140, 200), rights(380, 400)))
    assert share_of(found).value == pytest.approx(-0.25 / 0.4)
    assert found.verdict == "fine"
    assert "less than training rows" in found.why


def test_a_sure_gap_that_is_small_is_no_alarm() -> None:
    """8 % of very many rows are surely wrong."""
    found = one(chosen(rights(9000, 10_000), rights(8360, 10_000)))
    assert share_of(found).value == pytest.approx(0.08)
    assert share_of(found).low > 0.05
    assert found.verdict == "fine"


def test_the_more_sub_datasets_the_surer_a_gap_must_be() -> None:
    """Alone its p is about 0.02."""
    doubtful = chosen(rights(160, 200), rights(283, 400))
    assert one(doubtful).verdict == "spoiled"
    beside = found_in({"a": doubtful} | {f"b{number}": CLEAN for number in range(9)})
    assert beside["a"].verdict == "fine"
    unknown = chosen(rights(100, 200), rights(200, 400))
    beside = found_in({"a": doubtful} | {f"b{number}": unknown for number in range(9)})
    assert beside["a"].verdict == "fine", "tasks that are not known count too"


def test_a_gap_must_surely_exceed_a_point_and_a_half() -> None:
    """0.05 of very many rows, with a standard error of 0.0066: sure against 0, and with a margin
    of 0.015 too; 0.025 is sure against 0 alone. The scale is 0.2."""
    assert one(chosen(rights(6000, 10_000), rights(5500, 10_000))).verdict == "spoiled"
    found = one(chosen(rights(6000, 10_000), rights(5750, 10_000)))
    assert found.gap.low > 0.01
    assert share_of(found).value > SPOILED
    assert found.verdict == "fine"


def test_too_few_rows_cannot_tell_and_the_rows_that_are_said_would_do() -> None:
    found = one(chosen(rights(42, 60), rights(70, 100)))
    assert found.verdict == "cannot_tell"
    assert share_of(found).high > LARGE
    said = re.search(r"about ([\d,]+) validation rows and ([\d,]+) training rows", found.why)
    assert said
    m, n = (int(each.replace(",", "")) for each in said.groups())
    assert one(chosen(rights(7 * m // 10, m), rights(7 * n // 10, n))).verdict == "fine"
    half = one(chosen(rights(7 * m // 40, m // 4), rights(7 * n // 40, n // 4)))
    assert half.verdict == "cannot_tell"


def test_a_task_that_the_judges_do_not_know_tells_nothing() -> None:
    found = one(chosen(rights(104, 200), rights(200, 400)))
    assert (found.verdict, found.wrong_share) == ("cannot_tell", None)
    assert found.why.startswith("The model does not know this task: 52 %")
    found = one(chosen(rights(60, 100), rights(200, 400)))
    assert (found.verdict, found.wrong_share) == ("cannot_tell", None)
    assert found.why.startswith("100 validation rows are too few to say whether the model knows")


# Odd rows.


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (chosen(rights(160, 200), rights(16, 20)), "200 validation and 20 training rows"),
        (chosen(rights(1, 1), rights(0, 400)), "1 validation and 400 training rows"),
        (chosen([], rights(0, 400)), "0 validation and 400 training rows"),
        (chosen(rights(9, 20), []), "20 validation and 0 training rows"),
        (replace(WRONG, one_answer=True), "All training rows have the same answer"),
        (chosen(rights(0, 200), rights(0, 400)), "The model does not know this task: 0 %"),
        (chosen(rights(160, 200), rights(9, 99), train_choices=[3] * 99), "Too few validation"),
        (valued([0.1] * 50, [0.1] * 50), "The rows of either split are all"),
        (valued([1.0] * 50, [0.1] * 50), "The rows of either split are all"),
        (valued([0.1] * 50, [0.1, 0.2] * 25), "The validation rows are all worth nearly"),
        (losses([0.1] * 50, [0.7] * 50), "The rows of either split are all"),
        (replace(losses([0.1] * 50, [0.7] * 50), train_weights=[0.0] * 50), "50 validation and"),
    ],
)
def test_rows_that_tell_nothing_are_said_to(rows: JudgedRows, why: str) -> None:
    found = one(rows)
    assert found.verdict == "cannot_tell"
    assert found.suspects == ()
    assert found.why.startswith(why)


def test_one_row_that_stands_for_many_is_not_trusted() -> None:
    """Of five choices there is one validation row, and it is right."""
    rows = chosen(
        rights(160, 200),
        rights(5, 1000),
        validation_choices=[5] + [2] * 199,
        train_choices=[5] * 990 + [2] * 10,
    )
    found = one(rows)
    assert found.verdict == "cannot_tell"
    assert found.why.startswith("Too few validation rows have as many choices")


def test_all_rows_right_are_fine() -> None:
    found = one(chosen(rights(200, 200), rights(400, 400)))
    assert found.verdict == "fine"
    assert found.gap.value == 0
    assert found.gap.low < 0 < found.gap.high, "a set without noise is only luck"


def test_nobody_to_judge_is_nothing_found() -> None:
    assert found_in({}) == {}


WORTHS = {
    "choices": st.sampled_from([0.0, 0.5, 1.0]),
    "generated": st.sampled_from([0.0, 0.25, 1.0]),
    "nll": st.floats(0, 50),
    "value": st.sampled_from([-3.0, 0.1, 0.3, 1e6]),
}


@st.composite
def any_rows(draw: st.DrawFn) -> JudgedRows:
    kind: Any = draw(st.sampled_from([*WORTHS]))
    m, n = draw(st.integers(0, 60)), draw(st.integers(0, 60))
    sizes = {"validation": m, "train": n}
    worths = {
        split: draw(st.lists(WORTHS[kind], min_size=size, max_size=size))
        for split, size in sizes.items()
    }
    rest: dict[str, Any] = {}
    counts = {"nll": "weights", "choices": "choices"}
    if kind in counts:
        small = st.integers(0 if kind == "nll" else 1, 4)
        rest = {
            f"{split}_{counts[kind]}": draw(st.lists(small, min_size=size, max_size=size))
            for split, size in sizes.items()
        }
    if kind == "generated":
        rest["chance"] = draw(st.floats(0, 1))
    doubts = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    return JudgedRows(kind, range(n), worths["train"], worths["validation"], doubts, **rest)


@settings(max_examples=100, deadline=None)
@given(any_rows(), any_rows())
def test_whatever_is_judged_is_told_in_finite_numbers(a: JudgedRows, b: JudgedRows) -> None:
    first = found_in({"a": a, "b": b})
    for round_ in (first, found_in({"a": b}, first)):
        for found in round_.values():
            estimates = [each for each in (found.gap, found.wrong_share) if each]
            assert all(isfinite(number) for each in estimates for number in _numbers(each))
            assert all(each.low <= each.high for each in estimates)
            assert found.verdict == "spoiled" or not found.suspects
            assert found.why.endswith(".")


# Suspects.


def test_suspects_are_the_rows_of_most_doubt_and_of_equal_ones_the_first() -> None:
    numbers = [7 * row for row in range(400)]
    doubts = [1.0] * 100 + [0.5] * 200 + [3.0] * 100
    rows = replace(WRONG, numbers=numbers, doubts=doubts)
    wanted = [*range(300, 400), *range(100)]
    assert one(rows).suspects == tuple(7 * row for row in wanted)
    order = sorted(range(400), key=lambda row: row % 7)
    turned = replace(
        rows,
        train=[rows.train[row] for row in order],
        numbers=[numbers[row] for row in order],
        doubts=[doubts[row] for row in order],
    )
    assert one(turned).suspects == one(rows).suspects


def test_suspects_of_nll_are_the_rows_above_what_is_normal() -> None:
    """5 of 100 validation rows lose more than 1.95; of 200 training rows 67 do, and 10 of them are
    to be expected."""
    validation = [1 + row / 100 for row in range(1, 101)]
    train = [1 + row / 140 for row in range(1, 134)] + [1.97] * 7 + [3 + row for row in range(60)]
    found = one(losses(validation, train))
    assert found.verdict == "spoiled"
    assert found.wrong_share is None
    assert found.suspects == tuple(range(199, 142, -1))
    assert "nats a token more than validation rows" in found.why


def test_a_metric_s_own_worst_rows_are_its_scale() -> None:
    """The lowest twentieth of validation rows is at 0.2, the mean at 0.76: 0.14 of 0.56 is a
    quarter of the way."""
    validation = [0.1] * 2 + [0.2] * 18 + [0.8] * 180 + [0.98] * 20
    mean = sum(validation) / 220
    train = [x - 0.14 for x in validation]
    found = one(valued(validation, train))
    assert found.gap.value == pytest.approx(0.14)
    assert found.verdict == "spoiled"
    assert found.wrong_share is None
    assert len(found.suspects) == round(0.14 / (mean - 0.2) * 220)
    assert found.suspects[:20] == tuple(range(20))
    scaled = one(valued([x / 1000 for x in validation], [x / 1000 for x in train]))
    assert (scaled.verdict, scaled.suspects) == (found.verdict, found.suspects)


def test_a_metric_s_suspects_are_no_more_than_explain_the_gap() -> None:
    """Validation rows are worth 1, but for a tenth at 0.5; 40 % of training rows are worth nothing.
    The gap of 0.375 is 83 % of the way to the worst validation rows. But without the 79 rows that
    are worth least the others score as validation rows do, and not without 78: 115 / 121 is more
    than 0.95, and 115 / 122 is less."""
    validation = [0.5] * 20 + [1.0] * 180
    train = [0.0] * 80 + [0.5] * 10 + [1.0] * 110
    found = one(valued(validation, train))
    assert found.verdict == "spoiled"
    assert len(found.suspects) == 79
    nothing = one(valued(validation, [0.0] * 100))
    assert (nothing.verdict, len(nothing.suspects)) == ("spoiled", 100), "no row is left to trust"


# Rounds.


def test_a_later_round_keeps_verdicts_and_makes_shares_and_ranks_anew() -> None:
    first = found_in({"a": WRONG, "b": CLEAN, "c": WRONG})
    better = chosen(rights(180, 200), rights(220, 400))
    again = found_in({"a": better, "b": WRONG}, first)
    assert again["b"] == first["b"]
    assert again["c"] == first["c"], "it was not judged again"
    assert again["a"].verdict == "spoiled"
    assert share_of(again["a"]).value == pytest.approx(0.35 / 0.8)
    assert len(again["a"].suspects) == 175
    clean = found_in({"a": CLEAN}, first)["a"]
    assert (clean.verdict, clean.suspects) == ("spoiled", ())
    assert clean.why.endswith("The verdict is that of round 1, whose judges saw more wrong.")
    assert again["a"].why.endswith("of the training answers are wrong.")
    unknown = chosen(rights(100, 200), rights(200, 400))
    assert found_in({"a": unknown}, first) == first


# Level, power and coverage.


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("audit_power")


@pytest.mark.parametrize("task", [{"accuracy": 0.95}, {"k": 2, "validation": 300}])
def test_clean_mixtures_seldom_raise_an_alarm(power: Any, task: dict[str, Any]) -> None:
    task = {"train": 300, "validation": 100} | task
    assert power.alarms(power.Task(**task), 40, spread=0.015) <= 3 / 40


@pytest.mark.parametrize("kind", ["choices", "generated"])
def test_wrong_answers_are_found_and_their_share_is_right(power: Any, kind: str) -> None:
    seen = power.verdicts(power.Task(wrong=0.4, train=600, kind=kind), 60)
    assert seen.spoiled > 0.95
    assert seen.mean == pytest.approx(0.4, abs=0.02)
    assert seen.covered >= 0.88


def test_the_benchmark_prints_its_tables(power: Any, capsys: pytest.CaptureFixture[str]) -> None:
    power.TASKS = {"small": power.Task(train=100, validation=60), "nll": power.Task(kind="nll")}
    power.main(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Clean mixtures of 10 with an alarm, per cent, 2 each"
    tables = [line.split() for line in lines if line.startswith(("small", "nll"))]
    assert [len(cells) for cells in tables] == [4] + [8] * 8
