"""Tables of bench/audit_gain.py: what an audit finds where wrong rows are known, and what training
without its suspects gives; no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from study_costs import SCORES, scores
from study_logs import AUDITS, SUMMARY, lines_of, verdicts_of
from study_tables import Entry, Interval, Study, over_rows, over_seeds, table

from msft.report.compare.statistics import mean
from msft.search.curves import TEST

USES = {
    "all": "SFT on all rows",
    "round-1": "without the suspects of round 1",
    "round-2": "without the suspects of round 2",
    "random": "without as many random rows",
    "oracle": "without all wrong rows (oracle)",
    "msft-all": "mSFT on all rows",
    "msft-round-2": "mSFT without the suspects of round 2",
}
"""Trainings of a row, the reference first."""

Line = Mapping[str, Any]


def audits_of(runs: Path, mixture: str) -> list[Line]:
    """The rows of a mixture, seed by seed."""
    found = [line for line in lines_of(runs, AUDITS) if line["mixture"] == mixture]
    return sorted(found, key=lambda line: line["seed"])


def scores_of(logs: Path) -> dict[str, Any]:
    """What the best checkpoint of a training scores, and its name."""
    best = json.loads((logs / SUMMARY).read_text())["best"]
    return {key: best[key] for key in ("checkpoint", "candidates", "validation", "test")}


def trainings_of(runs: Path, mixture: str) -> Study:
    """The trainings of a mixture, by what was trained on and seed."""
    found: Study = {use: {} for use in USES}
    for line in audits_of(runs, mixture):
        for use in line["scores"]:
            logs = runs / "logs" / line["name"] / use
            best, verdicts = scores_of(logs), verdicts_of(logs)
            right = {
                name: [mark == "1" for mark in verdicts[best["checkpoint"], TEST, name]]
                for name in best["test"]["datasets"]
            }
            test = {name: sum(rows) / len(rows) for name, rows in right.items()}
            chosen = best["validation"]
            found[use][line["seed"]] = Entry(
                *(use, line["seed"], chosen["mean"], chosen["datasets"], test, right),
                {**line, "candidates": best["candidates"]},
            )
    return {use: seeds for use, seeds in found.items() if seeds}


def gain_table(runs: Path, mixture: str) -> list[str]:
    """Scores, and points over SFT on all rows of the same seeds, with both intervals."""
    study = trainings_of(runs, mixture)
    against = study.get("all", {})
    if not against:
        return ["These runs are not there yet.", ""]
    rows = []
    for use, found in study.items():
        entries = [found[seed] for seed in sorted(found)]
        pairs = [(each, against[each.seed]) for each in entries if each.seed in against]
        rows.append(
            [
                *scores(USES[use], entries),
                *(_over(pairs) if use != "all" else ("", "", "", "")),
            ]
        )
    head = ("over SFT on all rows, over seeds", "over test rows", "above 0", "spoiled tasks")
    return table((*SCORES, *head), rows)


def _over(pairs: Sequence[tuple[Entry, Entry]]) -> tuple[str, str, str, str]:
    """The difference with its interval over seeds, that over rows, how many seeds are above 0, and
    the difference on the tasks with wrong rows alone."""
    differences = [one.mean - two.mean for one, two in pairs]
    seeds, above = over_seeds(differences), sum(each > 0 for each in differences)
    wrong = [
        one.test[name] - two.test[name]
        for one, two in pairs
        for name, found in one.line["found"].items()
        if found["truth"]
    ]
    return (
        f"{100 * differences[0]:+.2f}" if seeds is None else _with_range(seeds),
        _with_range(over_rows(pairs)),
        f"{above} of {len(pairs)}",
        f"{_mean(wrong):+.2f}" if wrong else "",
    )


def _with_range(interval: Interval) -> str:
    return f"{interval.difference:+.2f} ({interval.low:+.2f}…{interval.high:+.2f})"


def _mean(shares: Sequence[float]) -> float:
    """In per cent."""
    return 100 * float(mean([*shares]))


def found_table(runs: Path, mixture: str) -> list[str]:
    """What the audits say of each sub-dataset, beside the truth."""
    lines = audits_of(runs, mixture)
    if not lines:
        return ["These runs are not there yet.", ""]
    rows = []
    for name in lines[0]["found"]:
        found = [line["found"][name] for line in lines]
        shares = [each["wrong_share"]["value"] for each in found if each["wrong_share"]]
        verdicts = [each["verdict"] for each in found]
        said = (f"{verdicts.count(each)}" for each in ("spoiled", "fine", "cannot_tell"))
        span = f"{_mean(shares):.0f} ({_of(min, shares)} to {_of(max, shares)})" if shares else "–"
        truth = f"{_mean([each['truth'] for each in found]):.0f}"
        right = [_hits(found, number) for number in (0, -1)]
        rows.append([name, truth, span, *said, *right])
    head = ("sub-dataset", "wrong, %", "share found, % (least to most)", "spoiled", "fine")
    more = ("cannot tell", "suspects that are wrong, %: round 1", "last round")
    return table((*head, *more), rows)


def _of(pick: Any, shares: Sequence[float]) -> str:
    return f"{100 * pick(shares):.0f}"


def _hits(found: Sequence[Line], number: int) -> str:
    suspects, hits = (sum(each[key][number] for each in found) for key in ("suspects", "hits"))
    return f"{100 * hits / suspects:.0f}" if suspects else ""
