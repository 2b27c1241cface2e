"""Results in words: of one run its sentence, facts, notes and scores; of a contest its headline and
remarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msft.report.averages import average_in_words
from msft.report.compare.contest import Contest
from msft.report.compare.intervals import Intervals
from msft.report.wording import (
    MEAN_OF_GAINS,
    NOTHING,
    Unit,
    difference,
    difference_in_words,
    height,
    in_words,
    method_name,
    number,
)
from msft.run.history import History
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import SELECTION, TEST, Number, mean_gain
from msft.text import counted, epochs, epochs_in_words, listed, si

_ENDED_BY = {
    "all_excluded": "until all had left",
    "no_gain": "until nothing was gained",
    "max_stages": "ended by max_stages",
    "max_epochs": "ended by max_epochs",
    "budget": "as planned",
}
_STATES = {"running": "still running", "stopped": "stopped"}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A sub-dataset, or the mean of all, at the base model and at the best checkpoint."""

    name: str
    rows: str
    base: str
    best: str
    interval: str
    gain: str
    sign: str
    base_test: str
    test: str
    drift: str


def mean_of(history: History, checkpoint: CheckpointId, split: str) -> Number | None:
    """The mean at a checkpoint, None unless it is known."""
    return history.mean(checkpoint, split) if history.has_mean(checkpoint, split) else None


def sentence(history: History, status: str, reports: str = TEST) -> str:
    """The result in one sentence.

    status: as in the summary. reports: the split that does, if it is scored.
    """
    method, best, unit = method_name(history.start.method), history.best, history.mean_unit
    if best is None:
        if status == "stopped":
            return f"{method} was stopped before anything was scored."
        return f"{method} has only begun: nothing is scored yet."
    nothing = "nothing is better than the base model, which has"
    openings = {
        ("finished", False): f"{method} reached",
        ("running", False): f"{method} is still running; so far it reached",
        ("stopped", False): f"{method} was stopped; until then it reached",
        ("finished", True): f"{method} found that {nothing}",
        ("running", True): f"{method} is still running, and so far {nothing}",
        ("stopped", True): f"{method} was stopped; until then {nothing}",
    }
    order = (TEST, SELECTION) if reports == TEST else (SELECTION, TEST)
    scored = [split for split in order if mean_of(history, best, split) is not None]
    reached, *others = scored or [SELECTION]
    many = len(history.start.datasets)
    amount = "" if many == 1 else "a mean of " if unit else "a mean gain of "
    over = f" over {many} sub-datasets" if many > 1 else ""
    gain = _over_base(history, best, reached, unit)
    text = (
        f"{openings[status, best == BASE]} {amount}"
        f"{in_words(mean_of(history, best, reached), unit)} on {reached}{over}"
        + (f", {gain} against the base model" if gain else "")
    )
    for split in others:
        gain = _over_base(history, best, split, unit)
        text += f"; it has {in_words(mean_of(history, best, split), unit)} on {split}"
        text += f" ({gain})" if gain else ""
        chosen = split == SELECTION and not history.reported
        text += ", where its checkpoint was selected" if chosen else ""
    return text + "."


def _over_base(history: History, best: CheckpointId, split: str, unit: Unit) -> str:
    """The gain over the base model in words; nothing where it is not one number."""
    here, base = mean_of(history, best, split), mean_of(history, BASE, split)
    if best == BASE or unit is None or here is None or base is None:
        return ""
    return difference_in_words(here - base, unit)


def choice_text(history: History, summary: Mapping[str, Any]) -> str:
    """How the reported checkpoint came to be the one."""
    best = history.best
    if best is None:
        return ""
    trained = f"training took {epochs_in_words(summary['epochs_trained'])} in all"
    path = summary["best"]["epochs"]
    if history.average_of:
        looked = counted(summary["best"]["candidates"], "tick")
        return (
            f"The result is {best}, {average_in_words(history)}; {looked} were looked at. Ep. "
            f"reaches the latest of those averaged, {epochs(path)}, and {trained}."
        )
    if history.reported:
        named = f"The method itself names checkpoint {best}, nothing was chosen"
        return f"{named}; Ep. is {epochs(path)}, and {trained}."
    candidates = counted(summary["best"]["candidates"], "candidate")
    if best == BASE:
        return f"The base model was chosen on validation from {candidates}; {trained}."
    return (
        f"Checkpoint {best} was chosen on validation from {candidates}, lies "
        f"{epochs_in_words(path)} down its path, and {trained}."
    )


def notes(history: History, status: str, reports: str = TEST) -> list[str]:
    """What a reader must know before believing the numbers. reports: the split that does."""
    found: list[str] = []
    if status == "stopped":
        found.append(
            "This run is not finished and no process works on it. The command that started it "
            "goes on where it stopped."
        )
    best = history.best
    if best and reports == SELECTION and mean_of(history, best, TEST) is not None:
        chosen = "" if history.reported else " It also selected the checkpoint, so scores flatter."
        found.append(
            f"Validation reports, as in the paper's protocol (report_split: selection).{chosen}"
        )
    if best and history.ended and mean_of(history, best, TEST) is None:
        chosen = (
            " The checkpoint was chosen because its validation score is high, so that score "
            "flatters it."
        )
        found.append(
            f"The result was not scored on a test split.{'' if history.average_of else chosen}"
        )
    if history.mixed:
        found.append(MEAN_OF_GAINS)
    elif history.mean_unit == "nll":
        found.append("Scores are negative log-likelihoods per token: lower is better.")
    return found


def facts(history: History, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What to see at a glance: a name, its value, and more about it."""
    best, unit = history.best, history.mean_unit
    if best is None:
        return []
    base, here = mean_of(history, BASE, SELECTION), mean_of(history, best, SELECTION)
    test, flops = mean_of(history, best, TEST), summary["flops"]
    per_cent = "\u00a0%" if unit == "accuracy" else ""
    selected = "" if history.reported else "selected on; "
    stops = "mean of the stops" if history.start.method == "continual" else "epochs on its path"
    found = [("validation", number(here, unit) + per_cent, f"{selected}base {number(base, unit)}")]
    if test is not None and here is not None:
        drift = f"{difference(test - here, unit)} to validation"
        found.append(("test", number(test, unit) + per_cent, drift))
    ended = _ENDED_BY.get(history.ended.by, "") if history.ended else _STATES[summary["status"]]
    share = flops["evaluation"] / flops["total"] if flops["total"] else 0.0
    return [
        *found,
        ("checkpoint", best, _chosen_from(history, summary)),
        ("Ep.", epochs(summary["best"]["epochs"]), stops),
        ("epochs trained", epochs(summary["epochs_trained"]), ended),
        ("FLOPs", si(flops["total"]), f"{share:.0%} of it evaluation"),
    ]


def _chosen_from(history: History, summary: Mapping[str, Any]) -> str:
    if history.average_of:
        return f"mean of {counted(len(history.average_of), 'tick')}"
    return f"of {counted(summary['best']['candidates'], 'candidate')}"


def by_gain(history: History) -> list[str]:
    """The sub-datasets, those that gained most over the base model first."""
    best, base = history.known(history.best or BASE), history.known(BASE)
    gains = {
        name: mean_gain({name: best[name]}, base) if name in best and name in base else 0.0
        for name in history.start.datasets
    }
    return sorted(gains, key=lambda name: -gains[name])


def score_rows(
    history: History, names: Sequence[str], intervals: Intervals
) -> tuple[list[ScoreRow], ScoreRow]:
    """A row of each sub-dataset, and one of the mean of all."""
    best = history.best or BASE
    places = ((BASE, SELECTION), (best, SELECTION), (BASE, TEST), (best, TEST))
    rows: list[ScoreRow] = []
    for name in names:
        scores = [history.known(checkpoint, split).get(name) for checkpoint, split in places]
        values = [score.value if score else None for score in scores]
        size, interval = f"{history.start.datasets[name]:,}", intervals.text(best, name) or NOTHING
        rows.append(_score_row(name, size, values, history.unit_of(name), interval))
    means = [mean_of(history, checkpoint, split) for checkpoint, split in places]
    rule = "pooled" if history.start.settings["mean"] == "pooled" else "mean"
    unit = history.mean_unit
    total = f"{sum(history.start.datasets.values()):,}"
    return rows, _score_row(rule if unit else "mean gain", total, means, unit, "")


def _score_row(
    name: str, rows: str, values: list[Number | None], unit: Unit, interval: str
) -> ScoreRow:
    base, best, base_test, test = values
    gain = None if base is None or best is None else best - base
    drift = None if test is None or best is None else test - best
    better = 0.0 if gain is None else float(-gain if unit == "nll" else gain)
    return ScoreRow(
        name=name,
        rows=rows,
        base=number(base, unit),
        best=number(best, unit),
        interval=interval,
        gain=difference(gain, unit),
        sign="up" if better > 0 else "down" if better < 0 else "",
        base_test=number(base_test, unit),
        test=number(test, unit),
        drift=difference(drift, unit),
    )


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
        "Every checkpoint was chosen on validation; the reported scores are from "
        + (
            "test."
            if contest.split == TEST
            else "validation too, as in the paper's protocol: these scores flatter, and the more "
            "so the more checkpoints a method could choose from."
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
