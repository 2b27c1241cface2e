"""Mutants of the core: each small change to a line should fail a test. `make mutants` runs them.

python tests/mutants.py [FILE ...] [--seconds N]

Every file of CORE (or those named, from src/msft) is changed at one place at a time, in a copy of
the source: `<` to `<=`, `and` to `or`, `any` to `all`, `min` to `max`, `+` to `-`, a number to the
next one. The file's tests run until the first one fails. What no test notices is printed at the
end; JUDGED holds those that a reader has found to change nothing, with the reason.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "msft"

METHODS = "tests/search/methods tests/test_properties.py"
CORE: dict[str, str] = {
    "search/methods/msft.py": "tests/search/methods/test_msft.py " + METHODS,
    "search/methods/sft.py": "tests/search/methods/test_sft.py " + METHODS,
    "search/methods/continual.py": "tests/search/methods/test_continual.py " + METHODS,
    "search/methods/dynamix.py": "tests/search/methods/test_dynamix.py " + METHODS,
    "search/methods/ies.py": "tests/search/methods/test_ies.py " + METHODS,
    "search/methods/sro.py": "tests/search/methods/test_sro.py " + METHODS,
    "search/methods/soft_sro.py": "tests/search/methods/test_soft_sro.py " + METHODS,
    "search/methods/soup.py": "tests/search/methods/test_soup.py " + METHODS,
    "search/peaks.py": "tests/search/test_peaks.py " + METHODS,
    "search/falls.py": "tests/search/test_falls.py tests/run/test_fall_test.py",
    "search/mixture.py": "tests/search/test_mixture.py " + METHODS,
    "search/rehearsal.py": "tests/search/test_mixture.py tests/search/test_feeds.py " + METHODS,
    "search/scores.py": "tests/search/test_scores.py " + METHODS,
    "search/feeds.py": "tests/search/test_feeds.py " + METHODS,
    "run/flops.py": "tests/run/test_flops.py tests/run/test_summary.py",
    "report/compare/decomposition.py": "tests/report/test_decomposition.py",
    "report/compare/statistics.py": "tests/report/test_statistics.py tests/report/test_headroom.py",
    "report/compare/headroom.py": "tests/report/test_headroom.py",
}
"""Files whose numbers decide or are published, and the tests that hold them, the quickest first."""

JUDGED: dict[tuple[str, str, str], str] = {}
"""(file, the line, the change): why it changes nothing that anybody could see."""

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
CALLED = {"any": "all", "all": "any", "min": "max", "max": "min", "sum": "max", "abs": "float"}


@dataclass(frozen=True)
class Mutant:
    """One change at one place of a file."""

    file: str
    line: int
    change: str
    before: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.before, self.change


def mutants_of(file: str) -> Iterator[Mutant]:
    """All of a file, in the order of its lines; docstrings and annotations stay."""
    text = (SOURCE / file).read_text()
    lines = text.splitlines()
    places = sum(1 for _ in _changes(ast.parse(text)))
    for place in range(places):
        tree = ast.parse(text)
        for number, (node, change, apply) in enumerate(_changes(tree)):
            if number == place:
                apply()
                before = lines[node.lineno - 1].strip()
                yield Mutant(file, node.lineno, change, before, ast.unparse(tree))
                break


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str, "Change"]]:
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if (part := getattr(node, name, None)) is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                other = COMPARED[type(operator)]
                said = f"{type(operator).__name__} -> {other.__name__}"
                yield node, said, Change(node.ops, place, other())
        elif isinstance(node, ast.BoolOp):
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"-> {type(other_op).__name__}", Change(node, "op", other_op)
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            sign = COMPUTED[type(node.op)]
            said = f"{type(node.op).__name__} -> {sign.__name__}"
            yield node, said, Change(node, "op", sign())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "not dropped", Change(node, "op", ast.UAdd())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in CALLED:
                called = CALLED[node.func.id]
                yield node, f"{node.func.id} -> {called}", Change(node.func, "id", called)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):  # noqa: SIM102
            if not isinstance(node.value, bool):
                following = node.value + 1
                yield node, f"{node.value} -> {following}", Change(node, "value", following)


@dataclass(frozen=True)
class Change:
    """Put a value into a field of a node, or into a list."""

    holder: object
    field: str | int
    value: object

    def __call__(self) -> None:
        if isinstance(self.holder, list) and isinstance(self.field, int):
            self.holder[self.field] = self.value
        else:
            setattr(self.holder, str(self.field), self.value)


def survives(mutant: Mutant, copy: Path, limit: float) -> bool:
    """Whether the file's tests pass with the change; a test that hangs has noticed it."""
    target = copy / "msft" / mutant.file
    original = target.read_text()
    target.write_text(mutant.source)
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    quietly = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *quietly, *CORE[mutant.file].split()],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        target.write_text(original)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="from src/msft; by default all of CORE")
    parser.add_argument("--seconds", type=float, default=1e9, help="no mutant is begun after them")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of one mutant's tests")
    options = parser.parse_args()
    files = options.files or list(CORE)
    if unknown := [file for file in files if file not in CORE]:
        sys.exit(f"{', '.join(unknown)}: not in CORE; there are {', '.join(CORE)}")
    begun, survivors, killed, judged = time.monotonic(), list[Mutant](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(SOURCE, copy / "msft", ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in (mutant for file in files for mutant in mutants_of(file)):
            if time.monotonic() - begun > options.seconds:
                print(f"stopped after {options.seconds:.0f} s at {mutant.file}:{mutant.line}")
                break
            if mutant.key in JUDGED:
                judged += 1
            elif survives(mutant, copy, options.limit):
                survivors.append(mutant)
                print(said(mutant), flush=True)
            else:
                killed += 1
    print(f"{killed} mutants failed a test, {judged} change nothing, {len(survivors)} survive")
    sys.exit(1 if survivors else 0)


def said(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}: {mutant.change}: {mutant.before}"


if __name__ == "__main__":
    main()
