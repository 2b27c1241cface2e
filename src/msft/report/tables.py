"""A table as a value, and its ways out: terminal, Markdown, LaTeX, CSV; a page has a macro for it.

The code that builds a table decides what a cell says and how it ranks. A renderer only sets it and
escapes every text, since names come from recipes and data.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from itertools import groupby
from textwrap import fill
from typing import Any, Literal

from msft.report.wording import NOTHING
from msft.search.curves import Number
from msft.text import WIDTH, cut, in_markdown, label, plain

Rank = Literal[0, 1, 2]
"""1 is the best, 2 the second best; 0 is everybody else."""

Sign = Literal["", "up", "down"]

MARKS: dict[Rank, str] = {0: " ", 1: "*", 2: "°"}
LEGEND = "* best, ° second best, equal ones alike."


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    more: set small behind the text, such as a difference.
    value, difference: the same as unrounded numbers, for a program to read.
    sign: on a page a gain is green and a loss red.
    """

    text: str
    rank: Rank = 0
    more: str = ""
    value: Number | None = None
    difference: Number | None = None
    sign: Sign = ""


EMPTY = Cell(NOTHING)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of a table; `apart`: with a rule above it.

    block: the name of the block, such as a model, that this line is in; a table has them all in
        one or each in some.
    more: set small below the name on a page.
    """

    name: str
    cells: tuple[Cell, ...]
    apart: bool = False
    block: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """key: for files and links. head: its first text stands above the names of the rows.

    reading: how to read the cells, where several tables of a page are read in the same way.
    """

    key: str
    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    reading: str = ""

    @property
    def caption(self) -> str:
        """The reading and the note together, for a table outside of a page."""
        return f"{self.reading} {self.note}".strip()

    @property
    def blocks(self) -> list[tuple[str, list[TableRow]]]:
        """The rows by block, in order; a table without blocks has one block without a name."""
        return [(name, [*rows]) for name, rows in groupby(self.rows, lambda row: row.block)]


def table_of(
    key: str,
    title: str,
    note: str,
    names: Sequence[str],
    columns: Mapping[str, Sequence[Cell]],
    reading: str = "",
) -> Table:
    """A table from its columns, which have a cell for each name."""
    lines = zip(*columns.values(), strict=True)
    rows = tuple(TableRow(name, cells) for name, cells in zip(names, lines, strict=True))
    return Table(key, title, note, ("method", *columns), rows, reading)


LONGEST = 40
"""Characters of a name on a terminal: variants of a method have long ones."""


def ranked(heights: Sequence[Number | None]) -> list[Rank]:
    """The ranks of heights; none where nobody is better than another."""
    values = sorted({height for height in heights if height is not None}, reverse=True)
    if len(values) < 2:
        return [0] * len(heights)
    return [1 if h == values[0] else 2 if h == values[1] else 0 for h in heights]


def terminal(table: Table, width: int = WIDTH) -> str:
    """Fixed width, no colour; columns that do not fit follow below, with the names again. The
    caption stands below the numbers."""
    columns = [_column(table, number) for number in range(len(table.head) - 1)]
    room = width - max((len(column[0]) for column in columns), default=0)
    names = [
        cut(plain(name, keep=""), max(1, min(LONGEST, room)))
        for name in (table.head[0], *(row.name for row in table.rows))
    ]
    first = max(map(len, names))
    lines = [label(table.title, width)]
    while columns:
        fitting = 1
        room = width - first - len(columns[0][0])
        while fitting < len(columns) and len(columns[fitting][0]) <= room:
            room -= len(columns[fitting][0])
            fitting += 1
        block, columns = columns[:fitting], columns[fitting:]
        lines.append("")
        for number, name in enumerate(names):
            begun = table.rows[number - 1].block if number else ""
            if begun and (number == 1 or begun != table.rows[number - 2].block):
                lines += ["", label(begun, width)]
            line = f"{name:<{first}}" + "".join(column[number] for column in block)
            lines.append(line.rstrip())
    return "\n".join([*lines, *wrapped(table.caption, width)]) + "\n"


def _column(table: Table, number: int) -> list[str]:
    """The cells of a column under its head, all of one width."""
    cells = [row.cells[number] for row in table.rows]
    texts = [label(cell.text) + MARKS[cell.rank] for cell in cells]
    mores = [label(cell.more) for cell in cells]
    head, behind = label(table.head[number + 1], LONGEST), max([0, *map(len, mores)])
    before = max([len(head) + 1 - (behind + 1 if behind else 0), *map(len, texts)])
    joined = [
        f"{text:>{before}}" + (f" {more:>{behind}}" if behind else "")
        for text, more in zip(texts, mores, strict=True)
    ]
    whole = before + (behind + 1 if behind else 0)
    return [f"  {head + ' ':>{whole}}", *(f"  {text}" for text in joined)]


def wrapped(text: str, width: int) -> list[str]:
    """A sentence as lines for a terminal."""
    return fill(plain(text, keep=""), width, break_on_hyphens=False).split("\n") if text else []


def markdown(table: Table) -> str:
    """The best in bold, the second underlined; GitHub has no <u>, but <ins> looks like it."""
    lines = [f"### {in_markdown(table.title)}", ""]
    if table.caption:
        lines += [in_markdown(table.caption), ""]
    lines.append(f"| {' | '.join(map(in_markdown, table.head))} |")
    lines.append("| --- |" + " ---: |" * (len(table.head) - 1))
    for block, rows in table.blocks:
        if block:
            lines.append(f"| **{in_markdown(block)}** |" + " |" * (len(table.head) - 1))
        for row in rows:
            cells = (_md_cell(cell) for cell in row.cells)
            lines.append(f"| {' | '.join([in_markdown(row.name), *cells])} |")
    return "\n".join(lines) + "\n"


def _md_cell(cell: Cell) -> str:
    text = in_markdown(cell.text)
    text = {0: text, 1: f"**{text}**", 2: f"<ins>{text}</ins>"}[cell.rank]
    return f"{text} <sub>{in_markdown(cell.more)}</sub>" if cell.more else text


def latex(table: Table) -> str:
    """A `table` with booktabs' rules; the best is bold, the second underlined."""
    spec = "l" + "r" * (len(table.head) - 1)
    lines = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{\textbf{{{_tex(table.title)}.}} {_tex(table.caption)}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        rf"{' & '.join(_tex(text) for text in table.head)} \\",
        r"\midrule",
    ]
    for number, (block, rows) in enumerate(table.blocks):
        if block:
            lines += [r"\midrule"] * (number > 0)
            span = rf"\multicolumn{{{len(table.head)}}}{{c}}{{\textbf{{{_tex(block)}}}}} \\"
            lines += [span, r"\midrule"]
        for row in rows:
            lines += [r"\midrule"] * row.apart
            cells = (_tex_cell(cell) for cell in row.cells)
            lines.append(rf"{' & '.join([_tex(row.name), *cells])} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    text = {0: text, 1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}[cell.rank]
    return rf"{text}\textsubscript{{{_tex(cell.more)}}}" if cell.more else text


_TEX = str.maketrans(
    {char: f"\\{char}" for char in "{}$&#%_"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "[": "{[}",
        "]": "{]}",
        "-": "{-}",
        "*": "{*}",  # at the start of a row it would belong to the end of the row before
        "`": r"\textasciigrave{}",
        "−": "$-$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "Δ": r"$\Delta$",
        "–": "{--}",
        "…": r"\ldots{}",
        "\u00a0": "~",
        "\ufffd": "?",
    }
)


def _tex(text: str) -> str:
    return plain(text, keep="").translate(_TEX)


def csv_text(tables: Sequence[Table], selection: str = "") -> str:
    """One line per cell, numbers unrounded: table, row, column, value, difference, rank; where a
    table has blocks, the block behind it.

    selection: the split that selected, if every line is to say so.
    """
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    blocks = any(row.block for table in tables for row in table.rows)
    columns = ["table", "row", "column", "value", "difference", "rank"]
    columns += ["block"] if blocks else []
    said = {"selection_split": selection} if selection else {}
    writer.writerow([*columns, *said])
    for cell in cells_of(tables):
        values = (*(cell[column] for column in columns), *said.values())
        writer.writerow([_csv(v) if isinstance(v, str) else v for v in values])
    return out.getvalue()


def cells_of(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Every cell of the tables: the key of its table, block, row, column, value (a number where it
    is one), difference and rank; None for what it does not have."""
    return [
        {
            "table": table.key,
            "block": row.block,
            "row": row.name,
            "column": head,
            "value": _number(cell.value) if cell.value is not None else said,
            "difference": _number(cell.difference),
            "rank": cell.rank or None,
        }
        for table in tables
        for row in table.rows
        for head, cell in zip(table.head[1:], row.cells, strict=True)
        for said in [None if cell.text == NOTHING else cell.text]
    ]


def _number(value: Number | None) -> float | None:
    return float(value) if isinstance(value, Fraction) else value


def _csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    line = plain(text, keep="")
    return f"'{line}" if line.lstrip().startswith(tuple("=+-@＝＋－＠")) else line


def markdown_page(title: str, paragraphs: Sequence[str], tables: Sequence[Table]) -> str:
    texts = [
        f"# {in_markdown(title)}",
        *map(in_markdown, paragraphs),
        "\n".join(map(markdown, tables)),
    ]
    return "\n\n".join(texts)


def latex_page(title: str, paragraphs: Sequence[str], tables: Sequence[Table]) -> str:
    """A file for \\input; what is said about the tables stands there as comments."""
    said = [f"% {plain(text, keep='')}" for text in (title, *paragraphs)]
    needs = "% In the preamble: \\usepackage[T1]{fontenc} \\usepackage{booktabs}"
    return "\n".join([*said, needs, "", *map(latex, tables)])
