"""What the paper expects mSFT to hold on disk, in sets of weights (its Appendix on disk)."""

from dataclasses import dataclass

from msft.run.history import History


@dataclass(frozen=True, slots=True)
class DiskBounds:
    """most: at the second stage, a peak of each of N - 1, the start and the best. mean: of the
    most of each stage; rule: how it follows from N."""

    mean: float
    most: int
    rule: str


def disk_bounds(history: History) -> DiskBounds | None:
    """The bounds for N sub-datasets and E evaluations a stage; None of other methods."""
    if history.start.method != "msft":
        return None
    many = len(history.start.datasets)
    looks = int(history.start.settings["compute_budget"])
    stages = [min(many - stage, looks) + 2 for stage in range(many)]
    rule = "(N + 5)/2" if looks >= many else f"E = {looks} < N"
    return DiskBounds(sum(stages) / many, many + 1, rule)
