"""The headroom of a run (`compare/headroom.py`) in words: on the terminal, as JSON, on its page."""

from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from msft.errors import UsageError
from msft.report.compare.headroom import Gain, Headroom, headroom_of
from msft.report.tables import wrapped
from msft.report.wording import Unit, difference
from msft.run.history import History
from msft.run.rows import RowTokens, VerdictsByKey
from msft.text import SELECTED_ON_TEST, counted, cut, epochs, table

NOTE = (
    "Naive: each sub-dataset's score at its own peak minus its score at the peak of the mean, on "
    "the rows that chose both. Cross-fitted: chosen on one half of the rows and scored on the "
    "other, over 100 splits, with a 95 % interval. This judges stopping each sub-dataset at its "
    "own peak in this roll-out, not every use of mSFT."
)
_UNITS = {"accuracy": " points", "nll": " nats saved", "value": "", None: " in mean gain"}


@dataclass(frozen=True, slots=True)
class HeadroomSection:
    """As a page has it: without peaks, which are another section's; the last row is the mean."""

    words: str
    rows: list[tuple[str, ...]]
    note: str


def headroom_words(history: History, found: Headroom) -> str:
    """What per-sub-dataset stopping promises, and what is left of it."""
    unit, mean = history.mean_unit, found.mean
    promise = f"{difference(mean.naive, unit)}{_UNITS[unit]}"
    rows = counted(found.rows, f"{history.selection} row")
    text = (
        f"On these {rows}, stopping each sub-dataset at its own "
        f"peak promises {promise}; cross-fitted it is {difference(mean.crossfitted, unit)} "
        f"(95\u00a0% interval {_interval(mean, unit)})."
    )
    if mean.low > 0:
        return f"{text} Some of it would hold on unseen rows."
    return f"{text} It may be chance: nothing says that any of it would hold on unseen rows."


def headroom_rows(history: History, found: Headroom) -> list[tuple[str, ...]]:
    """A head, a row of each sub-dataset, and the mean."""
    per_epoch = history.evals_per_epoch
    rows: list[tuple[str, ...]] = [
        ("sub-dataset", "peak, epoch", "naive", "cross-fitted", "95 % interval")
    ]
    for name, gain in found.datasets.items():
        peak = epochs(found.ticks[name] / per_epoch)
        rows.append((cut(name, 24), peak, *_cells(gain, history.unit_of(name))))
    mean = epochs(found.mean_tick / per_epoch)
    rows.append(("mean", mean, *_cells(found.mean, history.mean_unit)))
    return rows


def headroom_text(history: History, found: Headroom, width: int) -> str:
    """For a terminal of this width."""
    rows = table(headroom_rows(history, found), width)
    marks = [SELECTED_ON_TEST] if history.selected_on_test else []
    texts = (headroom_words(history, found), NOTE, *marks)
    said = (wrapped(text, width) for text in texts)
    return "\n".join([*rows, "", *chain(*said)])


def headroom_content(history: History, found: Headroom) -> dict[str, Any]:
    """For a program, as the contract has it."""
    return {
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "mean": asdict(found.mean),
        "datasets": {name: asdict(gain) for name, gain in found.datasets.items()},
    }


def headroom_section(
    history: History, verdicts: VerdictsByKey, tokens: RowTokens
) -> HeadroomSection | None:
    """Of a run that has headroom; none of one sub-dataset, whose peak is the mean's."""
    if len(history.start.datasets) < 2:
        return None
    try:
        found = headroom_of(history, verdicts, tokens)
    except (UsageError, ValueError, TypeError):  # no verdicts, or somebody else's file
        return None
    rows = [(name, *cells) for name, _, *cells in headroom_rows(history, found)]
    return HeadroomSection(headroom_words(history, found), rows, NOTE)


def _cells(gain: Gain, unit: Unit) -> tuple[str, str, str]:
    naive, crossed = difference(gain.naive, unit), difference(gain.crossfitted, unit)
    return naive, crossed, _interval(gain, unit)


def _interval(gain: Gain, unit: Unit) -> str:
    return f"{difference(gain.low, unit)} to {difference(gain.high, unit)}"
