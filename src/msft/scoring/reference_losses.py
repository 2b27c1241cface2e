"""The loss of the references, beside a score that is no loss (`validation_loss: true`)."""

from collections.abc import Mapping, Sequence
from math import fsum

from msft.data.corpus import Task
from msft.run.engine import Predictor


def reference_losses(
    tasks: Mapping[str, Task], names: Sequence[str], split: str, predictor: Predictor
) -> tuple[dict[str, float], int]:
    """Mean loss of an answer token of each sub-dataset, as training has it: without exemplars.
    Also the tokens that went through the model."""
    parts = [tasks[name].splits[split].rows for name in names]
    groups = [group for group, part in enumerate(parts) for _ in part]
    found = predictor.measure([row for part in parts for row in part], groups)()
    losses = iter(found.rows)
    means = {
        name: fsum(next(losses) for _ in part) / sum(row.answer_tokens for row in part)
        for name, part in zip(names, parts, strict=True)
    }
    return means, found.tokens
