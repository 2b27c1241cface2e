"""Which figures of the paper a run has, and which a set of runs has, each as a section."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msft.compute_share import OLMO_2
from msft.decomposition import Parts
from msft.history import History
from msft.report import cost_figures
from msft.report.branches import branches_of
from msft.report.cohorts import Cohort, Field, fields_of, titles_of
from msft.report.divergence_sections import divergence_sections, pairs_of
from msft.report.epoch_figures import loss_runs, losses_figure, rows_figure, rows_per_epoch
from msft.report.gain_figures import gains_figure, parts_figure, parts_of
from msft.report.method_figures import (
    budget_figure,
    budgets_of,
    places_figure,
    size_figure,
    spread_figure,
    spreads,
)
from msft.report.peak_figures import peaks, peaks_of
from msft.report.section import Section
from msft.report.share_figure import share_figure
from msft.report.timeline import timeline
from msft.report.wording import epochs, listed, method_name

if TYPE_CHECKING:
    from msft.report.contenders import Contender


def run_sections(history: History) -> list[Section]:
    """The paper's figures of one run, beside those that its page has anyway."""
    found: list[Section] = []
    peaked = peaks_of(history)
    if peaked is not None and len(peaked.peaks) > 1:
        furthest = max(peaked.peaks, key=peaked.distance)
        text = (
            "Scores of the first roll-out, in which everybody is trained, each with its peak, and "
            f"how far that is from the peak of the mean at {epochs(peaked.mean)} epochs (the "
            f"paper's Fig. 2). The furthest is {furthest}, {epochs(peaked.distance(furthest))} "
            "epochs away."
        )
        draw = partial(peaks, history)
        found.append(Section("peaks", "Where each sub-dataset peaks", text, draw))
    if history.start.method == "ies":
        found += _active_rows([("", history)])
    return found


def run_figures(history: History) -> list[Section]:
    """All figures of one run: those of its page, and the paper's."""
    if not any(stage.points for stage in history.stages):
        return []
    branches = branches_of(history)
    method = method_name(history.start.method)
    return [
        Section("timeline", f"The search of {method}", "", partial(timeline, history, branches)),
        *run_sections(history),
        Section("loss", "Training loss", "", partial(cost_figures.loss, history, branches)),
        Section("flops", "FLOPs", "", partial(cost_figures.flops, history)),
        Section("disk", "Copies on disk", "", partial(cost_figures.disk, history, branches)),
    ]


def comparison_figures(runs: Sequence["Contender"]) -> list[Section]:
    """The paper's figures of several runs, as far as these runs have what they need.

    Runs that have not finished take no part, except in the training loss.
    """
    pairs = pairs_of(runs)
    apart = {id(run) for pair in pairs for run in (pair.with_all, pair.without)}
    rest = [run for run in runs if id(run) not in apart]
    fields = fields_of([run for run in rest if run.history.ended is not None])
    rivals = [field for field in fields if field.reference and field.others]
    found = divergence_sections(pairs)
    if any(len(field.cohorts) > 1 for field in fields):
        found += _spreads([field for field in fields if len(field.cohorts) > 1])
    if len(rivals) > 1:
        found.append(_sizes(rivals))
    for field, suffix, title in _marked(fields):
        found += _of_field(field, suffix, title)
    for field, suffix, title in _marked(fields_of(rest)):
        found += _losses(field, suffix, title)
    stopped = [(run.label, run.history) for run in rest if run.history.start.method == "ies"]
    found += _active_rows(stopped)
    if rivals:
        found.append(_share(rivals[-1]))
    return found


def _marked(fields: Sequence[Field]) -> list[tuple[Field, str, str]]:
    """Each field with the ends of its keys and titles; of one field both are empty."""
    if len(fields) == 1:
        return [(fields[0], "", "")]
    return [
        (field, f"-{number}", f" · {title}")
        for number, (field, title) in enumerate(zip(fields, titles_of(fields), strict=True), 1)
    ]


def _spreads(fields: Sequence[Field]) -> list[Section]:
    found: list[Section] = []
    splits = listed(dict.fromkeys(field.split for field in fields))
    several = f" Mean over {len(fields)} mixtures or models." if len(fields) > 1 else ""
    if any(value is not None for field in fields for value in spreads(field).values()):
        text = (
            f"Standard deviation (over n − 1) of the {splits} scores over the sub-datasets: low "
            f"where nobody is left behind (the paper's Fig. 4, left).{several}"
        )
        draw = partial(spread_figure, fields)
        found.append(Section("spread", "Spread over sub-datasets", text, draw))
    text = (
        f"On how many sub-datasets each method is first on {splits}; equal ones are all first, so "
        "the numbers may add up to more than there are (the paper's Fig. 4, right)."
    )
    return [*found, Section("places", "First places", text, partial(places_figure, fields))]


def _sizes(fields: Sequence[Field]) -> Section:
    text = (
        f"Gain of the mean over SFT on the same mixture, for {len(fields)} mixtures of different "
        "size (the paper's Fig. 5)."
    )
    draw = partial(size_figure, fields)
    return Section("sizes", "Gain against the size of the mixture", text, draw)


def _of_field(field: Field, suffix: str, title: str) -> list[Section]:
    found: list[Section] = []
    budgets = budgets_of(field)
    if len({cohort.budget for cohort in budgets}) > 1:
        text = (
            "Mean score and FLOPs of mSFT with different compute budgets C"
            + (", beside SFT" if field.reference else "")
            + " (the paper's Fig. 6)."
        )
        draw = partial(budget_figure, field)
        found.append(Section(f"budgets{suffix}", f"Compute budget{title}", text, draw))
    if field.reference is None or not field.others:
        return found
    text = f"Gain over SFT on {field.split}, sub-dataset by sub-dataset (the paper's Fig. 7)."
    draw = partial(gains_figure, field)
    found.append(Section(f"gains{suffix}", f"Gain by sub-dataset{title}", text, draw))
    for number, cohort in enumerate(budgets):
        more = f"-c{epochs(cohort.budget)}" if number and len(budgets) > 1 else ""
        found += _parts(
            field, cohort, suffix + more, title if len(budgets) < 2 else f"{title} · {cohort.label}"
        )
    return found


def _parts(field: Field, cohort: Cohort, suffix: str, title: str) -> list[Section]:
    """Eq. 4; not where metrics are mixed, since its parts could not be added."""
    if field.unit is None:
        return []
    table, split = parts_of(field, cohort)
    if all(part.gain is None for part in table.values()):
        return []
    text = (
        f"Gain of {cohort.label} over SFT on {split} as two parts that add up to it (the paper's "
        "Eq. 4 and Fig. 8): what a sub-dataset lost or won after it had left, and the rest, which "
        f"is overfitting prevented. {_undefined(table)}"
    )
    draw = partial(parts_figure, table, split, field.unit)
    return [Section(f"parts{suffix}", f"What the gain is made of{title}", text.strip(), draw)]


def _undefined(table: Mapping[str, Parts]) -> str:
    reasons: dict[str, int] = {}
    for part in table.values():
        if part.prevention is None:
            reasons[part.why] = reasons.get(part.why, 0) + 1
    told = [f"{count} ({why})" for why, count in reasons.items()]
    return f"It is undefined for {listed(told)} of {len(table)}." if told else ""


def _losses(field: Field, suffix: str, title: str) -> list[Section]:
    if len(loss_runs(field)) < 2:
        return []
    text = (
        "Mean training loss of each tick along the path that a search took; what was rolled back "
        "is faint, and dashed lines are where a sub-dataset left (the paper's Fig. 9)."
    )
    draw = partial(losses_figure, field)
    return [Section(f"losses{suffix}", f"Training loss{title}", text, draw)]


def _active_rows(runs: Sequence[tuple[str, History]]) -> list[Section]:
    shown = [(name, history) for name, history in runs if rows_per_epoch(history)]
    if not shown:
        return []
    text = (
        "Rows that still got a gradient in each epoch under IES, in per cent of the first epoch, "
        "counted from the rows that each tick logged."
    )
    return [Section("rows", "Rows still active", text, partial(rows_figure, shown))]


def _share(field: Field) -> Section:
    """Fig. 1 with the costs of these runs."""
    assert field.reference is not None
    flops = {cohort.label: _flops(cohort) for cohort in field.cohorts}
    own = flops[field.reference.label] or 1.0
    factors = {cohort.label: flops[cohort.label] / own for cohort in field.others}
    low, high = (100 * pick(model.share("SFT") for model in OLMO_2) for pick in (min, max))
    text = (
        f"SFT takes {low:.2g} to {high:.2g} % of all training compute of OLMo 2 (the paper's "
        "Fig. 1 and Appendix A). The other rows ask what it would take there if it cost as many "
        "times more as it did here, evaluation included."
    )
    draw = partial(share_figure, factors)
    return Section("share", "Share of SFT in training compute", text, draw)


def _flops(cohort: Cohort) -> float:
    totals = [run.summary["flops"]["total"] for run in cohort.runs]
    return float(sum(totals) / len(totals))
