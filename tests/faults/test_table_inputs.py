"""Each row of the table names a test that is there."""

from pathlib import Path

from table_inputs import INPUTS


def test_every_fault_has_its_test() -> None:
    for name, _, _, test in INPUTS:
        file, function = test.split("::")
        assert f"def {function}(" in (Path(__file__).parent / file).read_text(), name
    assert len({name for name, *_ in INPUTS}) == len(INPUTS)
