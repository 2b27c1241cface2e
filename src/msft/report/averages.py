"""Averages of weights: the result in words, and each beside the best tick of the same training."""

from collections.abc import Sequence

from msft.report.compare.contest import Contest, known_mean, minus
from msft.report.paper_tables import score_cell
from msft.report.tables import Cell, Table, TableRow
from msft.report.wording import NOTHING, height
from msft.run.history import History
from msft.run.summary import averaged_epochs
from msft.search.methods.soup import kinds
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import SELECTION, TEST, Number
from msft.text import counted, epochs, listed

MOST_NAMED = 12
"""Ticks of an average that are named one by one."""


def average_in_words(history: History) -> str:
    """What was averaged, where the result is an average."""
    parts = history.average_of or ()
    found = [each for each in averaged_epochs(history) if each is not None]
    if len(found) < len(parts):
        return f"the mean of the weights at {listed(parts)}"
    if len(found) > MOST_NAMED:
        ends = f"epoch {epochs(min(found))} to epoch {epochs(max(found))}"
        return f"the mean of the weights at {counted(len(found), 'tick')} from {ends}"
    noun = "epoch" if len(found) == 1 else "epochs"
    return f"the mean of the weights after {noun} {listed(map(epochs, found))}"


def average_names(history: History) -> dict[str, CheckpointId]:
    """What each average of a run is called: by its kind, or by its id."""
    if history.start.method != "soup":
        return {checkpoint: checkpoint for checkpoint in history.averages}
    named = kinds(history.start.settings["method"].get("of", "span"))
    return dict(zip(named, history.averages, strict=False))  # of a run under way, some


def run_averages_table(history: History, reports: str = TEST) -> Table | None:
    """The averages of one run; None where it has none. reports: the split that does."""
    if not history.averages:
        return None
    return _table([("", [history])], reports, history.selected_on_test)


def averages_table(contest: Contest) -> Table | None:
    """The averages of every method that makes some, over the seeds."""
    found = [
        (entrant.label, [run.history for run in entrant.over(contest.seeds)])
        for entrant in contest.entrants
        if entrant.first.history.averages
    ]
    if not found or not contest.has_mean:
        return None
    return _table(found, contest.split, contest.selected_on_test)


def _table(
    runs: Sequence[tuple[str, Sequence[History]]], reports: str, selected_on_test: bool
) -> Table:
    rows: list[TableRow] = []
    splits: tuple[str, ...] = (SELECTION, TEST)
    on = "test or else on validation."
    if selected_on_test:
        splits, on = (TEST,), "test, which selected."
    elif reports != TEST:
        splits, on = (TEST, SELECTION), "validation, which reports."  # the last known counts
    for label, histories in runs:
        ticks = [history.best_tick or BASE for history in histories]
        rows.append(_row(f"{label} best tick".strip(), histories, ticks, ticks, splits))
        for name in average_names(histories[0]):
            averages = [average_names(history).get(name, BASE) for history in histories]
            rows.append(_row(f"{label} {name}".strip(), histories, averages, ticks, splits))
    return Table(
        "averages",
        "Averages of the same training",
        "Means over all sub-datasets. Every line is of the same training, so they differ only in "
        "which ticks were averaged; the first is what SFT would have reported. Behind a score: the "
        "difference to it. Above it: in how many runs, on " + on,
        ("average", "ticks", *sorted(splits, reverse=True), "above it"),
        tuple(rows),
    )


def _row(
    name: str,
    histories: Sequence[History],
    checkpoints: Sequence[CheckpointId],
    against: Sequence[CheckpointId],
    splits: Sequence[str],
) -> TableRow:
    """against: the best ticks, whose own row this may be. splits: the one that reports last."""
    unit, itself = histories[0].mean_unit, checkpoints is against
    pairs = zip(histories, checkpoints, strict=True)
    sizes = sorted(
        {len(history.averages[c].of) if c in history.averages else 1 for history, c in pairs}
    )
    count = Cell(str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}")
    cells, above = dict[str, Cell](), NOTHING
    for split in splits:
        ours, theirs = (_means(histories, each, split) for each in (checkpoints, against))
        other = None if itself else known_mean(theirs)
        cells[split] = score_cell(known_mean(ours), unit, against=other)
        gaps = [height(minus(*pair), unit) for pair in zip(ours, theirs, strict=True)]
        if not itself and None not in gaps:
            above = f"{sum(gap is not None and gap > 0 for gap in gaps)} of {len(gaps)}"
    return TableRow(name, (count, *(cells[s] for s in sorted(splits, reverse=True)), Cell(above)))


def _means(
    histories: Sequence[History], checkpoints: Sequence[CheckpointId], split: str
) -> list[Number | None]:
    return [
        history.mean(checkpoint, split) if history.has_mean(checkpoint, split) else None
        for history, checkpoint in zip(histories, checkpoints, strict=True)
    ]
