"""The tables and figures of the study's pages, made from the logs of its runs; no torch.

    python bench/study_page.py [--check]

Each table stands between `<!-- study NAME -->` and `<!-- end -->` and is written anew. --check
writes nothing and fails if a table or figure is not the one that the logs give.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from study_audits import found_table, gain_table
from study_costs import (
    PRICED,
    SCORES,
    costs_table,
    headroom_table,
    parts_table,
    peaks_table,
    scores,
    selection_table,
    shifts_table,
)
from study_figures import IMAGES, figures_of, told_in, write
from study_logs import RUNS, verdicts_of
from study_methods import (
    BUDGETS,
    BY_TASK,
    CONSTANT,
    METHODS,
    PAPER_MEDMCQA,
    PAPER_QWEN,
    REFERENCE,
    SEEDS,
    SURE_EMA,
    Names,
    names_in,
)
from study_tables import (
    Entry,
    Interval,
    Study,
    over_rows,
    over_seeds,
    study_of,
    table,
    variant_of,
)

from msft.report.compare.statistics import mean, paired_t
from msft.search.curves import SELECTION

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "docs" / "study.md",
    *(
        ROOT / "docs" / "results" / f"study-{name}.md"
        for name in ("methods", "peaks", "costs", "mixtures", "models")
    ),
    ROOT / "docs" / "results" / "audit.md",
)
MARK = re.compile(r"(<!-- study (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
EPOCHS = "epochs_trained"
NOT_RUN = ["These runs are not there yet.", ""]


def main_table(study: Study, methods: Names = METHODS, papers: bool = True) -> list[str]:
    """Both splits and their difference, candidates, cost, and paired tests against the first
    method, cosine SFT.

    papers: whether the paper has such a table; its reference is SFT at a constant rate.
    """
    reference = next(iter(methods), "")
    against = study.get(reference, {})
    if not against:
        return NOT_RUN
    constant = study.get(next((label for label in methods if variant_of(label) == "sft"), ""), {})
    rows = []
    for label, (name, paper) in methods.items():
        found = study.get(label, {})
        if not found:
            continue
        entries = [found[seed] for seed in sorted(found)]
        pairs = [(found[seed], against[seed]) for seed in sorted(set(found) & set(against))]
        rows.append(
            [
                *scores(name, entries),
                f"{float(mean([float(e.line['epochs_trained']) for e in entries])):.0f}",
                *(_tests(pairs) if pairs and label != reference else ("", "", "")),
                *((_over(found, constant), _paper(paper)) if papers else ()),
            ]
        )
    head = (*SCORES, "epochs", "over cosine SFT, over seeds", "p", "over test rows")
    return table((*head, "over constant SFT", "paper, over SFT") if papers else head, rows)


def _over(found: Mapping[int, Entry], against: Mapping[int, Entry]) -> str:
    """The mean difference over the seeds of both, in points."""
    shared = sorted(set(found) & set(against))
    if not shared or found is against:
        return "0" if shared else ""
    return f"{100 * float(mean([found[s].mean - against[s].mean for s in shared])):+.2f}"


def _paper(difference: float | None) -> str:
    if difference is None:
        return ""
    return f"{difference:+.1f}" if difference else "0"


def _tests(pairs: list[tuple[Entry, Entry]]) -> tuple[str, str, str]:
    """The difference with its interval over seeds, p of a paired t test, the interval over rows."""
    scores = [[each.mean for each in side] for side in zip(*pairs, strict=True)]
    differences = [one - two for one, two in zip(*scores, strict=True)]
    drawn = _range(over_rows(pairs))
    seeds, tested = over_seeds(differences), paired_t(*scores)
    if seeds is None or tested is None:
        return f"{100 * differences[0]:+.2f}", "", drawn
    p = tested[1]
    return _with_range(seeds), f"{p:.2f}" if p >= 0.005 else "<0.01", drawn


def _range(interval: Interval) -> str:
    return f"{interval.low:+.2f}…{interval.high:+.2f}"


def task_table(study: Study) -> list[str]:
    """Points over cosine SFT by sub-dataset on test and, in brackets, on validation, for the
    methods of the paper."""
    labels = [label for label in BY_TASK if label in study]
    against = study[REFERENCE]
    names = list(next(iter(against.values())).test)
    rows = []
    for label in labels:
        seeds = sorted(set(study[label]) & set(against))
        pairs = [(study[label][seed], against[seed]) for seed in seeds]
        looked = mean([float(one.line["candidates"]) for one, _ in pairs])
        cells = [
            f"{_gain([(one.test[name], two.test[name]) for one, two in pairs])} "
            f"({_gain([(one.by_task[name], two.by_task[name]) for one, two in pairs])})"
            for name in names
        ]
        rows.append([METHODS[label][0], len(seeds), f"{float(looked):.0f}", *cells])
    return table(("method", "seeds", "candidates", *names), rows)


def _gain(pairs: Sequence[tuple[float, float]]) -> str:
    return f"{100 * float(mean([one - two for one, two in pairs])):+.1f}"


def other_selections(studies: Mapping[str, Study], runs: Path) -> list[str]:
    """The bootstrap of the choice on the other mixtures and models."""
    rows = []
    for mixture in ("five", "fifteen", "medmcqa", "gemma", "qwenlora", "qwenpaper", "bigbench"):
        study = studies.get(mixture, {})
        names = names_in(study)
        best = {variant_of(label): label for label in reversed([*names])}
        chosen = {best[variant]: names[best[variant]] for variant in CHOOSERS if variant in best}
        found = selection_table(study, runs, chosen)
        head, rows = found[0], [*rows, *(f"| {mixture} {line}" for line in found[2:-1])]
    return _with_column("mixture", head, rows)


CHOSEN = {
    label: METHODS[label]
    for label in (REFERENCE, CONSTANT, PRICED, "msft-lr1e-4", "msft-one", SURE_EMA, "soft-sro")
}
"""Those whose choice is compared on the ten tasks."""
CHOOSERS = ("sft-cosine", "msft", "msft-sure-ema")
"""Those whose choice is compared on every mixture: the best cosine schedule stands for all."""


def _with_column(name: str, head: str, rows: Sequence[str]) -> list[str]:
    """A table with a column before the others, which the rows have already."""
    return [f"| {name} {head}", "| --- " * head.count("|") + "|", *rows, ""]


def whole_table(study: Study, paper: Mapping[str, float] | None = None) -> list[str]:
    """The main table of everything that a mixture has.

    paper: its differences to SFT by variant, where it has such a table.
    """
    names = names_in(study, paper)
    shown = {label: name for label, name in names.items() if variant_of(label) not in SIDE_CONTROLS}
    return main_table(study, shown, papers=paper is not None)


SIDE_CONTROLS = ("soup-all", "soup-random")
"""Controls that only the main tables show."""


def protocol_table(study: Study, runs: Path, paper: Mapping[str, float]) -> list[str]:
    """The paper's protocol: differences to SFT on the rows that chose, which the paper reports, and
    on rows apart, each with its interval over rows."""
    names = names_in(study, paper)
    against = study.get(next((label for label in names if variant_of(label) == "sft"), ""), {})
    rows = []
    for label, (name, reported) in names.items():
        entries = [study[label][seed] for seed in sorted(study[label])]
        pairs = [(each, against[each.seed]) for each in entries if each.seed in against]
        chose = [(_on_validation(one, runs), _on_validation(two, runs)) for one, two in pairs]
        same = study[label] is against
        epochs = [mean([float(e.line[key]) for e in entries]) for key in ("epochs", EPOCHS)]
        rows.append(
            [
                *scores(name, entries),
                f"{float(epochs[0]):.2f} of {float(epochs[1]):.0f}",
                *("0" if same else _with_range(over_rows(each)) for each in (chose, pairs)),
                _paper(reported),
            ]
        )
    head = ("epochs", "over SFT, rows that chose", "over SFT, rows apart", "paper, rows that chose")
    return table((*SCORES, *head), rows) if rows else NOT_RUN


def _on_validation(entry: Entry, runs: Path) -> Entry:
    """The entry with verdicts of the rows that chose its checkpoint."""
    verdicts = verdicts_of(runs / "logs" / entry.line["name"])
    checkpoint = entry.line["checkpoint"]
    rows = {name: [m == "1" for m in verdicts[checkpoint, SELECTION, name]] for name in entry.test}
    return replace(entry, rows=rows)


def _with_range(interval: Interval) -> str:
    return f"{interval.difference:+.2f} ({_range(interval)})"


def sizes_table(studies: Mapping[str, Study]) -> list[str]:
    """The first methods on 5 and 15 tasks, each against cosine SFT on as many."""
    rows = []
    for count, mixture in SIZES.items():
        found = main_table(studies.get(mixture, {}), {k: METHODS[k] for k in BY_SIZE}, False)
        if found != NOT_RUN:
            head, rows = found[0], [*rows, *(f"| {count} {line}" for line in found[2:-1])]
    return _with_column("N", head, rows)


SIZES = {5: "five", 15: "fifteen"}
BY_SIZE = (
    *(REFERENCE, CONSTANT, PRICED, "soup-lr1e-4-e5"),
    *("msft-lr1e-4", SURE_EMA),
)


def _audited(
    made: Callable[[Path, str], list[str]], mixture: str, _: Mapping[str, Study], runs: Path
) -> list[str]:
    return made(runs, mixture)


Made = Callable[[Mapping[str, Study], Path], list[str]]
TABLES: dict[str, Made] = {
    "clean": lambda studies, _: main_table(studies["clean"]),
    "noisy": lambda studies, _: main_table(studies["noisy"], papers=False),
    "gemma": lambda studies, _: whole_table(studies["gemma"]),
    "tasks": lambda studies, _: task_table(studies["clean"]),
    "selection": lambda studies, runs: selection_table(studies["clean"], runs, CHOSEN),
    "selection_others": other_selections,
    "selection_noisy": lambda studies, runs: selection_table(studies["noisy"], runs, CHOSEN),
    "peaks": lambda studies, runs: peaks_table(studies["clean"], runs),
    "headroom": headroom_table,
    "parts": parts_table,
    "shifts": shifts_table,
    "costs": lambda studies, runs: costs_table(studies["clean"], runs),
    "budgets": lambda studies, _: main_table(studies["clean"], BUDGETS, papers=False),
    "sizes": lambda studies, _: sizes_table(studies),
    "medmcqa": lambda studies, _: whole_table(studies.get("medmcqa", {}), PAPER_MEDMCQA),
    "qwen": lambda studies, _: whole_table(studies.get("qwen", {}), PAPER_QWEN),
    "qwenlora": lambda studies, _: whole_table(studies.get("qwenlora", {}), PAPER_QWEN),
    "qwenpaper": lambda studies, runs: protocol_table(
        studies.get("qwenpaper", {}), runs, PAPER_QWEN
    ),
    "bigbench": lambda studies, _: whole_table(studies.get("bigbench", {})),
    **{
        f"audit_{mixture}{what}": partial(_audited, made, mixture)
        for mixture in ("noisy", "slightly", "clean", "coder", "demo")
        for what, made in (("", gain_table), ("_found", found_table))
        if (mixture, what) != ("clean", "")  # there nobody is spoiled, so there are no suspects
    },
}


def rebuilt(text: str, studies: Mapping[str, Study], runs: Path) -> str:
    """The page with every table as the logs give it."""

    def made(found: re.Match[str]) -> str:
        return found[1] + "\n" + "\n".join(TABLES[found[2]](studies, runs)) + "\n" + found[3]

    return MARK.sub(made, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    options = parser.parse_args()
    wrong = 0
    studies = study_of(RUNS, SEEDS, None)
    for page in PAGES:
        before = page.read_text()
        after = rebuilt(before, studies, RUNS)
        wrong += before != after
        if options.check:
            print(f"{page} is {'' if before == after else 'not '}what the logs give")
        else:
            page.write_text(after)
            print(f"wrote the tables of {page}")
    for drawn in figures_of(studies, RUNS):
        path = IMAGES / f"{drawn.key}.svg"
        same = told_in(path) == drawn.told
        wrong += not same
        if options.check:
            print(f"{path} shows {'' if same else 'not '}what the logs give")
        else:
            print(f"drew {write(drawn)}")
    return int(options.check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
