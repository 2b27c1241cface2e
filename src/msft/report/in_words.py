"""The result of one run in words: its sentence, its notes and its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msft.report.averages import average_in_words
from msft.report.compare.intervals import Intervals
from msft.report.wording import (
    MEAN_OF_GAINS,
    NOTHING,
    Unit,
    difference,
    difference_in_words,
    in_words,
    method_name,
    number,
)
from msft.run.history import History
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import SELECTION, TEST, Number, mean_gain
from msft.text import counted, epochs_in_words, no_test_mean

_ENDED_BY = {
    "all_excluded": ", until every sub-dataset had left",
    "no_gain": ", until nothing more was gained",
    "max_stages": ", until max_stages",
    "max_epochs": ", until max_epochs",
    "budget": ", as planned",
}


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
    order = dict.fromkeys((reports, history.selection, TEST))
    scored = [split for split in order if mean_of(history, best, split) is not None]
    reached, *others = scored or [history.selection]
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
        chosen = split == history.selection and not history.reported
        text += ", where its checkpoint was chosen" if chosen else ""
    return text + "."


def _over_base(history: History, best: CheckpointId, split: str, unit: Unit) -> str:
    """The gain over the base model in words; nothing where it is not one number."""
    here, base = mean_of(history, best, split), mean_of(history, BASE, split)
    if best == BASE or unit is None or here is None or base is None:
        return ""
    return difference_in_words(here - base, unit)


def choice_text(history: History, summary: Mapping[str, Any]) -> str:
    """How the reported checkpoint came to be the one, and how long training went on."""
    best = history.best
    if best is None:
        return ""
    ended = _ENDED_BY.get(history.ended.by, "") if history.ended else ""
    trained = f"Training took {epochs_in_words(summary['epochs_trained'])} in all{ended}."
    path = epochs_in_words(summary["best"]["epochs"])
    candidates = counted(summary["best"]["candidates"], "checkpoint")
    if history.average_of:
        chosen = (
            f"The result is {best}, {average_in_words(history)}. {candidates} were scored. The "
            f"latest of those averaged lies {path} from the base model."
        )
    elif history.reported:
        far = "its sub-datasets were trained for" if _is_continual(history) else "it lies"
        mean = " on average" if _is_continual(history) else " from the base model"
        chosen = f"The method itself names checkpoint {best}: {far} {path}{mean}."
    elif best == BASE:
        chosen = f"{history.selection.capitalize()} chose the base model from {candidates}."
    else:
        chosen = (
            f"{history.selection.capitalize()} chose checkpoint {best} from {candidates}. It lies "
            f"{path} from the base model."
        )
    return f"{chosen} {trained}"


def _is_continual(history: History) -> bool:
    """Its epochs are a mean over the stops, not a path."""
    return history.start.method == "continual"


def notes(history: History, status: str, reports: str = TEST) -> list[str]:
    """What a reader must know before believing the numbers. reports: the split that does."""
    found: list[str] = []
    if status == "stopped":
        found.append(
            "This run is not finished, and no process works on it. Run the same command again to "
            "go on where it stopped."
        )
    best = history.best
    if best and reports == SELECTION and mean_of(history, best, TEST) is not None:
        chosen = "" if history.reported else " It also chose the checkpoint, so the scores flatter."
        found.append(
            "The reported scores are from validation, as in the paper (report_split: selection)."
            f"{chosen}"
        )
    if best and history.known(best, TEST) and (without := history.untested(best)):
        text = no_test_mean(without)
        found.append(f"{text[0].upper()}{text[1:]}. Validation reports the mean, and it chose.")
    elif best and history.ended and mean_of(history, best, TEST) is None:
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
    selection = history.selection
    places = ((BASE, selection), (best, selection), (BASE, TEST), (best, TEST))
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
