"""The run's log: an append-only file of events, the only truth about a run.

An event is real when its line, newline included, is on disk. Each line ends with a checksum of the
bytes before it, so a changed byte is noticed. No clock, host or path is in it, so that a run that
was killed and resumed leaves the same bytes as one that was not.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import IO, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from msft.checks import shown
from msft.errors import LogError
from msft.files import append, open_to_append, read_bytes
from msft.run.checksums import Chain
from msft.run.locks import lock
from msft.search.falls import Fall
from msft.search.rollout import CONTENDERS, CheckpointId, EndedBy, Keep, Tokens
from msft.search.scores import SELECTION, Score, Scores
from msft.store.store import Disk


@dataclass(frozen=True, slots=True)
class Opened:
    """First event: everything that the method's answers depend on."""

    event: ClassVar[str] = "run"
    method: str
    seed: int
    num_parameters: int
    datasets: Mapping[str, int]
    settings: Mapping[str, Any]
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A roll-out was asked for. `active` and `rehearsed` give rows per epoch."""

    event: ClassVar[str] = "rollout"
    rollout: int
    start: CheckpointId
    active: Mapping[str, int]
    rehearsed: Mapping[str, int]
    ticks: int
    feed: Mapping[str, Any]
    optimizer: str
    eligible: bool
    keep: Keep = CONTENDERS


@dataclass(frozen=True, slots=True)
class Reached:
    """A tick of the present roll-out was trained, scored and saved.

    loss: summed row losses and rows of the tick's training steps.
    """

    event: ClassVar[str] = "point"
    checkpoint: CheckpointId
    steps: int
    loss: tuple[float, int]
    tokens: Tokens
    disk: Disk
    scores: Scores


@dataclass(frozen=True, slots=True)
class Averaged:
    """The mean of the weights at some checkpoints was made and saved; one may be named twice."""

    event: ClassVar[str] = "average"
    checkpoint: CheckpointId
    of: tuple[CheckpointId, ...]
    disk: Disk


@dataclass(frozen=True, slots=True)
class Measured:
    """A checkpoint was scored outside a tick: the base model, an excluded set, the test split."""

    event: ClassVar[str] = "scores"
    checkpoint: CheckpointId
    split: str
    tokens: Tokens
    scores: Scores


@dataclass(frozen=True, slots=True)
class Decided:
    """What the method decided: `exclude`, `go_on` or `report`, and the checkpoint it meant."""

    event: ClassVar[str] = "decision"
    what: str
    checkpoint: CheckpointId
    names: tuple[str, ...] = ()
    tick: int | None = None


@dataclass(frozen=True, slots=True)
class Tested:
    """Who fell for sure in a roll-out, which ended at this checkpoint."""

    event: ClassVar[str] = "falls"
    checkpoint: CheckpointId
    rollout: int
    confidence: float
    falls: Mapping[str, Fall]


@dataclass(frozen=True, slots=True)
class Ended:
    """Last event."""

    event: ClassVar[str] = "end"
    by: EndedBy
    best: CheckpointId


Event = Opened | Asked | Reached | Averaged | Measured | Decided | Tested | Ended
_KINDS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (Opened, Asked, Reached, Averaged, Measured, Decided, Tested, Ended)
}


def selection_of(opened: Opened) -> str:
    """The split that the ticks of a run are scored on, and that chooses."""
    return str(opened.settings.get("selection_split", SELECTION))


def scored_rows(events: Iterable[Event]) -> set[tuple[CheckpointId, str, str]]:
    """The checkpoint, split and sub-dataset of every score that was measured on rows."""
    events = [*events]
    first = events[0] if events else None
    selection = selection_of(first) if isinstance(first, Opened) else SELECTION
    return {
        (event.checkpoint, event.split if isinstance(event, Measured) else selection, name)
        for event in events
        if isinstance(event, Measured) or (isinstance(event, Reached) and event.steps)
        for name in event.scores
    }


UNRECORDED: tuple[Keep, ...] = (CONTENDERS, "best")
"""Ticks held that a log does not name: no answer depends on which of the two it was."""


def to_json(event: Event) -> dict[str, Any]:
    """An event as the JSON object of its line."""
    raw: dict[str, Any] = {"event": event.event}
    for part in fields(event):
        if part.name == "keep" and getattr(event, part.name) in UNRECORDED:
            continue  # logs from before there was a choice stay as they are
        raw[part.name] = _plain(part.name, getattr(event, part.name))
    return raw


def to_line(event: Event) -> bytes:
    return json.dumps(to_json(event), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Event:
    """The event of a line; ValueError if it is not one."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON as msft writes it") from error
    try:
        raw.pop("crc", None)
        kind = _KINDS[raw.pop("event")]
        event = kind(**{key: _typed(key, value) for key, value in raw.items()})
        checks = _checks(kind.event)
        wrong = [part for part, fits in checks.items() if not fits(getattr(event, part))]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event of msft: {error}") from error
    if wrong:
        found = shown(raw.get(wrong[0]))
        raise ValueError(f"{wrong[0]!r} of the event {kind.event!r} is {found}, which cannot be")
    return event


_Check = Callable[[Any], bool]
_ID = re.compile(r"base|r[0-9]{1,9}-t[1-9][0-9]{0,8}|a[0-9]{1,9}")


@cache
def _checks(event: str) -> dict[str, _Check]:
    return _checks_of(_KINDS[event])


def _checks_of(kind: Any) -> dict[str, _Check]:
    """Of each field of a dataclass: whether a value is one that its annotation allows."""
    hints = get_type_hints(kind)
    return {part.name: _check_of(hints[part.name]) for part in fields(kind)}


def _check_of(hint: Any) -> _Check:
    """Numbers are finite, and small enough to be counted with; keys are text."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is CheckpointId:
        return lambda value: isinstance(value, str) and bool(_ID.fullmatch(value))
    if is_dataclass(hint):
        inner = _checks_of(hint)
        return lambda value: all(fits(getattr(value, part)) for part, fits in inner.items())
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in parts
    if origin is Mapping:
        fits = _check_of(parts[1])
        return lambda value: isinstance(value, dict) and all(map(fits, value.values()))
    if origin is tuple and parts[-1] is not Ellipsis:
        each = [_check_of(part) for part in parts]
        return lambda value: len(value) == len(each) and all(map(_called, each, value))
    if origin is tuple:
        fits = _check_of(parts[0])
        return lambda value: isinstance(value, tuple) and all(map(fits, value))
    if origin in (Union, UnionType):
        any_of = [_check_of(part) for part in parts]
        return lambda value: any(fits(value) for fits in any_of)
    if hint is float:
        return lambda value: type(value) in (int, float) and abs(value) < _LARGE
    if hint is int:
        return lambda value: type(value) is int and abs(value) < _LARGE
    return lambda value: hint is Any or isinstance(value, hint)


def _called(fits: _Check, value: Any) -> bool:
    return fits(value)


_LARGE = 2**63
"""No count and no sum of a run comes near it; NaN is not below it."""


def _plain(name: str, value: Any) -> Any:
    if name == "scores":
        return {dataset: score.to_json() for dataset, score in value.items()}
    if name == "falls":
        return {dataset: asdict(fall) for dataset, fall in value.items()}
    if isinstance(value, Tokens | Disk):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _typed(name: str, raw: Any) -> Any:
    match name:
        case "scores":
            return {dataset: Score.from_json(score) for dataset, score in raw.items()}
        case "falls":
            return {n: Fall(**{**fall, "peaks": tuple(fall["peaks"])}) for n, fall in raw.items()}
        case "tokens":
            return Tokens(**raw)
        case "disk":
            return Disk(**raw)
        case "names" | "loss" | "of":
            return tuple(raw)
        case "keep":
            return tuple(raw) if isinstance(raw, list) else raw
    return raw


@dataclass(slots=True)
class Log:
    """The events of a run so far, and the file they are appended to (none: kept in memory).

    agree: is called with an event and its line before it is written; other ranks have the same.
    """

    path: Path | None = None
    events: list[Event] = field(default_factory=list)
    agree: Callable[[Event, bytes], None] = lambda event, line: None
    _file: IO[bytes] | None = None
    _chain: Chain = field(default_factory=Chain)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._file = open_to_append(self.path)
            try:
                lock(self._file, self.path)
                self.events = _recovered(self._file, self.path, self._chain)
            except BaseException:
                self.close()
                raise

    def append(self, event: Event) -> None:
        """Write an event; when this returns, it is on disk."""
        line = to_line(event)
        self.agree(event, line)
        if self._file is not None and self.path is not None:
            self.refuse_gone()
            append(self._file, self.path, self._chain.seal(line))
        self.events.append(event)

    def refuse_gone(self) -> None:
        """LogError where the file is no longer at its place: a handle still writes to it."""
        if self._file is None or self.path is None:
            return
        try:
            there = os.path.samestat(os.fstat(self._file.fileno()), self.path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise LogError(
                f"{self.path.parent} was removed, renamed or replaced while the run went on, so "
                "nothing more can be saved there; if it was renamed, give its new name with --out "
                "to go on, else run the same command to begin again"
            )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_log(path: Path) -> list[Event]:
    """The events of a log that may still be written to: a torn last line is passed over."""
    return _parsed(read_bytes(path), path, Chain())[0]


def _recovered(file: IO[bytes], path: Path, chain: Chain) -> list[Event]:
    """All whole events; a torn last line is cut off the file."""
    file.seek(0)
    data = file.read()
    events, good = _parsed(data, path, chain)
    if not events and not _begins_a_log(data):
        raise LogError(
            f"{path} is not a log of msft, and it is not overwritten: move it away, or choose "
            "another folder with --out"
        )
    if good < len(data):
        file.truncate(good)
        os.fsync(file.fileno())
    return events


def _parsed(data: bytes, path: Path, chain: Chain) -> tuple[list[Event], int]:
    """The events, and how many bytes they take; only the last line may be torn."""
    events: list[Event] = []
    good = 0
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            event = from_line(line)
            fault = chain.fault(line + b"\n")
        except ValueError as error:
            fault = str(error)
        if fault:
            if data[good + len(line) :].strip(b"\0\n"):
                raise LogError(
                    f"{path}, line {number}: {fault}; a log is only ever torn at its end, so this "
                    "file was changed by somebody else: restore it, or start in another folder"
                )
            break
        events.append(event)
        good += len(line) + 1
    return events, good


def _begins_a_log(data: bytes) -> bool:
    """Whether a file without a whole event may be a log that was torn in its first line."""
    first = b'{"event":"run",'
    return first.startswith(data) or data.startswith(first) or not data.strip(b"\0")
