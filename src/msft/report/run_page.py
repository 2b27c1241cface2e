"""`report.html`: what one run did, from its log alone. First the parts of the page (how to get the
run again, decisions, the result in words), then the page itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.files import FILE, kind_of, shown_text
from msft.report.branches import (
    Branch,
    branches_of,
    deciding_curve,
    deciding_words,
    epochs_to,
    is_derived,
    rolled_back,
)
from msft.report.compare.comparison import report_split_of
from msft.report.compare.statistics import Intervals, RecordedRows
from msft.report.comparison_tables import average_in_words, run_averages_table
from msft.report.figures import costs, search
from msft.report.figures.chart import drawing
from msft.report.figures.search import MANY
from msft.report.findings import (
    Tests,
    certainty,
    finding_texts,
    findings_of,
    search_of,
    unlearned_before,
)
from msft.report.headroom import headroom_section
from msft.report.page import (
    Folded,
    RunOnDisk,
    embedded,
    facts_of,
    folded,
    page_sections,
    run_samples,
    write_page,
)
from msft.report.sections import page_figures, run_sections
from msft.report.wording import (
    MEAN_OF_GAINS,
    NOTHING,
    Unit,
    difference,
    difference_in_words,
    flops_counted,
    in_words,
    method_name,
    number,
)
from msft.run.environment import Environment, read_environments
from msft.run.folder import (
    RunFolder,
    first_loss_of,
    read_history,
    row_tokens_of,
    step_losses_of,
    verdicts_of,
)
from msft.run.history import Exclusion, History, adapter_of, disk_of, summary_of
from msft.run.log import is_being_written
from msft.run.rows import VerdictsByKey
from msft.search.curves import SELECTION, TEST, Number, mean_gain
from msft.search.rollout import BASE, CheckpointId
from msft.text import SELECTED_ON_TEST, counted, epochs, epochs_in_words, listed, no_test_mean, si

if TYPE_CHECKING:
    from markupsafe import Markup


def reproduction_text(has_recipe: bool) -> str:
    if not has_recipe:
        return "This folder has no recipe.yaml; these are the settings that the log recorded."
    return (
        "Save the recipe below as recipe.yaml and run it in a new folder. The seed fixes the order "
        "of rows. With the same versions on a CPU, decisions and weights are the same again."
    )


def setting_rows(history: History, recipe: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of what the log says that the run depends on, but for the keys that a
    recipe has."""
    written = {line.partition(":")[0] for line in recipe.splitlines()}
    for name, value in _all_settings(history):
        if name.partition(".")[0] not in written:
            yield name, value


def _all_settings(history: History) -> Iterator[tuple[str, str]]:
    start = history.start
    sizes = [f"{name} ({rows:,})" for name, rows in start.datasets.items()]
    yield "method", start.method
    yield "seed", str(start.seed)
    yield "parameters", f"{start.num_parameters:,}"
    yield counted(len(sizes), "sub-dataset") + " (rows)", listed(sizes)
    for key, value in start.settings.items():
        if key in ("compute_budget", "train_ticks"):
            name = "num_train_epochs" if key == "train_ticks" else key
            lasts = epochs_in_words(value / history.evals_per_epoch)
            yield name, f"{lasts}, {counted(value, 'tick')}"
        elif isinstance(value, Mapping):
            prefix = {"method": "method_options", "rollout": "method_options"}.get(key, key)
            for option, chosen in value.items():
                yield f"{prefix}.{option}", str(chosen)
        else:
            yield key, str(value)
    for what, digest in start.fingerprint.items():
        yield f"fingerprint of {what}", str(digest)


def versions_of(environments: Sequence[Environment]) -> list[tuple[str, str]]:
    """Names and versions; where a run went on with others, all of them in the order of use."""
    names = dict.fromkeys(name for item in environments for name in item)
    return [
        (name, " → ".join(dict.fromkeys(item.get(name, "none") for item in environments)))
        for name in names
    ]


def command_of(method: str) -> str:
    """What makes such a run, in the folder of its recipe."""
    if method == "replay":
        return "msft replay schedule.json recipe.yaml --out again"
    return "msft train recipe.yaml --out again"


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A stage and a sub-dataset that left after it, or one in which nobody left.

    score: at the peak, of the curve that decided.
    raw: the score of that tick where the curve is smoothed or of probabilities, else nothing.
    fall: from the peak to the last tick, on the curve that decided.
    sure, measured: how sure the fall is, in words and in numbers.
    tested: whether only sure falls counted.
    """

    stage: int
    active: int
    name: str | None
    peak: str = NOTHING
    score: str = NOTHING
    raw: str = ""
    interval: str = ""
    runner_up: str = NOTHING
    runner_up_peak: str = ""
    fall: str = NOTHING
    sure: str = NOTHING
    measured: str = ""
    tested: bool = False


def decision_rows(
    branches: Sequence[Branch], intervals: Intervals, tests: Tests
) -> list[DecisionRow]:
    """One row per sub-dataset that left, and one per stage in which the method let all stay."""
    rows: list[DecisionRow] = []
    history = intervals.history
    for stage, record in enumerate(history.stages):
        search = branches[search_of(history, stage)]
        left = [name for name, _ in record.excluded]
        rows += [_row(intervals, stage, search, name, left, tests) for name in left]
        if any(decision.what == "go_on" for decision in record.decisions):
            tested = bool(record.falls)
            rows.append(DecisionRow(stage, len(record.asked.active), None, tested=tested))
    return rows


def peak_rows(branches: Sequence[Branch], intervals: Intervals, tests: Tests) -> list[DecisionRow]:
    """For a method that excludes nobody: where each sub-dataset peaked in the first roll-out."""
    stages = intervals.history.stages
    if not stages or not stages[0].points:
        return []
    names = stages[0].asked.active
    return [_row(intervals, 0, branches[0], name, [*names], tests) for name in names]


def _row(
    intervals: Intervals,
    stage: int,
    search: Branch,
    name: str,
    left: Sequence[str],
    tests: Tests,
) -> DecisionRow:
    """search: the roll-out in which the peak was found."""
    history = intervals.history
    active = history.stages[stage].asked.active
    peaks = search.peaks
    if name not in peaks:
        return DecisionRow(stage, len(active), name)
    peak, at = peaks[name], search.checkpoints[peaks[name]]
    unit, curve = history.unit_of(name), deciding_curve(history, search.number, name)
    score, ending, is_last = curve[peak], curve[-1], peak == search.ticks
    fall = None if score is None or ending is None or is_last else ending - score
    others = [other for other in peaks if other in active and other not in left]
    runner_up = min(others, key=lambda other: peaks[other], default=None)
    unlearned = name in unlearned_before(tests, stage + 1)
    sure, measured = certainty(tests.get(search.number), name, unit, unlearned)
    return DecisionRow(
        stage=stage,
        active=len(active),
        name=name,
        peak=epochs(peak / history.evals_per_epoch),
        score=number(score, unit),
        raw=number(history.known(at)[name].value, unit) if is_derived(history) else "",
        interval=intervals.text(at, name),
        runner_up=runner_up or NOTHING,
        runner_up_peak=epochs(peaks[runner_up] / history.evals_per_epoch) if runner_up else "",
        fall=difference(fall, unit),
        sure="peaked at the last tick" if is_last else sure,
        measured="" if is_last else measured,
    )


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
            search.small_curve(history, branches, name, exclusion)
            if small
            else search.curve(history, branches, name, exclusion, intervals)
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
