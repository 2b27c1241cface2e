"""Tables of the study from OUT/study.jsonl and OUT/logs, as Markdown; no torch.

python bench/study_tables.py OUT [--against sft] [--mixture clean] [--seeds 70..79] [--unseen DATA]

Per mixture: means over seeds; the difference to the reference on the same seeds, with a 95 %
interval over seeds (Student's t) and one over test rows (paired bootstrap, each row's difference
averaged over seeds first); gains of each sub-dataset; which exclusions hit wrong labels. A soup's
line is several entries: `soup` is its span, `soup-peaks` and the others are its controls, and `sft`
is the best tick of the same roll-out, unless a run of `sft` is there.
--against: the reference; by itself the SFT without averages that is best on validation.
--mixture: only this one.
--unseen: only test rows that the first trial did not draw (500 a task, seed 20); tasks of which it
drew every row are left out. DATA is the folder of the rows.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from study_logs import lines_of, verdicts_of
from study_rows import SETTING

from msft.report.compare.statistics import DRAWS, mean, paired_interval
from msft.search.curves import TEST
from msft.search.draws import number, sampled

TRIAL_ROWS, TRIAL_SEED = 500, 20
TOO_LONG = {"boolq": (355, 805)}
"""Test rows of more than 512 tokens, which are not scored: their places in the file."""
WITHOUT_AVERAGES = ("sft", "sft-linear", "sft-cosine")

Rows = Mapping[str, Sequence[bool]]
"""Right or wrong of every test row, by sub-dataset."""


@dataclass(frozen=True)
class Entry:
    """What one method came to with one seed; scores are shares.

    by_task: on validation, as `test` is.
    """

    label: str
    seed: int
    validation: float
    by_task: Mapping[str, float]
    test: Mapping[str, float]
    rows: Rows
    line: Mapping[str, Any]

    @property
    def mean(self) -> float:
        return float(mean(list(self.test.values())))


@dataclass(frozen=True)
class Interval:
    """A difference in points and its 95 % interval."""

    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.difference:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def entries_of(folder: Path, line: Mapping[str, Any], unseen: Path | None) -> list[Entry]:
    """The entries of a run: one, or one for each average and one for the best tick."""
    verdicts = verdicts_of(folder / "logs" / line["name"])
    settings = line["label"].removeprefix(line["variant"])
    found = line["averages"] or {"": line}
    entries = []
    for kind, each in found.items():
        if each["test"] is None:
            continue
        rows = {
            name: _kept([m == "1" for m in verdicts[each["checkpoint"], TEST, name]], name, unseen)
            for name in each["test"]["datasets"]
        }
        rows = {name: right for name, right in rows.items() if right}
        test = {name: sum(right) / len(right) for name, right in rows.items()}
        base = {"": line["variant"], "sft": "sft", "span": "soup"}.get(kind, f"soup-{kind}")
        chosen = each["validation"]
        entries.append(
            Entry(
                *(base + settings, line["seed"], chosen["mean"], chosen["datasets"]),
                *(test, rows, line),
            )
        )
    return entries


def _kept(right: list[bool], name: str, unseen: Path | None) -> list[bool]:
    """All rows, or those that the trial did not draw."""
    if unseen is None:
        return right
    count = len((unseen / name / "test.jsonl").read_text().splitlines())
    scored = [number for number in range(count) if number not in TOO_LONG.get(name, ())]
    if len(scored) != len(right):
        raise SystemExit(
            f"{name}: {len(right)} of {count} test rows were scored, so it is not known which the "
            "trial drew; leave --unseen out"
        )
    drawn = set(sampled(count, TRIAL_ROWS, TRIAL_SEED, "rows", name, "test"))
    return [mark for number, mark in zip(scored, right, strict=True) if number not in drawn]


Study = dict[str, dict[int, Entry]]
"""Entries by label and seed."""


def study_of(
    folder: Path, seeds: set[int] | None, unseen: Path | None, mixture: str | None = None
) -> dict[str, Study]:
    """By mixture; a run of `sft` stands before a soup's best tick.

    seeds, mixture: only these, if any are given.
    """
    found: dict[str, Study] = defaultdict(lambda: defaultdict(dict))
    for line in sorted(lines_of(folder), key=lambda line: line["variant"] == "sft"):
        asked = (seeds is None or line["seed"] in seeds) and mixture in (None, line["mixture"])
        if asked:
            for entry in entries_of(folder, line, unseen):
                found[line["mixture"]][entry.label][entry.seed] = entry
    return found


def over_seeds(differences: Sequence[float]) -> Interval | None:
    """Student's t over seeds, in points; None of fewer than two, and of equal ones."""
    interval = paired_interval(differences)
    if interval is None:
        return None
    return Interval(100 * float(mean(differences)), *(100 * end for end in interval))


def over_rows(pairs: Sequence[tuple[Entry, Entry]]) -> Interval:
    """A paired bootstrap over test rows, in points.

    A row's difference is averaged over seeds first. Where seeds drew other numbers of rows, rows
    are drawn anew for each seed.
    """
    names = list(pairs[0][0].rows)
    found, totals = 0.0, np.zeros(DRAWS)
    for name in names:
        columns = [
            np.array(one.rows[name], float) - np.array(two.rows[name], float) for one, two in pairs
        ]
        if len({len(column) for column in columns}) == 1:
            columns = [np.mean(columns, axis=0)]
        random, share = _random(name), 1 / len(names) / len(columns)
        for column in columns:
            # Rows that differ equally are drawn as one: how many of each come up is multinomial.
            kinds, counts = np.unique(column.round(9), return_counts=True)
            rows = counts.sum()
            drawn = random.multinomial(rows, counts / rows, size=DRAWS)
            totals += drawn @ kinds / rows * share
            found += float(counts @ kinds) / rows * share
    low, high = np.quantile(totals, (0.025, 0.975))
    return Interval(100 * found, 100 * float(low), 100 * float(high))


def _random(name: str) -> np.random.RandomState:
    return np.random.RandomState(number(0, "rows", name) % 2**32)  # a promised sequence


def reference_of(study: Study, against: str | None) -> str:
    """The reference's label."""
    if against is not None:
        if against not in study:
            raise SystemExit(f"--against {against}: not there; there are {', '.join(study)}")
        return against
    plain = [label for label in study if variant_of(label) in WITHOUT_AVERAGES]
    if not plain:
        raise SystemExit(f"no SFT without averages among {', '.join(study)}; name one: --against")
    return max(plain, key=lambda label: mean([e.validation for e in study[label].values()]))


def variant_of(label: str) -> str:
    """A label without its settings."""
    return re.sub(f"-{SETTING}", "", label)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines] + [""]


def means_table(study: Study) -> list[str]:
    rows = []
    for label, seeds in study.items():
        found = list(seeds.values())
        several = [e.line for e in found]
        rows.append(
            [
                label,
                len(found),
                f"{100 * float(mean([e.validation for e in found])):.2f}",
                f"{100 * float(mean([e.mean for e in found])):.2f}",
                f"{_mean_of(several, 'candidates'):.0f}",
                f"{_mean_of(several, 'epochs_trained'):.1f}",
                f"{_mean_of(several, 'seconds'):.0f}",
            ]
        )
    head = ("method", "seeds", "validation", "test", "candidates", "epochs trained", "seconds")
    return table(head, rows)


def _mean_of(lines: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(mean([float(line[key]) for line in lines]))


def differences_table(study: Study, reference: str) -> list[str]:
    rows = []
    for label, seeds in study.items():
        common = sorted(set(seeds) & set(study[reference]))
        if label == reference or not common:
            continue
        pairs = [(seeds[seed], study[reference][seed]) for seed in common]
        differences = [one.mean - two.mean for one, two in pairs]
        above = sum(difference > 0 for difference in differences)
        spread = over_seeds(differences) or f"{100 * differences[0]:+.2f}"
        rows.append([label, len(common), spread, over_rows(pairs), f"{above} of {len(common)}"])
    return table(("method", "seeds", "over seeds", "over test rows", "above 0"), rows)


def gains_table(study: Study, reference: str) -> list[str]:
    labels = [label for label in study if label != reference]
    shared = {label: sorted(set(study[label]) & set(study[reference])) for label in labels}
    labels = [label for label in labels if shared[label]]
    names = list(next(iter(study[reference].values())).test)

    def gain(label: str, name: str) -> str:
        pairs = [(study[label][seed], study[reference][seed]) for seed in shared[label]]
        return f"{100 * float(mean([a.test[name] - b.test[name] for a, b in pairs])):+.2f}"

    rows = [[name, *(gain(label, name) for label in labels)] for name in names]
    return table(("sub-dataset", *labels), rows) if labels else []


def exclusions_table(study: Study) -> list[str]:
    rows = []
    for label, seeds in study.items():
        lines = [e.line for e in seeds.values() if "msft" in e.line["variant"]]
        if not lines:
            continue
        left = [(x["name"] in line["noisy"]) for line in lines for x in line["exclusions"]]
        begun = [line for line in lines if line["exclusions"]]
        first = [line["exclusions"][0]["name"] in line["noisy"] for line in begun]
        hit = f"{sum(left)} of {len(left)}"
        rows.append([label, len(lines), hit, f"{sum(first)} of {len(first)}", _ends(lines)])
    head = ("method", "seeds", "exclusions of wrong labels", "the first of a run", "ended by")
    return table(head, rows) if rows else []


def _ends(lines: Sequence[Mapping[str, Any]]) -> str:
    ends = [line["ended_by"] for line in lines]
    return ", ".join(f"{end} {ends.count(end)}" for end in sorted(set(ends)))


def seeds_of(written: str) -> set[int]:
    """`70..79` or `20,30`."""
    found: set[int] = set()
    for item in written.split(","):
        first, _, last = item.partition("..")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", help="the reference's label, such as sft-linear-lr1e-4-e5")
    parser.add_argument("--mixture", help="only this one")
    parser.add_argument("--seeds", type=seeds_of, help="only these")
    parser.add_argument("--unseen", type=Path, metavar="DATA")
    options = parser.parse_args()
    rows = "test rows that the trial did not draw" if options.unseen else "all test rows"
    studies = study_of(options.out, options.seeds, options.unseen, options.mixture)
    for mixture, study in studies.items():
        reference = reference_of(study, options.against)
        lines = [f"## {mixture}, {rows}", "", *means_table(study)]
        lines += [f"Points over {reference} on the same seeds:", ""]
        lines += differences_table(study, reference)
        lines += [f"Points over {reference} on test by sub-dataset:", ""]
        lines += gains_table(study, reference)
        lines += exclusions_table(study)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
