"""Runs that die, and what they must leave behind: shared by the tests of the recorded run."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from msft.run.history import History, schedule_of, summary_of
from msft.run.log import Event, Log, read_log, to_line
from msft.search.curves import SelectionSplit
from msft.search.feeds import Batch, Losses
from msft.search.methods import METHODS
from msft.search.rollout import DiskPolicy, Method, ScoreTest
from msft.store.store import BackgroundDisk, DiskTier
from msft.testing import JsonCodec, Learner, SimulatedEngine, simulate

LEARNERS = {
    "a": Learner(rows=16, limit=0.3, damage=0.6),
    "b": Learner(rows=16, passes=2.0),
    "c": Learner(rows=8, passes=0.5, limit=0.3, damage=1.5),
}
"""Under mSFT one leaves at a tick, one at tick 0, then nobody leaves, then the last one does."""

WATCHED = {"w": Learner(passes=0.01, known=0.02), "v": Learner(start=0.5)}
"""One is forgotten as others are trained, one never moves."""


@dataclass(frozen=True)
class Case:
    """A run to try; everything that determines its log."""

    method: str | Method
    options: Mapping[str, Any] = field(default_factory=dict)
    peaks: Mapping[str, Any] = field(default_factory=dict)
    score_test: ScoreTest = "none"
    compute_budget: float = 1.5
    disk_policy: DiskPolicy = "lean"
    selection_split: SelectionSplit = "validation"
    watches: bool = False
    guards: Mapping[str, float] = field(default_factory=dict)
    early_stopping_patience: int | None = None

    @property
    def learners(self) -> Mapping[str, Learner]:
        """Who is trained, and who is watched."""
        return {**LEARNERS, **WATCHED} if self.watches else LEARNERS

    def run(
        self,
        folder: Path,
        memory: int | None = None,
        log: Log | None = None,
        engine: SimulatedEngine | None = None,
        lag: int | None = None,
    ) -> History:
        folder.mkdir(parents=True, exist_ok=True)
        return simulate(
            self.method,
            LEARNERS,
            compute_budget=self.compute_budget,
            num_train_epochs=5 if self.method in ("dynamix", "ies") else 2,  # ies stops in epoch 4
            evals_per_epoch=2,
            train_batch_size=8,
            peaks=self.peaks,
            method_options=self.options,
            score_test=self.score_test,
            folder=folder,
            memory_copies=memory,
            log=log,
            engine=engine,
            disk=None if lag is None else LateDisk(folder / "checkpoints", lag),
            disk_policy=self.disk_policy,
            selection_split=self.selection_split,
            watched=WATCHED if self.watches else None,
            guards=self.guards,
            early_stopping_patience=self.early_stopping_patience,
        )

    def killed(
        self,
        place: Path,
        memory: int | None,
        moments: Collection["Moment"],
        lag: int | None = None,
        engine: SimulatedEngine | None = None,
    ) -> dict["Moment", Path]:
        """The folder of this case as a kill at each of these moments leaves it; see `killed`."""
        return killed(
            place, lambda folder, log: self.run(folder, memory, log, engine, lag), moments
        )


PLAIN = {name: Case(name) for name in METHODS}
"""Every method as it is by default."""

GUARDS = {"w": 0.06, "a": 0.3}

VARIED = {
    "msft-accounted": Case("msft", {"score_excluded": "rollback"}, score_test="rollbacks"),
    "msft-restored": Case("msft", {"on_rollback": "restore", "rehearsal_fraction": 0.25}),
    "msft-smoothed": Case("msft", {"patience": 2}, {"smooth": 1, "min_delta": 0.01}),
    "msft-probability": Case("msft", {"patience": 2}, {"by": "probability"}, "rollbacks"),
    "msft-sure": Case("msft", {"exclude": {"confidence": 0.95}}, compute_budget=3),
    "msft-sure-restored": Case(
        "msft",
        {"exclude": {}, "on_rollback": "restore", "score_excluded": "rollback"},
        compute_budget=2,
    ),
    "continual-accounted": Case("continual", {"score_excluded": "rollback"}, score_test="every"),
    "continual-restored": Case("continual", {"on_rollback": "restore", "patience": 1}),
    "sro-rehearsed": Case("sro", {"rehearsal_fraction": 0.25}, {"include_start": False}),
    "soup-controls": Case(
        "soup", {"of": ["span", "peaks", "last", "random", "all"], "k": 2}, score_test="best"
    ),
    "soup-peaks": Case("soup", {"of": "peaks"}, {"smooth": 1}, score_test="every"),
    "soup-last": Case("soup", {"of": "last", "k": 2}),
    "soup-random": Case("soup", {"of": "random", "k": 2}, score_test="rollbacks"),
    "ies-permanent": Case("ies", {"track_excluded": False, "threshold": 0.5}, score_test="best"),
    "msft-paper": Case("msft", disk_policy="paper"),
    "msft-paper-restored": Case(
        "msft", {"on_rollback": "restore"}, {"smooth": 1}, "best", disk_policy="paper"
    ),
    "continual-paper": Case("continual", disk_policy="paper"),
    "sro-paper": Case("sro", disk_policy="paper"),
    "msft-on-test": Case(
        "msft", {"exclude": {}}, score_test="best", compute_budget=3, selection_split="test"
    ),
    "soup-on-test": Case("soup", {"of": "peaks"}, score_test="best", selection_split="test"),
    "msft-watched": Case(
        "msft", {"score_excluded": "rollback"}, score_test="best", watches=True, guards=GUARDS
    ),
    "msft-sure-watched": Case("msft", {"exclude": {}}, compute_budget=3, watches=True),
    "continual-guarded": Case("continual", watches=True, guards=GUARDS),
    "sft-stopped": Case(
        "sft", score_test="every", watches=True, guards=GUARDS, early_stopping_patience=1
    ),
    "ies-stopped": Case("ies", watches=True, early_stopping_patience=2),
    "soup-stopped": Case(
        "soup", {"of": "last", "k": 2}, watches=True, guards=GUARDS, early_stopping_patience=1
    ),
    "soup-paper": Case("soup", {"of": "peaks"}, score_test="best", disk_policy="paper"),
}
"""Options that change what is scored, kept or trained."""

STORES: dict[str, int | None] = {"disk": None, "disk and memory": 2, "memory for all": 99}
"""Copies that fit into memory besides the disk; they are lost with the process."""


class Killed(BaseException):
    """The process dies here."""


class LateDisk(BackgroundDisk):
    """Does what it is asked for `lag` orders late; the ones still waiting die with the process."""

    def __init__(self, folder: Path, lag: int) -> None:
        super().__init__(DiskTier(folder, JsonCodec()), most_waiting=max(1, lag))
        self.lag = lag

    def _begin(self) -> None:
        while len(self._waiting) > self.lag:
            self._step()

    def _wait(self, done: Callable[[], bool]) -> None:
        while self._error is None and not done():
            self._step()
        self._raise_error()


class MortalLog(Log):
    """Dies at the event numbered `last` (from 0, counting what was there), around its write."""

    def __init__(self, path: Path, last: int, written: bool) -> None:
        Log.__init__(self, path)
        self.last = last
        self.written = written

    def append(self, event: Event) -> None:
        dies = len(self.events) == self.last
        if dies and not self.written:
            raise Killed
        Log.append(self, event)
        if dies:
            raise Killed


class MortalEngine(SimulatedEngine):
    """Dies at its step numbered `last`, from 0."""

    def __init__(self, last: int, learners: Mapping[str, Learner] = LEARNERS) -> None:
        super().__init__(learners)
        self.left = last

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().work(batch)


def kill(
    case: Case,
    folder: Path,
    memory: int | None,
    last: int,
    written: bool,
    lag: int | None = None,
) -> None:
    """Run until this event and die there."""
    folder.mkdir(parents=True, exist_ok=True)
    log = MortalLog(folder / "run.jsonl", last, written)
    with pytest.raises(Killed):
        case.run(folder, memory, log, lag=lag)


Moment = tuple[int, bool]
"""The number of an event, and whether its line is written."""


class CopyingLog(Log):
    """Copies its folder at these moments."""

    def __init__(self, folder: Path, copies: Path, moments: Collection[Moment]) -> None:
        Log.__init__(self, folder / "run.jsonl")
        self.folder = folder
        self.copies = copies
        self.moments = moments

    def append(self, event: Event) -> None:
        number = len(self.events)
        self.copy((number, False))
        Log.append(self, event)
        self.copy((number, True))

    def copy(self, moment: Moment) -> None:
        if moment in self.moments:
            shutil.copytree(self.folder, self.copies / str(moment), copy_function=_copied)


def _copied(source: str, target: str) -> None:
    """Files of checkpoints are written once, so a link is enough."""
    copy = os.link if f"{os.sep}checkpoints{os.sep}" in source else shutil.copyfile
    copy(source, target)


def killed(
    place: Path, run: Callable[[Path, Log], object], moments: Collection[Moment]
) -> dict[Moment, Path]:
    """The folder of a run as a kill at each of these moments leaves it. The run goes through all of
    them once: what a killed process had in memory, or had ordered of a disk that is late, is in no
    copy."""
    whole, copies = place / "whole", place / "copies"
    whole.mkdir(parents=True)
    log = CopyingLog(whole, copies, moments)
    run(whole, log)
    log.close()
    return {moment: copies / str(moment) for moment in moments}


@dataclass(frozen=True)
class Left:
    """All that a finished run left behind that anybody can look at."""

    log: bytes
    summary: dict[str, Any]
    schedule: dict[str, Any]
    verdicts: bytes
    samples: bytes
    checkpoints: Mapping[str, bytes]


def left_by(history: History, folder: Path) -> Left:
    return Left(
        (folder / "run.jsonl").read_bytes(),
        summary_of(history),
        schedule_of(history),
        (folder / "verdicts.jsonl").read_bytes(),
        (folder / "samples.jsonl").read_bytes(),
        files_of(folder / "checkpoints"),
    )


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path from there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def unseal(log: Path) -> bytes:
    """Take the checksums off a log, as an earlier version wrote it; its bytes, to be changed."""
    log.write_bytes(b"".join(to_line(event) for event in read_log(log)))
    return log.read_bytes()


@contextmanager
def quick_folder() -> Iterator[Path]:
    """An empty folder without the wait for a disk: these tests kill processes, not machines."""
    memory = Path("/dev/shm")  # noqa: S108
    place = memory if os.access(memory, os.W_OK) else None
    with TemporaryDirectory(dir=place) as folder:
        yield Path(folder)
