"""Watched sub-datasets and guards of a run: what a result did to what was not to suffer.

A watched sub-dataset is in no mean and in no test between methods, so its tables stand apart.
"""

from fractions import Fraction

from msft.report.compare.statistics import minus
from msft.report.tables import Cell, Table, TableRow
from msft.report.wording import Unit, difference, difference_in_words, height, number
from msft.run.history import History
from msft.search.curves import TEST, Number
from msft.search.falls import Drop
from msft.search.rollout import BASE, CheckpointId
from msft.text import listed

GUARDED_NOTE = (
    " A guard is kept unless the loss against the base model, paired over rows, is surely larger "
    "than it allows: its one-sided 95 % bound is."
)


def watched_table(history: History) -> Table | None:
    """A row for each watched sub-dataset, and for each guarded one; None where there are none."""
    names = [*history.watched, *(name for name in history.guards if name not in history.watched)]
    if not names:
        return None
    best, selects = history.best or BASE, history.selection
    tested = any(TEST in splits[1:] for splits in history.watched.values())
    tested = tested and bool(history.seen(best, TEST))
    head = [f"base, {selects}", f"best, {selects}", "change"]
    head += ["base, test", "best, test"] if tested else []
    rows = []
    for name in names:
        unit = history.unit_of(name)
        base, reached = (_value(history, at, name, selects) for at in (BASE, best))
        change = minus(reached, base)
        better = height(change, unit) or 0
        sign = "up" if better > 0 else "down" if better < 0 else ""
        cells = [Cell(number(base, unit)), Cell(number(reached, unit))]
        cells.append(Cell(difference(change, unit), sign=sign))  # type: ignore[arg-type]
        if tested:
            cells += [Cell(number(_value(history, at, name, TEST), unit)) for at in (BASE, best)]
        if history.guards:
            cells.append(Cell(guard_in_words(history, best, name)))
        trained = "" if name in history.watched else " (trained)"
        rows.append(TableRow(f"{name}{trained}", tuple(cells)))
    head += ["guard"] if history.guards else []
    note = "Scored at every tick and never trained; in no mean." if history.watched else ""
    on_test = [name for name, splits in history.watched.items() if splits[0] == TEST]
    if on_test and not history.selected_on_test:
        note += f" Of {listed(on_test)} there are test rows only."
    note += GUARDED_NOTE if history.guards else ""
    title = "Watched sub-datasets" if history.watched else "Guards"
    return Table("watched", title, note.strip(), ("sub-dataset", *head), tuple(rows))


def _value(history: History, at: CheckpointId, name: str, split: str) -> Number | None:
    scores = history.seen(at, split) if name in history.watched else history.known(at, split)
    return scores[name].value if name in scores else None


def guard_in_words(history: History, checkpoint: CheckpointId, name: str) -> str:
    """The guard of a sub-dataset at a checkpoint: kept or not, and the loss that it allows."""
    if name not in history.guards:
        return ""
    unit, allowed = history.unit_of(name), history.guards[name]
    at_most = f"{loss_in_words(allowed, unit)} allowed"
    drop = history.drops.get(checkpoint, {}).get(name)
    if checkpoint == BASE or (drop and drop.kept):
        return f"kept, {at_most}"
    return f"NOT KEPT, {at_most}" if drop else f"not known yet, {at_most}"


def loss_in_words(drop: float, unit: Unit) -> str:
    """A loss of score with its sign: of an nll, the loss grows."""
    change = Fraction(repr(drop))
    return difference_in_words(change if unit == "nll" else -change, unit)


def broken_in_words(history: History, checkpoint: CheckpointId) -> str:
    """By how much a checkpoint breaks each guard that it does not keep."""
    found = history.drops.get(checkpoint, {})
    texts = [
        _broken(name, drop, history.guards[name], history.unit_of(name))
        for name, drop in found.items()
        if not drop.kept
    ]
    return listed(texts)


def _broken(name: str, drop: Drop, allowed: float, unit: Unit) -> str:
    surely = "" if drop.low is None else f"surely beyond {loss_in_words(drop.low, unit)}, "
    return (
        f"{name} {loss_in_words(drop.drop, unit)} ({surely}{loss_in_words(allowed, unit)} allowed)"
    )


def guard_texts(history: History) -> list[str]:
    """Sentences about a result that guards decided, or that breaks one."""
    best = history.best
    if not history.guards or best is None:
        return []
    if history.reported is not None:
        if history.keeps(best) is not False:
            return []
        return [
            f"The result does not keep a guard: {broken_in_words(history, best)}. "
            f"{history.start.method} does not choose its result by scores, so guards are only "
            "reported."
        ]
    texts = []
    if history.refused and history.candidates == 1 and best == BASE:
        guards = "the guard" if len(history.guards) == 1 else "the guards"
        texts.append(
            f"No checkpoint keeps {guards} of {listed([*history.guards])}, so the result is the "
            "model you gave."
        )
    better = history.best_refused
    if better is not None:
        mean = number(history.mean(better), history.mean_unit)
        texts.append(
            f"Checkpoint {better} has a higher mean ({mean}), but it does not keep a guard: "
            f"{broken_in_words(history, better)}. So it is not the result."
        )
    return texts
