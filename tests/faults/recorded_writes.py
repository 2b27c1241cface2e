"""Every state of a folder on the way through some work: after each operation on a file, as a killed
process leaves it, and as a machine without power does, which loses what was not synced."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}

Tree = dict[str, bytes | None]
"""Files with their content, folders with None, by their paths."""

_watchers: list[Callable[[], None]] = []


def _heard(event: str, arguments: Any) -> None:
    if _watchers and event in OPERATIONS:
        watcher = _watchers.pop()  # a look opens files too
        watcher()
        _watchers.append(watcher)


sys.addaudithook(_heard)


def states_of(folder: Path, work: Callable[[], object]) -> Iterator[Tree]:
    """Do the work, then give every state that a crash on the way can leave."""
    states: list[tuple[Tree, dict[int, bytes], dict[str, int]]] = []
    synced: dict[int, bytes] = {}
    fsync = os.fsync

    def look() -> None:
        states.append((tree_of(folder), dict(synced), _nodes(folder)))

    def noted(handle: int) -> None:
        look()
        fsync(handle)
        tree, node = tree_of(folder), os.fstat(handle).st_ino
        for path in [path for path, known in _nodes(folder).items() if known == node]:
            synced[node] = tree[path] or b""

    look()
    for path, node in _nodes(folder).items():
        content = states[0][0][path]
        if content is not None:
            synced[node] = content  # what was there before is on disk
    states.clear()
    look()
    _watchers.append(look)
    try:
        with patch.object(os, "fsync", noted):
            work()
    finally:
        _watchers.clear()
    look()
    for tree, safe, nodes in states:
        yield tree
        torn = {
            path: (text, safe.get(nodes[path], b""))
            for path, text in tree.items()
            if text is not None and safe.get(nodes[path]) != text
        }
        for share in (0, 0.5) if torn else ():
            yield tree | {path: _part(text, held, share) for path, (text, held) in torn.items()}


def _part(content: bytes, held: bytes, share: float) -> bytes:
    """What was synced, and a share of what was not."""
    kept = len(held) if content.startswith(held) else 0
    return content[: kept + int(share * (len(content) - kept))]


def tree_of(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def _nodes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_ino for p in sorted(folder.rglob("*"))}


def put_back(tree: Tree, folder: Path) -> None:
    """Let a folder be one of the states."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(content)
