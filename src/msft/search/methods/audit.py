"""The audit: which sub-datasets, and which of their training rows, spoil the model.

Training rows and validation rows of a clean sub-dataset are drawn alike, so a model that has seen
neither scores them alike. To have such a model for every training row, the rows are divided into
two folds. A judge trains on one fold of all sub-datasets and judges the rows of the other
(cross-fitting), and both judges judge the validation rows. What follows from their judgments is
`judging.found_in`: a gap between validation and training rows, the share of wrong answers that
explains the gap, and the rows whose given answer the judges contradict most.

A judge is used at the last step that it trains, never at its best by validation: choosing there
would raise the validation score, and clean sub-datasets would seem to have a gap. In a later round
the judges train without the suspects of the round before, so they are better judges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

from msft.search.draws import number
from msft.search.judging import Finding, JudgedRows, found_in
from msft.search.rollout import Run

FOLDS = 2

Rows = Mapping[str, Sequence[int]]
"""Row numbers of each sub-dataset."""


def audit(run: Run, *, rounds: int = 2) -> None:
    """Judge every training row by a model that has not seen it.

    rounds: later rounds follow only where somebody is spoiled.
    """
    folds = folds_of(run.questions(), run.seed)
    found: Mapping[str, Finding] | None = None
    for _ in range(rounds):
        judgments = []
        for judged in range(FOLDS):
            trained = without(found, folds[:judged] + folds[judged + 1 :])
            mixture = run.mixture.among(trained)
            rollout = run.rollout(
                run.base, mixture, run.train_ticks, eligible=False, keep="best", scored=False
            )
            judgments.append(run.judge(rollout.end, folds[judged]))
        found = found_in(together(judgments), found)
        run.find(found)
        if not any(finding.suspects for finding in found.values()):
            return


def folds_of(questions: Mapping[str, Sequence[str]], seed: int) -> list[Rows]:
    """The rows of each fold. Rows that ask the same are in one fold: a copy in the other fold would
    have taught the judge its answer. The questions, in a drawn order, are dealt in turn."""
    folds: list[dict[str, list[int]]] = [{} for _ in range(FOLDS)]
    for name, asked in questions.items():
        drawn = {each: number(seed, "fold", name, each) for each in asked}
        order = sorted(drawn, key=lambda question: (drawn[question], question))
        fold_of = {question: place % FOLDS for place, question in enumerate(order)}
        for row, question in enumerate(asked):
            folds[fold_of[question]].setdefault(name, []).append(row)
    return [*folds]


def without(found: Mapping[str, Finding] | None, folds: Sequence[Rows]) -> Rows:
    """The rows of these folds but for the suspects."""
    suspects = {name: {*finding.suspects} for name, finding in (found or {}).items()}
    kept: dict[str, list[int]] = {}
    for fold in folds:
        for name, rows in fold.items():
            left = [row for row in rows if row not in suspects.get(name, ())]
            kept[name] = sorted([*kept.get(name, ()), *left])
    return kept


def together(judgments: Sequence[Mapping[str, JudgedRows]]) -> dict[str, JudgedRows]:
    """What the judges of a round say together: each training row has one judge, and a validation
    row has the mean of all judges, by the training rows that each of them judges."""
    return {name: _joined([judgment[name] for judgment in judgments]) for name in judgments[0]}


def _joined(parts: Sequence[JudgedRows]) -> JudgedRows:
    counts = [len(part.numbers) for part in parts]
    shares = [count / sum(counts) for count in counts]
    numbers = [number for part in parts for number in part.numbers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)

    def of_train(values: Sequence[Sequence[float]]) -> list[float]:
        every = [value for each in values for value in each]
        return [every[place] for place in order] if every else []

    return replace(
        parts[0],
        numbers=sorted(numbers),
        train=of_train([part.train for part in parts]),
        doubts=of_train([part.doubts for part in parts]),
        train_weights=of_train([part.train_weights for part in parts]),
        train_choices=[int(k) for k in of_train([part.train_choices for part in parts])],
        validation=[
            fsum([share * each for share, each in zip(shares, said, strict=True)])
            for said in zip(*(part.validation for part in parts), strict=True)
        ],
        chance=fsum([share * part.chance for share, part in zip(shares, parts, strict=True)]),
        one_answer=all(part.one_answer for part in parts),
    )
