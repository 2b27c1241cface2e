"""What a page of a comparison shows of its tables and figures: everything once.

Files for other programs have every table whole.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from msft.report.page import Section
from msft.report.tables import EMPTY, Table
from msft.search.scores import SELECTION, TEST


def page_tables(tables: Sequence[Table], figures: Sequence[Section]) -> list[Table]:
    """First places are a figure. What selected and what reports joins the results, whose means
    stand nowhere else."""
    drawn = {each.key for each in figures}
    by_key = {table.key: table for table in tables}
    results, honesty = by_key.get("main"), by_key.get("honesty")
    found: list[Table] = []
    for table in tables:
        if table is results and honesty is not None:
            found.append(_joined(results, without_columns(honesty, _means(tables))))
        elif results is not None and table.key in ("datasets", f"datasets-{SELECTION}"):
            rows = tuple(row for row in table.rows if not row.apart)
            found.append(replace(table, note="", rows=rows))
        elif results is not None and table is not results and table.key.startswith("main"):
            found.append(replace(table, note=""))
        elif not (table is honesty and results is not None) and not (
            table.key == "places" and "places" in drawn
        ):
            found.append(table)
    return found


def page_figures(tables: Sequence[Table], figures: Sequence[Section]) -> list[Section]:
    """The spread is a table, which has both ends beside it."""
    keys = {table.key for table in tables}
    return [each for each in figures if not (each.key == "spread" and "spread" in keys)]


def without_columns(table: Table, heads: Collection[str]) -> Table:
    """A table that lacks the columns with these heads."""
    kept = [place for place, head in enumerate(table.head[1:]) if head not in heads]
    rows = (replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    head = (table.head[0], *(table.head[place + 1] for place in kept))
    return replace(table, head=head, rows=tuple(rows))


def _means(tables: Sequence[Table]) -> list[str]:
    """The splits whose means a table of results has."""
    titles = [table.title for table in tables if table.key.startswith("main")]
    return [split for split in (SELECTION, TEST) if any(f"on {split}" in t for t in titles)]


def _joined(results: Table, more: Table) -> Table:
    """The rows of a table with the cells of another one behind them, by their names."""
    cells = {row.name: row.cells for row in more.rows}
    nothing = (EMPTY,) * (len(more.head) - 1)
    rows = (replace(row, cells=(*row.cells, *cells.get(row.name, nothing))) for row in results.rows)
    head = (*results.head, *more.head[1:])
    return replace(results, note=f"{results.note} {more.note}", head=head, rows=tuple(rows))
