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

from collections import Counter
from collections.abc import Mapping, Sequence

from msft.search.draws import number
from msft.search.judging import Finding, found_in, join_judgments
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
        found = found_in(join_judgments(judgments), found)
        run.find(found)
        if not any(finding.suspects for finding in found.values()):
            return


def folds_of(questions: Mapping[str, Sequence[str]], seed: int) -> list[Rows]:
    """The rows of each fold. Rows that ask the same are in one fold, also those of different
    sub-datasets: a copy in the other fold would have taught the judge its answer. The questions, in
    a drawn order, are dealt in turn, to the fold that has fewer of the sub-dataset's own."""
    folds: list[dict[str, list[int]]] = [{} for _ in range(FOLDS)]
    fold_of: dict[str, int] = {}
    for name, asked in questions.items():
        every = {*asked}
        held = Counter(fold_of[question] for question in every if question in fold_of)
        drawn = {each: number(seed, "fold", name, each) for each in every if each not in fold_of}
        for question in sorted(drawn, key=lambda question: (drawn[question], question)):
            fold_of[question] = min(range(FOLDS), key=lambda fold: (held[fold], fold))
            held[fold_of[question]] += 1
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
