"""A disk of several ranks: whole only in all parts, read by any number, removed by rank 0 alone."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from thread_ranks import ThreadRanks, in_threads

from msft.ranks import ALONE
from msft.store.ranked import RankedDisk
from msft.store.store import BackgroundDisk, DiskTier

KEY = "r0-t1.weights"


class PartCodec:
    """A payload is what a rank owns, by name."""

    def write(self, payload: Any, folder: Path) -> None:
        (folder / "part.json").write_text(json.dumps(payload))

    def read(self, folder: Path) -> Any:
        return self.collect([folder])

    def collect(self, folders: Sequence[Path]) -> Any:
        parts = [json.loads((folder / "part.json").read_text()) for folder in folders]
        return {name: number for part in parts for name, number in part.items()}


class SlowDisk(DiskTier):
    """Writes when it is told to go."""

    go: Event

    def put(self, key: str, payload: Any) -> None:
        self.go.wait(10)
        super().put(key, payload)


def disk_of(folder: Path, ranks: Any, slow: Event | None = None) -> RankedDisk:
    codec = PartCodec()
    disk = DiskTier(folder, codec)
    writer: Any = disk
    if slow is not None:
        late = SlowDisk(folder, codec)
        late.go = slow
        writer = BackgroundDisk(late)
    return RankedDisk(folder, disk, writer, codec, ranks)


def put_by(folder: Path, world: int, key: str = KEY) -> None:
    """A checkpoint of numbers 0 to 5, of which each rank owns some."""

    def work(ranks: ThreadRanks) -> None:
        owned = {str(n): n for n in range(6) if n % world == ranks.rank}
        disk_of(folder, ranks).put(key, owned)

    in_threads(world, work)


EVERYTHING = {str(n): n for n in range(6)}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_reads_what_any_other_wrote(tmp_path: Path, world: int) -> None:
    put_by(tmp_path, world)
    parts = [f"{KEY}.{n}-of-{world}" for n in range(1, world + 1)] if world > 1 else [KEY]
    assert sorted(path.name for path in tmp_path.iterdir()) == parts
    for readers in (1, 2, 4):
        for found in in_threads(readers, lambda ranks: disk_of(tmp_path, ranks).get(KEY)):
            assert found == EVERYTHING
    assert disk_of(tmp_path, ALONE).folders(KEY) == [tmp_path / part for part in parts]
    assert disk_of(tmp_path, ALONE).listed() == [KEY]


def test_a_checkpoint_without_all_its_parts_is_none(tmp_path: Path) -> None:
    put_by(tmp_path, 3)
    disk = disk_of(tmp_path, ALONE)
    shutil.rmtree(tmp_path / f"{KEY}.2-of-3")
    (tmp_path / f".{KEY}.2-of-3.tmp").mkdir()
    assert KEY not in disk
    assert disk.get(KEY) is None
    assert not disk.is_whole(KEY)
    assert disk.listed() == []
    assert list(tmp_path.iterdir()) == [], "what a crash left is removed"


def test_a_damaged_part_is_found_by_one_rank_and_believed_by_all(tmp_path: Path) -> None:
    put_by(tmp_path, 2)
    (tmp_path / f"{KEY}.1-of-2" / "part.json").write_text('{"0": 7}')
    found = in_threads(3, lambda ranks: disk_of(tmp_path, ranks).get(KEY))
    assert found == [None] * 3
    assert (tmp_path / f"{KEY}.1-of-2.bad").exists()


def test_what_this_process_wrote_and_lost_is_written_again(tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> list[Any]:
        disk = disk_of(tmp_path, ranks)
        disk.put(KEY, {str(ranks.rank): ranks.rank})
        ranks.gather("here", None)
        whole = disk.is_whole(KEY)
        ranks.gather("here", None)
        if ranks.rank == 1:
            (tmp_path / f"{KEY}.2-of-2" / "part.json").write_text("{}")
        ranks.gather("here", None)
        damaged = disk.is_whole(KEY)
        gone = KEY not in disk
        disk.put(KEY, {str(ranks.rank): ranks.rank})
        disk.flush()
        return [whole, damaged, gone, disk.is_whole(KEY), disk.get(KEY)]

    assert in_threads(2, work) == [
        [True, False, True, True, {"0": 0}],
        [True, False, True, True, {"1": 1}],
    ]


def test_rank_0_removes_only_when_all_have_written_what_came_before(tmp_path: Path) -> None:
    slow = Event()

    def work(ranks: ThreadRanks) -> None:
        disk = disk_of(tmp_path, ranks, slow if ranks.rank == 1 else None)
        slow.set()
        disk.put("r0-t1.weights", {"a": 1})
        disk.flush()
        slow.clear()
        disk.put("r0-t2.weights", {"a": 2})
        disk.drop("r0-t1.weights")
        assert "r0-t1.weights" not in disk
        disk.prune()
        ranks.gather("here", None)
        there = sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".")
        assert there[:2] == ["r0-t1.weights.1-of-2", "r0-t1.weights.2-of-2"], "rank 1 still writes"
        ranks.gather("here", None)
        slow.set()
        disk.flush()
        there = sorted(path.name for path in tmp_path.iterdir())
        assert there == ["r0-t2.weights.1-of-2", "r0-t2.weights.2-of-2"]
        ranks.gather("here", None)

    in_threads(2, work)


@pytest.mark.parametrize("world", [1, 2])
def test_what_is_put_again_is_not_removed(tmp_path: Path, world: int) -> None:
    def work(ranks: ThreadRanks) -> Any:
        disk = disk_of(tmp_path, ranks)
        disk.put(KEY, {"a": 1})
        disk.drop(KEY)
        disk.put(KEY, {"a": 2})
        disk.flush()
        return disk.get(KEY)

    assert in_threads(world, work) == [{"a": 2}] * world
