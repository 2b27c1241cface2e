"""`report.html`: what one run did, from its log alone. First the parts of the page
(decisions, the result in words), then the page itself."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.files import FILE, kind_of, shown_text
from msft.report.audit_page import write_audit_page
from msft.report.branches import (
    Branch,
    branches_of,
    deciding_curve,
    deciding_words,
    epochs_to,
    is_derived,
    rolled_back,
)
from msft.report.compare.runs import mean_at, report_split_of
from msft.report.compare.statistics import Intervals, RecordedRows, minus
from msft.report.comparison_tables import average_in_words
from msft.report.figures import search
from msft.report.figures.chart import colour_at, drawing, variable
from msft.report.figures.peaks import peaks_of
from msft.report.figures.search import MANY
from msft.report.findings import (
    Tests,
    certainty,
    finding_texts,
    findings_of,
    next_steps,
    notes,
    search_of,
    unlearned_before,
)
from msft.report.headroom import headroom_section
from msft.report.page import (
    SWITCHES,
    RunOnDisk,
    Section,
    embedded,
    facts_of,
    marked,
    page_sections,
    run_samples,
    write_page,
)
from msft.report.sections import page_figures, run_sections
from msft.report.tables import EMPTY, Cell, Sign, Table, TableRow
from msft.report.watched import watched_table
from msft.report.wording import (
    Unit,
    difference,
    difference_in_words,
    flops_counted,
    height,
    in_words,
    method_name,
    number,
)
from msft.run.environment import Environment, read_environments
from msft.run.folder import (
    RunFolder,
    first_loss_of,
    read_history,
    recipe_value,
    row_tokens_of,
    step_losses_of,
    verdicts_of,
)
from msft.run.history import History, adapter_of, disk_of, summary_of
from msft.run.log import is_being_written
from msft.run.rows import VerdictsByKey
from msft.search.curves import TEST, Number, mean_gain
from msft.search.rollout import BASE, CheckpointId
from msft.text import SELECTED_ON_TEST, counted, epochs, epochs_in_words

if TYPE_CHECKING:
    from markupsafe import Markup


def versions_of(environments: Sequence[Environment]) -> list[tuple[str, str]]:
    """Names and versions; where a run went on with others, all of them in the order of use."""
    names = dict.fromkeys(name for item in environments for name in item)
    return [
        (name, " → ".join(dict.fromkeys(item.get(name, "none") for item in environments)))
        for name in names
    ]


def decision_table(
    history: History, branches: Sequence[Branch], intervals: Intervals, tests: Tests
) -> Table:
    """A row for each sub-dataset that left, and for each stage in which the method let all stay;
    for a method that excludes none, where each sub-dataset peaked in the first roll-out."""
    rows: list[TableRow] = []
    for stage, record in enumerate(history.stages):
        branch, active = branches[search_of(history, stage)], Cell(str(len(record.asked.active)))
        left = [name for name, _ in record.excluded]
        place = (Cell(str(stage)), active)
        for name in left:
            peak, *others = _peak_cells(intervals, stage, branch, name, tests)
            cells = (*place, peak, *others[:2], _runner_up(history, stage, branch, left), others[2])
            rows.append(TableRow(name, cells))
        if any(decision.what == "go_on" for decision in record.decisions):
            high = "every sub-dataset was still at its highest at the end"
            why = "no fall was sure" if record.falls else high
            is_last = stage == len(history.stages) - 1 and history.ended is not None
            went_on = Cell(f"{why}{'' if is_last else ', so training went on'}")
            rows.append(TableRow("none", (*place, *[EMPTY] * 4, went_on)))
    head = ["peak, epoch", "score at the peak", "change to the last tick", "how sure"]
    note = _decisions_note(intervals)
    if rows:
        head = ["left", "stage", "active", *head[:3], "runner-up, its peak", head[3]]
        return Table("decisions", "", note, tuple(head), tuple(rows))
    stages = history.stages[:1]
    names = [name for stage in stages if stage.points for name in stage.asked.active]
    rows = [TableRow(n, _peak_cells(intervals, 0, branches[0], n, tests)) for n in names]
    return Table("peaks", "", note, ("sub-dataset", *head), tuple(rows))


def _peak_cells(
    intervals: Intervals, stage: int, search: Branch, name: str, tests: Tests
) -> tuple[Cell, ...]:
    """The peak, the score there, the change to the last tick on the curve that decided, and how
    sure that is. search: the roll-out in which the peak was found."""
    history = intervals.history
    if name not in search.peaks:
        return (EMPTY,) * 4
    peak = search.peaks[name]
    at, is_last = search.checkpoints[peak], peak == search.ticks
    unit, curve = history.unit_of(name), deciding_curve(history, search.number, name)
    fall = None if is_last else minus(curve[-1], curve[peak])
    raw = number(history.known(at)[name].value, unit) if is_derived(history) else ""
    beside = ", ".join(text for text in (raw, intervals.text(at, name)) if text)
    unlearned = name in unlearned_before(tests, stage + 1)
    sure, measured = certainty(tests.get(search.number), name, unit, unlearned)
    return (
        Cell(epochs(peak / history.evals_per_epoch)),
        Cell(number(curve[peak], unit), more=beside),
        Cell(difference(fall, unit)),
        Cell("peaked at the last tick") if is_last else Cell(sure, more=measured),
    )


def _runner_up(history: History, stage: int, search: Branch, left: Sequence[str]) -> Cell:
    """The sub-dataset that would have left next, and where it peaked."""
    active, peaks = history.stages[stage].asked.active, search.peaks
    others = [name for name in peaks if name in active and name not in left]
    if not others:
        return EMPTY
    name = min(others, key=lambda other: peaks[other])
    return Cell(name, more=epochs(peaks[name] / history.evals_per_epoch))


def _decisions_note(intervals: Intervals) -> str:
    history, band = intervals.history, _band_text(intervals.kinds())
    text = f"Beside each score: {band}. " if band else ""
    if is_derived(history):
        text = f"Score and change are those of the curve that decided, {deciding_words(history)}. "
        text += f"Beside them: the score of that tick itself, with {band}. " if band else ""
    return (
        f"{text}How sure: the change from the peak and its neighbours to the last three ticks, on "
        f"{history.selection} rows that did not choose the peak, with its 95 % interval and p. The "
        "interval is of one sub-dataset by itself; p counts all sub-datasets of the roll-out and "
        "every tick that could have been the peak. The same test decides sure exclusion; other "
        "methods only report it."
    )


_ENDED_BY = {
    "all_excluded": ", until every sub-dataset had left",
    "no_gain": ", until nothing more was gained",
    "max_stages": ", until max_stages",
    "max_epochs": ", until max_epochs",
    "budget": ", as planned",
    "early_stopping": ", until the mean had stopped rising",
}


def sentence(history: History, status: str, reports: str) -> str:
    """The result in one sentence.

    status: as in the summary. reports: the split that does, if it is scored.
    """
    method, best, unit = method_name(history.start.method), history.best, history.mean_unit
    if best is None:
        if status == "stopped":
            return f"{method} was stopped before anything was scored."
        return f"{method} has only begun: nothing is scored yet."
    nothing = "nothing is better than the base model, which has"
    if history.best_refused is not None:
        nothing = "nothing that keeps its guards is better than the base model, which has"
    openings = {
        ("finished", False): f"{method} reached",
        ("running", False): f"{method} is still running; so far it reached",
        ("stopped", False): f"{method} was stopped; until then it reached",
        ("finished", True): f"{method} found that {nothing}",
        ("running", True): f"{method} is still running, and so far {nothing}",
        ("stopped", True): f"{method} was stopped; until then {nothing}",
    }
    order = dict.fromkeys((reports, history.selection, TEST))
    scored = [split for split in order if mean_at(history, best, split) is not None]
    reached, *others = scored or [history.selection]
    many = len(history.start.datasets)
    amount = "" if many == 1 else "a mean of " if unit else "a mean gain of "
    over = f" over {many} sub-datasets" if many > 1 else ""
    gain = _over_base(history, best, reached, unit)
    text = (
        f"{openings[status, best == BASE]} {amount}"
        f"{in_words(mean_at(history, best, reached), unit)} on {reached}{over}"
        + (f", {gain} against the base model" if gain else "")
    )
    for split in others:
        gain = _over_base(history, best, split, unit)
        text += f"; it has {in_words(mean_at(history, best, split), unit)} on {split}"
        text += f" ({gain})" if gain else ""
        chosen = split == history.selection and not history.reported
        text += ", where its checkpoint was chosen" if chosen else ""
    return text + "."


def _over_base(history: History, best: CheckpointId, split: str, unit: Unit) -> str:
    """The gain over the base model in words; nothing where it is not one number."""
    here, base = mean_at(history, best, split), mean_at(history, BASE, split)
    if best == BASE or unit is None or here is None or base is None:
        return ""
    return difference_in_words(here - base, unit)


def choice_text(history: History, summary: Mapping[str, Any]) -> str:
    """The choice of the reported checkpoint, and the length of training."""
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
    if history.refused and not history.reported:
        keep = "do" if len(history.refused) > 1 else "does"
        chosen += f" {counted(len(history.refused), 'checkpoint')} {keep} not keep a guard."
    return f"{chosen} {trained}"


def _is_continual(history: History) -> bool:
    """True where the epochs of the best are the mean of the stops, not the length of a path."""
    return history.start.method == "continual"


def score_table(history: History, intervals: Intervals) -> Table:
    """Every sub-dataset and the mean of all: the score of the best checkpoint, how much that is
    above the base model, and what happened to the sub-dataset."""
    best, selection = history.best or BASE, history.selection
    tested = _is_tested(history)

    def row(name: str, values: Sequence[Number | None], unit: Unit, rows: int) -> TableRow:
        base, reached, base_test, test = values
        gain = minus(reached, base)
        better = height(gain, unit) or 0
        sign: Sign = "up" if better > 0 else "down" if better < 0 else ""
        start = "" if base is None else f"from {number(base, unit)}"
        cells = [
            Cell(number(reached, unit), 1, intervals.text(best, name)),
            Cell(difference(gain, unit), more=start, sign=sign),
        ]
        if tested:
            start = "" if base_test is None else f"from {number(base_test, unit)}"
            cells.append(Cell(number(test, unit), 1, start))
        apart = name not in history.start.datasets
        what = f"{rows:,} rows{_what_happened(history, name)}"
        return TableRow(name, tuple(cells), apart, more=what)

    places = ((BASE, selection), (best, selection), (BASE, TEST), (best, TEST))
    found: list[TableRow] = []
    for name in _in_order(history):
        scores = [history.known(checkpoint, split).get(name) for checkpoint, split in places]
        values = [score.value if score else None for score in scores]
        found.append(row(name, values, history.unit_of(name), history.start.datasets[name]))
    rule = "pooled" if history.start.settings["mean"] == "pooled" else "mean"
    means = [mean_at(history, checkpoint, split) for checkpoint, split in places]
    unit, size = history.mean_unit, sum(history.start.datasets.values())
    found.append(row(rule if unit else "mean gain", means, unit, size))
    head = ["sub-dataset", f"best, {selection}", "change"]
    head += ["best, test"] if tested else []
    return Table("scores", "", _scores_note(history, intervals), tuple(head), tuple(found))


def _what_happened(history: History, name: str) -> str:
    """The epoch at which a sub-dataset left, or "stayed" where others left."""
    left = [epochs_to(history, each.checkpoint) for each in history.exclusions if each.name == name]
    if left:
        return f", left at epoch {epochs(left[0])}"
    trained = name in history.start.datasets and history.exclusions
    return ", stayed" if trained else ""


def _in_order(history: History) -> list[str]:
    """The sub-datasets; of very many, those that gained most over the base model first."""
    names = [*history.start.datasets]
    if len(names) <= MANY:
        return names
    best, base = history.known(history.best or BASE), history.known(BASE)
    gains = {
        name: mean_gain({name: best[name]}, base) if name in best and name in base else 0.0
        for name in names
    }
    return sorted(names, key=lambda name: -gains[name])


_HOW = {
    "msft": "After each roll-out the sub-dataset that peaked first leaves. Training goes on from "
    "its peak without it.",
    "sure": "After each roll-out one of the sub-datasets that surely fell leaves: the one that "
    "peaked first. Training goes on from its peak without it.",
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
    """Write `report.html` of a run folder, finished or not; only `run.jsonl` must be there. An
    audit has a page of its own.

    refresh_seconds: the page loads itself anew after so long, for a run that is being watched.
    """
    files = RunFolder(folder)
    if files.is_audit():
        return write_audit_page(folder, refresh_seconds)
    history = read_history(folder)
    verdicts, tokens, tests = verdicts_of(folder), row_tokens_of(folder), Tests()
    rows = RecordedRows(history, verdicts, tokens)
    found = findings_of(history, rows, first_loss_of(folder), tests)
    stopped = history.ended is None and not is_being_written(files.log)
    content = {
        **_content(history, verdicts, tests, stopped, folder),
        **_source(files, history),
        "findings": finding_texts(found, headline=True),
        "steps": next_steps(history, found, stopped, recipe_value(folder, "learning_rate")),
        "headroom": headroom_section(history, verdicts, tokens),
        "has_verdicts": bool(verdicts),
        "refresh_seconds": refresh_seconds,
    }
    return write_page(files.report, "run.html", content)


def _source(files: RunFolder, history: History) -> dict[str, Any]:
    """The folder, the recipe and the versions: the parts of the page for a repetition."""
    method, folder = history.start.method, files.path.resolve().name
    recipe = shown_text(files.recipe) if kind_of(files.recipe) == FILE else None
    environments = read_environments(files.environment)
    return {
        "title": f"{method_name(method)} · {folder}",
        "eyebrow": f"{method_name(method)} · {folder} · seed {history.start.seed}",
        "versions": versions_of(environments),
        "changed": len(environments) > 1,
        "recipe": recipe,
        "method": method,
    }


def _content(
    history: History, verdicts: VerdictsByKey, tests: Tests, stopped: bool, folder: Path
) -> dict[str, Any]:
    """The parts of the page from the log and the verdicts, in the order of the page."""
    summary = summary_of(history, stopped)
    reports = TEST if report_split_of(folder) == "test" else history.selection
    branches, intervals = branches_of(history), Intervals(history, verdicts)
    decisions = decision_table(history, branches, intervals, tests)
    decided = decisions.key == "decisions"
    trained = any(stage.points for stage in history.stages)
    own = page_figures(history, branches, step_losses_of(folder)) if trained else []
    return {
        "status": summary["status"],
        "sentence": sentence(history, summary["status"], reports),
        "chosen": choice_text(history, summary),
        "notes": notes(history, summary["status"], reports),
        "facts": facts_of([RunOnDisk(folder, history, summary)]),
        "scores": score_table(history, intervals),
        "watched": watched_table(history),
        "decided": decided,
        "decisions": decisions,
        "decisions_text": _HOW.get(
            "sure" if any(stage.falls for stage in history.stages) else history.start.method,
            "" if decided else _HOW_NOT,
        ),
        "figures": {each.key: each for each in page_sections(own)},
        "legend": _legend(history, branches),
        "rollouts": len(branches),
        "curves": _curves(history, branches, intervals) if trained else [],
        "curve_ends": CURVE_ENDS,
        "left_out": len(history.start.datasets) - 2 * CURVE_ENDS,
        "many": MANY,
        "together": page_sections(_together(history, branches, intervals)) if trained else [],
        "colours": [variable(colour_at(place)) for place in range(SWITCHES)],
        "deciding": deciding_words(history) if is_derived(history) else "",
        "percent": all(history.unit_of(name) == "accuracy" for name in history.start.datasets),
        "band_text": _band_text(intervals.kinds()),
        "more": page_sections(_paper_figures(history)) if trained else [],
        "samples": run_samples(folder, history),
        "selection": history.selection,
        "mark": SELECTED_ON_TEST if history.selected_on_test else "",
        "flops_counted": flops_counted(bool(adapter_of(history))),
        "disk": disk_of(history),
        "disk_policy": history.disk_policy,
    }


def _paper_figures(history: History) -> list[Section]:
    """The paper's figures; without that of the peaks where all are at the peak of the mean."""
    peaked = peaks_of(history)
    apart = peaked is not None and any(peaked.distance(name) for name in peaked.peaks)
    return [each for each in run_sections(history) if each.key != "peaks" or apart]


def _together(history: History, branches: list[Branch], intervals: Intervals) -> list[Section]:
    """The curves in one figure, where there are several and not too many."""
    names = _in_order(history)
    if not 1 < len(names) <= SWITCHES:
        return []
    draw = partial(search.together, history, branches, names, intervals)
    title = "Scores of all sub-datasets over the epochs on the path"
    return marked([Section("together", title, "", draw)], history.selected_on_test)


CURVE_ENDS = 6
"""Curves at each end that are shown where there are more than `MANY`."""


def _curves(
    history: History, branches: list[Branch], intervals: Intervals
) -> list[tuple[str, "Markup"]]:
    """One curve for each name; of many, those at the ends."""
    names = _in_order(history)
    if len(names) > MANY:
        names = [*names[:CURVE_ENDS], *names[-CURVE_ENDS:]]
    left = {each.name: each for each in history.exclusions}
    with drawing():
        return [
            (name, embedded(figure, f"curve{place}", f"Scores of {name}"))
            for place, name in enumerate(names)
            for figure in [search.curve(history, branches, name, left.get(name), intervals)]
        ]


def _band_text(kinds: set[str]) -> str:
    """The kinds of this run's bands and intervals in words."""
    wilson = "Wilson's 95 % interval of the count"
    rows = "the middle 95 % of a bootstrap over rows"
    if kinds == {"counts", "rows"}:
        return f"{wilson}, or {rows} where scores are no counts"
    return wilson if kinds == {"counts"} else rows if kinds else ""


def _legend(history: History, branches: list[Branch]) -> dict[str, bool]:
    """The kinds of line in the figures of this run."""
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
    """True where test scores stand beside those that selected."""
    tested = history.best and history.known(history.best, TEST)
    return bool(tested) and not history.selected_on_test


def _scores_note(history: History, intervals: Intervals) -> str:
    texts = [SELECTED_ON_TEST] if history.selected_on_test else []
    if _is_tested(history) and not history.known(BASE, TEST):
        texts.append("The base model was not scored on test.")
    units = {history.unit_of(name) for name in history.start.datasets}
    if units == {"accuracy"}:
        texts.append("Scores are per cent of rows right, differences are points.")
    elif "accuracy" in units:
        texts.append("Accuracies are per cent of rows right, other metrics are in their own unit.")
    if intervals.kinds():
        texts.append("Beside the best: its 95 % interval.")
    return " ".join([*texts, "From: the base model's score."])
