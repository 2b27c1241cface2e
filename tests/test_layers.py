"""Who may import whom: one rule for every file, and only the engine knows torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rooms import SOURCE, files, imports_of, room_of, upward_imports

NAMES = files()


def imported(name: str) -> Iterator[str]:
    """Every module that a file imports, at its top or anywhere else."""
    for node in ast.walk(ast.parse((SOURCE / name).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def packages(name: str) -> set[str]:
    return {module.split(".")[0] for module in imported(name)}


def test_no_import_goes_upward() -> None:
    assert upward_imports() == []


def test_the_plan_is_printed_and_says_that_no_import_goes_upward() -> None:
    printed = subprocess.run(
        [sys.executable, "tests/rooms.py"], cwd=SOURCE.parents[1], capture_output=True, text=True
    )
    assert printed.returncode == 0
    assert "0 upward imports" in printed.stdout.splitlines()[-1]
    assert all(f" {name} " in printed.stdout for name in NAMES)


DOOR = [name for name in NAMES if room_of(name) == "door"]


def test_the_door_imports_what_the_commands_do_when_a_command_is_given() -> None:
    assert not [
        each
        for name in DOOR
        for each in imports_of(name)
        if not each.lazy
        and each.module.startswith("msft.app")
        and each.module != "msft.app.commands"
    ]


def test_a_room_says_what_it_is_for() -> None:
    """What it is for, which file to read first, what it may not import."""
    said = {
        name: ast.get_docstring(ast.parse((SOURCE / name).read_text())) or ""
        for name in NAMES
        if name.endswith("__init__.py")
    }
    assert [name for name, words in said.items() if len(words.split()) < 15] == []


SEARCH = [name for name in NAMES if room_of(name) == "search"]
METHODS = [name for name in SEARCH if name.startswith("search/methods/")]


def test_the_search_sees_no_torch_no_file_no_clock_and_no_chance() -> None:
    """Randomness only through `msft.search.draws`, which keeps no state."""
    allowed = {"bisect", "collections", "contextlib", "dataclasses", "fractions", "functools"}
    allowed |= {"itertools", "math", "typing", "msft"}
    also = {
        "search/draws.py": {"hashlib", "random"},  # a stream of its own for each place
        "search/methods/__init__.py": {"importlib"},  # finds a user's own method
        "search/options.py": {
            "annotated_types",
            "difflib",
            "inspect",
            "pydantic",
            "types",
        },  # checks options
    }
    others = {name: packages(name) - allowed - also.get(name, set()) for name in SEARCH}
    assert {name: found for name, found in others.items() if found} == {}
    never = {"open", "print", "input", "eval", "exec", "__import__", "hash", "id"}
    trees = {name: ast.walk(ast.parse((SOURCE / name).read_text())) for name in SEARCH}
    called = {
        name: {node.id for node in tree if isinstance(node, ast.Name)} & never
        for name, tree in trees.items()
    }
    assert {name: found for name, found in called.items() if found} == {}


MAKES_DATA = "benchmarks/synthetic.py"  # rows of the demo, not choices of a run


def test_randomness_comes_from_draws_alone() -> None:
    chance = {"random", "secrets", "uuid"}
    found = [name for name in NAMES if packages(name) & chance]
    assert found == [MAKES_DATA, "search/draws.py"]


WITH_TORCH = ("engine", "planning", "integrations")
"""Rooms that only those enter who need torch anyway; an integration is called by its user."""


def test_only_the_engine_imports_torch_as_it_is_loaded() -> None:
    """Within a function is allowed: then nobody pays for it who does not call it."""
    heavy = {"torch", "transformers", "safetensors", "accelerate", "numpy"}
    found = list[str]()
    for name in (name for name in NAMES if room_of(name) not in WITH_TORCH):
        for node in ast.parse((SOURCE / name).read_text()).body:
            modules = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            found += [f"{name}: {each}" for each in modules if each.split(".")[0] in heavy]
    assert found == []


@pytest.mark.parametrize(
    "module", ["msft", "msft.testing", "msft.run.history", "msft.app.commands"]
)
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_method_is_short_enough_to_be_read() -> None:
    lines = {name: len((SOURCE / name).read_text().splitlines()) for name in METHODS}
    del lines["search/methods/__init__.py"]
    assert [name for name, count in lines.items() if count > 100] == []
