"""`environment.json`: what trained a run, and the groups of its benchmarks."""

import json
from pathlib import Path

import pytest

from msft.errors import Diverged
from msft.run.environment import (
    BaseRecord,
    begun_on,
    check_environment,
    read_environments,
    read_groups,
    record_environment,
)

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
    assert read_groups(path) == {}
    record_environment(path, OLD, {})
    assert json.loads(path.read_text()) == [OLD | {"groups": {}}]
    assert read_groups(path) == {}
    written = path.stat().st_mtime_ns
    record_environment(path, OLD, {})
    assert path.stat().st_mtime_ns == written


def test_a_resume_is_told_of_other_versions_and_refused_where_bits_were_promised(
    tmp_path: Path,
) -> None:
    path, said = tmp_path / "environment.json", list[str]()
    check_environment(path, NEW, {}, True, said.append)
    then = OLD | {"device": "cpu, threads: 2", "peft": "0.1"}
    record_environment(path, then, {})
    check_environment(
        path, then | {"device": "cpu, threads: 8", "msft": "9"}, {}, True, said.append
    )
    assert said == [], "neither threads nor msft's own version count"
    now = {"torch": "2.11", "device": "cuda"}
    told = "torch was 2.10, now it is 2.11; device was cpu, now it is cuda"
    check_environment(path, now, {}, False, said.append)
    assert said == [f"{told}: the bits may differ from those of a run left alone"]
    with pytest.raises(Diverged, match=f"{told}, so the bits may differ, and the recipe says"):
        check_environment(path, now, {}, True, said.append)


def test_a_resume_with_another_base_is_refused(tmp_path: Path) -> None:
    path, first = tmp_path / "environment.json", BaseRecord({"config.json": [3, "a" * 64, None]})
    record_environment(path, OLD, {})
    check_environment(path, OLD, first, True, print)  # an earlier version recorded no base
    record_environment(path, OLD, {}, first)
    check_environment(path, OLD, {"config.json": [3, "a" * 64, [1, 2]]}, True, print)
    with pytest.raises(Diverged, match=r"the base model has changed .* config\.json was 3"):
        check_environment(path, OLD, {"config.json": [3, "b" * 64, None]}, True, print)


@pytest.mark.parametrize("content", ["[", '{"groups": {}}', "[1, null]", '[{"groups": "x"}]'])
def test_what_is_not_ours_has_no_groups(content: str, tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    assert read_groups(path) == {}
    path.write_text(content)
    assert read_groups(path) == {}
