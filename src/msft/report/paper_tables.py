"""The paper's tables from finished runs: results, ablation, FLOPs, spread, first places.

Each is a function from a line-up to a table. Where methods have several seeds, a cell is the mean
over them.
"""

from collections.abc import Sequence
from fractions import Fraction

from msft.history import TEST
from msft.report.lineup import Entry, Lineup, height, score_at
from msft.report.tables import EMPTY, Cell, Rank, Row, Table, ranked
from msft.report.wording import Unit, counted, difference, listed, number, si
from msft.scores import Number
from msft.statistics import first_places, mean, sample_sd

ABLATION = ("sft", "sro", "soft_sro", "msft")
"""The methods of the paper's ablation: SFT, the two that search once, and mSFT."""


def main_table(lineup: Lineup, split: str | None = None) -> Table:
    """Groups and the mean over all sub-datasets, with Ep. and the differences to the baseline."""
    split = split or lineup.split
    columns = {**lineup.groups, _mean_name(lineup): lineup.names}
    scores = [_score_column(lineup, held, split, with_base=True) for held in columns.values()]
    paths = [EMPTY, *(_epochs_cell(lineup, entry) for entry in lineup.entries)]
    names = ["Base", *(entry.label for entry in lineup.entries)]
    cells = zip(*scores, paths, strict=True)
    other = "" if split == lineup.split else f"-{split}"
    note = f"{where(split)} {_how(lineup)} Ep.: epochs on the path to the reported checkpoint."
    return Table(
        f"main{other}",
        f"Results on {split}",
        note,
        ("method", *columns, "Ep."),
        tuple(Row(name, tuple(row)) for name, row in zip(names, cells, strict=True)),
    )


def dataset_table(lineup: Lineup) -> Table:
    """Every sub-dataset, then the mean."""
    rows: list[Row] = []
    for name in lineup.names:
        rows.append(Row(name, tuple(_score_column(lineup, (name,), lineup.split))))
    means = _score_column(lineup, lineup.names, lineup.split)
    rows.append(Row(_mean_name(lineup), tuple(means), apart=True))
    return Table(
        "datasets",
        f"Every sub-dataset on {lineup.split}",
        f"{where(lineup.split)} {_how(lineup, 'row')}",
        ("sub-dataset", *(entry.label for entry in lineup.entries)),
        tuple(rows),
    )


def ablation_table(lineup: Lineup) -> Table | None:
    """mSFT against those that search only once; None unless mSFT and one of these are there."""
    chosen = [entry for entry in lineup.entries if entry.method in ABLATION]
    methods = {entry.method for entry in chosen}
    if "msft" not in methods or not methods & {"sro", "soft_sro"}:
        return None
    chosen.sort(key=lambda entry: ABLATION.index(entry.method))
    scores = _score_column(lineup, lineup.names, lineup.split, entries=chosen)
    rows = (
        Row(entry.label, (score, _epochs_cell(lineup, entry)))
        for entry, score in zip(chosen, scores, strict=True)
    )
    return Table(
        "ablation",
        f"Ablation on {lineup.split}",
        "SRO and Soft SRO find every peak in one roll-out on the whole mixture; mSFT searches "
        f"again after each exclusion. {_how(lineup)}",
        ("method", _mean_name(lineup), "Ep."),
        tuple(rows),
    )


def flops_table(lineup: Lineup) -> Table:
    """What was computed, and for what."""
    kinds = {
        "train": "train",
        "evaluation": "evaluation",
        "look-ahead": "lookahead",
        "total": "total",
        "kept": "kept",
        "discarded": "discarded",
    }
    totals = [_summed(lineup, entry, "total") for entry in lineup.entries]
    against = _summed(lineup, lineup.baseline, "total")
    rows: list[Row] = []
    for entry, total in zip(lineup.entries, totals, strict=True):
        amounts = [_summed(lineup, entry, key) for key in kinds.values()]
        cells = [Cell(si(float(amount)), value=float(amount)) for amount in amounts]
        share = float(total / against) if against else None
        times = EMPTY if share is None else Cell(f"{share:.2f}", value=share)
        rows.append(Row(entry.label, (*cells, times)))
    return Table(
        "flops",
        "FLOPs",
        "6 per parameter and token trained, 2 evaluated, 8 looked ahead. Kept is the training on "
        "the path to the reported checkpoint, discarded is all other training; kept + discarded = "
        "train + look-ahead. Time and memory are not in it.",
        ("method", *kinds, f"× {lineup.baseline.label}"),
        tuple(rows),
    )


def spread_table(lineup: Lineup) -> Table | None:
    """Standard deviation over sub-datasets; None of one sub-dataset or where metrics differ."""
    unit = lineup.unit(lineup.names)
    if unit is None or len(lineup.names) < 2:
        return None
    found: list[tuple[float | None, Number | None, Number | None]] = []
    for entry in lineup.entries:
        scores = [
            [score_at(run, (name,), lineup.split) for name in lineup.names]
            for run in entry.over(lineup.seeds)
        ]
        known = [[score for score in one if score is not None] for one in scores]
        spreads = [sample_sd(one) for one in known]
        lows, highs = ([pick(one) for one in known if one] for pick in (min, max))
        spread = mean([s for s in spreads if s is not None]) if all(spreads) else None
        found.append(
            (
                None if spread is None else float(spread),
                mean(lows) if lows else None,
                mean(highs) if highs else None,
            )
        )
    ranks = ranked([None if spread is None else -spread for spread, _, _ in found])
    rows = (
        Row(
            entry.label,
            (
                score_cell(spread, unit, rank),
                score_cell(low, unit),
                score_cell(high, unit),
            ),
        )
        for entry, (spread, low, high), rank in zip(lineup.entries, found, ranks, strict=True)
    )
    return Table(
        "spread",
        f"Spread over sub-datasets on {lineup.split}",
        "Standard deviation (n − 1) of the scores of one run over its sub-datasets, and the lowest "
        f"and the highest of them{_averaged(lineup)}. Sub-datasets differ in difficulty, so most "
        "of this is theirs and not the method's.",
        ("method", "sd", "lowest", "highest"),
        tuple(rows),
    )


def places_table(lineup: Lineup) -> Table | None:
    """How often a method is the best on a sub-dataset, under each seed; None if alone."""
    if len(lineup.entries) < 2:
        return None
    rounds: list[dict[str, Number]] = []
    for seed in lineup.seeds:
        for name in lineup.names:
            heights = {
                entry.label: height(score_at(run, (name,), lineup.split), lineup.unit((name,)))
                for entry in lineup.entries
                for run in entry.over((seed,))
            }
            known = {label: value for label, value in heights.items() if value is not None}
            if len(known) == len(lineup.entries):
                rounds.append(known)
    places = first_places(rounds)
    if not places:
        return None
    ranks = ranked([Fraction(places[entry.label].first) for entry in lineup.entries])
    rows = (
        Row(
            entry.label,
            (
                Cell(str(places[entry.label].first), rank, value=places[entry.label].first),
                Cell(str(places[entry.label].shared), value=places[entry.label].shared),
            ),
        )
        for entry, rank in zip(lineup.entries, ranks, strict=True)
    )
    of = f"{counted(len(lineup.names), 'sub-dataset')} and {counted(len(lineup.seeds), 'seed')}"
    return Table(
        "places",
        f"First places on {lineup.split}",
        f"Over {of}, {counted(len(rounds), 'round')} in all. On a tie every one of the best has "
        "the place, so the places may add up to more. A place may hang on one row.",
        ("method", "first places", "of these shared"),
        tuple(rows),
    )


def where(split: str) -> str:
    """What scores on a split are worth."""
    if split == TEST:
        return "Scored on test, which decided nothing."
    return "Scored on validation, which also selected the checkpoints, so that scores flatter."


def score_cell(
    value: Number | None, unit: Unit, rank: Rank = 0, against: Number | None = None
) -> Cell:
    """A score, and its difference to another one behind it."""
    if value is None:
        return EMPTY
    scale = 100 if unit == "accuracy" else 1
    gap = None if against is None else value - against
    return Cell(
        number(value, unit),
        rank,
        "" if gap is None else difference(gap, unit),
        float(scale * value),
        None if gap is None else float(scale * gap),
    )


def _score_column(
    lineup: Lineup,
    names: Sequence[str],
    split: str,
    with_base: bool = False,
    entries: Sequence[Entry] = (),
) -> list[Cell]:
    """The entries' scores over these sub-datasets, ranked; before them the base model's, which is
    not."""
    entries, unit = entries or lineup.entries, lineup.unit(names)
    against = lineup.score(lineup.baseline, names, split)
    values = [lineup.score(entry, names, split) for entry in entries]
    ranks = ranked([height(value, unit) for value in values])
    cells = [
        score_cell(value, unit, rank, None if entry is lineup.baseline else against)
        for entry, value, rank in zip(entries, values, ranks, strict=True)
    ]
    return [score_cell(lineup.base_score(names, split), unit), *cells] if with_base else cells


def _epochs_cell(lineup: Lineup, entry: Entry) -> Cell:
    found = mean([run.summary["best"]["epochs"] for run in entry.over(lineup.seeds)])
    return Cell(f"{float(found):.2f}", value=float(found))


def _summed(lineup: Lineup, entry: Entry, key: str) -> Number:
    return mean([Fraction(run.summary["flops"][key]) for run in entry.over(lineup.seeds)])


def _mean_name(lineup: Lineup) -> str:
    if lineup.unit(lineup.names) is None:
        return "mean gain"
    return "pooled" if lineup.first.history.start.settings["mean"] == "pooled" else "mean"


def _how(lineup: Lineup, within: str = "column") -> str:
    """How to read the cells."""
    units = {lineup.unit((name,)) for name in lineup.names}
    text = "Per cent of rows right" if units == {"accuracy"} else "In each metric's own unit"
    text += f"{_averaged(lineup)}; the best and the second of a {within} are marked"
    if len(lineup.entries) > 1:
        text += f"; small: the difference to {lineup.baseline.label}"
    text += "."
    if "nll" in units:
        text += " Of nll, lower is better."
    return text


def _averaged(lineup: Lineup) -> str:
    seeds = lineup.seeds
    return f", mean over seeds {listed(map(str, seeds))}" if len(seeds) > 1 else ""
