"""What a comparison says in words: the best in one sentence, and what to know before reading on."""

from msft.report.compare.contest import Contest
from msft.report.units import height
from msft.report.wording import MEAN_OF_GAINS, difference_in_words, in_words, listed
from msft.run.history import TEST
from msft.search.scores import Number
from msft.text import counted


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
    text += f"{contest.split}, {in_words(known[winners[0]], unit)}"
    against = known.get(contest.baseline.label)
    if against is not None and contest.baseline.label not in winners:
        gap = difference_in_words(known[winners[0]] - against, unit)
        text += f", against {contest.baseline.label} {in_words(against, unit)} ({gap})"
    if contest.each:
        return f"{text}. {counted(len(contest.entrants), 'run')}."
    methods = counted(len(contest.entrants), "method")
    return f"{text}. {methods}, {counted(len(contest.seeds), 'seed')}."


def remarks(contest: Contest) -> list[str]:
    """What to know before reading a table."""
    unit = contest.unit()
    found = [
        "Every checkpoint was selected on validation. "
        + (
            "Test decided nothing, and it reports."
            if contest.split == TEST
            else "Validation also reports, as in the paper's protocol: these scores flatter, and "
            "the more so the more checkpoints a method could choose from."
        )
    ]
    if len({run.seed for run in contest.runs}) < 2:
        found.append(
            "There is one seed, so nothing here says what another one would give: msft compare "
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
