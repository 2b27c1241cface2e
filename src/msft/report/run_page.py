"""`report.html`: what one run did, from its log alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.files import FILE, kind_of, shown_text
from msft.report.averages import run_averages_table
from msft.report.compare.compared_run import report_split_of
from msft.report.compare.evidence import RecordedRows
from msft.report.compare.intervals import Intervals
from msft.report.deciding import deciding_words, is_derived
from msft.report.decisions import decision_rows, peak_rows
from msft.report.facts import RunOnDisk, facts_of
from msft.report.figures import costs, curves
from msft.report.figures.branches import Branch, branches_of, epochs_to, rolled_back
from msft.report.figures.chart import drawing
from msft.report.figures.timeline import MANY
from msft.report.findings import Tests, findings_of
from msft.report.findings_in_words import finding_texts
from msft.report.headroom_in_words import headroom_section
from msft.report.in_words import by_gain, choice_text, notes, score_rows, sentence
from msft.report.page import Folded, embedded, folded, page_sections, write_page
from msft.report.reproduction import command_of, reproduction_text, setting_rows, versions_of
from msft.report.sample_views import run_samples
from msft.report.sections import page_figures, run_sections
from msft.report.wording import flops_counted, method_name, number
from msft.run.environment import read_environments
from msft.run.folder import (
    RunFolder,
    first_loss_of,
    read_history,
    row_tokens_of,
    step_losses_of,
    verdicts_of,
)
from msft.run.history import Exclusion, History
from msft.run.log import is_being_written
from msft.run.rows import VerdictsByKey
from msft.run.summary import adapter_of, disk_of, summary_of
from msft.search.rollout import BASE
from msft.search.scores import TEST
from msft.text import SELECTED_ON_TEST, epochs, si

if TYPE_CHECKING:
    from markupsafe import Markup

_HOW = {
    "msft": "After each roll-out the sub-dataset that peaked first leaves. Training goes on from "
    "its peak without it.",
    "continual": "Sub-datasets are trained one after the other. Each one stops at its own peak.",
    "sro": "One roll-out (stage 0) finds every peak. Then training starts again from the base "
    "model, and each sub-dataset leaves at its peak.",
    "soft_sro": "This method excludes no sub-dataset. One roll-out (stage 0) finds every peak. "
    "A second one sees each sub-dataset in proportion to its peak. These are the peaks of the "
    "first:",
    "soup": "This method excludes no sub-dataset and trains as SFT does. Its result is the mean "
    "of the weights over several ticks. This is where each sub-dataset peaked, from tick 1 on:",
}
_HOW_NOT = "This method excludes no sub-dataset. This is where each sub-dataset peaked by itself:"


def write_report(folder: Path, refresh_seconds: int | None = None) -> Path:
    """Write `report.html` of a run folder, finished or not; only `run.jsonl` must be there.

    refresh_seconds: the page loads itself anew after so long, for a run that is being watched.
    """
    files = RunFolder(folder)
    history = read_history(folder)
    verdicts, tokens, tests = verdicts_of(folder), row_tokens_of(folder), Tests()
    rows = RecordedRows(history, verdicts, tokens)
    found = findings_of(history, rows, first_loss_of(folder), tests)
    stopped = history.ended is None and not is_being_written(files.log)
    content = {
        **_content(history, verdicts, tests, stopped, folder),
        **_source(files, history),
        "findings": finding_texts(found, headline=True),
        "headroom": headroom_section(history, verdicts, tokens),
        "has_verdicts": bool(verdicts),
        "refresh_seconds": refresh_seconds,
    }
    return write_page(files.report, "run.html", content)


def _reports(folder: Path, history: History) -> str:
    """The split that reports, by the recipe of the run."""
    return TEST if report_split_of(folder) == "test" else history.selection


def _source(files: RunFolder, history: History) -> dict[str, Any]:
    """What the page says of the folder and of how to get the run again."""
    method, folder = history.start.method, files.path.resolve().name
    recipe = shown_text(files.recipe) if kind_of(files.recipe) == FILE else None
    environments = read_environments(files.environment)
    return {
        "title": f"{method_name(method)} · {folder}",
        "eyebrow": f"{method_name(method)} · {folder} · seed {history.start.seed}",
        "settings": [*setting_rows(history, recipe or "")],
        "versions": versions_of(environments),
        "changed": len(environments) > 1,
        "recipe": recipe,
        "command": command_of(method) if recipe else None,
        "reproduce_text": reproduction_text(bool(recipe)),
    }


def _content(
    history: History, verdicts: VerdictsByKey, tests: Tests, stopped: bool, folder: Path
) -> dict[str, Any]:
    """What the log and the verdicts say, in the order of the page."""
    summary, reports = summary_of(history, stopped), _reports(folder, history)
    branches = branches_of(history)
    intervals = Intervals(history, verdicts)
    decisions = decision_rows(branches, intervals, tests)
    peaks = [] if decisions else peak_rows(branches, intervals, tests)
    trained = any(stage.points for stage in history.stages)
    method, status = history.start.method, summary["status"]
    names = [*history.start.datasets]
    ranked = by_gain(history) if len(names) > MANY else names
    scores, mean = score_rows(history, ranked, intervals)
    own = page_figures(history, branches, step_losses_of(folder))
    return {
        "status": status,
        "sentence": sentence(history, status, reports),
        "chosen": choice_text(history, summary),
        "notes": notes(history, status, reports),
        "facts": facts_of([RunOnDisk(folder, history, summary)]),
        "samples": run_samples(folder, history),
        "deciding": deciding_words(history) if is_derived(history) else "",
        "smoothed": bool(history.rule.smooth),
        "figures": {each.key: each for each in page_sections(own)} if trained else None,
        "legend": _legend(history, branches),
        "timeline_text": _timeline_text(history, branches),
        "percent": all(history.unit_of(name) == "accuracy" for name in names),
        "band_text": _band_text(intervals.kinds()),
        "curves": _curves(history, branches, ranked, intervals) if trained else Folded([]),
        "more": page_sections(run_sections(history)) if trained else [],
        "decided": bool(decisions),
        "decisions": folded(decisions or peaks, 10),
        "decisions_text": _HOW.get(method, "" if decisions else _HOW_NOT),
        "averages": run_averages_table(history, reports),
        "scores": folded(scores, 10),
        "mean": mean,
        "scores_text": _scores_text(history, reports),
        "selection": history.selection,
        "mark": SELECTED_ON_TEST if history.selected_on_test else "",
        "has_test": _is_tested(history),
        "base_test": bool(history.known(BASE, TEST)),
        "flops": costs.flop_rows(history),
        "flops_text": _flops_text(history),
        "disk_text": _disk_text(history),
    }


@dataclass(frozen=True, slots=True)
class _CurveItem:
    name: str
    fate: str
    change: str
    svg: "Markup"


def _curves(
    history: History, branches: list[Branch], names: list[str], intervals: Intervals
) -> Folded[_CurveItem]:
    """One curve for each name; of many, those between the ends are drawn small."""
    exclusions = {each.name: each for each in history.exclusions}
    parts = folded(names, 6) if len(names) > MANY else Folded(names)

    def item(name: str, small: bool) -> _CurveItem:
        exclusion = exclusions.get(name)
        drawing_of = (
            curves.small_curve(history, branches, name, exclusion)
            if small
            else curves.curve(history, branches, name, exclusion, intervals)
        )
        svg = embedded(drawing_of, f"curve{names.index(name)}", f"Scores of {name}")
        fate = _fate(history, branches, name, exclusion)
        return _CurveItem(name, fate, _change(history, name), svg)

    with drawing():
        return Folded(
            [item(name, small=False) for name in parts.first],
            [item(name, small=True) for name in parts.rest],
            [item(name, small=False) for name in parts.last],
        )


def _change(history: History, name: str) -> str:
    """From the base model to the best checkpoint."""
    scores = [history.known(place).get(name) for place in (BASE, history.best or BASE)]
    unit = history.unit_of(name)
    return " → ".join(number(score.value if score else None, unit) for score in scores)


def _fate(history: History, branches: list[Branch], name: str, exclusion: Exclusion | None) -> str:
    if exclusion is not None:
        left = epochs(epochs_to(history, exclusion.checkpoint))
        return f"left at {left}, stage {exclusion.stage}"
    if history.exclusions:
        return "never left" if history.ended else "in the mixture"
    peak = branches[0].peaks.get(name)
    return "" if peak is None else f"peak at {epochs(branches[0].at(peak))}"


def _band_text(kinds: set[str]) -> str:
    """What the bands and intervals of this run are."""
    wilson = "Wilson's 95 % interval of the count"
    rows = "the middle 95 % of a bootstrap over rows"
    if kinds == {"counts", "rows"}:
        return f"{wilson}, or {rows} where scores are no counts"
    return wilson if kinds == {"counts"} else rows if kinds else ""


def _timeline_text(history: History, branches: list[Branch]) -> str:
    if len(branches) < 2:
        return "This run has only one." if history.ended else ""
    return "A dashed arrow goes from the end of a roll-out back to where the next one begins."


def _legend(history: History, branches: list[Branch]) -> dict[str, bool]:
    """Which kinds of line the figures of this run have."""
    return {
        "best": any(branch.to_best for branch in branches),
        "went_on": any(branch.went_on > branch.to_best for branch in branches),
        "gone": any(branch.ticks > branch.used for branch in branches),
        "left": bool(history.exclusions),
        "out": any(
            branch.used and name not in history.stages[branch.number].asked.active
            for branch in branches
            for name in history.start.datasets
        ),
        "average": bool(history.average_of),
        "back": any(rolled_back(history, branch.number) for branch in branches[:-1]),
    }


def _is_tested(history: History) -> bool:
    """Whether there are scores on test beside those that selected."""
    tested = history.best and history.known(history.best, TEST)
    return bool(tested) and not history.selected_on_test


def _scores_text(history: History, reports: str) -> str:
    tested = _is_tested(history)
    text = f"The checkpoint was chosen on {history.selection}."
    if history.reported:
        text = f"The peaks were found on {history.selection}."
    if reports == history.selection or tested:
        text += f" The reported scores are from {reports}."
    if history.selected_on_test:
        text += f" {SELECTED_ON_TEST}"
    elif not tested:
        text += " The test split has not been scored."
    elif not history.known(BASE, TEST):
        text += " The base model was not scored on test."
    units = {history.unit_of(name) for name in history.start.datasets}
    if units == {"accuracy"}:
        text += " Scores are per cent of rows right, differences are points."
    elif "accuracy" in units:
        text += " Accuracies are per cent of rows right, other metrics are in their own unit."
    return text


def _flops_text(history: History) -> str:
    return (
        f"Counted are {flops_counted(bool(adapter_of(history)))}. Kept is the training on the path "
        "from the base model to the best checkpoint. All other training is discarded."
    )


_DISK_POLICIES = {
    "lean": "Candidates that memory has room for are not on disk (disk_policy: lean).",
    "paper": "Every candidate is on disk, as in the paper's Algorithm 4 (disk_policy: paper).",
}


def _disk_text(history: History) -> str:
    disk = disk_of(history)
    return (
        "Sets of weights on disk while each tick was trained (filled), and the most until it was "
        f"recorded (thin line): {disk['peak_copies']} copies at most, and with optimizer moments "
        f"{si(disk['peak_bytes'])}B. {_DISK_POLICIES[history.disk_policy]}"
    )
