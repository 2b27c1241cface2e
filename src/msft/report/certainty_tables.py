"""Tables on how far to believe a comparison: seeds, selection against test, rows drawn again."""

from collections.abc import Mapping, Sequence

from msft.report.compare.compared_run import ComparedRun, PairedVerdicts, rows_apart, same_rows
from msft.report.compare.contest import Contest, minus
from msft.report.compare.entrant import Entrant
from msft.report.compare.evidence import Paired
from msft.report.compare.statistics import (
    DRAWS,
    Bootstrap,
    mean,
    paired_bootstrap,
    paired_t,
    sample_sd,
)
from msft.report.paper_tables import score_cell
from msft.report.tables import EMPTY, Cell, Table, TableRow, ranked
from msft.report.wording import Unit, difference, height, per_cent
from msft.search.rollout import BASE
from msft.search.scores import SELECTION, TEST, Number
from msft.text import counted, epochs

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
