"""The study's pages: their tables are those that the logs of its runs give."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("study_page")


def test_every_number_of_the_page_is_that_of_the_logs(script: Any) -> None:
    texts = [page.read_text() for page in script.PAGES]
    names = [found[2] for text in texts for found in script.MARK.finditer(text)]
    assert names == ["clean", "noisy", "tasks", "gemma"]
    assert [script.rebuilt(text, script.RUNS) for text in texts] == texts


def test_every_table_has_both_splits_seeds_and_candidates(script: Any) -> None:
    text = "".join(page.read_text() for page in script.PAGES)
    for found in script.MARK.finditer(text):
        if found[2] != "tasks":
            head = found[0].splitlines()[2]
            for column in ("seeds", "validation", "test", "test − validation", "candidates"):
                assert f"| {column} |" in head
