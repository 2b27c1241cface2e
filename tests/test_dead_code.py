"""No name in src is there for tests alone."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "msft"
CALLED_BY_OTHERS = {"_repr_html_", "ignore_aliases"}
"""Hooks that a library calls by their names."""


def names_in(code: str) -> Iterator[str]:
    """What a file defines: functions, classes, constants and fields."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_every_name_is_used_by_the_program_its_pages_or_its_benchmarks() -> None:
    users = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.html"), *(ROOT / "bench").rglob("*.py")]
    words = Counter(word for path in users for word in re.findall(r"\w+", path.read_text()))
    unused = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in names_in(path.read_text())
        if words[name] == 1 and not name.startswith("__") and name not in CALLED_BY_OTHERS
    }
    assert unused == set()
