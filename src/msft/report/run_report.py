"""`report.html`: what one run did, from its log alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.folder import RunFolder
from msft.history import TEST, History
from msft.log import read_log
from msft.report import cost_figures, search_figures
from msft.report.branches import Branch, Leaving, branches_of, epochs_to, leavings_of, rolled_back
from msft.report.chart import drawing
from msft.report.decisions import decision_rows, peak_rows
from msft.report.evidence import VerdictsByKey
from msft.report.page import Drawn, drawn, embedded, write_page
from msft.report.results import facts, mean_of, notes, score_rows, sentence
from msft.report.wording import counted, epochs, listed, method_name, si, unit_of
from msft.rollout import BASE
from msft.summary import summary_of
from msft.verdicts import read_verdicts

if TYPE_CHECKING:
    from markupsafe import Markup

_HOW = {
    "msft": "After each roll-out the sub-dataset that peaked first leaves, and training goes on "
    "from its peak without it.",
    "continual": "Sub-datasets are trained one after the other, and each is cut at its own peak.",
    "sro": "One roll-out (stage 0) finds every peak; then training starts again from the base "
    "model and each sub-dataset leaves at the peak that was found for it.",
    "soft_sro": "This method excludes nobody: one roll-out (stage 0) finds every peak, and a "
    "second one sees each sub-dataset in proportion to it. The peaks of the first:",
}
_HOW_NOT = "This method excludes nobody. This is where each sub-dataset peaked by itself:"


def write_report(folder: Path) -> Path:
    """Write `report.html` of a run folder, finished or not; only `run.jsonl` must be there."""
    files = RunFolder(folder)
    history = read_history(folder)
    verdicts = verdicts_of(folder)
    recipe = files.recipe.read_text(encoding="utf-8") if files.recipe.exists() else None
    name = folder.resolve().name
    return write_page(files.report, "run.html", _content(history, verdicts, recipe, name))


def read_history(folder: Path) -> History:
    """The history of a run folder, or an error that says what is wrong with it."""
    log = RunFolder(folder).log
    if not log.is_file():
        raise FileNotFoundError(f"{folder} has no run.jsonl; expected the folder of a run")
    history = History(read_log(log))
    if history.opened is None:
        raise ValueError(f"{log} has no events yet; wait until the run has started")
    return history


def verdicts_of(folder: Path) -> VerdictsByKey:
    """Row verdicts if they are there; a report can do without."""
    try:
        return read_verdicts(RunFolder(folder).verdicts)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _content(
    history: History, verdicts: VerdictsByKey, recipe: str | None, folder: str
) -> dict[str, Any]:
    summary = summary_of(history)
    branches = branches_of(history)
    decisions = decision_rows(history, branches, verdicts)
    trained = any(stage.points for stage in history.stages)
    method = history.start.method
    shown = sentence(history, summary)
    return {
        "title": f"{method_name(method)} · {folder}",
        "eyebrow": f"{method_name(method)} · {folder} · seed {history.start.seed}",
        "status": summary["status"],
        "sentence": shown,
        "notes": notes(history),
        "facts": facts(history, summary),
        "figures": _figures(history, branches) if trained else None,
        "legend": _legend(history, branches),
        "timeline_text": _timeline_text(history, branches),
        "percent": all(unit_of(history, name) == "accuracy" for name in history.start.datasets),
        "curves": _curves(history, branches) if trained else [],
        "decisions": decisions,
        "peaks": [] if decisions else peak_rows(history, branches, verdicts),
        "decisions_text": _HOW.get(method, "" if decisions else _HOW_NOT),
        "scores": score_rows(history),
        "scores_text": _scores_text(history),
        "has_test": bool(history.best and history.known(history.best, TEST)),
        "base_test": mean_of(history, BASE, TEST) is not None,
        "flops": cost_figures.flops_table(history),
        "flops_text": _flops_text(history, summary),
        "disk_text": _disk_text(summary),
        "settings": [*_settings(history)],
        "recipe": recipe,
        "command": _command(method) if recipe else None,
        "reproduce_text": (
            "Save the recipe below as recipe.yaml and run it in a new folder. The order of rows "
            "is a function of the seed; on a CPU the decisions and weights are the same again."
            if recipe
            else "This folder has no recipe.yaml; these are the settings that the log recorded."
        ),
        "has_verdicts": bool(verdicts),
    }


@dataclass(frozen=True, slots=True)
class _Figures:
    timeline: Drawn
    loss: Drawn
    flops: Drawn
    disk: Drawn


def _figures(history: History, branches: list[Branch]) -> _Figures:
    with drawing():
        return _Figures(
            drawn(
                "timeline",
                "Timeline of the search: one branch per roll-out",
                partial(search_figures.timeline, history, branches),
            ),
            drawn(
                "loss",
                "Training loss over the epochs trained, and the number of active sub-datasets",
                partial(cost_figures.loss, history, branches),
            ),
            drawn("flops", "FLOPs by what they were for", partial(cost_figures.flops, history)),
            drawn(
                "disk",
                "Copies of the weights on disk over the epochs trained",
                partial(cost_figures.disk, history, branches),
            ),
        )


@dataclass(frozen=True, slots=True)
class _CurveItem:
    name: str
    fate: str
    svg: "Markup"


def _curves(history: History, branches: list[Branch]) -> list[_CurveItem]:
    leavings = {leaving.name: leaving for leaving in leavings_of(history)}
    items: list[_CurveItem] = []
    with drawing():
        for number, name in enumerate(history.start.datasets):
            leaving = leavings.get(name)
            figure = search_figures.curve(history, branches, name, leaving)
            svg = embedded(figure, f"curve{number}", f"Scores of {name}")
            items.append(_CurveItem(name, _fate(history, branches, name, leaving), svg))
    return items


def _fate(history: History, branches: list[Branch], name: str, leaving: Leaving | None) -> str:
    if leaving is not None:
        return f"left at {epochs(epochs_to(history, leaving.checkpoint))}, stage {leaving.stage}"
    if leavings_of(history):
        return "never left" if history.ended else "in the mixture"
    peak = branches[0].peaks.get(name)
    return "" if peak is None else f"peak at {epochs(branches[0].at(peak))}"


def _timeline_text(history: History, branches: list[Branch]) -> str:
    if len(branches) < 2:
        return "This method has only one." if history.ended else ""
    return (
        "It begins where the path stood: a dashed arrow goes from the end of a roll-out back to "
        "where the next one begins."
    )


def _legend(history: History, branches: list[Branch]) -> dict[str, bool]:
    """Which kinds of line the figures of this run have."""
    left = {leaving.name: leaving.stage for leaving in leavings_of(history)}
    return {
        "best": any(branch.to_best for branch in branches),
        "went_on": any(branch.went_on > branch.to_best for branch in branches),
        "gone": any(branch.ticks > branch.used for branch in branches),
        "left": bool(left),
        "out": any(
            branch.used and name not in history.stages[branch.number].asked.active
            for branch in branches
            for name in history.start.datasets
        ),
        "back": any(rolled_back(history, branch.number) for branch in branches[:-1]),
    }


def _scores_text(history: History) -> str:
    tested = history.best and history.known(history.best, TEST)
    text = "Checkpoints are selected on validation; test decides nothing."
    if history.reported:
        text = "Peaks are found on validation; test decides nothing."
    if not tested:
        text += " The test split has not been scored."
    elif mean_of(history, BASE, TEST) is None:
        text += " The base model was not scored on test."
    units = {unit_of(history, name) for name in history.start.datasets}
    if units == {"accuracy"}:
        text += " In per cent of rows right, differences in points."
    elif "accuracy" in units:
        text += " Accuracies in per cent of rows right, other metrics as they are."
    return text


def _flops_text(history: History, summary: Mapping[str, Any]) -> str:
    return (
        f"{si(summary['flops']['total'])}FLOPs in all, for a model of "
        f"{si(history.start.num_parameters)} parameters: 6 per parameter and token trained, 2 "
        "evaluated, 8 looked ahead. Kept is the training on the path from the base model to the "
        "best checkpoint, discarded is all other training."
    )


def _disk_text(summary: Mapping[str, Any]) -> str:
    disk = summary["disk"]
    return (
        f"Sets of weights on disk while each tick was trained (filled) and the most until it was "
        f"recorded (thin line): {disk['mean_copies']:.2f} on average, {disk['peak_copies']} at "
        f"most; with optimizer moments {si(disk['peak_bytes'])}B at most."
    )


def _settings(history: History) -> Iterator[tuple[str, str]]:
    start = history.start
    sizes = [f"{name} ({rows:,})" for name, rows in start.datasets.items()]
    yield "method", start.method
    yield "seed", str(start.seed)
    yield "parameters", f"{start.num_parameters:,}"
    yield counted(len(sizes), "sub-dataset") + " (rows)", listed(sizes)
    for key, value in start.settings.items():
        if key in ("compute_budget", "train_ticks"):
            name = "num_train_epochs" if key == "train_ticks" else key
            yield name, f"{epochs(value / history.evals_per_epoch)} epochs, {value} ticks"
        elif isinstance(value, Mapping):
            prefix = {"method": "method_options", "rollout": "method_options"}.get(key, key)
            for option, chosen in value.items():
                yield f"{prefix}.{option}", str(chosen)
        else:
            yield key, str(value)
    for what, digest in start.fingerprint.items():
        yield f"fingerprint of {what}", str(digest)


def _command(method: str) -> str:
    if method == "replay":
        return "msft replay schedule.json recipe.yaml --out again"
    return "msft train recipe.yaml --out again"
