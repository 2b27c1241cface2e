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


@pytest.mark.parametrize("name", DOOR)
def test_the_door_imports_what_the_commands_do_when_a_command_is_given(name: str) -> None:
    assert not [
        each
        for each in imports_of(name)
        if not each.lazy
        and each.module.startswith("msft.app")
        and each.module != "msft.app.commands"
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("__init__.py")])
def test_a_room_says_what_it_is_for(name: str) -> None:
    """What it is for, which file to read first, what it may not import."""
    words = ast.get_docstring(ast.parse((SOURCE / name).read_text())) or ""
    assert len(words.split()) >= 15


SEARCH = [name for name in NAMES if room_of(name) == "search"]
METHODS = [name for name in SEARCH if name.startswith("search/methods/")]


@pytest.mark.parametrize("name", SEARCH)
def test_the_search_sees_no_torch_no_file_no_clock_and_no_chance(name: str) -> None:
    """Randomness only through `msft.search.draws`, which keeps no state."""
    allowed = {"bisect", "collections", "contextlib", "dataclasses", "fractions", "functools"}
    allowed |= {"itertools", "math", "typing", "msft"}
    allowed |= {
        "search/draws.py": {"hashlib", "random"},  # a stream of its own for each place
        "search/methods/__init__.py": {"importlib"},  # finds a user's own method
    }.get(name, set())
    assert packages(name) <= allowed
    tree = ast.parse((SOURCE / name).read_text())
    calls = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not calls & {"open", "print", "input", "eval", "exec", "__import__", "hash", "id"}


MAKES_DATA = "benchmarks/synthetic.py"  # rows of the demo, not choices of a run


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("search/draws.py", MAKES_DATA)]
)
def test_randomness_comes_from_draws_alone(name: str) -> None:
    assert not packages(name) & {"random", "secrets", "uuid"}


WITH_TORCH = ("engine", "planning", "integrations")
"""Rooms that only those enter who need torch anyway; an integration is called by its user."""


@pytest.mark.parametrize("name", [name for name in NAMES if room_of(name) not in WITH_TORCH])
def test_only_the_engine_imports_torch_as_it_is_loaded(name: str) -> None:
    """Within a function is allowed: then nobody pays for it who does not call it."""
    top = ast.parse((SOURCE / name).read_text()).body
    found = {
        alias.name.split(".")[0]
        for node in top
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {str(node.module).split(".")[0] for node in top if isinstance(node, ast.ImportFrom)}
    assert not found & {"torch", "transformers", "safetensors", "accelerate", "numpy"}


def test_checks_know_nothing_but_errors_and_texts() -> None:
    ours = {module for module in imported("checks.py") if module.startswith("msft")}
    assert ours <= {"msft.errors", "msft.text"}


@pytest.mark.parametrize(
    "module", ["msft", "msft.testing", "msft.run.summary", "msft.app.commands"]
)
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", [name for name in METHODS if not name.endswith("__init__.py")])
def test_a_method_is_short_enough_to_be_read(name: str) -> None:
    assert len((SOURCE / name).read_text().splitlines()) <= 100
