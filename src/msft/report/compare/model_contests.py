"""Runs of several base models: a contest for each model, all reported on one split."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msft.errors import UsageError
from msft.report.compare.compared_run import ComparedRun, ReportSplit
from msft.report.compare.contest import (
    Contest,
    contest_of,
    refuse_mixed_selection,
    same_datasets,
)
from msft.report.compare.entrant import Entrant, with_budget
from msft.report.compare.models import models_of
from msft.text import listed

MODEL = "model_name_or_path"


def runs_by_model(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """The runs of each model.

    A variant that has a model of its own is an entrant beside the others where these have one
    model, and belongs to its own where they have several.
    """
    models = models_of(runs)
    named = {model for run, model in zip(runs, models, strict=True) if MODEL not in run.variant}
    if len(named) < 2:
        return [[*runs]]
    found: dict[str | None, list[ComparedRun]] = {}
    for run, model in zip(runs, models, strict=True):
        found.setdefault(model, []).append(run)
    return [*found.values()]


def model_contests(
    runs: Sequence[ComparedRun],
    report_split: ReportSplit | None = None,
    missing: Sequence[str] = (),
    unreadable: Mapping[str, str] | None = None,
) -> list[Contest]:
    """A contest of methods for each model that has a finished run; its arguments are those of
    `contest_of`."""
    refuse_mixed_selection(runs)
    groups = runs_by_model(runs)
    whole = [group for group in groups if any(run.history.ended for run in group)]
    finished = [run for run in runs if run.history.ended is not None]
    if len(groups) < 2 or not whole:
        return [contest_of(runs, report_split, missing, unreadable)]
    if not same_datasets(finished):
        raise UsageError(
            f"{listed(run.label for run in finished)} have different sub-datasets; expected runs "
            "of one recipe"
        )
    waiting = [run.label for group in groups if group not in whole for run in group]
    lists = ([*waiting, *missing], unreadable)
    rest: tuple[list[str], None] = ([], None)

    def contests(split: ReportSplit | None) -> list[Contest]:
        return [
            contest_of(group, split, *(rest if number else lists))
            for number, group in enumerate(whole)
        ]

    found = contests(report_split)
    if len({contest.split for contest in found}) > 1:
        untested = "Not every model was scored on test, so validation is reported."
        first, *others = contests("selection")
        found = [replace(first, warnings=(*first.warnings, untested)), *others]
    return _told_apart(found)


def _told_apart(contests: Sequence[Contest]) -> list[Contest]:
    """A method that has several budgets on one model is named with its budget on all of them."""
    several = {
        entrant.short
        for contest in contests
        for entrant in contest.entrants
        if entrant.label == with_budget(entrant.short, entrant.first)
    }
    found: list[Contest] = []
    for contest in contests:
        entrants = tuple(_named(entrant, several) for entrant in contest.entrants)
        baseline = entrants[contest.entrants.index(contest.baseline)]
        found.append(replace(contest, entrants=entrants, baseline=baseline))
    return found


def _named(entrant: Entrant, several: set[str]) -> Entrant:
    if entrant.short not in several:
        return entrant
    return replace(entrant, label=with_budget(entrant.short, entrant.first))
