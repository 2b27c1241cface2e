"""How evenly an entrant of a contest does, and how often it comes first: one rule for tables and
figures."""

from collections.abc import Sequence

from msft.report.compare.contest import Contest, known_mean, over_in_words
from msft.report.compare.entrant import Entrant
from msft.report.compare.statistics import mean, sample_sd
from msft.report.wording import height
from msft.search.scores import Number
from msft.text import counted


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


Ends = tuple[Number | None, Number | None]
"""The lowest and the highest score of a run over its sub-datasets, mean over the seeds."""


def ends_of(contest: Contest, entrant: Entrant) -> Ends:
    """None where a score is missing."""
    scores = [
        [run.score((name,), contest.split) for name in contest.names]
        for run in entrant.over(contest.seeds)
    ]
    known = [[score for score in one if score is not None] for one in scores]
    whole = [one if len(one) == len(contest.names) else None for one in known]
    lowest = known_mean(min(one) if one else None for one in whole)
    return lowest, known_mean(max(one) if one else None for one in whole)


def places_text(contests: Sequence[Contest]) -> str:
    """What a first place is, and how many there are in these contests."""
    who = "run" if all(contest.each for contest in contests) else "method"
    rounds = sum(len(rounds_of(contest)) for contest in contests)
    every = sum(len(contest.names) * len(_turns(contest)) for contest in contests)
    own = any(len(contest.seeds) > len(_turns(contest)) for contest in contests)
    first, *others = contests
    over = f" over {over_in_words(contests)}"
    if not others:
        over = f", one for each of {counted(len(first.names), 'sub-dataset')}"
        seeds = len(_turns(first))
        over += f" under each of {counted(seeds, 'seed')}" if seeds > 1 else ""
    return (
        f"A {who} has a first place on a sub-dataset where no other one scores better. "
        + ("Scores are means over a method's own seeds. " if own else "")
        + f"That makes {counted(rounds, 'first place')}{over}"
        + (", except where a score is missing" if rounds < every else "")
        + ". Where several are equally good, each has the place, so that the numbers may add up "
        "to more. One row can decide a place."
    )


def rounds_of(contest: Contest) -> list[dict[str, Number]]:
    """Heights by entrant on each sub-dataset that all are scored on, under each seed.

    Where no seed is common to all, one round per sub-dataset, of the means over their seeds.
    """
    rounds: list[dict[str, Number]] = []
    for seeds in _turns(contest):
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


def _turns(contest: Contest) -> list[tuple[int, ...]]:
    """The seeds that are compared together: each by itself, or all where none is common."""
    common = all(seed in entrant.runs for entrant in contest.entrants for seed in contest.seeds)
    return [(seed,) for seed in contest.seeds] if common else [contest.seeds]
