"""The floor plan: the rooms of src/msft, their files and lines, and every import between them.

python tests/rooms.py prints it and ends with 1 where an import goes the wrong way.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "msft"

DOOR = "door"
VALUES = "."
TRAINING = "training"
_SEARCH = {VALUES, "search"}
_STORE = _SEARCH | {"store"}
_RUN = _STORE | {"run"}
_BENCHMARKS = _SEARCH | {"benchmarks"}
_RECIPE = _BENCHMARKS | {"recipe"}
_DATA = _RECIPE | _RUN | {"data"}
_SCORING = _DATA | {"scoring"}
_ENGINE = _SCORING | {"engine"}
_PLANNING = _ENGINE | {"planning", "report", "observers"}
_OBSERVERS = _RUN | _RECIPE | {"report", "observers"}
_TRAINING = _PLANNING | {"report", "observers", "training"}
_APP = _TRAINING | {"app"}

MAY_IMPORT = {
    VALUES: {VALUES},
    "search": _SEARCH,
    "store": _STORE,
    "run": _RUN,
    "report": _RUN | {"report"},
    "benchmarks": _BENCHMARKS,
    "recipe": _RECIPE,
    "data": _DATA,
    "scoring": _SCORING,
    "engine": _ENGINE,
    "observers": _OBSERVERS,
    "planning": _PLANNING,
    TRAINING: _TRAINING,
    "app": _APP,
    "integrations": _APP | {"integrations"},
    "testing": _RUN | {"testing"},
    DOOR: {DOOR, VALUES, "recipe", TRAINING, "app"},
}
"""The one rule: what the files of a room may import, of which room."""

DOOR_FILES = ("__init__.py", "__main__.py", "cli.py")


@dataclass(frozen=True, slots=True)
class Import:
    """One import of ours: the file, the module it names, and whether it runs as the file loads."""

    file: str
    module: str
    line: int
    lazy: bool


def files() -> list[str]:
    """Every Python file of the package, by its path within it."""
    return sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


def room_of(file: str) -> str:
    """The room that a file is in."""
    first, *rest = Path(file).parts
    if rest:
        return first
    return DOOR if first in DOOR_FILES else TRAINING if first == "training.py" else VALUES


def imports_of(file: str) -> Iterator[Import]:
    """Every import of one of our modules: at the top, in a function, or for types only."""
    tree = ast.parse((SOURCE / file).read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [
                name if _file_of(name) else str(node.module)
                for name in (f"{node.module}.{alias.name}" for alias in node.names)
            ]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "msft":
                yield Import(file, name, node.lineno, id(node) not in top)


def upward_imports() -> list[str]:
    """Every import that goes the wrong way, in words."""
    wrong = []
    for file in files():
        room = room_of(file)
        for each in imports_of(file):
            target = _file_of(each.module)
            assert target is not None, f"{file}:{each.line} imports {each.module}, which is no file"
            if room_of(target) not in MAY_IMPORT[room]:
                wrong.append(f"{file}:{each.line} ({room}) imports {each.module}")
    return wrong


def _file_of(module: str) -> str | None:
    """The file of a dotted name of ours."""
    path = Path(*module.split(".")[1:])
    for file in (path.with_suffix(".py") if path.name else path, path / "__init__.py"):
        if (SOURCE / file).is_file():
            return str(file)
    return None


def main() -> int:
    """Print the plan."""
    total = 0
    for room in MAY_IMPORT:
        inside = [file for file in files() if room_of(file) == room]
        lines = {file: len((SOURCE / file).read_text().splitlines()) for file in inside}
        total += sum(lines.values())
        may = ", ".join(sorted(MAY_IMPORT[room] - {room, VALUES})) or "nothing"
        print(f"{room}  {len(inside)} files, {sum(lines.values()):,} lines; may import {may}")
        for file, count in lines.items():
            print(f"    {file:44}{count:5}")
    wrong = upward_imports()
    print(f"{len(files())} files, {total:,} lines, {len(wrong)} upward imports")
    for each in wrong:
        print(f"    {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
