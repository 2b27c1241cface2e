"""Tables of the study on costs and on peaks, from logs and summaries; no torch.

What they show is computed by the code that serves `msft report`, `compare` and `analyze`.
"""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from study_logs import history_of, verdicts_of
from study_methods import CONSTANT, FLOPS, METHODS, REFERENCE, SOUPS, Names
from study_selection import Selection, selection_in
from study_tables import Entry, Study, table

from msft.report.compare.paper import (
    decomposition,
    mean_decomposition,
    mean_parts,
    mean_shift,
)
from msft.report.compare.statistics import mean
from msft.report.figures.peaks import peaks_of
from msft.report.headroom import headroom_of
from msft.run.history import Exclusion, History
from msft.text import listed

SAME_RUN = {CONSTANT, *(f"soup{kind}-lr1e-4-e5" for kind in SOUPS if kind)}
"""Entries of a soup's run beside the soup, which stands for what the run cost: SFT at a constant
rate is its roll-out."""
PRICED = "sft-ema-lr1e-4-e5-d0.99"
"""SFT whose FLOPs are 1: as many epochs, and nothing else is scored; the average costs none."""


def logs_of(runs: Path, entry: Entry) -> Path:
    return runs / "logs" / str(entry.line["name"])


def entries_of(study: Study, label: str) -> list[Entry]:
    """A method's runs by seed."""
    found = study.get(label, {})
    return [found[seed] for seed in sorted(found)]


SCORES = ("method", "seeds", "validation", "test", "test − validation", "candidates")


def scores(name: str, entries: Sequence[Entry], candidates: float | None = None) -> list[object]:
    """What every table of methods begins with: SCORES."""
    validation = 100 * _mean([entry.validation for entry in entries])
    test = 100 * _mean([entry.mean for entry in entries])
    looked = candidates or _mean([float(entry.line["candidates"]) for entry in entries])
    shown = (f"{validation:.2f}", f"{test:.2f}", f"{test - validation:+.2f}", f"{looked:.0f}")
    return [name, len(entries), *shown]


def selection_table(study: Study, runs: Path, methods: Names = METHODS) -> list[str]:
    """The bootstrap of each method's choice."""
    rows = []
    for label, (name, _) in methods.items():
        entries = [] if "soup" in label else entries_of(study, label)
        found = [selection_in(logs_of(runs, entry)) for entry in entries]
        chosen = [each for each in found if each is not None]
        if chosen:
            rows.append(
                [
                    *scores(name, entries, _mean([each.candidates for each in chosen])),
                    f"{_mean([each.chosen for each in chosen]):.0f}",
                    f"{100 * _mean([each.most for each in chosen]):.0f} %",
                    f"{100 * _mean([each.optimism for each in chosen]):+.2f}",
                    _test_spread(chosen),
                ]
            )
    head = (*SCORES, "chosen at least once", "most often", "optimism", "sd on test")
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows)


def _test_spread(chosen: Sequence[Selection]) -> str:
    spreads = [each.test[1] for each in chosen if each.test is not None]
    return f"{100 * _mean(spreads):.2f}" if len(spreads) == len(chosen) else ""


def costs_table(study: Study, runs: Path) -> list[str]:
    """PFLOPs by what they were for, and the mean copies of the weights on disk."""
    against = _summary_means(study, runs, PRICED)["flops"]["total"]
    rows = []
    for label, (name, _) in METHODS.items():
        entries = entries_of(study, label)
        if entries and label not in SAME_RUN:
            means = _summary_means(study, runs, label)
            flops = means["flops"]
            kinds = ("train", "evaluation", "lookahead", "total", "kept")
            rows.append(
                [
                    *scores(name, entries),
                    *(f"{flops[kind] / 1e15:.2f}" for kind in kinds),
                    f"{flops['total'] / against:.2f}",
                    f"{FLOPS[label]:.2f}" if label in FLOPS else "",
                    f"{means['disk']['mean_copies']:.2f}",
                ]
            )
    head = ("train", "evaluation", "look-ahead", "total", "kept", "× SFT", "paper, × SFT")
    return table((*SCORES, *head, "copies on disk"), rows)


def _summary_means(study: Study, runs: Path, label: str) -> dict[str, dict[str, float]]:
    read: list[dict[str, Any]] = [
        json.loads((logs_of(runs, entry) / "summary.json").read_text())
        for entry in entries_of(study, label)
    ]
    return {
        part: {key: _mean([float(each[part][key]) for each in read]) for key in read[0][part]}
        for part in ("flops", "disk")
    }


def peaks_table(study: Study, runs: Path) -> list[str]:
    """Epochs at which sub-datasets peak under SFT at a constant rate, seed by seed."""
    entries = entries_of(study, CONSTANT)
    found = [peaks_of(history_of(logs_of(runs, entry))) for entry in entries]
    peaks = [each for each in found if each is not None]
    rows: list[list[object]] = []
    for name in peaks[0].peaks:
        own = [each.peaks[name] for each in peaks]
        away = _mean([each.distance(name) for each in peaks])
        rows.append([name, *(f"{peak:g}" for peak in own), f"{_mean(own):.2f}", f"{away:.2f}"])
    whole = [each.mean for each in peaks]
    rows.append(["**mean**", *(f"{peak:g}" for peak in whole), f"{_mean(whole):.2f}", ""])
    seeds = (f"seed {entry.seed}" for entry in entries)
    head = ("sub-dataset", *seeds, "mean", "distance to the mean's peak")
    return [*table(head, rows), *_runs_in_words("SFT at its best tick", entries)]


def headroom_table(studies: Mapping[str, Study], runs: Path) -> list[str]:
    """What every sub-dataset at its own peak would gain, on validation."""
    rows = []
    for mixture, label in (("clean", CONSTANT), ("noisy", CONSTANT), ("qwenpaper", "sft-e10")):
        for entry in entries_of(studies.get(mixture, {}), label):
            logs = logs_of(runs, entry)
            found = headroom_of(history_of(logs), verdicts_of(logs), {}).mean
            naive, crossed, low, high = (
                f"{100 * value:+.2f}"
                for value in (found.naive, found.crossfitted, found.low, found.high)
            )
            _, _, *shown = scores("", [entry])
            rows.append([mixture, entry.seed, *shown, naive, f"{crossed} ({low}…{high})"])
    head = ("mixture", "seed", *SCORES[2:], "gain on the rows that chose", "cross-fitted gain")
    return table(head, rows)


def shifts_table(studies: Mapping[str, Study], runs: Path) -> list[str]:
    """How far peaks move when the first sub-dataset is out, from the logs of mSFT with C = 3: the
    rest of its first roll-out against the second one, which starts where that sub-dataset left."""
    rows = []
    for mixture in ("clean", "noisy"):
        for entry in entries_of(studies[mixture], "msft-lr1e-4"):
            history = history_of(logs_of(runs, entry))
            first, moved = shifts_in(history)
            _, _, *shown = scores("", [entry])
            out = f"{first.name}, {first.tick / history.evals_per_epoch:g}"
            away = (f"{mean_shift(moved):.2f}", f"{max(moved.values(), key=abs):+g}")
            rows.append([mixture, entry.seed, *shown, out, *away])
    head = ("excluded first, at epoch", "mean absolute shift", "largest shift")
    return table(("mixture", "seed", *SCORES[2:], *head), rows)


def shifts_in(history: History) -> tuple[Exclusion, dict[str, float]]:
    """mSFT's first exclusion, and by how many epochs it moved the peaks of the others.

    Both branches have as many ticks as the shorter one.
    """
    first = history.exclusions[0]
    ticks = min(history.stages[0].ticks - first.tick, history.stages[1].ticks)
    moved = {}
    for name in history.stages[1].asked.active:
        branches = history.curve(0, name)[first.tick :], history.curve(1, name)
        with_all, without = (history.rule.peak(branch[: ticks + 1]) for branch in branches)
        moved[name] = (without - with_all) / history.evals_per_epoch
    return first, moved


def parts_table(studies: Mapping[str, Study], runs: Path) -> list[str]:
    """The paper's Eq. 4 for mSFT with C = 3 over cosine SFT, on validation, beside test."""
    columns: dict[str, dict[str, str]] = {}
    told: list[str] = []
    for mixture in ("clean", "noisy"):
        sft, msft = studies[mixture][REFERENCE], studies[mixture]["msft-lr1e-4"]
        seeds = sorted(set(sft) & set(msft))
        pairs = [
            decomposition(*(history_of(logs_of(runs, each[seed])) for each in (sft, msft)))
            for seed in seeds
        ]
        parts = mean_decomposition(pairs)
        tested = {
            name: _mean([msft[seed].test[name] - sft[seed].test[name] for seed in seeds])
            for name in parts
        }
        parts["**mean**"] = mean_parts(list(parts.values()))
        tested["**mean**"] = _mean(list(tested.values()))
        for key in ("prevention", "forgetting", "gain"):
            values = {name: getattr(each, key) for name, each in parts.items()}
            columns[f"{mixture}: {key}"] = {name: _points(value) for name, value in values.items()}
        columns[f"{mixture}: gain on test"] = {name: _points(v) for name, v in tested.items()}
        for name, runs_of in (("mSFT", msft), ("cosine SFT", sft)):
            told += _runs_in_words(f"{mixture}, {name}", [runs_of[seed] for seed in seeds])
    names = next(iter(columns.values()))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    return [*table(("sub-dataset", *columns), rows), *told]


def _runs_in_words(name: str, entries: Sequence[Entry]) -> list[str]:
    """What a table whose columns are not scores must say of its runs: seeds, both splits and
    candidates."""
    _, _, validation, test, gap, candidates = scores("", list(entries))
    seeds = listed(str(entry.seed) for entry in entries)
    return [
        f"{name}, seeds {seeds}: {validation} on validation, {test} on test ({gap}), chosen from "
        f"{candidates} candidates.",
        "",
    ]


def _points(value: Fraction | float | None) -> str:
    return "" if value is None else f"{100 * float(value):+.1f}"


def _mean(values: Sequence[float]) -> float:
    return float(mean(values))
