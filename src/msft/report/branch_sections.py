"""Which figures the pairs of branches of `msft analyze divergence` have, each as a section."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msft.report.compare.compared_run import ComparedRun
from msft.report.compare.divergence import changes, left_out, mean_shift
from msft.report.compare.models import model_labels
from msft.report.figures.peaks import divergence, mean_shifts
from msft.report.page import Section
from msft.text import counted


@dataclass(frozen=True, slots=True)
class Pair:
    """Two branches that `msft analyze divergence` left in folders `with` and `without`."""

    name: str
    excluded: str
    with_all: ComparedRun
    without: ComparedRun


def pairs_of(runs: Sequence[ComparedRun]) -> list[Pair]:
    """The pairs among these runs."""
    by_parent: dict[Path, dict[str, ComparedRun]] = {}
    for run in runs:
        path = run.folder.resolve()
        by_parent.setdefault(path.parent, {})[path.name] = run
    found: list[Pair] = []
    for parent, held in by_parent.items():
        if {"with", "without"} <= set(held):
            with_all, without = held["with"], held["without"]
            try:
                excluded = left_out(with_all.history, without.history)
            except ValueError:
                continue  # not two branches, or one that has not begun
            name = parent.name if all(p.name != parent.name for p in found) else str(parent)
            found.append(Pair(name, excluded, with_all, without))
    models = model_labels([pair.with_all for pair in found])
    if len(set(models)) == len(found) > 1 and all(pair.with_all.model for pair in found):
        return [replace(pair, name=name) for pair, name in zip(found, models, strict=True)]
    return found


def divergence_sections(pairs: Sequence[Pair]) -> list[Section]:
    """Fig. 3a of every pair, and Fig. 3b of several."""
    found: list[Section] = []
    moved: dict[str, dict[str, float]] = {}
    for number, pair in enumerate(pairs, start=1):
        name, excluded = pair.name, pair.excluded
        moved[name] = changes(pair.with_all.history, pair.without.history, excluded)
        text = (
            f"By how many epochs the peaks of the others move when {excluded} is taken out (the "
            f"paper's Fig. 3): {mean_shift(moved[name]):.2f} on average, whatever the direction, "
            f"over {counted(len(moved[name]), 'sub-dataset')}."
        )
        key = "divergence" if len(pairs) == 1 else f"divergence-{number}"
        title = "Change of optimal compute" + ("" if len(pairs) == 1 else f" · {name}")
        found.append(Section(key, title, text, partial(divergence, moved[name])))
    if len(moved) > 1:
        text = "Mean absolute change of every analysis (the paper's Fig. 3b)."
        draw = partial(mean_shifts, moved)
        found.append(Section("shifts", "Mean change of optimal compute", text, draw))
    return found
