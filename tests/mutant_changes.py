"""The mutants of a file: small changes, one at a time. `mutants.py` runs them."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "msft"

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
CALLED = {"any": "all", "all": "any", "min": "max", "max": "min", "sum": "max", "abs": "float"}

Key = tuple[str, str, str]
"""File, line and change: what a judgement is about."""


@dataclass(frozen=True)
class Mutant:
    """One change at one place of a file.

    change: with `, place 2` where the file has the same change of the same line before.
    before: the line.
    function: the qualified name of the function around it; None where it works on import.
    """

    file: str
    line: int
    change: str
    before: str
    function: str | None
    source: str = field(repr=False)

    @property
    def key(self) -> Key:
        return self.file, self.before, self.change

    @property
    def called(self) -> str:
        """The function, as the first run names it."""
        return f"{self.file}::{self.function}"

    @property
    def digest(self) -> str:
        return sha256(f"{self.file}\n{self.source}".encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}: {self.before}"


@dataclass(frozen=True)
class Change:
    """Put a value into a field of a node, or into a list."""

    node: ast.expr
    said: str
    holder: object
    field: str | int
    value: object

    def apply(self) -> None:
        if isinstance(self.holder, list) and isinstance(self.field, int):
            self.holder[self.field] = self.value
        else:
            setattr(self.holder, str(self.field), self.value)


def mutants_of(file: str) -> Iterator[Mutant]:
    """All of a file; docstrings and annotations stay."""
    text = (SOURCE / file).read_text()
    lines = text.splitlines()
    seen = Counter[tuple[str, str]]()
    for number in range(len(_changes(ast.parse(text)))):
        tree = ast.parse(text)
        change = _changes(tree)[number]
        function = _functions(tree).get(id(change.node))
        change.apply()
        before, said = lines[change.node.lineno - 1].strip(), change.said
        seen[before, said] += 1
        if seen[before, said] > 1:
            said += f", place {seen[before, said]}"
        yield Mutant(file, change.node.lineno, said, before, function, ast.unparse(tree))


def _functions(tree: ast.AST) -> dict[int, str]:
    """Of every node in the body of a function: the innermost one's name, as in `co_qualname`.

    Defaults and decorators are not in it: they work on import.
    """
    found: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str, function: str | None) -> None:
        if function:
            found[id(node)] = function
        if isinstance(node, ast.FunctionDef):
            name = prefix + node.name
            for outer in (node.args, *node.decorator_list):
                visit(outer, prefix, function)
            for inner in node.body:
                visit(inner, f"{name}.<locals>.", name)
        else:
            prefix += f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for child in ast.iter_child_nodes(node):
                visit(child, prefix, function)

    visit(tree, "", None)
    return found


def _changes(tree: ast.AST) -> list[Change]:
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if (part := getattr(node, name, None)) is not None
        for inner in ast.walk(part)
    }
    nodes = (node for node in ast.walk(tree) if id(node) not in annotations)
    return [change for node in nodes for change in _changes_of(node)]


def _changes_of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                other = COMPARED[type(operator)]
                said = f"{type(operator).__name__} -> {other.__name__}"
                yield Change(node, said, operators, place, other())
        case ast.BoolOp(op=ast.And()):
            yield Change(node, "-> Or", node, "op", ast.Or())
        case ast.BoolOp():
            yield Change(node, "-> And", node, "op", ast.And())
        case ast.BinOp(op=operator) if type(operator) in COMPUTED:
            sign = COMPUTED[type(operator)]
            said = f"{type(operator).__name__} -> {sign.__name__}"
            yield Change(node, said, node, "op", sign())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Change(node, "not dropped", node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield Change(node, f"{name} -> {CALLED[name]}", node.func, "id", CALLED[name])
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield Change(node, f"{value} -> {value + 1}", node, "value", value + 1)
