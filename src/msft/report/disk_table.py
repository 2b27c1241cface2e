"""What methods held on disk, beside what the paper expects of mSFT."""

from msft.report.compare.contest import Contest
from msft.report.compare.disk_bounds import disk_bounds
from msft.report.compare.entrant import Entrant
from msft.report.compare.statistics import mean
from msft.report.tables import EMPTY, Cell, Table, TableRow


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
