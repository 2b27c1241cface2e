"""What a user is told of a sub-dataset: where its rows come from, and how often they are seen."""

from msft.recipe.dataset_spec import DatasetSpec
from msft.search.mixture import Part
from msft.text import counted


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
