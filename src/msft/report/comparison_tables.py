"""The tables of a comparison, one function for each: results, ablation, seeds, rows drawn again,
first places, FLOPs, disk, averages; and over several base models a block for each model.

How far two methods are apart is a margin. With two seeds or more it comes from Student's paired
test over the seeds; with one seed from the rows: a paired bootstrap for the interval, a sign test
for p.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from msft.report.compare.comparison import (
    ComparedRun,
    Contest,
    Ends,
    Entrant,
    PairedVerdicts,
    ends_of,
    known_mean,
    minus,
    places_text,
    rounds_of,
    rows_apart,
    same_rows,
    spread_of,
    titles_of,
)
from msft.report.compare.paper import disk_bounds
from msft.report.compare.statistics import (
    DRAWS,
    Bootstrap,
    Paired,
    first_places,
    mean,
    paired_bootstrap,
    paired_interval,
    paired_t,
    sample_sd,
)
from msft.report.tables import EMPTY, Cell, Rank, Table, TableRow, ranked
from msft.report.wording import (
    NOTHING,
    Unit,
    difference,
    difference_in_words,
    flops_counted,
    height,
    in_words,
    metric_name,
    number,
    p_value,
    per_cent,
)
from msft.run.history import History, adapter_of, averaged_epochs, first_rollout_flops
from msft.search.curves import SELECTION, TEST, Number
from msft.search.methods.soup import kinds
from msft.search.rollout import BASE, CheckpointId
from msft.text import counted, epochs, listed, si

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


SURE = 0.05
"""A difference whose p is larger may be chance."""

READING = "in words"


def seed_table(contest: Contest) -> Table | None:
    """Every seed, mean, sd and a paired t-test against the baseline; None of a single seed."""
    seeds = sorted({seed for entrant in contest.entrants for seed in entrant.runs})
    if len(seeds) < 2:
        return None
    unit = contest.unit()
    against = _by_seed(contest, contest.baseline, seeds)
    found = [_by_seed(contest, entrant, seeds) for entrant in contest.entrants]
    means = [contest.score(entrant, contest.names, contest.split) for entrant in contest.entrants]
    whole = all(set(contest.seeds) <= entrant.runs.keys() for entrant in contest.entrants)
    ranks = ranked([height(value, unit) if whole else None for value in means])
    rows: list[TableRow] = []
    for entrant, scores, middle, rank in zip(contest.entrants, found, means, ranks, strict=True):
        shared = [seed for seed in scores if seed in against and entrant is not contest.baseline]
        test = paired_t([scores[s] for s in shared], [against[s] for s in shared])
        gaps = [scores[seed] - against[seed] for seed in shared if seed in contest.seeds]
        gap = mean(gaps) if gaps else None
        more = "" if gap is None else difference(gap, unit, more=1)
        average = Cell(
            _precise(middle, unit), rank, more, per_cent(middle, unit), per_cent(gap, unit)
        )
        cells = [_precise_cell(scores.get(seed), unit) for seed in seeds]
        spread = sample_sd([scores[seed] for seed in contest.seeds if seed in scores])
        cells += [average, _precise_cell(spread, unit), *_p_cells(test[1] if test else None)]
        rows.append(TableRow(entrant.label, tuple(cells)))
    missing = any(len(scores) < len(seeds) for scores in found)
    return Table(
        "seeds",
        f"Seeds on {contest.split}",
        ("Mean and sd are over the seeds that every method has. " if missing and whole else "")
        + f"sd over n − 1. p: two-sided paired t-test against {contest.baseline.label} over the "
        "seeds that both have; – where there are fewer than two, or where every seed has the same "
        "difference. It speaks of other seeds on these rows, not of other rows.",
        ("method", *(f"seed {seed}" for seed in seeds), "mean", "sd", "p", READING),
        tuple(rows),
    )


def honesty_table(contest: Contest) -> Table | None:
    """What selected, what reports, how far they are apart, and how many could be chosen from; None
    where no means can be compared."""
    if not contest.has_mean:
        return None
    unit = contest.unit()
    splits = [split for split in (SELECTION, TEST) if split in contest.splits]
    both = len(splits) > 1
    scores = {
        split: [contest.score(entrant, contest.names, split) for entrant in contest.entrants]
        for split in splits
    }
    ranks = {s: ranked([height(v, unit) for v in values]) for s, values in scores.items()}
    rows: list[TableRow] = []
    for place, entrant in enumerate(contest.entrants):
        cells = [score_cell(scores[s][place], unit, ranks[s][place]) for s in splits]
        if both:
            drift = minus(scores[SELECTION][place], scores[TEST][place])
            cells.append(Cell(difference(drift, unit), value=per_cent(drift, unit)))
        rows.append(TableRow(entrant.label, (*cells, *_looks(contest, entrant))))
    apart = ["validation − test"] if both else []
    chose = f"{contest.selection.capitalize()} chose every checkpoint"
    nothing_else = "" if contest.selected_on_test else ", and nothing was scored on test"
    return Table(
        "honesty",
        "What selected and what reports",
        f"{chose}. The more it chose from, the more its score flatters. "
        "No decision used test. Epochs: all that were trained."
        if both
        else f"{chose}{nothing_else}. So these scores "
        "flatter, and the more so the more there was to choose from. Epochs: all trained.",
        ("method", *splits, *apart, "chosen from", "epochs"),
        tuple(rows),
    )


def bootstrap_table(contest: Contest) -> Table | None:
    """Every run against the baseline's with the same seed, row by row; None where no two runs
    have verdicts of the same rows."""
    unit = contest.unit()
    several = len({seed for entrant in contest.entrants for seed in entrant.runs}) > 1
    verdicts = {seed: run.verdicts(contest.split) for seed, run in contest.baseline.runs.items()}
    rows: list[TableRow] = []
    for entrant in contest.entrants:
        for seed, run in sorted(entrant.runs.items()):
            other = contest.baseline.runs.get(seed)
            if entrant is contest.baseline or other is None:
                continue
            same = same_rows(run, other, contest.split, verdicts[seed])
            if same is not None:
                name = f"{entrant.label}, seed {seed}" if several else entrant.label
                drawn = bootstrap(run, same, contest.split)
                signs = _sign_cells(drawn, rows_apart(run, same))
                rows.append(TableRow(name, (*_bootstrap_cells(drawn, unit), *signs)))
    if not rows:
        return None
    return Table(
        "bootstrap",
        f"Rows of {contest.split} drawn again",
        f"Difference to {contest.baseline.label}{' at the same seed' if several else ''}: positive "
        "is better. From, to: its 95 % percentile interval. Behind: the share of draws in which it "
        f"is behind, over {DRAWS:,} draws of the rows of each sub-dataset. Better, worse: rows. p: "
        "two-sided sign test of these rows. It speaks of other rows for these two models, not of "
        "other seeds.",
        ("method", "difference", "from", "to", "behind", "better", "worse", "p", READING),
        tuple(rows),
    )


def bootstrap(run: ComparedRun, rows: PairedVerdicts, split: str) -> Bootstrap:
    """The paired bootstrap of two runs' best checkpoints on the same rows."""
    strata = {
        name: [a - b for a, b in zip(map(float, first), map(float, second), strict=True)]
        for name, (first, second) in rows.items()
    }
    return paired_bootstrap(strata, _weights(run, strata, split))


def _weights(
    run: ComparedRun, strata: Mapping[str, Sequence[float]], split: str
) -> dict[str, float]:
    """What one row's difference adds to that of the means: the mean's rule, row by row.

    Of nll, rows are summed losses and the divisor is tokens, which are taken as given.
    """
    history = run.history
    scores, base = history.known(run.best, split), history.known(BASE, split)
    metrics = {scores[name].metric for name in strata}
    sizes = {
        name: scores[name].count if scores[name].metric == "nll" else len(rows)
        for name, rows in strata.items()
    }
    alone = all(scores[name].count == 1 for name in strata)  # means of own metrics, in older logs
    if history.start.settings["mean"] == "pooled" and len(metrics) == 1 and not alone:
        sizes = dict.fromkeys(sizes, sum(sizes.values()))
    else:  # gains are not pooled
        sizes = {name: size * len(sizes) for name, size in sizes.items()}
    weights = {name: 1 / size for name, size in sizes.items()}
    for name in strata:
        if scores[name].metric == "nll":
            reference = float(base[name].value) if len(metrics) > 1 else 1.0
            weights[name] *= -1 / reference if reference else 0.0
    return weights


def _bootstrap_cells(found: Bootstrap, unit: Unit) -> tuple[Cell, ...]:
    numbers = (found.difference, found.low, found.high)
    cells = [Cell(difference(n, unit), value=per_cent(n, unit)) for n in numbers]
    return (*cells, Cell(f"{100 * found.below:.1f} %", value=found.below))


def _sign_cells(found: Bootstrap, pair: Paired | None) -> tuple[Cell, ...]:
    """A difference is called sure where both tests say so."""
    if pair is None:
        return (EMPTY, EMPTY, EMPTY, EMPTY)
    better, worse = (Cell(f"{count:,}", value=count) for count in (pair.better, pair.worse))
    return (better, worse, *_p_cells(float(pair.p), found.low > 0 or found.high < 0))


def _p_cells(p: float | None, apart: bool = True) -> tuple[Cell, Cell]:
    """p, and what it means in words; apart: an interval leaves out 0."""
    if p is None:
        return (EMPTY, EMPTY)
    words = "sure" if p <= SURE and apart else "may be chance"
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", value=p), Cell(words)


def _by_seed(contest: Contest, entrant: Entrant, seeds: Sequence[int]) -> dict[int, Number]:
    found = {
        seed: entrant.runs[seed].score(contest.names, contest.split)
        for seed in seeds
        if seed in entrant.runs
    }
    return {seed: score for seed, score in found.items() if score is not None}


def _looks(contest: Contest, entrant: Entrant) -> tuple[Cell, Cell]:
    """How many checkpoints could be chosen from, and the epochs that were trained for them."""
    runs = entrant.over(contest.seeds)
    counts = [run.summary["best"]["candidates"] for run in runs]
    low, high = min(counts), max(counts)
    text = counted(low, "point") if low == high else f"{low:,} to {high:,} points"
    trained = float(mean([run.summary["epochs_trained"] for run in runs]))
    return Cell(text, value=float(mean(counts))), Cell(epochs(trained), value=trained)


def _precise_cell(value: Number | None, unit: Unit) -> Cell:
    return EMPTY if value is None else Cell(_precise(value, unit), value=per_cent(value, unit))


def _precise(value: Number | None, unit: Unit) -> str:
    """With one digit more than elsewhere, as the paper's seed table has it."""
    if value is None:
        return EMPTY.text
    return f"{float(100 * value):.2f}" if unit == "accuracy" else f"{float(value):.4f}"


CHANCE = "the difference may be chance"


@dataclass(frozen=True, slots=True)
class Margin:
    """A difference of means, in score units.

    interval, p: at 95 %, two-sided; None where neither seeds nor rows say anything.
    """

    difference: Number
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def sure(self) -> bool:
        """Whether both the interval and p tell it from nothing."""
        if self.interval is None or self.p is None:
            return False
        low, high = self.interval
        return self.p <= SURE and (low > 0 or high < 0)


def margin_of(contest: Contest, entrant: Entrant, other: Entrant) -> Margin | None:
    """How far an entrant is above another one on the split that reports, over the seeds that both
    have, or of their means where they share none; None without scores."""
    names, split = contest.names, contest.split
    shared = shared_seeds(contest, entrant, other)
    if len(shared) > 1:
        return _over_seeds([minus(*_scores(contest, entrant, other, seed)) for seed in shared])
    if not shared:
        found = minus(contest.score(entrant, names, split), contest.score(other, names, split))
        return None if found is None else Margin(found)
    found = minus(*_scores(contest, entrant, other, shared[0]))
    if found is None:
        return None
    run, against = entrant.runs[shared[0]], other.runs[shared[0]]
    rows = same_rows(run, against, split, against.verdicts(split))
    pair = rows_apart(run, rows) if rows else None
    if rows is None or pair is None:
        return Margin(found)
    drawn = bootstrap(run, rows, split)
    better = (drawn.low, drawn.high)
    interval = (-better[1], -better[0]) if contest.unit() == "nll" else better
    return Margin(found, interval, float(pair.p))


def shared_seeds(contest: Contest, one: Entrant, two: Entrant) -> list[int]:
    """The seeds of a contest that both have."""
    return [seed for seed in contest.seeds if seed in one.runs and seed in two.runs]


def _scores(
    contest: Contest, one: Entrant, two: Entrant, seed: int
) -> tuple[Number | None, Number | None]:
    ours, theirs = (each.runs[seed].score(contest.names, contest.split) for each in (one, two))
    return ours, theirs


def _over_seeds(gaps: list[Number | None]) -> Margin | None:
    known = [gap for gap in gaps if gap is not None]
    return margin_over(known) if len(known) == len(gaps) else None


def margin_over(gaps: list[Number]) -> Margin:
    """The mean of differences, tested against 0 over those who have them."""
    test = paired_t(gaps, [0] * len(gaps))
    return Margin(mean(gaps), paired_interval(gaps), test[1] if test else None)


def margin_in_words(found: Margin, unit: Unit) -> str:
    """+5.1 points (95 % interval +3.8 to +6.5, p < 0.001)"""
    text = difference_in_words(found.difference, unit)
    if not found.difference:
        return text
    if found.interval is None or found.p is None:
        return f"{text} (not tested: {CHANCE})"
    low, high = found.interval
    between = f"95\u00a0% interval {difference(low, unit)} to {difference(high, unit)}"
    chance = "" if found.sure else f": {CHANCE}"
    return f"{text} ({between}, {p_value(found.p)}{chance})"


def flops_table(contest: Contest) -> Table:
    """What was computed, and for what."""
    kinds = ("train", "evaluation", "look-ahead", "total", "kept", "discarded")
    against = contest.flops(contest.baseline, "total")
    rows: list[TableRow] = []
    for entrant in contest.entrants:
        amounts = [contest.flops(entrant, kind.replace("-", "")) for kind in kinds]
        cells = [Cell(si(float(amount)), value=float(amount)) for amount in amounts]
        share = float(contest.flops(entrant, "total") / against) if against else None
        times = EMPTY if share is None else Cell(f"{share:.2f}", value=share)
        rows.append(TableRow(entrant.label, (*cells, times)))
    return Table(
        "flops",
        "FLOPs",
        flops_note([contest]),
        ("method", *kinds, f"× {contest.baseline.label}"),
        tuple(rows),
    )


def flops_note(contests: Sequence[Contest]) -> str:
    """What is counted."""
    adapter = any(adapter_of(run.history) for contest in contests for run in contest.runs)
    return (
        f"{flops_counted(adapter)}. Kept is the training on the path to the reported checkpoint, "
        "discarded is all other training; kept + discarded = train + look-ahead. Time and memory "
        f"are not in it.{_shared_text(contests)}"
    )


def _shared_text(contests: Sequence[Contest]) -> str:
    """What was computed once for several runs, where some of them took it over."""
    runs = [run for contest in contests for run in contest.runs]
    takers = [run for run in runs if run.rollout_from]
    if not takers:
        return ""
    total = sum(run.summary["flops"]["total"] for run in runs)
    spared = sum(first_rollout_flops(run.history) for run in takers)
    labels = dict.fromkeys(
        entrant.label
        for contest in contests
        for entrant in contest.entrants
        if any(run in takers for run in entrant.runs.values())
    )
    return (
        f" Each line is what the method costs by itself. {listed(labels)} took the first roll-out "
        f"over from a run that had asked the same, so of {si(total)} FLOPs of all runs "
        f"{si(total - spared)} were really computed."
    )


def disk_table(contest: Contest) -> Table:
    """Sets of weights on disk: mean over the ticks, most at any time, and the paper's bounds."""
    rows: list[TableRow] = []
    against = _copies(contest, contest.baseline, "mean_copies")
    for entrant in contest.entrants:
        held, most = (_copies(contest, entrant, key) for key in ("mean_copies", "peak_copies"))
        bounds = disk_bounds(entrant.first.history)
        limits = [Cell(f"{n:.4g}", value=n) for n in (bounds.mean, bounds.most)] if bounds else []
        times = Cell(f"{held / against:.2f}", value=held / against) if against else EMPTY
        policy = Cell(entrant.first.history.disk_policy)
        numbers = (policy, Cell(f"{held:.2f}", value=held), Cell(f"{most:.4g}", value=most))
        rows.append(TableRow(entrant.label, (*numbers, times, *(limits or (EMPTY, EMPTY)))))
    return Table(
        "disk",
        "Copies on disk",
        "Sets of weights on disk: the mean over all ticks and the most at any time. With "
        "disk_policy lean, checkpoints that memory holds are not on disk; with paper, they are as "
        "in Algorithm 4. The paper's bounds are for mSFT with N sub-datasets: (N + 5)/2 on "
        "average, or less with fewer than N evaluations a stage, and N + 1 at most.",
        ("method", "policy", "mean", "most", f"× {contest.baseline.label}", "(N + 5)/2", "N + 1"),
        tuple(rows),
    )


def _copies(contest: Contest, entrant: Entrant, key: str) -> float:
    return float(mean([run.summary["disk"][key] for run in entrant.over(contest.seeds)]))


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


AVERAGE = "Average"
BASE_ROW = "Base"


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
    return [TableRow(BASE_ROW, (*bases, EMPTY)), *rows]


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
