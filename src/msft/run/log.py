"""The run's log: an append-only file of events, the only truth about a run.

    {"event":"run","method":"msft","seed":20,…,"crc":"…"}              what the answers depend on
    {"event":"rollout","rollout":0,"start":"base","ticks":12,…}        a question of the method
    {"event":"scores","checkpoint":"base","split":"validation",…}      an answer
    {"event":"point","checkpoint":"r0-t1",…}                           an answer, one for each tick
    {"event":"decision","what":"exclude","checkpoint":"r0-t3",…}       what the method decided
    {"event":"end","by":"all_excluded","best":"r1-t3"}

An event is real when its line, newline included, is on disk. Each line ends with the CRC of every
byte of the file before it: a changed digit, a line that was lost, added or moved breaks the chain
at that line. Lines of earlier versions have no checksum; they are valid only before the first line
that has one. One process writes a log at a time: its lock dies with the process. No clock, host or
path is in a log, so that a run that was killed and resumed leaves the same bytes as one that was
not.
"""

import fcntl
import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from operator import call
from pathlib import Path
from types import UnionType
from typing import IO, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from msft.errors import Diverged, LogError, RankFailed, RanksDisagree, explaining
from msft.files import (
    FILE,
    kind_of,
    open_to_append,
    open_to_read,
    read_bytes,
    replace_bytes,
    shown_text,
)
from msft.process import check
from msft.ranks import Ranks, from_rank0
from msft.search.curves import Score, Scores
from msft.search.falls import Drop, Fall
from msft.search.judging import Estimate, Finding
from msft.search.rollout import CONTENDERS, CheckpointId, EndedBy, Keep
from msft.store.store import Disk
from msft.text import shown

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n')


@dataclass(slots=True)
class Chain:
    """The CRC of the bytes so far, and whether a line had a checksum."""

    value: int = 0
    sealed: bool = False

    def seal(self, line: bytes) -> bytes:
        """A line, which ends in a brace and a line end, with its checksum as the last key."""
        body = line.removesuffix(b"}\n")
        sealed = b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body, self.value))
        self.value = zlib.crc32(sealed, self.value)
        return sealed

    def fault(self, line: bytes) -> str | None:
        """What is wrong with the next line of a file, or None: then the chain goes on behind it."""
        seal = _SEAL.search(line, max(0, len(line) - 19))
        if seal is None:
            if self.sealed:
                return "it has no checksum, but a line before it has one"
        elif int(seal[1], 16) != zlib.crc32(line[: seal.start()], self.value):
            return "its checksum does not fit the bytes before it"
        self.sealed = self.sealed or seal is not None
        self.value = zlib.crc32(line, self.value)
        return None


# Events.


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens worked through, by what was done with them."""

    train: int = 0
    evaluation: int = 0
    lookahead: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            self.train + other.train,
            self.evaluation + other.evaluation,
            self.lookahead + other.lookahead,
        )


@dataclass(frozen=True, slots=True)
class RunEvent:
    """First event: everything that the method's answers depend on."""

    event: ClassVar[str] = "run"
    method: str
    seed: int
    num_parameters: int
    datasets: Mapping[str, int]
    settings: Mapping[str, Any]
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """A roll-out was asked for. `active` and `rehearsed` give rows per epoch.

    scored: whether its ticks are scored; recorded where they are not.
    among: a digest of the row numbers that alone are trained; recorded where there is one.
    later: rows per epoch from a later epoch on; recorded where a weight changes.
    """

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
    scored: bool = True
    among: str = ""
    later: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def rows_in(self, epoch: int) -> dict[str, int]:
        """Rows in an epoch, of active and rehearsed sub-datasets."""
        rows = {**self.active, **self.rehearsed}
        for name, changes in self.later.items():
            reached = [number for first, number in changes.items() if int(first) <= epoch]
            rows[name] = reached[-1] if reached else rows[name]
        return rows


@dataclass(frozen=True, slots=True)
class PointEvent:
    """A tick of the present roll-out was trained, scored and saved.

    loss: summed row losses and rows of the tick's training steps.
    scores: those of watched sub-datasets too.
    guards: what the guards of those that were scored say; recorded where there are some.
    """

    event: ClassVar[str] = "point"
    checkpoint: CheckpointId
    steps: int
    loss: tuple[float, int]
    tokens: Tokens
    disk: Disk
    scores: Scores
    guards: Mapping[str, Drop] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AverageEvent:
    """The mean of the weights at some checkpoints was made and saved; one may be named twice."""

    event: ClassVar[str] = "average"
    checkpoint: CheckpointId
    of: tuple[CheckpointId, ...]
    disk: Disk


@dataclass(frozen=True, slots=True)
class ScoresEvent:
    """A checkpoint was scored outside a tick: the base model, an excluded set, the test split.

    guards: as of a point.
    """

    event: ClassVar[str] = "scores"
    checkpoint: CheckpointId
    split: str
    tokens: Tokens
    scores: Scores
    guards: Mapping[str, Drop] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecisionEvent:
    """What the method decided: `exclude`, `go_on` or `report`, and the checkpoint it meant."""

    event: ClassVar[str] = "decision"
    what: str
    checkpoint: CheckpointId
    names: tuple[str, ...] = ()
    tick: int | None = None


@dataclass(frozen=True, slots=True)
class FallsEvent:
    """Who fell for sure in a roll-out, which ended at this checkpoint."""

    event: ClassVar[str] = "falls"
    checkpoint: CheckpointId
    rollout: int
    confidence: float
    falls: Mapping[str, Fall]


@dataclass(frozen=True, slots=True)
class JudgedEvent:
    """A checkpoint judged rows that it has not seen: so many training rows of each sub-dataset, and
    all validation rows. rows: a digest of its lines in `judgments.jsonl`."""

    event: ClassVar[str] = "judged"
    checkpoint: CheckpointId
    tokens: Tokens
    judged: Mapping[str, int]
    rows: str


@dataclass(frozen=True, slots=True)
class FoundEvent:
    """What the judges of a round of an audit found. Rounds count from 1."""

    event: ClassVar[str] = "found"
    round: int
    findings: Mapping[str, Finding]


@dataclass(frozen=True, slots=True)
class EndEvent:
    """Last event."""

    event: ClassVar[str] = "end"
    by: EndedBy
    best: CheckpointId


Event = (
    RunEvent
    | RolloutEvent
    | PointEvent
    | AverageEvent
    | ScoresEvent
    | DecisionEvent
    | FallsEvent
    | JudgedEvent
    | FoundEvent
    | EndEvent
)
_KINDS: dict[str, type[Event]] = {kind.event: kind for kind in get_args(Event)}


# Lines.

UNRECORDED: tuple[Keep, ...] = (CONTENDERS, "best")
"""Ticks held that a log does not name: no answer depends on which of the two it was."""
_USUAL: tuple[tuple[str, Any], ...] = (
    ("scored", True),
    ("among", ""),
    ("guards", {}),
    ("later", {}),
)


def to_json(event: Event) -> dict[str, Any]:
    """An event as the JSON object of its line."""
    raw: dict[str, Any] = {"event": event.event}
    for part in fields(event):
        value = getattr(event, part.name)
        if (part.name, value) in _USUAL or (part.name == "keep" and value in UNRECORDED):
            continue  # logs from before there was a choice stay as they are
        raw[part.name] = _json_of(part.name, value)
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
    """A check for each field of a dataclass: whether its annotation allows a value."""
    hints = get_type_hints(kind)
    return {part.name: _check_of(hints[part.name]) for part in fields(kind)}


def _check_of(hint: Any) -> _Check:
    """Numbers are finite, and small enough to be counted with; keys are text."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is CheckpointId:
        return lambda value: isinstance(value, str) and bool(_ID.fullmatch(value))
    if isinstance(hint, type) and is_dataclass(hint):
        inner = _checks_of(hint)
        return lambda value: (
            isinstance(value, hint)
            and all(fits(getattr(value, part)) for part, fits in inner.items())
        )
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in parts
    if origin is Mapping:
        fits = _check_of(parts[1])
        return lambda value: isinstance(value, dict) and all(map(fits, value.values()))
    if origin is tuple and parts[-1] is not Ellipsis:
        each = [_check_of(part) for part in parts]
        return lambda value: len(value) == len(each) and all(map(call, each, value))
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


_LARGE = 2**63
"""No count and no sum of a run comes near it; NaN is not below it."""


def _json_of(name: str, value: Any) -> Any:
    if name == "scores":
        return {dataset: score_to_json(score) for dataset, score in value.items()}
    if name in ("falls", "findings", "guards"):
        return {dataset: asdict(found) for dataset, found in value.items()}
    if isinstance(value, Tokens | Disk):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _typed(name: str, raw: Any) -> Any:
    match name:
        case "scores":
            return {dataset: score_from_json(score) for dataset, score in raw.items()}
        case "falls":
            return {n: Fall(**{**fall, "peaks": tuple(fall["peaks"])}) for n, fall in raw.items()}
        case "guards":
            return {dataset: Drop(**drop) for dataset, drop in raw.items()}
        case "findings":
            return {dataset: _finding(found) for dataset, found in raw.items()}
        case "tokens":
            return Tokens(**raw)
        case "disk":
            return Disk(**raw)
        case "names" | "loss" | "of":
            return tuple(raw)
        case "keep":
            return tuple(raw) if isinstance(raw, list) else raw
    return raw


def _finding(raw: dict[str, Any]) -> Finding:
    share = raw["wrong_share"]
    read = {"gap": Estimate(**raw["gap"]), "suspects": tuple(raw["suspects"])}
    return Finding(**{**raw, **read, "wrong_share": share and Estimate(**share)})


def score_to_json(score: Score) -> object:
    """Counts as `[right, rows]` or `[right, rows, probability]`, nll as `{"nll": sum,
    "tokens": n}`, numbers as `{"value": sum, "rows": n}` or as their mean."""
    if score.metric == "accuracy":
        soft = [] if score.probability is None else [score.probability]
        return [score.total, score.count, *soft]
    if score.metric == "nll":
        return {"nll": score.total, "tokens": score.count}
    return score.total if score.count == 1 else {"value": score.total, "rows": score.count}


def score_from_json(raw: object) -> Score:
    match raw:
        case [int(right), int(rows)]:
            return Score("accuracy", right, rows)
        case [int(right), int(rows), float(probability)]:
            return Score("accuracy", right, rows, probability)
        case {"nll": int() | float() as total, "tokens": int(tokens)}:
            return Score("nll", float(total), tokens)
        case {"value": int() | float() as total, "rows": int(rows)}:
            return Score("value", float(total), rows)
        case bool() | int() | float():
            return Score("value", float(raw), 1)
    raise ValueError(f"not a score: {raw!r}")


# The file.


def append_bytes(file: IO[bytes], path: Path, data: bytes) -> None:
    """Add to a file all or nothing, and have it on disk."""
    end = os.fstat(file.fileno()).st_size
    try:
        with explaining(path, len(data)):
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), end)
        raise


@dataclass(slots=True)
class Log:
    """The events of a run so far, and the file they are appended to (none: kept in memory).

    agree: is called with an event and its line before it is written, to compare it among ranks.
    """

    path: Path | None = None
    events: list[Event] = field(default_factory=list)
    agree: Callable[[Event, bytes], None] | None = None
    _file: IO[bytes] | None = None
    _chain: Chain = field(default_factory=Chain)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._file = open_to_append(self.path)
            holder = self.path.with_name("run.lock")  # says who holds the lock
            try:
                with explaining(self.path):  # a disk may have no locks
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                replace_bytes(holder, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
                self.events = _recovered(self._file, self.path, self._chain)
            except BlockingIOError as error:
                self.close()
                name = shown_text(holder).strip() if kind_of(holder) == FILE else "another process"
                raise LogError(
                    f"{self.path.parent} is in use by {name}; wait for it or stop it"
                ) from error
            except BaseException:
                self.close()
                raise

    def append(self, event: Event) -> None:
        """Write an event; when this returns, it is on disk."""
        line = to_line(event)
        if self.agree is not None:
            self.agree(event, line)
        if self._file is not None and self.path is not None:
            self.refuse_gone()
            append_bytes(self._file, self.path, self._chain.seal(line))
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


def is_being_written(path: Path) -> bool:
    """Whether a process holds the log; a run that ended, was stopped or died holds none."""
    try:
        with open_to_read(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not there, or on a disk without locks
        return False
    return False


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


# Where a resumed run comes to another event.

CHANGED = (
    "recipe, data or code changed under a started run: undo the change, or start in another folder"
)


def diverged(then: Event | None, now: Event | str) -> Diverged:
    """What to say where a resumed run comes to another event than the log has."""
    if isinstance(then, RunEvent) and isinstance(now, RunEvent):
        return Diverged(f"{_changes(to_json(then), to_json(now))}; {CHANGED}")
    known = "nothing more" if then is None else _shown(then)
    found = now if isinstance(now, str) else _difference(then, now)
    return Diverged(f"the log goes on with {known}, but now it would be {found}; {CHANGED}")


def _difference(then: Event | None, now: Event) -> str:
    """The event that would come now, or what it changes in the recorded event of its kind."""
    if then is None or then.event != now.event:
        return _shown(now)
    before, after = to_json(then), to_json(now)
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return f"the same with {json.dumps(changed, separators=(',', ':'))[:300]}"


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings of a run that have changed since its first line was written."""
    before, after = dict(_leaves(then)), dict(_leaves(now))
    changed = [
        f"{key} was {_brief(before.get(key))}, now it is {_brief(after.get(key))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]
    more = f" ({len(changed) - 3} more changes)" if len(changed) > 3 else ""
    texts = changed[:3] or ["the sub-datasets were in another order"]
    return "this folder holds another run: " + ", ".join(texts) + more


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of a nested mapping, joined by dots, with their values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _shown(event: Event) -> str:
    line = to_line(event).decode().strip()
    return line if len(line) <= 300 else line[:300] + "…"


# Several processes.


@dataclass(frozen=True, slots=True)
class RankSync:
    """The meetings of a run's ranks outside of training: at each line of the log and at each step.
    One process compares nothing, and a signal stops it where it is.

    prune_ranked: removes from the disk of the ranks what none of them needs any more; is called
        when all ranks are at the same line.
    """

    ranks: Ranks
    prune_ranked: Callable[[], None] | None = None

    def log(self, path: Path) -> Log:
        """The log, which rank 0 reads and writes; the others have its events."""
        if self.ranks.world == 1:
            prune = self.prune_ranked
            return Log(path, agree=(lambda event, line: prune()) if prune else None)
        mine: list[Log] = []

        def lines() -> list[str]:
            mine.append(Log(path, agree=self._agree))
            return [to_line(event).decode() for event in mine[0].events]

        found = from_rank0(self.ranks, "lines of the log", lines)
        events = [from_line(line.encode()) for line in found]
        return mine[0] if mine else Log(events=events, agree=self._agree)

    def stop_if_asked(self, step: str) -> None:
        """Stopped, in every rank, if a signal came to one."""
        if self.ranks.world == 1:
            check()
        else:
            self.ranks.gather(step, None)

    def _agree(self, event: Event, line: bytes) -> None:
        where = getattr(event, "checkpoint", None) or f"the event {event.event!r}"
        digests = self.ranks.gather("a line of the log", sha256(line).hexdigest())
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:
            message = (
                f"ranks disagree at {where}: rank {odd[0]} came to another line of the log than "
                "rank 0, so nothing was written; the same command goes on from the line before. If "
                "it happens again, set deterministic: true"
            )
            if self.ranks.rank:
                raise RankFailed(message, RanksDisagree.exit_code, said=True)
            raise RanksDisagree(message)
        if self.prune_ranked is not None:
            self.prune_ranked()
