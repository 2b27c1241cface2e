"""How evenly an entrant of a contest does, and how often it comes first: one rule for tables and
figures."""

from msft.report.contest import Contest, known_mean
from msft.report.entrant import Entrant
from msft.report.units import height
from msft.scores import Number
from msft.statistics import mean, sample_sd


def spread_of(contest: Contest, entrant: Entrant) -> float | None:
    """The standard deviation over sub-datasets of a run's scores, mean over the seeds.

    None of one sub-dataset, where metrics differ, and where a score is missing.
    """
    spreads: list[float] = []
    for run in entrant.over(contest.seeds):
        scores = [run.score((name,), contest.split) for name in contest.names]
        known = [score for score in scores if score is not None]
        spread = sample_sd(known) if len(known) == len(scores) and contest.unit() else None
        if spread is None:
            return None
        spreads.append(spread)
    return float(mean(spreads))


def rounds_of(contest: Contest) -> list[dict[str, Number]]:
    """Heights by entrant on each sub-dataset that all are scored on, under each seed.

    Where no seed is common to all, one round per sub-dataset, of the means over their seeds.
    """
    common = all(seed in entrant.runs for entrant in contest.entrants for seed in contest.seeds)
    rounds: list[dict[str, Number]] = []
    for seeds in [(seed,) for seed in contest.seeds] if common else [contest.seeds]:
        for name in contest.names:
            unit = contest.unit((name,))
            scores = {
                entrant.label: known_mean(
                    run.score((name,), contest.split) for run in entrant.over(seeds)
                )
                for entrant in contest.entrants
            }
            heights = {
                label: height(score, unit) for label, score in scores.items() if score is not None
            }
            if len(heights) == len(contest.entrants) > 1:
                rounds.append(heights)
    return rounds
