"""What `msft compare` writes and prints: every table that these runs can fill, in five formats."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msft.folder import write_text
from msft.history import TEST
from msft.report.certainty_tables import bootstrap_table, honesty_table, seed_table
from msft.report.comparison_report import link_to
from msft.report.figure_sections import comparison_figures
from msft.report.lineup import Lineup, height
from msft.report.page import write_page
from msft.report.paper_tables import (
    ablation_table,
    dataset_table,
    flops_table,
    main_table,
    places_table,
    spread_table,
)
from msft.report.section import shown
from msft.report.tables import (
    LEGEND,
    Table,
    csv_text,
    latex_page,
    markdown_page,
    terminal,
    wrapped,
)
from msft.report.wording import counted, difference_in_words, in_words, listed
from msft.scores import Number

ORDER: tuple[Callable[[Lineup], Table | None], ...] = (
    honesty_table,
    dataset_table,
    ablation_table,
    seed_table,
    bootstrap_table,
    places_table,
    spread_table,
    flops_table,
)


def tables_of(lineup: Lineup) -> list[Table]:
    """All that say something about this line-up, in the order in which they are read."""
    splits = lineup.splits if lineup.groups else lineup.splits[:1]
    main = [main_table(lineup, split) for split in splits]
    rest = [make(lineup) for make in ORDER]
    return [*main, *(table for table in rest if table is not None)]


def headline(lineup: Lineup) -> str:
    """The best on the split that reports, in one sentence."""
    unit, known = lineup.unit(lineup.names), _means(lineup)
    if not known:
        return "None of these runs is scored on all sub-datasets."
    top = max(height(score, unit) for score in known.values())
    winners = [label for label, score in known.items() if height(score, unit) == top]
    text = f"{listed(winners)} {'has' if len(winners) == 1 else 'have'} the best mean on "
    text += f"{lineup.split}, {in_words(known[winners[0]], unit)}"
    against = known.get(lineup.baseline.label)
    if against is not None and lineup.baseline.label not in winners:
        gap = difference_in_words(known[winners[0]] - against, unit)
        text += f", against {lineup.baseline.label} {in_words(against, unit)} ({gap})"
    methods = counted(len(lineup.entries), "method")
    return f"{text}. {methods}, {counted(len(lineup.seeds), 'seed')}."


def _means(lineup: Lineup) -> dict[str, Number]:
    scores = {e.label: lineup.score(e, lineup.names, lineup.split) for e in lineup.entries}
    return {label: score for label, score in scores.items() if score is not None}


def caveats(lineup: Lineup) -> list[str]:
    """What to know before reading a table."""
    unit = lineup.unit(lineup.names)
    found = [
        "Every checkpoint was selected on validation. "
        + (
            "Test decided nothing, and it reports."
            if lineup.split == TEST
            else "Validation also reports, as in the paper's protocol: these scores flatter, and "
            "the more so the more checkpoints a method could choose from."
        )
    ]
    if len(lineup.seeds) < 2:
        found.append(
            "There is one seed, so nothing here says what another one would give: --seeds "
            "20,30,40 runs more."
        )
    base = lineup.base_score(lineup.names, lineup.split)
    better = [
        score for score in _means(lineup).values() if height(score, unit) > height(base or 0, unit)
    ]
    if base is not None and not better:
        found.append(f"No method is better than the base model on {lineup.split}.")
    if unit is None:
        found.append(
            "Metrics differ between sub-datasets, so means are of gains over the base model: "
            "points for accuracy and own metrics, relative decrease for nll."
        )
    return found


def write_compare(lineup: Lineup, out: Path) -> list[Path]:
    """`compare.html`, `.md`, `.tex` and `.csv` in a folder; each run's own report is linked."""
    tables, title = tables_of(lineup), f"{listed(e.label for e in lineup.entries)} compared"
    said = [headline(lineup), *caveats(lineup), *lineup.warnings]
    paths = [out / f"compare{suffix}" for suffix in (".html", ".md", ".tex", ".csv")]
    write_page(paths[0], "compare.html", _content(lineup, tables, title, out))
    write_text(paths[1], markdown_page(title, said, tables))
    write_text(paths[2], latex_page(title, said, tables))
    write_text(paths[3], csv_text(tables))
    return paths


def _content(lineup: Lineup, tables: Sequence[Table], title: str, out: Path) -> dict[str, Any]:
    runs = [run for entry in lineup.entries for run in entry.runs.values()]
    return {
        "title": title,
        "eyebrow": title,
        "headline": headline(lineup),
        "caveats": caveats(lineup),
        "warnings": lineup.warnings,
        "links": [(run.label, link_to(run.folder, out)) for run in runs],
        "tables": tables,
        "figures": shown(comparison_figures(runs)),
    }


def compare_text(lineup: Lineup, width: int = 79) -> str:
    """The tables for a terminal."""
    said = [*caveats(lineup), *lineup.warnings, LEGEND, headline(lineup)]
    tables = [terminal(table, width) for table in tables_of(lineup)]
    return "\n".join([*tables, *(line for text in said for line in wrapped(text, width))]) + "\n"
