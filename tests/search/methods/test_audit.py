"""The audit on a run that only notes what it is asked: folds, judges and rounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.search.feeds import Mixture
from msft.search.judging import Finding, JudgedRows, join_judgments
from msft.search.methods.audit import audit, folds_of, without

Rows = Mapping[str, Sequence[int]]


@dataclass
class Asked:
    """A `Run` whose judges find the rows in `wrong` wrong, and all others right.

    trained: the rows of each roll-out, with all that was asked of it beside.
    judged: the judge, and the rows that it was given.
    """

    asked: Mapping[str, Sequence[str]]
    wrong: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 20
    base: str = "base"
    train_ticks: int = 6
    validation_rows: int = 200
    trained: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    how: list[dict[str, Any]] = field(default_factory=list)
    judged: list[tuple[str, dict[str, list[int]]]] = field(default_factory=list)
    found: list[Mapping[str, Finding]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mixture = Mixture.of({name: len(rows) for name, rows in self.asked.items()})

    def questions(self) -> Mapping[str, Sequence[str]]:
        return self.asked

    def rollout(self, start: str, mixture: Mixture, ticks: int, **how: Any) -> Any:
        number = len(self.trained)
        self.trained.append({part.name: part.numbers or () for part in mixture.parts})
        self.how.append({"start": start, "ticks": ticks, **how})
        ids = [f"r{number}-t{tick}" for tick in range(1, ticks + 1)]
        return SimpleNamespace(end=ids[-1], best=ids[0])

    def judge(self, judge: str, rows: Rows) -> Mapping[str, JudgedRows]:
        self.judged.append((judge, {name: [*numbers] for name, numbers in rows.items()}))
        return {name: self._said(name, rows.get(name, ())) for name in self.asked}

    def _said(self, name: str, numbers: Sequence[int]) -> JudgedRows:
        wrong = {*self.wrong.get(name, ())}
        train = [0.0 if number in wrong else 1.0 for number in numbers]
        validation = [1.0] * self.validation_rows
        doubts = [(1 - x) * (1 + n) for n, x in zip(numbers, train, strict=True)]
        return JudgedRows(
            "choices",
            [*numbers],
            train,
            validation,
            doubts,
            train_choices=[2] * len(train),
            validation_choices=[2] * len(validation),
        )

    def find(self, findings: Mapping[str, Finding]) -> None:
        self.found.append(findings)


def distinct(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    return {name: [f"{name} {row}" for row in range(size)] for name, size in sizes.items()}


def audited(run: Asked, rounds: int = 2) -> Asked:
    audit(run, rounds=rounds)  # type: ignore[arg-type]
    return run


# Folds


def test_folds_are_a_function_of_seed_sub_dataset_and_question() -> None:
    asked = {"a": ["x", "y", "z", "w"]}
    first = folds_of(asked, 20)
    assert first == folds_of(asked, 20)
    assert any(folds_of(asked, seed) != first for seed in range(5))
    assert any(
        folds_of({"a": asked["a"]}, seed)[0]["a"] != folds_of({"b": asked["a"]}, seed)[0]["b"]
        for seed in range(5)
    )


def test_sub_datasets_that_ask_the_same_have_it_in_the_same_fold() -> None:
    """Else the judge of a row has learned its answer from the copy in the other sub-dataset."""
    same = [f"question {number}" for number in range(8)]
    asked = {"a": same, "b": same[::-1], "c": [*same[:3], "new 1", "new 2", "new 3"]}
    for seed in range(5):
        first, second = folds_of(asked, seed)
        for fold in (first, second):
            assert {same[row] for row in fold["a"]} == {same[::-1][row] for row in fold["b"]}
        of_c = [{asked["c"][row] for row in fold["c"]} for fold in (first, second)]
        assert of_c[0] & {*same} <= {same[row] for row in first["a"]}
        assert of_c[1] & {*same} <= {same[row] for row in second["a"]}
        assert [len(part) for part in of_c] == [3, 3], "new questions make the folds even"


def test_a_question_stays_in_its_fold_wherever_its_row_stands() -> None:
    asked = [f"question {number}" for number in range(9)]
    here = folds_of({"a": asked}, 3)
    there = folds_of({"a": asked[::-1]}, 3)
    for fold, mirrored in zip(here, there, strict=True):
        assert {asked[row] for row in fold["a"]} == {asked[::-1][row] for row in mirrored["a"]}


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.lists(st.sampled_from("uvwxyz"), min_size=1), min_size=1
    ),
    st.integers(0, 9),
)
def test_each_row_is_in_one_fold_with_all_that_ask_the_same(
    asked: dict[str, list[str]], seed: int
) -> None:
    folds = folds_of(asked, seed)
    assert len(folds) == 2
    known: set[str] = set()
    every = [{asked[name][row] for name in asked for row in fold.get(name, [])} for fold in folds]
    assert not every[0] & every[1], "a copy in the other fold teaches its judge the answer"
    for name, questions in asked.items():
        parts = [fold.get(name, []) for fold in folds]
        assert sorted(row for part in parts for row in part) == [*range(len(questions))]
        assert all(part == sorted(part) for part in parts)
        first, second = ({questions[row] for row in part} for part in parts)
        if not known & {*questions}:
            assert 0 <= len(first) - len(second) <= 1, "dealt in turn"
        known |= {*questions}


def test_a_sub_dataset_that_asks_one_question_is_in_one_fold() -> None:
    first, second = folds_of({"a": ["same"] * 5, "b": ["x", "y"]}, 20)
    assert first["a"] == [0, 1, 2, 3, 4]
    assert "a" not in second
    assert sorted([*first["b"], *second["b"]]) == [0, 1]


# Judges


def test_a_judge_trains_on_one_fold_of_everybody_and_judges_the_other() -> None:
    run = audited(Asked(distinct({"a": 40, "b": 7})))
    assert len(run.trained) == len(run.judged) == 2, "nobody is spoiled, so there is one round"
    for trained, (_, rows) in zip(run.trained, run.judged, strict=True):
        for name, size in (("a", 40), ("b", 7)):
            assert sorted([*trained[name], *rows[name]]) == [*range(size)]
    first, second = run.trained
    assert not {*first["a"]} & {*second["a"]}
    assert run.judged[0][1] == {name: [*rows] for name, rows in second.items()}


def test_a_judge_is_its_roll_outs_last_step_and_no_result() -> None:
    run = audited(Asked(distinct({"a": 40}), train_ticks=6))
    assert [judge for judge, _ in run.judged] == ["r0-t6", "r1-t6"]
    expected = {"start": "base", "ticks": 6, "eligible": False, "keep": "best", "scored": False}
    assert run.how == [expected] * 2


# Rounds


def spoiled(**changed: Any) -> Asked:
    """A sub-dataset with a fifth of its rows wrong, beside a clean one."""
    sizes = {"bad": 100, "good": 100}
    return Asked(distinct(sizes), wrong={"bad": range(0, 100, 5)}, **changed)


def test_a_second_round_trains_without_the_suspects_and_judges_them_again() -> None:
    run = audited(spoiled())
    first, second = run.found
    assert first["bad"].verdict == "spoiled"
    assert {*first["bad"].suspects} == {*range(0, 100, 5)}
    assert first["good"].suspects == ()
    suspects = {*first["bad"].suspects}
    for before, after in zip(run.trained[:2], run.trained[2:], strict=True):
        assert {*after["bad"]} == {*before["bad"]} - suspects
        assert after["good"] == before["good"]
    assert run.judged[2][1] == run.judged[0][1]
    assert run.judged[3][1] == run.judged[1][1]
    assert [judge for judge, _ in run.judged] == ["r0-t6", "r1-t6", "r2-t6", "r3-t6"]
    assert second["bad"].rows == 100


@pytest.mark.parametrize(
    ("rounds", "wrong", "expected"), [(1, True, 1), (3, True, 3), (3, False, 1)]
)
def test_rounds_are_as_asked_but_one_where_nobody_is_spoiled(
    rounds: int, wrong: bool, expected: int
) -> None:
    run = spoiled()
    run.wrong = run.wrong if wrong else {}
    audited(run, rounds)
    assert len(run.found) == expected
    assert len(run.judged) == 2 * expected


def test_one_sub_dataset_is_enough() -> None:
    run = audited(Asked(distinct({"bad": 100}), wrong={"bad": range(0, 100, 4)}))
    assert run.found[-1]["bad"].verdict == "spoiled"
    assert len(run.found[-1]["bad"].suspects) == 25


def test_two_rows_are_judged_by_each_other() -> None:
    run = audited(Asked({"a": ["x", "y"]}))
    assert sorted(run.trained[0]["a"] + run.trained[1]["a"]) == [0, 1]
    assert run.found[0]["a"].verdict == "cannot_tell"
    assert run.found[0]["a"].rows == 2


def test_a_sub_dataset_that_asks_one_question_is_judged_by_a_judge_without_it() -> None:
    run = audited(Asked({"same": ["x"] * 40, "other": [*map(str, range(40))]}))
    [trained] = [each for each in run.trained if "same" in each]
    [(_, rows)] = [each for each in run.judged if "same" in each[1]]
    assert trained["same"] == tuple(rows["same"]) == (*range(40),)
    assert run.judged[0][1].keys() != run.judged[1][1].keys()
    assert run.found[0]["same"].rows == 40


def test_where_all_rows_ask_the_same_the_base_model_judges_them() -> None:
    run = audited(Asked({"same": ["x"] * 40}))
    assert {} in run.trained
    untrained = run.judged[run.trained.index({})]
    assert untrained[1] == {"same": [*range(40)]}


def test_suspects_leave_every_fold_that_is_trained() -> None:
    run = audited(spoiled(), rounds=1)
    folds = [{"bad": [0, 2, 5], "good": [1]}, {"bad": [1, 10], "good": [0]}]
    assert without(run.found[0], folds[:1]) == {"bad": [2], "good": [1]}
    assert without(run.found[0], folds) == {"bad": [1, 2], "good": [0, 1]}
    assert without(None, folds) == {"bad": [0, 1, 2, 5, 10], "good": [0, 1]}


# The joint word of both judges, by hand


def test_together_each_training_row_has_its_judge_and_each_validation_row_the_mean() -> None:
    first = JudgedRows(
        "generated", [4, 0, 2], [1.0, 0.0, 1.0], [1.0, 0.0], [0.5, 0.25, 0.0], chance=0.2
    )
    second = JudgedRows("generated", [1], [1.0], [0.0, 0.0], [3.0], chance=0.6)
    [joint] = join_judgments([{"a": first}, {"a": second}]).values()
    assert joint.kind == "generated"
    assert joint.numbers == [0, 1, 2, 4]
    assert joint.train == [0.0, 1.0, 1.0, 1.0]
    assert joint.doubts == [0.25, 3.0, 0.0, 0.5]
    assert joint.validation == [0.75, 0.0], "three of four rows are the first judge's"
    assert joint.chance == pytest.approx(0.75 * 0.2 + 0.25 * 0.6)
    assert (joint.train_weights, joint.train_choices) == ([], [])


def test_together_weights_and_choices_stay_with_their_rows() -> None:
    def nll(numbers: list[int], losses: list[float], tokens: list[float]) -> JudgedRows:
        means = [loss / count for loss, count in zip(losses, tokens, strict=True)]
        weights = {"train_weights": tokens, "validation_weights": [7.0]}
        return JudgedRows("nll", numbers, losses, [losses[0]], means, **weights)  # type: ignore[arg-type]

    [joint] = join_judgments(
        [{"a": nll([3, 1], [6, 8], [2, 4])}, {"a": nll([0, 2], [1, 9], [1, 3])}]
    ).values()
    assert (joint.numbers, joint.train) == ([0, 1, 2, 3], [1, 8, 9, 6])
    assert joint.train_weights == [1, 4, 3, 2]
    assert joint.doubts == [1, 2, 3, 3]
    assert joint.validation_weights == [7.0]
    assert joint.validation == [3.5]
    chosen = replace(
        nll([3, 1], [1, 0], [1, 1]),
        kind="choices",
        train_choices=[5, 2],
        validation_choices=[4],
        train_weights=(),
        validation_weights=(),
    )
    other = replace(chosen, numbers=[0], train=[1.0], doubts=[0.5], train_choices=[3])
    [joint] = join_judgments([{"a": chosen}, {"a": other}]).values()
    assert (joint.train_choices, joint.validation_choices) == ([3, 2, 5], [4])


def test_a_judge_without_rows_of_a_sub_dataset_has_no_word_on_it() -> None:
    first = JudgedRows("generated", [0, 1], [1.0, 0.0], [1.0], [0.0, 1.0], one_answer=True)
    none = JudgedRows("generated", [], [], [0.0], [], chance=0.9, one_answer=True)
    [joint] = join_judgments([{"a": first}, {"a": none}]).values()
    assert (joint.numbers, joint.validation, joint.chance) == ([0, 1], [1.0], 0.0)
    assert joint.one_answer


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(0, 5))
def test_together_says_of_each_row_what_its_judge_said(wrong: list[bool], seed: int) -> None:
    asked = distinct({"a": len(wrong)})
    run = Asked(asked, wrong={"a": [n for n, each in enumerate(wrong) if each]}, seed=seed)
    folds = folds_of(asked, seed)
    [joint] = join_judgments([run.judge("r0-t1", fold) for fold in folds]).values()
    assert joint.train == [0.0 if each else 1.0 for each in wrong]
    assert Counter(joint.validation) == {1.0: run.validation_rows}
