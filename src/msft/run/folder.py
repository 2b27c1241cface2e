"""The run folder: which file is where, and how the small ones are written."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msft.errors import UsageError
from msft.files import DAMAGED, kind_of, open_to_read, read_text, replace_bytes
from msft.run.history import History, history_in
from msft.run.log import EndEvent, Event, read_log
from msft.run.rows import RowTokens, VerdictsByKey, read_row_tokens, read_verdicts

FIRST_ROWS = 32
"""Rows whose loss is that of a model before training."""


class RunFolder:
    """A run's files, as the contract names them.

    files: all of them but the folders, the log first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.log = path / "run.jsonl"
        self.verdicts = path / "verdicts.jsonl"
        self.samples = path / "samples.jsonl"
        self.steps = path / "steps.jsonl"
        self.checkpoints = path / "checkpoints"
        self.environment = path / "environment.json"
        self.best = path / "best"
        self.base = path / "base"
        self.schedule = path / "schedule.json"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.hub = path / "hub.json"
        self.losses = path / "losses.jsonl"
        self.judgments = path / "judgments.jsonl"
        self.audit = path / "audit.json"
        self.suspects = path / "suspects.jsonl"
        self.clean = path / "clean.yaml"
        self.files = [
            *(self.log, self.recipe, self.verdicts, self.samples, self.steps, self.losses),
            *(self.environment, self.schedule, self.summary, self.report, self.hub),
        ]
        self.folders = [self.best, self.base, self.checkpoints]

    def files_of(self, audits: bool) -> list[Path]:
        """The files of a run, or of an audit."""
        more = [self.judgments, self.audit, self.suspects, self.clean] if audits else []
        return [*self.files, *more]

    def events(self) -> list[Event]:
        """What the log says so far; nothing if there is none."""
        return read_log(self.log) if kind_of(self.log) else []

    def is_finished(self) -> bool:
        return any(isinstance(event, EndEvent) for event in self.events()[-1:])

    def is_audit(self) -> bool:
        """Whether this is the folder of an audit: it has the result of one, or its log begins as
        one. No log is read further than that."""
        if kind_of(self.audit) is not None:
            return True
        try:
            with open_to_read(self.log) as lines:
                return bool(json.loads(lines.readline())["method"] == "audit")
        except DAMAGED:
            return False


def refuse_audit(folder: Path) -> None:
    """UsageError where a folder that should be a run's is that of an audit."""
    if RunFolder(folder).is_audit():
        raise UsageError(
            f"{folder} is the folder of an audit, whose judges are no result; expected the folder "
            "of a run: name one that was trained with or without its suspects. `msft report` "
            "writes the page of an audit"
        )


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    replace_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_history(folder: Path) -> History:
    """The history of a run folder, or an error that says what is wrong with it."""
    log = RunFolder(folder).log
    if kind_of(log) is None:
        raise UsageError(f"{folder} has no run.jsonl; expected the folder of a run")
    history = history_in(log)
    if history.opened is None:
        raise UsageError(f"{log} has no events yet; wait until the run has started")
    return history


def recipe_value(folder: Path, key: str) -> str | int | float | None:
    """What the recipe of a run says under a key of one line; None where there is no such line."""
    import yaml

    with suppress(*DAMAGED, yaml.YAMLError):
        for line in read_text(RunFolder(folder).recipe).splitlines():
            if line.startswith(f"{key}:"):
                found = yaml.safe_load(line)[key]
                return found if isinstance(found, str | int | float) else None
    return None


def recipe_text(folder: Path, key: str) -> str | None:
    """The text under a key of the recipe; None where the value is no text."""
    found = recipe_value(folder, key)
    return found if isinstance(found, str) else None


def verdicts_of(folder: Path) -> VerdictsByKey:
    """Row verdicts if they are there; a report can do without."""
    try:
        return read_verdicts(RunFolder(folder).verdicts)
    except DAMAGED:
        return {}


def row_tokens_of(folder: Path) -> RowTokens:
    """Tokens of rows that have losses, if they are there; earlier versions wrote none."""
    try:
        return read_row_tokens(RunFolder(folder).verdicts)
    except DAMAGED:
        return {}


StepLosses = Mapping[tuple[int, int], Sequence[float]]
"""The loss of each step, by roll-out and tick."""


def step_losses_of(folder: Path) -> StepLosses:
    """The losses in `steps.jsonl`, if they are there; of a tick that was trained again, all of
    them, the latest last."""
    found: dict[tuple[int, int], list[float]] = {}
    with suppress(*DAMAGED), open_to_read(RunFolder(folder).steps) as lines:
        for step in map(json.loads, lines):
            place = (int(step["rollout"]), int(step["tick"]))
            found.setdefault(place, []).append(float(step["loss"]))
    return found


def seconds_of(folder: Path) -> float | None:
    """Wall-clock from each start of a run to its last step, added up over the starts; None where
    `steps.jsonl` does not say."""
    total, last = 0.0, 0.0
    with suppress(*DAMAGED), open_to_read(RunFolder(folder).steps) as lines:
        for step in map(json.loads, lines):
            now = float(step["seconds"])
            total, last = total + (last if now < last else 0.0), now
    return total + last or None


def first_loss_of(folder: Path) -> tuple[float, int] | None:
    """Summed losses and rows of the first steps of a run, 32 rows or more, before training had
    much of an effect; None where `steps.jsonl` does not have them."""
    total, rows = 0.0, 0
    with suppress(*DAMAGED), open_to_read(RunFolder(folder).steps) as lines:
        for step in map(json.loads, lines):
            if (step["rollout"], step["tick"]) != (0, 1):
                return None
            total, rows = total + step["loss"] * step["rows"], rows + step["rows"]
            if rows >= FIRST_ROWS:
                return total, rows
    return None
