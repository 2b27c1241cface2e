"""The result of a run in words and as a table: sentence, facts, notes, scores."""

from dataclasses import dataclass
from typing import Any

from msft.history import SELECTION, TEST, History
from msft.report.decisions import interval
from msft.report.wording import (
    NOTHING,
    Unit,
    counted,
    difference,
    difference_in_words,
    epochs,
    in_words,
    mean_unit,
    method_name,
    number,
    si,
    unit_of,
)
from msft.rollout import BASE, CheckpointId
from msft.scores import Number, Score

_ENDED_BY = {
    "all_excluded": "until all had left",
    "max_stages": "ended by max_stages",
    "max_epochs": "ended by max_epochs",
    "budget": "as planned",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A number to see at a glance."""

    name: str
    value: str
    more: str = ""


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
    """The mean at a checkpoint, None unless every sub-dataset is scored there."""
    if history.missing(checkpoint, split):
        return None
    if history.mixed and history.missing(BASE, split):
        return None
    return history.mean(checkpoint, split)


def sentence(history: History, summary: dict[str, Any]) -> str:
    """The result in one sentence (and a half)."""
    method = method_name(history.start.method)
    best, unit = history.best, mean_unit(history)
    if best is None:
        return f"{method} has only begun: nothing is scored yet."
    running = history.ended is None
    validation, test = mean_of(history, best, SELECTION), mean_of(history, best, TEST)
    many = len(history.start.datasets)
    over = f"the mean over {many} sub-datasets" if many > 1 else "its only sub-dataset"
    scored = f"{in_words(validation, unit)} on validation"
    if test is not None:
        scored += f" and {in_words(test, unit)} on test"
    if best == BASE:
        opening = (
            f"{method} is still running, and so far nothing is better than the base model"
            if running
            else f"{method} found nothing better than the base model"
        )
        return f"{opening}: {over} is {scored}. {_chosen(history, summary, BASE)}"
    opening = (
        f"{method} is still running; its best checkpoint so far is {best}"
        if running
        else f"{method} ended with checkpoint {best}"
    )
    return (
        f"{opening}: {over} is {scored}{_over_base(history, best, unit)}. "
        f"{_chosen(history, summary, best)}"
    )


def _over_base(history: History, best: CheckpointId, unit: Unit) -> str:
    if unit is None:
        return ", where metrics are mixed and the mean is one of gains"
    gains = {
        split: here - base
        for split in (SELECTION, TEST)
        if (here := mean_of(history, best, split)) is not None
        and (base := mean_of(history, BASE, split)) is not None
    }
    parts = [f"{difference_in_words(gain, unit)} on {split}" for split, gain in gains.items()]
    return f"; against the base model that is {' and '.join(parts)}" if parts else ""


def _chosen(history: History, summary: dict[str, Any], best: CheckpointId) -> str:
    trained = f"{epochs(summary['epochs_trained'])} epochs were trained in all"
    path = epochs(summary["best"]["epochs"])
    if history.reported:
        return f"The method itself names it, nothing was chosen; Ep. is {path}, and {trained}."
    candidates = counted(summary["best"]["candidates"], "candidate")
    chosen = f"It was chosen on validation from {candidates}"
    if best == BASE:
        return f"{chosen}; {trained}."
    return f"{chosen}, lies {path} epochs down its path, and {trained}."


def notes(history: History) -> list[str]:
    """What a reader must know before believing the numbers."""
    found: list[str] = []
    best = history.best
    if best and history.ended and mean_of(history, best, TEST) is None:
        found.append(
            "The result was not scored on a test split. The checkpoint was chosen because its "
            "validation score is high, so that score flatters it."
        )
    if history.mixed:
        found.append(
            "Metrics differ between sub-datasets, so means are of gains over the base model: "
            "points for accuracy and own metrics, relative decrease for nll."
        )
    elif mean_unit(history) == "nll":
        found.append("Scores are negative log-likelihoods per token: lower is better.")
    return found


def facts(history: History, summary: dict[str, Any]) -> list[Fact]:
    best, unit = history.best, mean_unit(history)
    if best is None:
        return []
    base, here = mean_of(history, BASE, SELECTION), mean_of(history, best, SELECTION)
    test, flops = mean_of(history, best, TEST), summary["flops"]
    per_cent = "\u00a0%" if unit == "accuracy" else ""
    selected = "" if history.reported else "selected on; "
    stops = "mean of the stops" if history.start.method == "continual" else "epochs on its path"
    found = [
        Fact("validation", number(here, unit) + per_cent, f"{selected}base {number(base, unit)}")
    ]
    if test is not None and here is not None:
        drift = f"{difference(test - here, unit)} to validation"
        found.append(Fact("test", number(test, unit) + per_cent, drift))
    ended = _ENDED_BY.get(history.ended.by, "") if history.ended else "still running"
    share = flops["evaluation"] / flops["total"] if flops["total"] else 0.0
    return [
        *found,
        Fact("checkpoint", best, f"of {counted(summary['best']['candidates'], 'candidate')}"),
        Fact("Ep.", epochs(summary["best"]["epochs"]), stops),
        Fact("epochs trained", epochs(summary["epochs_trained"]), ended),
        Fact("FLOPs", si(flops["total"]), f"{share:.0%} of it evaluation"),
    ]


def score_rows(history: History) -> list[ScoreRow]:
    """Every sub-dataset, then the mean."""
    best = history.best or BASE
    places = ((BASE, SELECTION), (best, SELECTION), (BASE, TEST), (best, TEST))
    rows: list[ScoreRow] = []
    for name, size in history.start.datasets.items():
        scores = [history.known(checkpoint, split).get(name) for checkpoint, split in places]
        unit = unit_of(history, name)
        values = [score.value if score else None for score in scores]
        rows.append(_score_row(name, f"{size:,}", values, unit, scores[1]))
    means = [mean_of(history, checkpoint, split) for checkpoint, split in places]
    rule = "pooled" if history.start.settings["mean"] == "pooled" else "mean"
    unit = mean_unit(history)
    total = f"{sum(history.start.datasets.values()):,}"
    rows.append(_score_row(rule if unit else "mean gain", total, means, unit, None))
    return rows


def _score_row(
    name: str, rows: str, values: list[Number | None], unit: Unit, best_score: Score | None
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
        interval=interval(best_score) or (NOTHING if best_score else ""),
        gain=difference(gain, unit),
        sign="up" if better > 0 else "down" if better < 0 else "",
        base_test=number(base_test, unit),
        test=number(test, unit),
        drift=difference(drift, unit),
    )
