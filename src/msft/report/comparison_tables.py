"""The tables of a comparison, one function for each: results, ablation, seeds, rows drawn again,
first places, FLOPs, disk; and over several base models a block for each model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from msft.report.compare.comparison import (
    Comparison,
    MethodRuns,
    places_text,
    rounds_of,
    scores_by_seed,
    spread_of,
    titles_of,
)
from msft.report.compare.paper import disk_bounds
from msft.report.compare.runs import rows_apart
from msft.report.compare.statistics import (
    DRAWS,
    first_places,
    known_mean,
    mean,
    minus,
    paired_t,
    sample_sd,
)
from msft.report.tables import EMPTY, Cell, Rank, Table, TableRow, ranked, table_of
from msft.report.wording import (
    Unit,
    difference,
    flops_counted,
    height,
    metric_name,
    number,
    per_cent,
)
from msft.run.history import History, adapter_of, averaged_epochs, first_rollout_flops
from msft.search.curves import SELECTION, TEST, Number
from msft.search.rollout import BASE
from msft.text import counted, epochs, listed, si

ABLATION = ("sft", "sro", "soft_sro", "msft")
"""The methods of the paper's ablation: SFT, the two that search once, and mSFT."""

Columns = dict[str, list[Cell]]
"""The cells of each column by its head."""


def main_tables(comparison: Comparison) -> list[Table]:
    """Results on the split that reports, and where there are groups on the other one too; none
    where no means can be compared."""
    if not comparison.has_mean:
        return []
    splits = comparison.splits if comparison.groups else comparison.splits[:1]
    return [_main_table(comparison, split, {}) for split in splits]


def page_results(comparison: Comparison) -> Table:
    """The results as a page has them: beside them what selected and what reports."""
    more: Columns = {}
    for split in () if comparison.groups else comparison.splits[1:]:
        more[split] = _score_column(comparison, comparison.names, split, with_gaps=False)
    table = _main_table(comparison, comparison.split, more | looks_columns(comparison))
    return replace(table, note=f"{table.note} Epochs: all that were trained.")


def _main_table(comparison: Comparison, split: str, more: Columns) -> Table:
    """Groups and the mean over all sub-datasets, with Ep. and the differences to the baseline;
    more: columns behind them, without the base model."""
    groups = {**comparison.groups, _mean_name(comparison): comparison.names}
    columns = {
        head: [
            score_cell(comparison.base_score(names, split), comparison.unit(names)),
            *_score_column(comparison, names, split),
        ]
        for head, names in groups.items()
    }
    columns["Ep."] = [EMPTY, *_epochs_column(comparison, comparison.methods)]
    columns |= {head: [EMPTY, *cells] for head, cells in more.items()}
    return table_of(
        _key("main", comparison, split),
        f"Results on {_role(comparison, split)}",
        "Ep.: epochs on the path to the reported checkpoint.",
        [BASE_ROW, *(method.label for method in comparison.methods)],
        columns,
        reading=_reading(comparison, split),
    )


def dataset_tables(comparison: Comparison) -> list[Table]:
    """Every sub-dataset, with its metric where they differ, then the mean if it can be compared;
    on every split that was scored."""
    tables: list[Table] = []
    mixed = comparison.unit() is None
    methods = [method.label for method in comparison.methods]
    for split in comparison.splits:
        rows = [
            TableRow(
                name,
                (
                    *([Cell(metric_name(comparison.unit((name,))))] if mixed else []),
                    *_score_column(comparison, (name,), split),
                ),
            )
            for name in comparison.names
        ]
        if comparison.has_mean:
            means = _score_column(comparison, comparison.names, split)
            cells = (*([EMPTY] if mixed else []), *means)
            rows.append(TableRow(_mean_name(comparison), cells, apart=True))
        tables.append(
            Table(
                _key("datasets", comparison, split),
                f"Every sub-dataset on {_role(comparison, split)}",
                "",
                ("sub-dataset", *(["metric"] if mixed else []), *methods),
                tuple(rows),
                _reading(comparison, split, "row"),
            )
        )
    return tables


def _key(name: str, comparison: Comparison, split: str) -> str:
    return name if split == comparison.split else f"{name}-{split}"


def _role(comparison: Comparison, split: str) -> str:
    """A split, and what it does in this comparison."""
    if comparison.selected_on_test:
        return "test (reported, and selected on)"
    if split == comparison.split:
        return "test (reported)" if split == TEST else "validation (reported, and selected on)"
    return "test" if split == TEST else "validation (selected on)"


def ablation_table(comparison: Comparison) -> Table | None:
    """mSFT against those that search only once; None unless mSFT and one of these are there."""
    chosen = [method for method in comparison.methods if method.name in ABLATION]
    names = {method.name for method in chosen}
    if not comparison.has_mean or "msft" not in names or not names & {"sro", "soft_sro"}:
        return None
    chosen.sort(key=lambda method: ABLATION.index(method.name))
    scores = _score_column(comparison, comparison.names, comparison.split, chosen)
    return table_of(
        "ablation",
        f"Ablation on {comparison.split}",
        "SRO SFT and Soft SRO SFT find every peak in one roll-out on the whole mixture. mSFT "
        f"searches again after each exclusion. {_how(comparison)}",
        [method.label for method in chosen],
        {_mean_name(comparison): scores, "Ep.": _epochs_column(comparison, chosen)},
    )


def spread_table(comparison: Comparison) -> Table | None:
    """Standard deviation over sub-datasets; None of one sub-dataset or where metrics differ."""
    spreads = [spread_of(comparison, method) for method in comparison.methods]
    if all(spread is None for spread in spreads):
        return None
    return table_of(
        "spread",
        f"Spread over sub-datasets on {comparison.split}",
        "Standard deviation (n − 1) of the scores of one run over its sub-datasets"
        f"{_averaged(comparison)}. Sub-datasets differ in difficulty, so most of this is theirs, "
        "not the method's, and a small spread is no merit by itself.",
        [method.label for method in comparison.methods],
        {"sd": [score_cell(spread, comparison.unit()) for spread in spreads]},
    )


def places_table(comparison: Comparison) -> Table | None:
    """The number of first places over sub-datasets and seeds; None for a single method."""
    places = first_places(rounds_of(comparison))
    if not places:
        return None
    found = [places[method.label] for method in comparison.methods]
    ranks = ranked([Fraction(place.first) for place in found])
    firsts = [
        Cell(str(place.first), rank, value=place.first)
        for place, rank in zip(found, ranks, strict=True)
    ]
    shared = [Cell(str(place.shared), value=place.shared) for place in found]
    return table_of(
        "places",
        f"First places on {comparison.split}",
        places_text([comparison]),
        [method.label for method in comparison.methods],
        {"first places": firsts, "of these shared": shared},
    )


def score_cell(value: Number | None, unit: Unit, rank: Rank = 0, gap: Number | None = None) -> Cell:
    """A score, and behind it its difference to another one."""
    if value is None:
        return EMPTY
    more = "" if gap is None else difference(gap, unit)
    return Cell(number(value, unit), rank, more, per_cent(value, unit), per_cent(gap, unit))


def _score_column(
    comparison: Comparison,
    names: Sequence[str],
    split: str,
    methods: Sequence[MethodRuns] = (),
    with_gaps: bool = True,
) -> list[Cell]:
    """The scores of methods over these sub-datasets, ranked."""
    methods, unit = methods or comparison.methods, comparison.unit(names)
    against = comparison.score(comparison.baseline, names, split) if with_gaps else None
    values = [comparison.score(method, names, split) for method in methods]
    ranks = ranked([height(value, unit) for value in values])
    return [
        score_cell(
            value, unit, rank, None if method is comparison.baseline else minus(value, against)
        )
        for method, value, rank in zip(methods, values, ranks, strict=True)
    ]


def _epochs_column(comparison: Comparison, methods: Sequence[MethodRuns]) -> list[Cell]:
    """Epochs on the path to the reported checkpoint, mean over the seeds."""
    runs = [method.over(comparison.seeds) for method in methods]
    found = [float(mean([run.summary["best"]["epochs"] for run in each])) for each in runs]
    return [Cell(f"{value:.2f}", value=value) for value in found]


def _mean_name(comparison: Comparison) -> str:
    if comparison.unit() is None:
        return "mean gain"
    return "pooled" if comparison.first.history.start.settings["mean"] == "pooled" else "mean"


def _reading(comparison: Comparison, split: str, within: str = "column") -> str:
    """The worth of scores on a split, and the meaning of the cells."""
    worth = f"Scored on {split}, which also chose the checkpoints, so the scores flatter."
    if split == TEST and not comparison.selected_on_test:
        worth = "Scored on test; the checkpoints were chosen on validation."
    return f"{worth} {_how(comparison, within)}"


def _how(comparison: Comparison, within: str = "column") -> str:
    marked = f"; the best and the second of a {within} are marked"
    return how_to_read(comparison).replace("; behind", f"{marked}; behind")


def how_to_read(comparison: Comparison) -> str:
    """The unit of scores, and what stands behind them."""
    units = {comparison.unit((name,)) for name in comparison.names}
    text = "Per cent of rows right" if units == {"accuracy"} else "In each metric's own unit"
    text += _averaged(comparison)
    if len(comparison.methods) > 1:
        text += f"; behind a score: the difference to {comparison.baseline.label}"
    text += "."
    if "nll" in units:
        text += " Of nll, lower is better."
    return text


def _averaged(comparison: Comparison) -> str:
    seeds = comparison.seeds
    return f", mean over seeds {listed(map(str, seeds))}" if len(seeds) > 1 else ""


SURE = 0.05
"""A difference whose p is larger may be chance."""

READING = "in words"


def seed_table(comparison: Comparison, with_mean: bool = True) -> Table | None:
    """Every seed, mean, sd and a paired t-test against the baseline; None of a single seed.

    with_mean: not on a page, whose results have it.
    """
    seeds = sorted({seed for method in comparison.methods for seed in method.runs})
    if len(seeds) < 2:
        return None
    unit = comparison.unit()
    against = scores_by_seed(comparison, comparison.baseline, seeds)
    found = [scores_by_seed(comparison, method, seeds) for method in comparison.methods]
    means = [
        comparison.score(method, comparison.names, comparison.split)
        for method in comparison.methods
    ]
    whole = all(set(comparison.seeds) <= method.runs.keys() for method in comparison.methods)
    ranks = ranked([height(value, unit) if whole else None for value in means])
    columns: Columns = {
        f"seed {seed}": [_precise_cell(scores.get(seed), unit) for scores in found]
        for seed in seeds
    }
    columns |= {"mean": [], "sd": [], "p": [], READING: []}
    for method, scores, middle, rank in zip(comparison.methods, found, means, ranks, strict=True):
        shared = [seed for seed in scores if seed in against and method is not comparison.baseline]
        test = paired_t([scores[s] for s in shared], [against[s] for s in shared])
        gaps = [scores[seed] - against[seed] for seed in shared if seed in comparison.seeds]
        gap = mean(gaps) if gaps else None
        columns["mean"].append(
            replace(
                _precise_cell(middle, unit),
                rank=rank,
                more="" if gap is None else difference(gap, unit, more=1),
                difference=per_cent(gap, unit),
            )
        )
        spread = sample_sd([scores[seed] for seed in comparison.seeds if seed in scores])
        columns["sd"].append(_precise_cell(spread, unit))
        p, words = _p_cells(test[1] if test else None)
        columns["p"].append(p)
        columns[READING].append(words)
    missing = any(len(scores) < len(seeds) for scores in found)
    if not with_mean:
        del columns["mean"]
    return table_of(
        "seeds",
        f"Seeds on {comparison.split}",
        ("Mean and sd are over the seeds that every method has. " if missing and whole else "")
        + f"sd over n − 1. p: two-sided paired t-test against {comparison.baseline.label} over the "
        "seeds that both have; – where there are fewer than two, or where every seed has the same "
        "difference. It speaks of other seeds on these rows, not of other rows.",
        [method.label for method in comparison.methods],
        columns,
    )


def honesty_table(comparison: Comparison) -> Table | None:
    """What selected, what reports, how far they are apart, and how many could be chosen from; None
    where no means can be compared."""
    if not comparison.has_mean:
        return None
    splits = [split for split in (SELECTION, TEST) if split in comparison.splits]
    columns: Columns = {
        split: _score_column(comparison, comparison.names, split, with_gaps=False)
        for split in splits
    }
    chose = f"{comparison.selection.capitalize()} chose every checkpoint"
    if len(splits) > 1:
        note = "No decision used test. Epochs: all that were trained."
        reading = f"{chose}. The more it chose from, the more its score flatters."
    else:
        note = "Epochs: all trained."
        nothing_else = "" if comparison.selected_on_test else ", and nothing was scored on test"
        reading = (
            f"{chose}{nothing_else}. So these scores flatter, and the more so the more there was "
            "to choose from."
        )
    return table_of(
        "honesty",
        "What selected and what reports",
        note,
        [method.label for method in comparison.methods],
        columns | looks_columns(comparison),
        reading=reading,
    )


def looks_columns(comparison: Comparison) -> Columns:
    """How far selection and test are apart, how many checkpoints could be chosen from, and the
    epochs that were trained for them."""
    unit, columns = comparison.unit(), Columns()
    if {SELECTION, TEST} <= {*comparison.splits}:
        drifts = [
            minus(*(comparison.score(method, comparison.names, s) for s in (SELECTION, TEST)))
            for method in comparison.methods
        ]
        columns["validation − test"] = [
            Cell(difference(drift, unit), value=per_cent(drift, unit)) for drift in drifts
        ]
    columns |= {"chosen from": [], "epochs": []}
    for method in comparison.methods:
        runs = method.over(comparison.seeds)
        counts = [run.summary["best"]["candidates"] for run in runs]
        low, high = min(counts), max(counts)
        text = counted(low, "point") if low == high else f"{low:,} to {high:,} points"
        columns["chosen from"].append(Cell(text, value=float(mean(counts))))
        trained = float(mean([run.summary["epochs_trained"] for run in runs]))
        columns["epochs"].append(Cell(epochs(trained), value=trained))
    return columns


def bootstrap_table(comparison: Comparison) -> Table | None:
    """Every run against the baseline's with the same seed, row by row; None where no two runs
    have verdicts of the same rows."""
    unit, baseline = comparison.unit(), comparison.baseline
    several = len({seed for method in comparison.methods for seed in method.runs}) > 1
    rows: list[TableRow] = []
    for method in comparison.methods:
        for seed, run in sorted(method.runs.items()):
            if method is baseline or seed not in baseline.runs:
                continue
            found = rows_apart(run, baseline.runs[seed], comparison.split)
            if found is None:
                continue
            drawn, signs = found.drawn, found.signs
            numbers = (drawn.difference, drawn.low, drawn.high)
            cells = [Cell(difference(n, unit), value=per_cent(n, unit)) for n in numbers]
            cells.append(Cell(f"{100 * drawn.below:.1f} %", value=drawn.below))
            if signs is None:
                cells += [EMPTY] * 4
            else:
                counts = (signs.better, signs.worse)
                cells += [Cell(f"{count:,}", value=count) for count in counts]
                cells += _p_cells(float(signs.p), drawn.low > 0 or drawn.high < 0)
            name = f"{method.label}, seed {seed}" if several else method.label
            rows.append(TableRow(name, tuple(cells)))
    if not rows:
        return None
    return Table(
        "bootstrap",
        f"Rows of {comparison.split} drawn again",
        f"Difference to {baseline.label}{' at the same seed' if several else ''}: positive is "
        "better. From, to: its 95 % percentile interval. Behind: the share of draws in which it "
        f"is behind, over {DRAWS:,} draws of the rows of each sub-dataset. Better, worse: rows. p: "
        "two-sided sign test of these rows. It speaks of other rows for these two models, not of "
        "other seeds.",
        ("method", "difference", "from", "to", "behind", "better", "worse", "p", READING),
        tuple(rows),
    )


def _p_cells(p: float | None, apart: bool = True) -> tuple[Cell, Cell]:
    """p, and what it means in words; apart: an interval leaves out 0, so both tests say sure."""
    if p is None:
        return (EMPTY, EMPTY)
    words = "sure" if p <= SURE and apart else "may be chance"
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", value=p), Cell(words)


def _precise_cell(value: Number | None, unit: Unit) -> Cell:
    """With one digit more than elsewhere, as the paper's seed table has it."""
    if value is None:
        return EMPTY
    text = f"{float(100 * value):.2f}" if unit == "accuracy" else f"{float(value):.4f}"
    return Cell(text, value=per_cent(value, unit))


FLOPS = ("train", "evaluation", "look-ahead", "total", "kept", "discarded")


def flops_table(comparison: Comparison) -> Table:
    """FLOPs by what they were for."""
    columns: Columns = {
        kind: [
            Cell(si(float(amount)), value=float(amount))
            for method in comparison.methods
            for amount in [comparison.flops(method, kind.replace("-", ""))]
        ]
        for kind in FLOPS
    }
    against = comparison.flops(comparison.baseline, "total")
    times = [
        float(comparison.flops(method, "total") / against) if against else None
        for method in comparison.methods
    ]
    columns[f"× {comparison.baseline.label}"] = [
        EMPTY if share is None else Cell(f"{share:.2f}", value=share) for share in times
    ]
    names = [method.label for method in comparison.methods]
    return table_of("flops", "FLOPs", _flops_note([comparison]), names, columns)


def _flops_note(comparisons: Sequence[Comparison]) -> str:
    """The rules by which FLOPs are counted."""
    adapter = any(adapter_of(run.history) for each in comparisons for run in each.runs)
    return (
        f"{flops_counted(adapter)}. Kept is the training on the path to the reported checkpoint, "
        "discarded is all other training; kept + discarded = train + look-ahead. Time and memory "
        f"are not in it.{_shared_text(comparisons)}"
    )


def _shared_text(comparisons: Sequence[Comparison]) -> str:
    """A sentence on the first roll-outs that several runs share; empty where none is shared."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    takers = [run for run in runs if run.rollout_from]
    if not takers:
        return ""
    total = sum(run.summary["flops"]["total"] for run in runs)
    spared = sum(first_rollout_flops(run.history) for run in takers)
    labels = dict.fromkeys(
        method.label
        for comparison in comparisons
        for method in comparison.methods
        if any(run in takers for run in method.runs.values())
    )
    return (
        f" Each line is what the method costs by itself. {listed(labels)} took the first roll-out "
        f"over from a run that had asked the same, so of {si(total)} FLOPs of all runs "
        f"{si(total - spared)} were really computed."
    )


def disk_table(comparison: Comparison) -> Table:
    """Sets of weights on disk: mean over the ticks, most at any time, and the paper's bounds."""
    held, most = (
        [
            float(mean([run.summary["disk"][key] for run in method.over(comparison.seeds)]))
            for method in comparison.methods
        ]
        for key in ("mean_copies", "peak_copies")
    )
    against = held[comparison.methods.index(comparison.baseline)]
    histories = [method.first.history for method in comparison.methods]
    bounds = [disk_bounds(history) for history in histories]
    return table_of(
        "disk",
        "Copies on disk",
        "Sets of weights on disk: the mean over all ticks and the most at any time. With "
        "disk_policy lean, checkpoints that memory holds are not on disk; with paper, they are as "
        "in Algorithm 4. The paper's bounds are for mSFT with N sub-datasets: (N + 5)/2 on "
        "average, or less with fewer than N evaluations a stage, and N + 1 at most.",
        [method.label for method in comparison.methods],
        {
            "policy": [Cell(history.disk_policy) for history in histories],
            "mean": [Cell(f"{copies:.2f}", value=copies) for copies in held],
            "most": [Cell(f"{copies:.4g}", value=copies) for copies in most],
            f"× {comparison.baseline.label}": [
                Cell(f"{copies / against:.2f}", value=copies / against) if against else EMPTY
                for copies in held
            ],
            "(N + 5)/2": [Cell(f"{b.mean:.4g}", value=b.mean) if b else EMPTY for b in bounds],
            "N + 1": [Cell(f"{b.most:.4g}", value=b.most) if b else EMPTY for b in bounds],
        },
    )


MOST_NAMED = 12
"""Ticks of an average that are named one by one."""


def watched_methods(comparison: Comparison) -> Table | None:
    """The scores of each method on each watched sub-dataset; None where no run watches one."""
    runs = {m.label: [run.history for run in m.over(comparison.seeds)] for m in comparison.methods}
    every = [history for histories in runs.values() for history in histories]
    names = [*dict.fromkeys(name for history in every for name in history.watched)]
    if not names:
        return None
    guarded = any(history.guards for history in every)
    watching = {n: next(history for history in every if n in history.watched) for n in names}
    base = {n: watching[n].seen(BASE)[n].value for n in names if n in watching[n].seen(BASE)}
    units = {name: watching[name].unit_of(name) for name in names}
    rows = [TableRow(BASE_ROW, tuple(score_cell(base.get(n), units[n]) for n in names))]
    for label, histories in runs.items():
        bests = [(history, history.seen(history.best or BASE)) for history in histories]
        cells = list[Cell]()
        for name in names:
            found = known_mean([s[name].value if name in s else None for _, s in bests])
            gap = minus(found, base.get(name))
            cells.append(score_cell(found, units[name], gap=gap))
        rows.append(TableRow(label, tuple(cells)))
    if guarded:
        kept = [sum(h.keeps(h.best or BASE) is True for h in each) for each in runs.values()]
        said = [f"{n} of {len(each)}" for n, each in zip(kept, runs.values(), strict=True)]
        ends = [EMPTY, *map(Cell, said)]
        rows = [TableRow(r.name, (*r.cells, end)) for r, end in zip(rows, ends, strict=True)]
    return Table(
        "watched",
        "Watched sub-datasets",
        f"Scores on {comparison.selection} of what is never trained; in no mean. Behind a score: "
        "the change against the base model."
        + (" Guards kept: by how many results." if guarded else ""),
        ("method", *names, *(["guards kept"] if guarded else [])),
        tuple(rows),
    )


def average_in_words(history: History) -> str:
    """The averaged ticks of a result that is an average."""
    parts = history.average_of or ()
    found = [each for each in averaged_epochs(history) if each is not None]
    if len(found) < len(parts):
        return f"the mean of the weights at {listed(parts)}"
    if len(found) > MOST_NAMED:
        ends = f"epoch {epochs(min(found))} to epoch {epochs(max(found))}"
        return f"the mean of the weights at {counted(len(found), 'tick')} from {ends}"
    noun = "epoch" if len(found) == 1 else "epochs"
    return f"the mean of the weights after {noun} {listed(map(epochs, found))}"


AVERAGE = "Average"
BASE_ROW = "Base"


def model_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Results, ablation and FLOPs of comparisons that differ in their base model alone.

    Within a block differences are to SFT on that model under the same seeds; the average's are the
    means of these, so that no model is compared with another one.
    """
    first, found = comparisons[0], list[Table]()
    units = [first.unit(names) for names in (*first.groups.values(), first.names)]
    for tables in zip(*(main_tables(comparison) for comparison in comparisons), strict=False):
        found.append(_in_blocks(comparisons, tables, units))
    ablations = [table for each in comparisons if (table := ablation_table(each))]
    if len(ablations) == len(comparisons):
        found.append(_in_blocks(comparisons, ablations, [first.unit()]))
    note = _flops_note(comparisons)
    costs = [replace(flops_table(comparison), note=note) for comparison in comparisons]
    return [*found, _in_blocks(comparisons, costs, [])]


def _in_blocks(
    comparisons: Sequence[Comparison], tables: Sequence[Table], units: Sequence[Unit]
) -> Table:
    """One table of one of each model, with a block for each and the average.

    units: of the first columns, which are scores; the others are amounts.
    """
    rows = [
        replace(row, block=title)
        for title, table in zip(titles_of(comparisons), tables, strict=True)
        for row in table.rows
    ]
    note = (
        f"{tables[0].note} A block for each of {counted(len(comparisons), 'model')}; what is "
        f"compared with {comparisons[0].baseline.label} is compared on the same model. {AVERAGE}: "
        "the mean over the models of what their blocks say; – where a model lacks a method."
    )
    return replace(tables[0], note=note, rows=(*rows, *_average_block(tables, units)))


def _average_block(tables: Sequence[Table], units: Sequence[Unit]) -> list[TableRow]:
    """The mean over the tables of each row's numbers, scores ranked; units: as of `_in_blocks`."""
    by_name = [{row.name: row.cells for row in table.rows} for table in tables]
    names = [*dict.fromkeys(name for rows in by_name for name in rows)]
    columns: list[list[Cell]] = []
    for place, head in enumerate(tables[0].head[1:]):
        held = {
            name: [rows[name][place] if name in rows else EMPTY for rows in by_name]
            for name in names
        }
        values = {name: known_mean(cell.value for cell in cells) for name, cells in held.items()}
        if place >= len(units):
            written: Callable[[float], str] = si if head in FLOPS else "{:.2f}".format
            means = [None if value is None else float(value) for value in values.values()]
            columns.append([EMPTY if m is None else Cell(written(m), value=m) for m in means])
            continue
        unit = units[place]
        ranks = ranked(
            [None if name == BASE_ROW else height(value, unit) for name, value in values.items()]
        )
        gaps = [known_mean(cell.difference for cell in cells) for cells in held.values()]
        columns.append(
            [
                score_cell(_share(value, unit), unit, rank, _share(gap, unit))
                for value, gap, rank in zip(values.values(), gaps, ranks, strict=True)
            ]
        )
    lines = zip(*columns, strict=True)
    return [TableRow(name, cells, block=AVERAGE) for name, cells in zip(names, lines, strict=True)]


def _share(value: Number | None, unit: Unit) -> Number | None:
    """The score behind a number of a cell, which has shares of rows in per cent."""
    return value / 100 if value is not None and unit == "accuracy" else value
