"""The run folder: which file is where, and how the small ones are written."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msft.errors import UsageError
from msft.run.log import Ended, Event, read_log


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's files, as the contract names them."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def log(self) -> Path:
        return self.path / "run.jsonl"

    @property
    def verdicts(self) -> Path:
        return self.path / "verdicts.jsonl"

    @property
    def steps(self) -> Path:
        return self.path / "steps.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def schedule(self) -> Path:
        return self.path / "schedule.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def events(self) -> list[Event]:
        """What the log says so far; nothing if there is none."""
        return read_log(self.log) if self.log.exists() else []

    def is_finished(self) -> bool:
        return any(isinstance(event, Ended) for event in self.events()[-1:])


def refuse_foreign(folder: RunFolder) -> None:
    """UsageError where files of somebody else have the names of a run's."""
    if folder.log.exists():
        return
    ours = (folder.recipe, folder.summary, folder.schedule, folder.verdicts, folder.steps)
    taken = [path for path in (*ours, folder.environment, folder.report) if path.exists()]
    taken += [path for path in (folder.best, folder.checkpoints) if path.is_file() or _has(path)]
    if taken:
        raise UsageError(
            f"{folder.path} is not the folder of a run (it has no {folder.log.name}), but has "
            f"{', '.join(path.name for path in taken)}, which a run would overwrite; choose "
            "another --out, or move them away"
        )


def _has(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


def refuse_unwritable(folder: Path) -> None:
    """UsageError where a folder can neither be used nor made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"{folder} cannot be a folder: {place} is a file; choose another place")
    if not os.access(place, os.W_OK):
        raise UsageError(
            f"{folder} cannot be written: no permission for {place}; choose another place"
        )


def refuse_places(folders: Sequence[Path]) -> None:
    """UsageError for a run that is named twice, or where no page can be written."""
    for number, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:number]]:
            raise UsageError(f"{folder} is named twice; name each run once")
    for place in [*folders, folders[0].parent] if len(folders) > 1 else folders:
        refuse_unwritable(place)


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
