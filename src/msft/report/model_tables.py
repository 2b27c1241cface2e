"""The paper's tables over several base models: a block for each, and their average."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from msft.report.compare.contest import Contest, known_mean, minus, titles_of
from msft.report.compare.entrant import Entrant
from msft.report.compare.statistics import mean
from msft.report.flops_table import flops_note, flops_table
from msft.report.margins import margin_in_words, margin_over
from msft.report.paper_tables import (
    ABLATION,
    ablation_table,
    main_tables,
    score_cell,
)
from msft.report.tables import EMPTY, Cell, Table, TableRow, ranked
from msft.report.wording import height, in_words
from msft.search.scores import Number
from msft.text import counted, listed, si

AVERAGE = "Average"
BASE = "Base"


def model_tables(contests: Sequence[Contest]) -> list[Table]:
    """Results, ablation and FLOPs of contests that differ in their base model alone.

    Within a block differences are to SFT on that model under the same seeds; the average's are the
    means of these, so that no model is compared with another one.
    """
    found: list[Table] = []
    for tables in zip(*(main_tables(contest) for contest in contests), strict=False):
        split = contests[0].splits[len(found)]
        found.append(_joined(contests, tables, _average_results(contests, split)))
    ablations = [ablation_table(contest) for contest in contests]
    if all(ablations):
        chosen = [label for label in labels_in(contests) if _method(contests, label) in ABLATION]
        chosen.sort(key=lambda label: ABLATION.index(_method(contests, label)))
        names, split = {"": contests[0].names}, contests[0].split
        rows = _average_scores(contests, chosen, names, split)
        found.append(_joined(contests, [each for each in ablations if each], rows))
    note = flops_note(contests)
    costs = [replace(flops_table(contest), note=note) for contest in contests]
    return [*found, _joined(contests, costs, _average_flops(contests))]


def headline_of_models(contests: Sequence[Contest]) -> str:
    """The best average over the models, in one sentence."""
    first, labels = contests[0], labels_in(contests)
    unit, split = first.unit(), first.split
    found = {label: averages(contests, label, first.names, split) for label in labels}
    known = {label: (value, gap) for label, (value, gap) in found.items() if value is not None}
    models = counted(len(contests), "model")
    if not known:
        return f"No method was scored on all sub-datasets with each of {models}."
    top = max(height(value, unit) for value, _ in known.values())
    winners = [label for label, (value, _) in known.items() if height(value, unit) == top]
    text = f"{listed(winners)} {'has' if len(winners) == 1 else 'have'} the best mean on {split} "
    text += f"averaged over {models}, {in_words(known[winners[0]][0], unit)}. "
    others = [label for label, (_, gap) in known.items() if gap is not None]
    if others:
        best = max(others, key=lambda label: height(known[label][0], unit))
        margin = margin_in_words(margin_over(gaps_on_each(contests, best)), unit)
        text += f"Against {first.baseline.label} on the same model: {best} {margin}. "
    return f"{text}{counted(len(labels), 'method')}, {counted(len(first.seeds), 'seed')}."


def gaps_on_each(contests: Sequence[Contest], label: str) -> list[Number]:
    """The differences of a method to the baseline, one for each model that has both."""
    gaps = [
        minus(
            contest.score(entrant, contest.names, contest.split),
            contest.score(contest.baseline, contest.names, contest.split),
        )
        for contest in contests
        if (entrant := _entrant(contest, label)) is not None
    ]
    return [gap for gap in gaps if gap is not None]


def labels_in(contests: Sequence[Contest]) -> list[str]:
    """The methods of all contests, in the order in which they come up."""
    return [*dict.fromkeys(entrant.label for each in contests for entrant in each.entrants)]


def averages(
    contests: Sequence[Contest], label: str, names: Sequence[str], split: str
) -> tuple[Number | None, Number | None]:
    """The mean score of a method over the models, and that of its differences to each model's own
    baseline; None where a model does not have the method, and of the baseline's difference."""
    values: list[Number | None] = []
    gaps: list[Number | None] = []
    for contest in contests:
        entrant = _entrant(contest, label)
        value = contest.score(entrant, names, split) if entrant else None
        against = contest.score(contest.baseline, names, split)
        values.append(value)
        gaps.append(None if entrant is contest.baseline else minus(value, against))
    return known_mean(values), known_mean(gaps)


def _average_results(contests: Sequence[Contest], split: str) -> list[TableRow]:
    names: Mapping[str, Sequence[str]] = {**contests[0].groups, "": contests[0].names}
    bases = [
        score_cell(
            known_mean(contest.base_score(held, split) for contest in contests),
            contests[0].unit(held),
        )
        for held in names.values()
    ]
    rows = _average_scores(contests, labels_in(contests), names, split)
    return [TableRow(BASE, (*bases, EMPTY)), *rows]


def _average_scores(
    contests: Sequence[Contest],
    labels: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    split: str,
) -> list[TableRow]:
    """A row of each method: the columns ranked, then Ep."""
    by_column: list[list[Cell]] = []
    for names in columns.values():
        unit = contests[0].unit(names)
        found = [averages(contests, label, names, split) for label in labels]
        ranks = ranked([height(value, unit) for value, _ in found])
        by_column.append(
            [
                score_cell(value, unit, rank, minus(value, gap))
                for (value, gap), rank in zip(found, ranks, strict=True)
            ]
        )
    return [
        TableRow(label, (*cells, _over_models(contests, label, _epochs, lambda n: f"{n:.2f}")))
        for label, *cells in zip(labels, *by_column, strict=True)
    ]


def _average_flops(contests: Sequence[Contest]) -> list[TableRow]:
    kinds = ("train", "evaluation", "lookahead", "total", "kept", "discarded")
    rows: list[TableRow] = []
    for label in labels_in(contests):
        amounts = [_over_models(contests, label, partial(_flops, kind), si) for kind in kinds]
        times = _over_models(contests, label, _times, lambda n: f"{n:.2f}")
        rows.append(TableRow(label, (*amounts, times)))
    return rows


def _over_models(
    contests: Sequence[Contest],
    label: str,
    measured: Callable[[Contest, Entrant], float | None],
    written: Callable[[float], str],
) -> Cell:
    """The mean of a number over the models; nothing unless every model has it."""
    found: list[float] = []
    for contest in contests:
        entrant = _entrant(contest, label)
        number = None if entrant is None else measured(contest, entrant)
        if number is None:
            return EMPTY
        found.append(number)
    average = float(mean(found))
    return Cell(written(average), value=average)


def _epochs(contest: Contest, entrant: Entrant) -> float:
    return float(mean([run.summary["best"]["epochs"] for run in entrant.over(contest.seeds)]))


def _flops(kind: str, contest: Contest, entrant: Entrant) -> float:
    return float(contest.flops(entrant, kind))


def _times(contest: Contest, entrant: Entrant) -> float | None:
    against = contest.flops(contest.baseline, "total")
    return float(contest.flops(entrant, "total") / against) if against else None


def _joined(
    contests: Sequence[Contest],
    tables: Sequence[Table],
    average: Sequence[TableRow],
) -> Table:
    """One table of one of each model, with a block for each and the average."""
    first = tables[0]
    rows = [
        replace(row, block=title)
        for title, table in zip(titles_of(contests), tables, strict=True)
        for row in table.rows
    ]
    rows += [replace(row, block=AVERAGE) for row in average]
    note = (
        f"{first.note} A block for each of {counted(len(contests), 'model')}; what is compared "
        f"with {contests[0].baseline.label} is compared on the same model. {AVERAGE}: the mean "
        "over the models of what their blocks say; – where a model lacks a method."
    )
    return replace(first, note=note, rows=tuple(rows))


def _entrant(contest: Contest, label: str) -> Entrant | None:
    return next((each for each in contest.entrants if each.label == label), None)


def _method(contests: Sequence[Contest], label: str) -> str:
    return next(
        entrant.method for each in contests for entrant in each.entrants if entrant.label == label
    )
