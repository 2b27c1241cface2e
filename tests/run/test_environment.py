"""`environment.json`: what trained a run, and the groups of its benchmarks."""

import json
from pathlib import Path

import pytest

from msft.run.environment import begun_on, read_environments, read_groups, record_environment

OLD, NEW = {"msft": "0.1", "torch": "2.10"}, {"msft": "0.1", "torch": "2.11"}


def test_groups_stand_beside_the_versions_and_are_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    record_environment(path, OLD, {"a": "math"})
    (item,) = json.loads(path.read_text())
    assert item == OLD | {"groups": {"a": "math"}, "began": begun_on(path)}
    assert read_environments(path) == [OLD]
    assert read_groups(path) == {"a": "math"}
    record_environment(path, NEW, {"a": "math"})
    assert read_environments(path) == [OLD, NEW]
    assert read_groups(path) == {"a": "math"}


def test_a_run_that_goes_on_is_written_only_where_it_says_something_new(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_text(json.dumps([OLD]))  # by a version that recorded no groups
    assert read_groups(path) is None
    record_environment(path, OLD, {})
    assert json.loads(path.read_text()) == [OLD | {"groups": {}}]
    assert read_groups(path) == {}, "known to have none"
    written = path.stat().st_mtime_ns
    record_environment(path, OLD, {})
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize("content", ["[", '{"groups": {}}', "[1, null]", '[{"groups": "x"}]'])
def test_what_is_not_ours_has_no_groups(content: str, tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    assert read_groups(path) is None
    path.write_text(content)
    assert read_groups(path) is None
