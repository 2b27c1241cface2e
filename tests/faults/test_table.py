"""The table of faults names tests that exist."""

import ast
from pathlib import Path

import pytest
from table import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_its_test(fault: Fault) -> None:
    file, name = fault.test.split("::")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_names_are_given_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_the_docs_have_the_number_of_faults() -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    assert f"plants {len(FAULTS)} faults in the real program" in page.read_text()
