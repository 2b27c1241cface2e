"""Tables on how far to believe a comparison: seeds, selection against test, rows drawn again."""

from collections.abc import Mapping, Sequence

from msft.history import SELECTION, TEST
from msft.report.contenders import Contender, minus, same_rows
from msft.report.lineup import Entry, Lineup, height, score_at
from msft.report.paper_tables import score_cell
from msft.report.tables import EMPTY, Cell, Row, Table, ranked
from msft.report.wording import Unit, counted, difference, unit_of
from msft.rollout import BASE
from msft.scores import Number
from msft.statistics import DRAWS, Bootstrap, mean, paired_bootstrap, paired_t, sample_sd


def seed_table(lineup: Lineup) -> Table | None:
    """Every seed, mean, sd and a paired t-test against the baseline; None of a single seed."""
    seeds = sorted({seed for entry in lineup.entries for seed in entry.runs})
    if len(seeds) < 2:
        return None
    unit = lineup.unit(lineup.names)
    found = [_by_seed(lineup, entry, seeds) for entry in lineup.entries]
    against = _by_seed(lineup, lineup.baseline, seeds)
    means = [mean([*scores.values()]) if scores else None for scores in found]
    ranks = ranked([height(value, unit) for value in means])
    rows: list[Row] = []
    for entry, scores, middle, rank in zip(lineup.entries, found, means, ranks, strict=True):
        shared = [seed for seed in scores if seed in against and entry is not lineup.baseline]
        gaps = [scores[seed] - against[seed] for seed in shared]
        test = paired_t([scores[s] for s in shared], [against[s] for s in shared])
        gap = mean(gaps) if gaps else None
        scale = 100 if unit == "accuracy" else 1
        average = Cell(
            _precise(middle, unit),
            rank,
            "" if gap is None else _signed(gap, unit),
            None if middle is None else float(scale * middle),
            None if gap is None else float(scale * gap),
        )
        cells = [
            Cell(_precise(scores[s], unit), value=float(scale * scores[s]))
            if s in scores
            else EMPTY
            for s in seeds
        ]
        p = Cell(f"{test.p:.3f}", value=test.p) if test else EMPTY
        rows.append(Row(entry.label, (*cells, average, _spread_cell([*scores.values()], unit), p)))
    return Table(
        "seeds",
        f"Seeds on {lineup.split}",
        "sd over n − 1. p: two-sided paired t-test against "
        f"{lineup.baseline.label} over the seeds that both have; – where there are fewer than two, "
        "or where every seed has the same difference. It is about other seeds on these rows, not "
        "about other rows.",
        ("method", *(f"seed {seed}" for seed in seeds), "mean", "sd", "p"),
        tuple(rows),
    )


def honesty_table(lineup: Lineup) -> Table:
    """What selected, what reports, how far they are apart, and how many could be chosen from."""
    unit = lineup.unit(lineup.names)
    splits = [split for split in (SELECTION, TEST) if split in lineup.splits]
    scores = {
        split: [lineup.score(entry, lineup.names, split) for entry in lineup.entries]
        for split in splits
    }
    ranks = {s: ranked([height(v, unit) for v in values]) for s, values in scores.items()}
    rows: list[Row] = []
    for place, entry in enumerate(lineup.entries):
        cells = [score_cell(scores[s][place], unit, ranks[s][place]) for s in splits]
        if TEST in scores:
            drift = minus(scores[SELECTION][place], scores[TEST][place])
            scale = 100 if unit == "accuracy" else 1
            value = None if drift is None else float(scale * drift)
            cells.append(Cell(difference(drift, unit), value=value))
        rows.append(Row(entry.label, (*cells, _candidates(lineup, entry))))
    apart = ["validation − test"] if TEST in scores else []
    return Table(
        "honesty",
        "What selected and what reports",
        "Every checkpoint was chosen on validation. The more it was chosen from, the more its "
        "validation score flatters; test decided nothing."
        if TEST in scores
        else "Every checkpoint was chosen on validation and nothing was scored on test, so these "
        "scores flatter, and the more so the more there was to choose from.",
        ("method", *splits, *apart, "chosen from"),
        tuple(rows),
    )


def bootstrap_table(lineup: Lineup) -> Table | None:
    """Every run against the baseline's with the same seed, its rows drawn again; None where no
    two runs have verdicts of the same rows."""
    unit = lineup.unit(lineup.names)
    several = len({seed for entry in lineup.entries for seed in entry.runs}) > 1
    rows: list[Row] = []
    for entry in lineup.entries:
        for seed, run in sorted(entry.runs.items()):
            other = lineup.baseline.runs.get(seed)
            if entry is lineup.baseline or other is None:
                continue
            found = bootstrap(run, other, lineup.split)
            if found is not None:
                name = f"{entry.label}, seed {seed}" if several else entry.label
                rows.append(Row(name, _bootstrap_cells(found, unit)))
    if not rows:
        return None
    return Table(
        "bootstrap",
        f"Rows of {lineup.split} drawn again",
        f"Difference to {lineup.baseline.label}{' at the same seed' if several else ''}, positive "
        "is better; 95 % percentile interval and share of draws in which it is behind, over "
        f"{DRAWS:,} draws of the rows of each sub-dataset. It is about other rows for these two "
        "models, not about other seeds.",
        ("method", "difference", "from", "to", "behind"),
        tuple(rows),
    )


def bootstrap(one: Contender, two: Contender, split: str) -> Bootstrap | None:
    """The paired bootstrap of two runs' best checkpoints; None without verdicts of the same
    rows."""
    rows = same_rows(one, two, split)
    if rows is None:
        return None
    strata: dict[str, list[float]] = {}
    for name, (first, second) in rows.items():
        if len(first) != len(second):
            return None
        pairs = zip(map(float, first), map(float, second), strict=True)
        strata[name] = [a - b for a, b in pairs]
    return paired_bootstrap(strata, _weights(one, strata, split))


def _weights(run: Contender, strata: Mapping[str, Sequence[float]], split: str) -> dict[str, float]:
    """What one row's difference adds to that of the means: the mean's rule, row by row.

    Of nll, rows are summed losses and the divisor is tokens, which are taken as given.
    """
    history = run.history
    scores = history.known(history.best or BASE, split)
    sizes = {
        name: scores[name].count if scores[name].metric == "nll" else len(rows)
        for name, rows in strata.items()
    }
    if history.start.settings["mean"] == "pooled":
        sizes = dict.fromkeys(sizes, sum(sizes.values()))
    else:
        sizes = {name: size * len(sizes) for name, size in sizes.items()}
    base = history.known(BASE, split)
    signs = {
        name: (-1.0 / float(base[name].value) if history.mixed else -1.0)
        if unit_of(history, name) == "nll"
        else 1.0
        for name in strata
    }
    return {name: signs[name] / size for name, size in sizes.items()}


def _bootstrap_cells(found: Bootstrap, unit: Unit) -> tuple[Cell, ...]:
    scale = 100 if unit == "accuracy" else 1
    numbers = (found.difference, found.low, found.high)
    cells = [Cell(difference(n, unit), value=scale * n) for n in numbers]
    return (*cells, Cell(f"{100 * found.below:.1f} %", value=found.below))


def _by_seed(lineup: Lineup, entry: Entry, seeds: Sequence[int]) -> dict[int, Number]:
    found = {
        seed: score_at(entry.runs[seed], lineup.names, lineup.split)
        for seed in seeds
        if seed in entry.runs
    }
    return {seed: score for seed, score in found.items() if score is not None}


def _candidates(lineup: Lineup, entry: Entry) -> Cell:
    counts = [run.summary["best"]["candidates"] for run in entry.over(lineup.seeds)]
    low, high = min(counts), max(counts)
    text = counted(low, "point") if low == high else f"{low:,} to {high:,} points"
    return Cell(text, value=float(mean(counts)))


def _spread_cell(scores: Sequence[Number], unit: Unit) -> Cell:
    spread = sample_sd(scores)
    if spread is None:
        return EMPTY
    scale = 100 if unit == "accuracy" else 1
    return Cell(_precise(spread, unit), value=scale * spread)


def _precise(value: Number | None, unit: Unit) -> str:
    """With one digit more than elsewhere, as the paper's seed table has it."""
    if value is None:
        return EMPTY.text
    return f"{float(100 * value):.2f}" if unit == "accuracy" else f"{float(value):.4f}"


def _signed(gap: Number, unit: Unit) -> str:
    text = _precise(gap, unit)
    if not text.strip("-0."):
        return f"±{text.lstrip('-')}"
    return text.replace("-", "−") if text.startswith("-") else f"+{text}"
