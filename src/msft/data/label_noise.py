"""Label noise: training rows with a wrong choice as their answer, for studies.

Which rows, and which of their wrong choices, is a pure function of the seed and the sub-dataset's
name. Only training rows are touched: exemplars, validation and test stay as they were read.
"""

from dataclasses import replace

from msft.errors import DataError
from msft.example import Example
from msft.recipe.dataset import DatasetSpec
from msft.search.draws import picked, sampled


def with_wrong_labels(
    rows: tuple[Example, ...], spec: DatasetSpec, seed: int, notes: list[str]
) -> tuple[Example, ...]:
    """The rows, exactly round(label_noise · rows) of them with a wrong choice as their answer."""
    if not spec.label_noise:
        return rows
    wrong = {number: _wrong(row, spec) for number, row in enumerate(rows)}
    count = round(spec.label_noise * len(rows))
    changed = list(rows)
    for number in sampled(len(rows), count, seed, "label noise", spec.name):
        choices = wrong[number]
        (pick,) = picked([1.0] * len(choices), 1, seed, "wrong choice", spec.name, number)
        answer = choices[pick]
        changed[number] = replace(
            rows[number],
            completion=answer.completion,
            answer=answer.answer,
            label=answer.label,
            others=(),
        )
    notes.append(
        f"label_noise {spec.label_noise:g}: {count:,} of {len(rows):,} train labels are made "
        "wrong, drawn by seed"
    )
    return tuple(changed)


def _wrong(row: Example, spec: DatasetSpec) -> list[Example]:
    """The row with each of its wrong choices; a choice that says the same as the right one is
    not wrong."""
    others = row.others or [
        replace(row, completion=choice, answer=number) for number, choice in enumerate(row.choices)
    ]
    wrong = [other for other in others if other.completion != row.completion]
    if not wrong:
        raise DataError(
            f"{row.where}: label_noise is {spec.label_noise:g} at {spec.name}, but this row has no "
            "wrong choice to take; leave label_noise out, or give rows of prompt, choices and "
            "answer"
        )
    return wrong
