"""Places for checkpoints: whole or not there."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mortal import files_of
from msft.store.store import DiskTier, MemoryTier


class TwoFiles:
    """A payload as two files; `fails_at` is the number of the file whose writing fails."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at

    def write(self, payload: Any, folder: Path) -> None:
        for number, name in enumerate(("head", "tail")):
            text = json.dumps(payload)
            if number == self.fails_at:
                (folder / name).write_text(text[: len(text) // 2])
                raise OSError(28, "No space left on device")
            (folder / name).write_text(text)

    def read(self, folder: Path) -> Any:
        return json.loads((folder / "head").read_text())


@pytest.fixture
def disk(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path / "checkpoints", TwoFiles())


def test_what_is_put_can_be_got_also_by_the_next_process(disk: DiskTier, tmp_path: Path) -> None:
    disk.put("r0-t1.weights", {"w": [1, 2]})
    again = DiskTier(tmp_path / "checkpoints", TwoFiles())
    assert "r0-t1.weights" in again
    assert again.get("r0-t1.weights") == {"w": [1, 2]}
    assert again.get("r0-t2.weights") is None


def test_a_checkpoint_says_its_files_sizes_and_hashes(disk: DiskTier, tmp_path: Path) -> None:
    disk.put("key", [1])
    manifest = json.loads((tmp_path / "checkpoints/key/manifest.json").read_text())
    assert manifest["checkpoint"] == "key"
    assert set(manifest["files"]) == {"head", "tail"}
    sha256_of_the_payload = "080a9ed428559ef602668b4c00f114f1a11c3f6b02a435f0bdc154578e4d7f22"
    assert manifest["files"]["head"] == [3, sha256_of_the_payload]


def test_everything_is_synced_before_the_final_name_and_the_name_after(
    disk: DiskTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, synced = tmp_path / "checkpoints/key", list[tuple[int, bool]]()

    def noted(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, final.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    disk.put("key", 1)
    whole = [final / "head", final / "tail", final / "manifest.json", final]
    assert [path.stat().st_ino for path in whole] == [node for node, there in synced if not there]
    assert [final.parent.stat().st_ino] == [node for node, there in synced if there]


@pytest.mark.parametrize("number", [0, 1])
def test_a_write_that_fails_leaves_nothing_new_and_the_old_as_it_was(
    number: int, disk: DiskTier, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    disk.put("old", 1)
    before = files_of(folder)
    full = DiskTier(folder, TwoFiles(fails_at=number))
    for key in ("new", "old"):
        with pytest.raises(OSError, match="No space left"):
            full.put(key, 2)
        assert files_of(folder) == before
        assert disk.listed() == ["old"]
    assert disk.get("old") == 1


def test_a_later_put_replaces_an_earlier_one_and_what_a_crash_left(
    disk: DiskTier, tmp_path: Path
) -> None:
    rubbish = tmp_path / "checkpoints/.key.tmp"
    rubbish.mkdir()
    (rubbish / "other").write_text("half of something")
    disk.put("key", 1)
    disk.put("key", 2)
    assert disk.get("key") == 2
    assert disk.listed() == ["key"]


def test_what_a_crash_left_unfinished_is_listed_but_is_no_checkpoint(
    disk: DiskTier, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints/.key.tmp").mkdir()
    assert disk.listed() == [".key.tmp"]
    assert "key" not in disk
    assert disk.get("key") is None
    disk.drop(".key.tmp")
    assert disk.listed() == []


def flip(folder: Path) -> None:
    content = bytearray((folder / "head").read_bytes())
    content[0] ^= 1
    (folder / "head").write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "truncated": lambda folder: (folder / "tail").write_bytes(b""),
    "missing file": lambda folder: (folder / "tail").unlink(),
    "extra file": lambda folder: (folder / "more").write_text("x"),
    "renamed file": lambda folder: (folder / "tail").rename(folder / "tale"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "torn manifest": lambda folder: (folder / "manifest.json").write_text('{"head": [3,'),
    "old manifest with a gap": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest of another kind": lambda folder: (folder / "manifest.json").write_text("7"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_never_loaded(damage: str, tmp_path: Path) -> None:
    notices = list[str]()
    disk = DiskTier(tmp_path, TwoFiles(), notices.append)
    disk.put("key", {"w": 1})
    DAMAGE[damage](tmp_path / "key")
    assert disk.get("key") is None
    assert "key" not in disk
    assert (tmp_path / "key.bad").is_dir()
    assert disk.listed() == [], "what was set aside is not ours any more"
    assert [("key" in notice, "key.bad" in notice) for notice in notices] == [(True, True)]
    disk.put("key", {"w": 1})
    assert disk.get("key") == {"w": 1}


def test_a_checkpoint_under_another_name_is_noticed_unless_its_manifest_names_none(
    disk: DiskTier, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    disk.put("r0-t1.weights", 1)
    (folder / "r0-t1.weights").rename(folder / "r0-t2.weights")
    assert disk.get("r0-t2.weights") is None
    disk.put("r0-t3.weights", 3)
    manifest = folder / "r0-t3.weights/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text())["files"]))
    assert disk.get("r0-t3.weights") == 3, "earlier versions wrote the files alone"


def test_dropping_removes_a_link_and_follows_none(disk: DiskTier, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years of work")
    folder = tmp_path / "checkpoints"
    (folder / "outside").symlink_to(precious)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    disk.put("key", 1)
    (folder / "key" / "inside").symlink_to(precious)
    for key in ("outside", "dangling", "key"):
        disk.drop(key)
    assert disk.listed() == []
    assert (precious / "thesis").read_text() == "years of work"


def test_dropping_what_is_not_there_is_no_mistake(disk: DiskTier) -> None:
    disk.drop("nothing")
    MemoryTier("host", 1).drop("nothing")


def test_memory_holds_a_copy_of_its_own() -> None:
    memory = MemoryTier("host", 1, copy=list)
    payload = [1]
    memory.put("key", payload)
    payload.append(2)
    assert memory.get("key") == [1]
    assert "key" in memory
    memory.drop("key")
    assert memory.get("key") is None
