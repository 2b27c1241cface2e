"""Who may import whom: dependencies go one way, and only the engine knows torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import msft

SOURCE = Path(msft.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in FILES]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or anywhere else."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def ours(name: str) -> set[str]:
    """The modules of ours that a module imports, by their first name below msft."""
    return {i.split(".")[1] for i in imported(SOURCE / name) if i.startswith("msft.")}


HEART = {
    "amounts.py": set[str](),
    "draws.py": set[str](),
    "scores.py": set[str](),
    "options.py": set[str](),
    "mixture.py": {"draws"},
    "curve.py": {"scores"},
    "feeds.py": {"draws", "mixture"},
    "rollout.py": {"curve", "feeds", "mixture", "scores"},
    "log.py": {"rollout", "scores"},
    "tiers.py": set[str](),
    "background.py": {"tiers"},
    "checkpoints.py": {"log", "rollout", "tiers"},
    "history.py": {"curve", "log", "rollout", "scores"},
    "recording.py": {"history", "log", "rollout"},
    "flops.py": {"history", "rollout"},
    "summary.py": {"flops", "history", "rollout"},
    "verdicts.py": {"rollout"},
    "worker.py": {"draws", "feeds", "mixture", "rollout", "scores"},
    "standing.py": {"checkpoints", "history", "rollout", "worker"},
}
"""What each module of the heart may know of the others."""


@pytest.mark.parametrize("name", HEART)
def test_the_heart_depends_one_way(name: str) -> None:
    assert ours(name) <= HEART[name]


def test_the_allowed_dependencies_have_no_circle() -> None:
    done = set[str]()
    while rest := {name for name in HEART if name.removesuffix(".py") not in done}:
        free = {name for name in rest if HEART[name] <= done}
        assert free, f"a circle among {sorted(rest)}"
        done |= {name.removesuffix(".py") for name in free}


METHOD_FILES = [name for name in NAMES if name.startswith("methods/")]


@pytest.mark.parametrize("name", METHOD_FILES)
def test_a_method_sees_no_torch_no_file_no_clock_and_no_chance(name: str) -> None:
    """Randomness only through `msft.search.draws`, which keeps no state."""
    allowed = {"collections", "dataclasses", "fractions", "functools", "math", "typing", "msft"}
    if name == "methods/__init__.py":
        allowed |= {"importlib"}  # finds a user's own method
    assert packages(SOURCE / name) <= allowed
    assert ours(name) <= {"curve", "draws", "feeds", "methods", "mixture", "options", "rollout"}
    calls = {
        n.id for n in ast.walk(ast.parse((SOURCE / name).read_text())) if isinstance(n, ast.Name)
    }
    assert not calls & {"open", "print", "input", "eval", "exec", "__import__", "hash", "id"}


MAKES_DATA = "tasks/synthetic.py"  # rows of the demo, not choices of a run


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("draws.py", MAKES_DATA)])
def test_randomness_comes_from_draws_alone(name: str) -> None:
    assert not packages(SOURCE / name) & {"random", "secrets", "uuid"}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("engine/")])
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


@pytest.mark.parametrize("module", ["msft", "msft.testing", "msft.run.summary"])
def test_importing_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_short_enough_to_be_read(name: str) -> None:
    limit = 100 if name in METHOD_FILES else 300
    assert len((SOURCE / name).read_text().splitlines()) <= limit
