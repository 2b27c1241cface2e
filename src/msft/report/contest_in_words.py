"""A contest in words: its headline, and what to know before reading its tables."""

from collections.abc import Mapping

from msft.report.compare.contest import Contest
from msft.report.compare.entrant import Entrant
from msft.report.margins import margin_in_words, margin_of, shared_seeds
from msft.report.wording import MEAN_OF_GAINS, height, in_words
from msft.search.scores import Number
from msft.text import counted, listed

MOST_MARGINS = 3
"""Others in a headline; of more, it has the best one and the tables have the rest."""


def headline(contest: Contest) -> str:
    """The best on the split that reports, in one sentence."""
    if not contest.has_mean:
        return "These runs have different sub-datasets, so their means cannot be compared."
    unit, known = contest.unit(), _means(contest)
    if not known:
        return "None of these runs is scored on all sub-datasets."
    top = max(height(score, unit) for score in known.values())
    winners = [label for label, score in known.items() if height(score, unit) == top]
    text = f"{listed(winners)} {'has' if len(winners) == 1 else 'have'} the best mean on "
    text += f"{contest.split}, {in_words(known[winners[0]], unit)}. {_against(contest, known)}"
    if contest.each:
        return f"{text}{counted(len(contest.entrants), 'run')}."
    methods = counted(len(contest.entrants), "method")
    return f"{text}{methods}, {counted(len(contest.seeds), 'seed')}."


def _against(contest: Contest, known: Mapping[str, Number]) -> str:
    """How far the other methods are above or below the baseline; of many, only the best."""
    baseline, unit = contest.baseline, contest.unit()
    others = [each for each in contest.entrants if each is not baseline and each.label in known]
    if baseline.label not in known or not others:
        return ""
    others.sort(key=lambda each: height(known[each.label], unit), reverse=True)
    shown = others if len(others) <= MOST_MARGINS else others[:1]
    told = [
        f"{each.label} {margin_in_words(found, unit)}{_of_some(contest, each)}"
        for each in shown
        if (found := margin_of(contest, each, baseline)) is not None
    ]
    against = f"{baseline.label} ({in_words(known[baseline.label], unit)})"
    return f"Against {against}: {'; '.join(told)}. "


def _of_some(contest: Contest, entrant: Entrant) -> str:
    """Which seeds a difference to the baseline is over, where one of the means is over others."""
    shared = shared_seeds(contest, entrant, contest.baseline)
    means = {seed for each in (entrant, contest.baseline) for seed in each.runs}
    if not shared or {*shared} == means & {*contest.seeds}:
        return ""
    seeds = "seed" if len(shared) == 1 else "seeds"
    return f" on {seeds} {listed(map(str, shared))}, which both have"


def remarks(contest: Contest) -> list[str]:
    """What to know before reading a table."""
    unit = contest.unit()
    chose, again = contest.selection, contest.split == contest.selection
    found = [
        f"{chose.capitalize()} chose every checkpoint. The reported scores are from "
        + (
            f"{chose} too, as in the paper. They flatter, and the more so the more checkpoints a "
            "method could choose from."
            if again
            else "test."
        )
    ]
    if len({run.seed for run in contest.runs}) < 2:
        found.append(
            "There is one seed, so nothing here says what another seed would give. msft compare "
            "with --seeds 20,30,40 runs more."
        )
    if not contest.has_mean:
        return found
    base = contest.base_score(contest.names, contest.split)
    means = _means(contest).values()
    if base is not None and all(height(mean, unit) <= height(base, unit) for mean in means):
        found.append(f"No method is better than the base model on {contest.split}.")
    if unit is None:
        found.append(MEAN_OF_GAINS)
    return found


def _means(contest: Contest) -> dict[str, Number]:
    """Of the entrants that are scored on everything."""
    scores = {e.label: contest.score(e, contest.names, contest.split) for e in contest.entrants}
    return {label: score for label, score in scores.items() if score is not None}
