"""Lines and tables fit the screen, and nothing that a reader would copy is broken."""

import io

import pytest

from msft.text import broken, columns_of, cut, fitted, flowed, screen_width, table

LONG_PATH = "/home/somebody/projects/fine-tuning/runs/a-long-name-of-a-run/report.html"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_width_is_that_of_columns_else_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert screen_width(io.StringIO()) == 100
    monkeypatch.setenv("COLUMNS", "8")
    assert screen_width(io.StringIO()) == 40, "tables need some room"
    for unusable in ("", "0", "wide"):
        monkeypatch.setenv("COLUMNS", unusable)
        assert screen_width(io.StringIO()) is None
        assert screen_width(Terminal()) is None, "it has no size"
    assert screen_width(None) is None


def test_a_long_name_keeps_its_ends() -> None:
    assert cut("short", 14) == "short"
    assert cut("sub-dataset-number-042", 14) == "sub-dat…er-042"
    assert len(cut("x" * 100, 24)) == 24
    assert columns_of(cut("名" * 30, 21)) <= 21


def test_lines_that_fit_stay_and_long_ones_are_broken_between_words() -> None:
    short = "  indented   and  spaced"
    assert fitted(f"{short}\n\n", 24) == f"{short}\n\n"
    assert fitted("note: one two three four", 14) == "note: one two\n      three\n      four"
    assert fitted("  one two three four", 12) == "  one two\n    three\n    four"
    assert fitted("one two three", None) == "one two three"


def test_a_path_longer_than_a_line_stands_alone() -> None:
    lines = fitted(f"msft: {LONG_PATH} is not there; expected a file", 40).split("\n")
    assert lines == ["msft:", f"      {LONG_PATH}", "      is not there; expected a file"]


def test_pieces_are_not_broken() -> None:
    lines = flowed(["first:", "one 0.1", "two 0.2", "three 0.3"], 18, "  ", below="    ")
    assert lines == ["first:  one 0.1", "    two 0.2", "    three 0.3"]
    assert flowed([], 10) == [""]


def test_foreign_text_is_broken_without_losing_any_of_it() -> None:
    text = "  every word of this line and averyverylongword too, 名名名名名名名名"
    lines = broken(text, 16, "… ")
    assert max(map(columns_of, lines)) <= 16
    assert lines[0] == "  every word of "
    assert lines[0] + "".join(line.removeprefix("… ") for line in lines[1:]) == text
    assert broken("", 16, "… ") == [""]


ROWS = [
    ("sub-dataset", "first", "second", "third"),
    ("a-name-of-thirty-characters-01", "1", "22", "333"),
    ("a-name-of-thirty-characters-02", "1", "22", "333"),
]


def test_a_table_cuts_names_and_then_puts_columns_below() -> None:
    natural = table(ROWS)
    assert natural[0] == "sub-dataset                     first  second  third"
    assert table(ROWS, 80) == natural
    cut_names = table(ROWS, 44)
    assert cut_names[1] == "a-name-of-t…racters-01      1      22    333"
    assert max(map(len, cut_names)) <= 44
    below = table(ROWS, 41)
    assert [line.split() for line in below] == [
        ["sub-dataset", "first", "second"],
        ["a-name-of-…acters-01", "1", "22"],
        ["a-name-of-…acters-02", "1", "22"],
        [],
        ["sub-dataset", "third"],
        ["a-name-of-…acters-01", "333"],
        ["a-name-of-…acters-02", "333"],
    ]


def test_a_second_part_goes_below_the_first_where_both_do_not_fit() -> None:
    assert table(ROWS, 80, 2) == table(ROWS)
    below = table(ROWS, 41, 2)
    assert [line.split() for line in below[::4]] == [
        ["sub-dataset", "first"],
        ["sub-dataset", "second", "third"],
    ]
    assert below[1].split() == [ROWS[1][0], "1"], "a part has room for the whole name"


def test_a_cell_that_no_line_can_hold_is_cut() -> None:
    lines = table([("name", "metric"), ("a" * 30, "package.module:" + "b" * 60)], 50)
    assert max(map(len, lines)) == 50
    assert lines[1].endswith("bbbb")
