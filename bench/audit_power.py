"""How good are the verdicts of `msft audit`? Level, power and coverage, by simulation.

    PYTHONPATH=src python bench/audit_power.py [RUNS]

A sub-dataset's rows have a skill each, which both judges share; a judge is right on a row if the
skill, some luck of its own and its level are above 0 together. Judges differ in level, by a normal
number with a standard deviation of `JITTER`. Where an answer is given wrongly, it is drawn evenly
from the wrong ones, as is the answer of a judge who is wrong. `harder`: how much less a judge
scores on clean training rows than on validation rows.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
from scipy.stats import norm

from msft.search.judging import Finding, JudgedRows, found_in

JITTER = 0.03
LUCK = 0.6
DATASETS = 10
"""Sub-datasets of a mixture."""

ANSWERS = 8
"""Different answers of rows whose answer is generated."""

LOSS = 1.2
"""nll: what a wrong row loses more, in nats a token."""


@dataclass(frozen=True)
class Task:
    """A sub-dataset. k: choices of a row; kind nll and value: only `wrong` and rows count."""

    accuracy: float = 0.7
    k: int = 4
    wrong: float = 0.0
    train: int = 1000
    validation: int = 200
    harder: float = 0.0
    kind: str = "choices"


def judged(rng: Any, task: Task) -> JudgedRows:
    """What two judges say of such a sub-dataset."""
    if task.kind == "nll":
        return _losses(rng, task)
    m, n = task.validation, task.train
    k = ANSWERS if task.kind == "generated" else task.k
    levels = np.clip(task.accuracy + JITTER * rng.normal(size=2), 0.01, 0.99)
    skill = rng.normal(size=(1, m))
    right = skill + LUCK * rng.normal(size=(2, m)) + _bar(levels)[:, None] > 0
    of_judge = np.arange(n) % 2
    bars = _bar(np.clip(levels - task.harder, 0.01, 0.99))[of_judge]
    knows = rng.normal(size=n) * sqrt(1 + LUCK**2) + bars > 0
    # Answers are counted from the right one: 0 is right, the others are wrong.
    said = np.where(knows, 0, rng.integers(1, k, size=n))
    given = np.where(_chosen(rng, n, task.wrong), rng.integers(1, k, size=n), 0)
    train = (said == given).astype(float)
    doubts = np.where(train == 1, -1.0, rng.exponential(size=n))
    shared: dict[str, Any] = {
        "numbers": range(n),
        "train": train.tolist(),
        "validation": right.mean(axis=0).tolist(),
        "doubts": doubts.tolist(),
    }
    if task.kind == "choices":
        return JudgedRows("choices", **shared, train_choices=[k] * n, validation_choices=[k] * m)
    chance = (1 - right.mean()) / (k - 1)
    return JudgedRows("generated", **shared, chance=float(chance))


def _losses(rng: Any, task: Task) -> JudgedRows:
    """Losses of rows of very different length; `harder` in nats a token."""
    m, n = task.validation, task.train
    tokens = [np.ceil(rng.lognormal(3.5, 0.7, size=rows)) for rows in (m, n)]
    spread = [rng.gamma(4, 0.3, size=rows) for rows in (m, n)]
    levels = 0.03 * rng.normal(size=2)
    train = spread[1] + levels[np.arange(n) % 2] + task.harder
    train += LOSS * _chosen(rng, n, task.wrong)
    return JudgedRows(
        "nll",
        range(n),
        (train * tokens[1]).tolist(),
        ((spread[0] + levels.mean()) * tokens[0]).tolist(),
        train.tolist(),
        train_weights=tokens[1].tolist(),
        validation_weights=tokens[0].tolist(),
    )


def _bar(accuracy: Any) -> Any:
    return norm.ppf(accuracy) * sqrt(1 + LUCK**2)


def _chosen(rng: Any, rows: int, share: float) -> Any:
    """Exactly this share of the rows, at random."""
    return rng.permutation(rows) < round(share * rows)


def found(tasks: Sequence[Task], seed: int) -> list[Finding]:
    rng = np.random.default_rng([len(tasks), seed])
    return [*found_in({str(i): judged(rng, task) for i, task in enumerate(tasks)}).values()]


def alarms(task: Task, times: int, spread: float = 0.0, one: float = 0.0) -> float:
    """Share of clean mixtures with a sub-dataset that is called spoiled.

    spread: standard deviation of `harder` over sub-datasets. one: `harder` of one of them.
    """
    wrongly = 0
    for seed in range(times):
        rng = np.random.default_rng([9, seed])
        harder = [*(spread * rng.normal(size=DATASETS - 1)), one or spread * rng.normal()]
        tasks = [replace(task, harder=task.harder + each) for each in harder]
        wrongly += any(each.verdict == "spoiled" for each in found(tasks, seed))
    return wrongly / times


@dataclass(frozen=True)
class Verdicts:
    """Of many runs: shares of verdicts; of the shares of wrong answers the mean and how often the
    interval covers the truth, where there is a share at all."""

    spoiled: float
    fine: float
    mean: float
    covered: float


def verdicts(task: Task, times: int) -> Verdicts:
    """Of this sub-dataset beside nine small clean ones, which count for Holm's rule."""
    others = [Task(train=60, validation=60)] * (DATASETS - 1)
    findings = [found([task, *others], seed)[0] for seed in range(times)]
    shares = [each.wrong_share for each in findings if each.wrong_share]
    covers = [share.low <= task.wrong <= share.high for share in shares]
    return Verdicts(
        sum(each.verdict == "spoiled" for each in findings) / times,
        sum(each.verdict == "fine" for each in findings) / times,
        float(np.mean([share.value for share in shares])) if shares else nan,
        float(np.mean(covers)) if covers else nan,
    )


TASKS = {
    "4 choices, 70 % right, 1,000 and 200 rows": Task(),
    "100 training rows": Task(train=100),
    "300 training rows": Task(train=300),
    "2,000 and 500 rows": Task(train=2000, validation=500),
    "30 % right": Task(accuracy=0.3),
    "50 % right": Task(accuracy=0.5),
    "95 % right": Task(accuracy=0.95),
    "2 choices": Task(k=2),
    "2 choices, 2,000 and 500 rows": Task(k=2, train=2000, validation=500),
    "3 choices": Task(k=3),
    "5 choices": Task(k=5),
    "generated": Task(kind="generated"),
    "nll": Task(kind="nll"),
}
"""The first one, and others that differ from it as they say."""

CLEAN = (0, 2, 5, 6, 8, 11, 12)
"""Which of them are also the sub-datasets of clean mixtures: a mixture takes ten times as long."""

SHIFTS: dict[str, dict[str, float]] = {
    "alike": {},
    "sd 0.015": {"spread": 0.015},
    "one 0.03": {"one": 0.03},
}
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    first = max(len(name) for name, *_ in rows)
    width = 2 + max(len(cell) for row in (head, *rows) for cell in row[1:])
    for name, *cells in (head, *rows):
        print(name.ljust(first) + "".join(cell.rjust(width) for cell in cells))
    print(flush=True)


def _cells(values: Sequence[float], digits: int = 0) -> list[str]:
    return ["–" if isnan(x) else f"{100 * x:.{digits}f}" for x in values]


def main(times: int = 200) -> None:
    print(f"Clean mixtures of {DATASETS} with an alarm, per cent, {times} each\n")
    clean = [row for place, row in enumerate(TASKS.items()) if place in CLEAN]
    rows = [
        [name, *_cells([alarms(task, times, **shift) for shift in SHIFTS.values()], 1)]
        for name, task in clean
    ]
    _table(["", *SHIFTS], rows)
    times = max(1, times // 2)
    seen = {
        name: [verdicts(replace(task, wrong=wrong), times) for wrong in SHARES]
        for name, task in TASKS.items()
    }
    for what, title in (
        ("spoiled", "Called spoiled"),
        ("fine", "Called fine"),
        ("mean", "Mean of the shares that are given"),
        ("covered", "Intervals that cover the truth"),
    ):
        print(f"{title}, per cent, by the true share, {times} each\n")
        cells = [[name, *_cells([getattr(v, what) for v in all_])] for name, all_ in seen.items()]
        _table(["", *(f"{100 * share:.0f}%" for share in SHARES)], cells)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
