"""The few answered rows of a sub-dataset that are kept for people to read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msft.data.corpus import Task
from msft.run.samples import LONGEST_ANSWER, LONGEST_PROMPT, Sample, cut, picked

if TYPE_CHECKING:
    from msft.scoring.evaluation import Answered


def sampled(task: Task, rows: "Sequence[Answered]", most: int) -> list[Sample]:
    """Up to `most` rows, without the exemplars that stand before each prompt."""
    loss = task.metric == "nll"
    return [
        Sample(
            number,
            cut(rows[number].prompt.removeprefix(task.shots), LONGEST_PROMPT),
            cut(rows[number].reference, LONGEST_ANSWER),
            None if loss else cut(rows[number].prediction, LONGEST_ANSWER),
            rows[number].worth / rows[number].weight if loss else rows[number].worth,
        )
        for number in picked(len(rows), most)
    ]
