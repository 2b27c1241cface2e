"""The tables of the study's pages, made from the logs of its runs; no torch.

    python bench/study_page.py [--check]

Each table stands between `<!-- study NAME -->` and `<!-- end -->` and is written anew. --check
writes nothing and fails if a table on the page is not the one that the logs give.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from study_logs import RUNS
from study_tables import Entry, Interval, Study, over_rows, over_seeds, study_of, table

from msft.report.compare.statistics import mean, paired_t

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "study.md", ROOT / "docs" / "results" / "study-more.md")
SEEDS = {70, 71, 72}
REFERENCE = "sft-cosine-lr1e-4-e3"
SOUPS = ("", "-peaks", "-random", "-last")
METHODS = {
    REFERENCE: ("SFT, cosine over 3 epochs", None),
    "sft-lr1e-4-e5": ("SFT, constant rate, 5 epochs", 0.0),
    "sft-ema-lr1e-4-e5-d0.99": ("SFT with `ema_decay: 0.99`", None),
    "soup-lr1e-4-e5": ("soup, `span`", None),
    "soup-peaks-lr1e-4-e5": ("soup, `peaks`", None),
    "soup-random-lr1e-4-e5": ("soup, random ticks (control)", None),
    "soup-last-lr1e-4-e5": ("soup, last ticks (control)", None),
    "msft-lr1e-4": ("mSFT, C = 3", 1.8),
    "msft-one": ("mSFT, C = 1", None),
    "msft-sure-lr1e-4": ("mSFT, sure exclusion", None),
    "msft-sure-ema-lr1e-4-d0.99": ("mSFT, sure exclusion, `ema_decay: 0.99`", None),
    "sro": ("SRO", 1.5),
    "soft-sro": ("Soft SRO", 0.2),
    "ies": ("IES", 0.6),
    "dynamix": ("DynamixSFT", 0.2),
    "continual": ("Continual SFT", -2.2),
}
"""The name of each on the page, and the paper's difference to SFT: the mean of six models."""
GEMMA = {
    "sft-cosine-lr5e-5-e3": METHODS[REFERENCE],
    "sft-lr5e-5": ("SFT, constant rate, 5 epochs", None),
    **{f"soup{kind}-lr5e-5": METHODS[f"soup{kind}-lr1e-4-e5"] for kind in SOUPS},
}
"""The same of Gemma 3 270M."""
BY_TASK = (
    *("sft-lr1e-4-e5", "sft-ema-lr1e-4-e5-d0.99", "soup-lr1e-4-e5", "msft-lr1e-4", "msft-one"),
    *("sro", "soft-sro", "dynamix", "continual"),
)
"""Of those, the ones with a row in the table by task."""
MARK = re.compile(r"(<!-- study (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main_table(
    study: Study, methods: Mapping[str, tuple[str, float | None]] = METHODS, papers: bool = True
) -> list[str]:
    """Both splits and their difference, candidates, cost, and paired tests against the first
    method, cosine SFT.

    papers: whether the paper has such a table.
    """
    reference = next(iter(methods))
    against = study[reference]
    rows = []
    for label, (name, paper) in methods.items():
        found = study.get(label, {})
        if not found:
            continue
        entries = [found[seed] for seed in sorted(found)]
        validation, test = (
            100 * float(mean([value(e) for e in entries])) for value in (_validation, _test)
        )
        pairs = [(found[seed], against[seed]) for seed in sorted(set(found) & set(against))]
        rows.append(
            [
                *(name, len(entries), f"{validation:.2f}", f"{test:.2f}"),
                f"{test - validation:+.2f}",
                *(f"{_figure(entries, key):.0f}" for key in ("candidates", "epochs_trained")),
                *(("", "", "") if label == reference else _tests(pairs)),
                *(["" if paper is None else f"{paper:+.1f}" if paper else "0"] if papers else []),
            ]
        )
    head = ("method", "seeds", "validation", "test", "test − validation", "candidates")
    head += ("epochs", "over cosine SFT, over seeds", "p", "over test rows")
    return table((*head, "paper, over SFT") if papers else head, rows)


def _validation(entry: Entry) -> float:
    return entry.validation


def _test(entry: Entry) -> float:
    return entry.mean


def _figure(entries: list[Entry], key: str) -> float:
    return float(mean([float(entry.line[key]) for entry in entries]))


def _tests(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str, str]:
    """The difference with its interval over seeds, p of a paired t test, the interval over rows."""
    scores = [[each.mean for each in side] for side in zip(*pairs, strict=True)]
    differences = [one - two for one, two in zip(*scores, strict=True)]
    rows = over_rows(pairs)
    drawn = "" if rows is None else _range(rows)
    seeds, tested = over_seeds(differences), paired_t(*scores)
    if seeds is None or tested is None:
        return f"{100 * differences[0]:+.2f}", "", drawn
    p = tested[1]
    told = f"{seeds.difference:+.2f} ({_range(seeds)})"
    return told, f"{p:.2f}" if p >= 0.005 else "<0.01", drawn


def _range(interval: Interval) -> str:
    return f"{interval.low:+.2f}…{interval.high:+.2f}"


def task_table(study: Study) -> list[str]:
    """Points over cosine SFT on test by sub-dataset, for the methods of the paper."""
    labels = [label for label in BY_TASK if label in study]
    against = study[REFERENCE]
    names = list(next(iter(against.values())).test)
    rows = []
    for label in labels:
        seeds = sorted(set(study[label]) & set(against))
        gains = [
            100 * float(mean([study[label][s].test[n] - against[s].test[n] for s in seeds]))
            for n in names
        ]
        rows.append([METHODS[label][0], *(f"{gain:+.1f}" for gain in gains)])
    return table(("method", *names), rows)


TABLES: dict[str, Callable[[dict[str, Study]], list[str]]] = {
    "clean": lambda study: main_table(study["clean"]),
    "noisy": lambda study: main_table(study["noisy"], papers=False),
    "gemma": lambda study: main_table(study["gemma"], GEMMA, papers=False),
    "tasks": lambda study: task_table(study["clean"]),
}


def rebuilt(text: str, runs: Path) -> str:
    """The page with every table as the logs give it."""
    study = study_of(runs, SEEDS, None)

    def made(found: re.Match[str]) -> str:
        return found[1] + "\n" + "\n".join(TABLES[found[2]](study)) + "\n" + found[3]

    return MARK.sub(made, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    options = parser.parse_args()
    wrong = 0
    for page in PAGES:
        before = page.read_text()
        after = rebuilt(before, RUNS)
        wrong += before != after
        if options.check:
            print(f"{page} is {'' if before == after else 'not '}what the logs give")
        else:
            page.write_text(after)
            print(f"wrote the tables of {page}")
    return int(options.check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
