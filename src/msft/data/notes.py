"""What a user is told of the rows: where they come from, how often they are seen, and what an epoch
of them has too few or too many steps for."""

from math import log

from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import Recipe
from msft.search.feeds import Part, steps_of
from msft.text import counted

USUAL_MEMORY = (0.1, 1.0)
"""Epochs in which a moving average may forget half of its content without a note."""
ADVISED_MEMORY = 1 / 3


def source_notes(spec: DatasetSpec) -> list[str]:
    """A note on `columns`, which decides what is read."""
    if spec.columns is None:
        return []
    read = ", ".join(f"{field} from {column}" for field, column in spec.columns.items())
    return [f"columns: {read}; other columns are not read"]


def weight_note(part: Part, weight: float) -> list[str]:
    """A note on how many rows of an epoch a weight gives."""
    if weight == 1:
        return []
    copies, rest = divmod(part.rows, part.size)
    parts = [f"every train row {_times(copies)}"] if copies else []
    parts += [f"{rest:,} of {counted(part.size, 'train row')} drawn anew"] if rest else []
    return [f"weight {weight:g}: in each epoch {' and '.join(parts)}"]


def _times(copies: int) -> str:
    return {1: "once", 2: "twice"}.get(copies, f"{copies:,} times")


def epoch_notes(recipe: Recipe, rows: int) -> list[str]:
    """Notes on settings that do not fit the steps of an epoch of so many rows."""
    steps = steps_of(rows, recipe.train_batch_size)
    notes = _memory_note(recipe.ema_decay, steps) if recipe.ema_decay is not None else []
    if steps < recipe.evals_per_epoch:
        notes.append(
            f"an epoch has {counted(steps, 'step')} but {recipe.evals_per_epoch} evaluations; "
            "some ticks will have no step and repeat the scores before them"
        )
    return notes


def _memory_note(decay: float, steps: int) -> list[str]:
    """A note on a moving average that remembers far more or far less than a third of an epoch."""
    memory = log(0.5) / log(decay)
    shortest, longest = USUAL_MEMORY
    if shortest <= memory / steps <= longest:
        return []
    effect = "lags behind training" if memory > steps else "hardly averages anything"
    share = min(0.5, log(2) / (ADVISED_MEMORY * steps))
    advised = 1 - float(f"{share:.1g}")
    return [
        f"ema_decay {decay:g}: half of the average is as old as {counted(round(memory), 'step')}, "
        f"and an epoch has {steps:,}, so it {effect}; a third of an epoch is usual, which is "
        f"ema_decay: {advised:.6g} here"
    ]
