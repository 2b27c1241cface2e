"""The paper's tables from runs: results, ablation, spread, first places.

Each is a function from a contest to a table. Where methods have several seeds, a cell is the mean
over them.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from msft.report.compare.contest import Contest, minus
from msft.report.compare.entrant import Entrant
from msft.report.compare.first_places import Ends, ends_of, places_text, rounds_of, spread_of
from msft.report.compare.statistics import first_places, mean
from msft.report.tables import EMPTY, Cell, Rank, Table, TableRow, ranked
from msft.report.wording import Unit, difference, height, metric_name, number, per_cent
from msft.search.scores import TEST, Number
from msft.text import listed

ABLATION = ("sft", "sro", "soft_sro", "msft")
"""The methods of the paper's ablation: SFT, the two that search once, and mSFT."""


def main_tables(contest: Contest) -> list[Table]:
    """Results on the split that reports, and where there are groups on the other one too; none
    where no means can be compared."""
    if not contest.has_mean:
        return []
    groups = contest.groups
    splits = contest.splits if groups else contest.splits[:1]
    return [_main_table(contest, groups, split) for split in splits]


def _main_table(contest: Contest, groups: Mapping[str, Sequence[str]], split: str) -> Table:
    """Groups and the mean over all sub-datasets, with Ep. and the differences to the baseline."""
    columns = {**groups, _mean_name(contest): contest.names}
    scores = [_score_column(contest, held, split, with_base=True) for held in columns.values()]
    paths = [EMPTY, *(_epochs_cell(contest, entrant) for entrant in contest.entrants)]
    names = ["Base", *(entrant.label for entrant in contest.entrants)]
    cells = zip(*scores, paths, strict=True)
    return Table(
        _key("main", contest, split),
        f"Results on {_role(contest, split)}",
        f"{_where(contest, split)} {_how(contest)} Ep.: epochs on the path to the reported "
        "checkpoint.",
        ("method", *columns, "Ep."),
        tuple(TableRow(name, tuple(row)) for name, row in zip(names, cells, strict=True)),
    )


def dataset_tables(contest: Contest) -> list[Table]:
    """Every sub-dataset, with its metric where they differ, then the mean if it can be compared;
    on every split that was scored."""
    tables: list[Table] = []
    mixed = contest.unit() is None
    for split in contest.splits:
        rows = [
            TableRow(
                name,
                (
                    *([Cell(metric_name(contest.unit((name,))))] if mixed else []),
                    *_score_column(contest, (name,), split),
                ),
            )
            for name in contest.names
        ]
        if contest.has_mean:
            means = [*([EMPTY] if mixed else []), *_score_column(contest, contest.names, split)]
            rows.append(TableRow(_mean_name(contest), tuple(means), apart=True))
        tables.append(
            Table(
                _key("datasets", contest, split),
                f"Every sub-dataset on {_role(contest, split)}",
                f"{_where(contest, split)} {_how(contest, 'row')}",
                (
                    "sub-dataset",
                    *(["metric"] if mixed else []),
                    *(entrant.label for entrant in contest.entrants),
                ),
                tuple(rows),
            )
        )
    return tables


def _key(name: str, contest: Contest, split: str) -> str:
    return name if split == contest.split else f"{name}-{split}"


def _role(contest: Contest, split: str) -> str:
    """A split, and what it does in this contest."""
    if contest.selected_on_test:
        return "test (reported, and selected on)"
    if split == contest.split:
        return "test (reported)" if split == TEST else "validation (reported, and selected on)"
    return "test" if split == TEST else "validation (selected on)"


def ablation_table(contest: Contest) -> Table | None:
    """mSFT against those that search only once; None unless mSFT and one of these are there."""
    chosen = [entrant for entrant in contest.entrants if entrant.method in ABLATION]
    methods = {entrant.method for entrant in chosen}
    if not contest.has_mean or "msft" not in methods or not methods & {"sro", "soft_sro"}:
        return None
    chosen.sort(key=lambda entrant: ABLATION.index(entrant.method))
    scores = _score_column(contest, contest.names, contest.split, entrants=chosen)
    rows = (
        TableRow(entrant.label, (score, _epochs_cell(contest, entrant)))
        for entrant, score in zip(chosen, scores, strict=True)
    )
    return Table(
        "ablation",
        f"Ablation on {contest.split}",
        "SRO SFT and Soft SRO SFT find every peak in one roll-out on the whole mixture. mSFT "
        f"searches again after each exclusion. {_how(contest)}",
        ("method", _mean_name(contest), "Ep."),
        tuple(rows),
    )


def spread_table(contest: Contest) -> Table | None:
    """Standard deviation over sub-datasets; None of one sub-dataset or where metrics differ."""
    unit = contest.unit()
    spreads = [spread_of(contest, entrant) for entrant in contest.entrants]
    if all(spread is None for spread in spreads):
        return None
    ends = [ends_of(contest, entrant) for entrant in contest.entrants]
    ranks = ranked(
        [
            None if spread is None or any(_behind(own, other, unit) for other in ends) else -spread
            for spread, own in zip(spreads, ends, strict=True)
        ]
    )
    rows: list[TableRow] = []
    for entrant, spread, own, rank in zip(contest.entrants, spreads, ends, ranks, strict=True):
        low, high = own
        cells = (score_cell(spread, unit, rank), score_cell(low, unit), score_cell(high, unit))
        rows.append(TableRow(entrant.label, cells))
    return Table(
        "spread",
        f"Spread over sub-datasets on {contest.split}",
        "Standard deviation (n − 1) of the scores of one run over its sub-datasets, and the lowest "
        f"and the highest of them{_averaged(contest)}. Sub-datasets differ in difficulty, so most "
        "of this is theirs and not the method's. A small spread is no merit where both ends are "
        "worse than another method's, and is not marked there.",
        ("method", "sd", "lowest", "highest"),
        tuple(rows),
    )


def _behind(own: Ends, other: Ends, unit: Unit) -> bool:
    """Whether neither end of a method's scores is better than another's, and one is worse."""
    pairs = [(height(one, unit), height(two, unit)) for one, two in zip(own, other, strict=True)]
    known = [(one, two) for one, two in pairs if one is not None and two is not None]
    return (
        len(known) == len(pairs)
        and all(one <= two for one, two in known)
        and any(one < two for one, two in known)
    )


def places_table(contest: Contest) -> Table | None:
    """How often a method is the best on a sub-dataset, under each seed; None if alone."""
    places = first_places(rounds_of(contest))
    if not places:
        return None
    ranks = ranked([Fraction(places[entrant.label].first) for entrant in contest.entrants])
    rows = (
        TableRow(
            entrant.label,
            (
                Cell(str(places[entrant.label].first), rank, value=places[entrant.label].first),
                Cell(str(places[entrant.label].shared), value=places[entrant.label].shared),
            ),
        )
        for entrant, rank in zip(contest.entrants, ranks, strict=True)
    )
    return Table(
        "places",
        f"First places on {contest.split}",
        places_text([contest]),
        ("method", "first places", "of these shared"),
        tuple(rows),
    )


def _where(contest: Contest, split: str) -> str:
    """What scores on a split are worth."""
    if split == TEST and not contest.selected_on_test:
        return "Scored on test; the checkpoints were chosen on validation."
    return f"Scored on {split}, which also chose the checkpoints, so the scores flatter."


def score_cell(
    value: Number | None, unit: Unit, rank: Rank = 0, against: Number | None = None
) -> Cell:
    """A score, and its difference to another one behind it."""
    if value is None:
        return EMPTY
    gap = minus(value, against)
    text = "" if gap is None else difference(gap, unit)
    return Cell(number(value, unit), rank, text, per_cent(value, unit), per_cent(gap, unit))


def _score_column(
    contest: Contest,
    names: Sequence[str],
    split: str,
    with_base: bool = False,
    entrants: Sequence[Entrant] = (),
) -> list[Cell]:
    """The entrants' scores over these sub-datasets, ranked; before them the base model's, which is
    not."""
    entrants, unit = entrants or contest.entrants, contest.unit(names)
    against = contest.score(contest.baseline, names, split)
    values = [contest.score(entrant, names, split) for entrant in entrants]
    ranks = ranked([height(value, unit) for value in values])
    cells = [
        score_cell(value, unit, rank, None if entrant is contest.baseline else against)
        for entrant, value, rank in zip(entrants, values, ranks, strict=True)
    ]
    return [score_cell(contest.base_score(names, split), unit), *cells] if with_base else cells


def _epochs_cell(contest: Contest, entrant: Entrant) -> Cell:
    found = mean([run.summary["best"]["epochs"] for run in entrant.over(contest.seeds)])
    return Cell(f"{float(found):.2f}", value=float(found))


def _mean_name(contest: Contest) -> str:
    if contest.unit() is None:
        return "mean gain"
    return "pooled" if contest.first.history.start.settings["mean"] == "pooled" else "mean"


def _how(contest: Contest, within: str = "column") -> str:
    """How to read the cells."""
    units = {contest.unit((name,)) for name in contest.names}
    text = "Per cent of rows right" if units == {"accuracy"} else "In each metric's own unit"
    text += f"{_averaged(contest)}; the best and the second of a {within} are marked"
    if len(contest.entrants) > 1:
        text += f"; behind a score: the difference to {contest.baseline.label}"
    text += "."
    if "nll" in units:
        text += " Of nll, lower is better."
    return text


def _averaged(contest: Contest) -> str:
    seeds = contest.seeds
    return f", mean over seeds {listed(map(str, seeds))}" if len(seeds) > 1 else ""
