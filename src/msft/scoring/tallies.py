"""What answered rows come to: exact counts, or sums of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING

from msft.data.corpus import Task
from msft.run.worker import Scored
from msft.search.scores import Score, accuracy, nll, value

if TYPE_CHECKING:
    from msft.scoring.evaluation import Answered, Answers


def tallied(tasks: Mapping[str, Task], answers: "Answers") -> Scored:
    """Scores and verdicts. Where a metric of the user's own gives a number for any row, the
    scores of all sub-datasets with this metric are sums of numbers."""
    numeric = {tasks[name].metric for name, rows in answers.rows.items() if not _truths(rows)}
    scores: dict[str, Score] = {}
    verdicts: dict[str, str | list[float]] = {}
    row_tokens: dict[str, list[int]] = {}
    for name, rows in answers.rows.items():
        worth = [row.worth for row in rows]
        if tasks[name].metric == "nll":
            row_tokens[name] = [row.weight for row in rows]
            scores[name] = nll(fsum(worth), sum(row_tokens[name]))
        elif tasks[name].metric in numeric:
            scores[name] = value(fsum(worth), len(worth))
        else:
            scores[name] = accuracy(int(sum(worth)), len(worth))
            if tasks[name].soft:
                scores[name] = replace(scores[name], probability=_mean_probability(rows))
        right_or_wrong = scores[name].metric == "accuracy"
        verdicts[name] = _marks(worth) if right_or_wrong else [float(number) for number in worth]
    return Scored(scores, answers.tokens, verdicts, row_tokens, losses=answers.losses)


def _truths(rows: "Sequence[Answered]") -> bool:
    return all(isinstance(row.worth, bool) for row in rows)


def _mean_probability(rows: "Sequence[Answered]") -> float:
    return fsum(row.probability or 0.0 for row in rows) / len(rows)


def _marks(worth: Sequence[float | bool]) -> str:
    return "".join("1" if mark else "0" for mark in worth)
