"""A first roll-out that several runs share: one run trains it, the others take it over.

Runs of one seed that ask the same first question get the same answer, so only one need train. It
leaves the weights of every tick in a folder; its log and its verdicts have the rest. A run that
takes the roll-out over writes from these what it would have written itself, as far as the last
tick, and links the weights among its own checkpoints: exactly what a run leaves behind that was
killed there. Then it is resumed like any other. So its log has the same bytes as if it had
trained, and a weight that is gone is trained again.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from msft.errors import LogError
from msft.files import DAMAGED, FILE, kind_of, link_or_copy, read_text, remove
from msft.run.environment import BaseRecord, changed_files, read_base
from msft.run.folder import RunFolder, row_tokens_of, verdicts_of, write_json, write_text
from msft.run.history import selection_of
from msft.run.log import Event, Log, PointEvent, RolloutEvent, RunEvent, ScoresEvent
from msft.run.recorded_run import RecordedRun, as_begun, rollout_event, run_event
from msft.run.rows import (
    RowTokens,
    Samples,
    SamplesByName,
    Scored,
    Verdict,
    Verdicts,
    read_samples,
)
from msft.run.worker import Question, Work, Worker
from msft.search.methods import PreparedMethod
from msft.search.rollout import BASE, CONTENDERS, CheckpointId, Settings, checkpoint_id, place_of
from msft.store.store import CheckpointStore, Codec, DiskTier

OWN = ("compute_budget", "peaks", "mean", "rollout", "method", "disk_policy")
"""Settings in the first line of a log that do not change what a first roll-out answers."""


class _Enough(Exception):
    """What was left has no more answers."""


class LentRollout:
    """A `Worker` that trains nothing: it answers with what another run's log has."""

    def __init__(self, folder: RunFolder, samples: Path) -> None:
        """samples: what the run that lends left of its answers."""
        events = folder.events()
        self.folder = folder
        self._samples_file = samples
        self.start = next(event for event in events if isinstance(event, RunEvent))
        self.asked = next(event for event in events if isinstance(event, RolloutEvent))
        self.points = _first_points(events)
        self.num_parameters = self.start.num_parameters
        self._selection = selection_of(self.start)
        self._measured = [event for event in events if isinstance(event, ScoresEvent)]
        self._tick = 0

    # Files of rows are long, so they are only read of a roll-out that is over.

    @cached_property
    def _verdicts(self) -> Mapping[tuple[CheckpointId, str], Mapping[str, Verdict]]:
        found: dict[tuple[CheckpointId, str], dict[str, Verdict]] = {}
        for (checkpoint, split, name), rows in verdicts_of(self.folder.path).items():
            found.setdefault((checkpoint, split), {})[name] = rows
        return found

    @cached_property
    def _tokens(self) -> RowTokens:
        return row_tokens_of(self.folder.path)

    @cached_property
    def _samples(self) -> Mapping[CheckpointId, SamplesByName]:
        return read_samples(self._samples_file)

    def is_whole(self, checkpoints: Path) -> bool:
        """Whether the roll-out is over, and verdicts and weights of all its ticks are there."""
        return len(self.points) == self.asked.ticks and all(
            (checkpoints / _key(point.checkpoint)).is_dir()
            and (
                not point.steps
                or self._rows(point.checkpoint, self._selection).keys() == point.scores.keys()
            )
            for point in self.points
        )

    def answers(self, run: RunEvent) -> bool:
        """Whether a run that begins like this would get the same answers."""
        return _comparable(run) == _comparable(self.start)

    def agrees(self, events: Iterable[Event]) -> bool:
        """Whether a log has other answers for no tick: what it kept on disk is its own."""
        here = _first_points(events)
        theirs = self.points[: len(here)]
        return here == [replace(t, disk=h.disk) for h, t in zip(here, theirs, strict=False)]

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        same = rollout_event(question, "fresh", True, CONTENDERS)
        if self.asked != replace(same, eligible=self.asked.eligible, keep=self.asked.keep) or tick:
            raise _Enough
        self._tick = 0

    def advance(self, tick: int) -> Work:
        self._tick = tick
        point = self.points[tick - 1]
        return Work(point.steps, point.loss, replace(point.tokens, evaluation=0))

    def score(self, names: Sequence[str], split: str) -> Scored:
        checkpoint = checkpoint_id(0, self._tick) if self._tick else BASE
        event: PointEvent | ScoresEvent | None
        if self._tick and split == self._selection:
            event = self.points[self._tick - 1]
        else:
            known = [e for e in self._measured if (e.checkpoint, e.split) == (checkpoint, split)]
            event = known[0] if known else None
        if event is None or event.scores.keys() != {*names}:
            raise _Enough
        tokens = {name: counts for (of, name), counts in self._tokens.items() if of == split}
        rows = self._rows(checkpoint, split)
        samples = self._samples.get(checkpoint, {}) if split == self._selection else {}
        return Scored(event.scores, event.tokens.evaluation, rows, tokens, samples)

    def weights(self) -> None:
        """None: a ledger needs no payload."""

    def training(self) -> None:
        """None, as for weights."""

    def load(self, weights: Any | None) -> NoReturn:
        raise _Enough

    def average(self, parts: Iterable[Any]) -> NoReturn:
        raise _Enough

    def _rows(self, checkpoint: CheckpointId, split: str) -> Mapping[str, Verdict]:
        return self._verdicts.get((checkpoint, split), {})


class LendingWorker:
    """A worker that also leaves the weights and samples of every tick of its first roll-out on a
    disk, as long as that has room."""

    def __init__(
        self, worker: Worker, disk: DiskTier, samples: Samples, goes_on: Callable[[], bool]
    ) -> None:
        """goes_on: is asked before each tick is left; where it says no, nothing more is."""
        self._worker = worker
        self._disk = disk
        self._samples = samples
        self._goes_on = goes_on
        self._lends = True
        self._rollout = 0
        self._held: CheckpointId | None = None
        self.num_parameters = worker.num_parameters
        self.weights = worker.weights
        self.training = worker.training
        self.average = worker.average

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        self._rollout = question.rollout
        self._held = checkpoint_id(question.rollout, tick) if tick else question.start
        self._worker.open(question, tick, weights, training)

    def load(self, weights: Any | None) -> None:
        self._held = None
        self._worker.load(weights)

    def score(self, names: Sequence[str], split: str) -> Scored:
        scored = self._worker.score(names, split)
        if self._lends and self._rollout == 0 and self._held is not None:
            with suppress(OSError):
                self._samples.add(self._held, split, scored.samples)
        return scored

    def advance(self, tick: int) -> Work:
        work = self._worker.advance(tick)
        self._held = checkpoint_id(self._rollout, tick)
        self._lends = self._lends and (self._rollout > 0 or self._goes_on())
        if self._lends and self._rollout == 0:  # in its place before the tick's line is written
            with suppress(OSError):  # a full disk is no reason to fail: then the others train too
                self._disk.put(_key(checkpoint_id(0, tick)), self._worker.weights())
        return work


class SharedRollout:
    """The folder that runs with the same first question have together."""

    def __init__(
        self,
        place: Path,
        folder: RunFolder,
        samples: Samples | None = None,
        base: BaseRecord | None = None,
    ) -> None:
        """samples: of the run; those of the first roll-out are lent too.
        base: the files of the run's base model; a roll-out of another base answers nothing."""
        self._place = place
        self._base = base or {}
        self._folder = folder
        self._samples = samples
        self._lent_samples = place / "samples.jsonl"
        self._checkpoints = place / "checkpoints"
        self._donor = place / "donor.json"

    def join(
        self,
        settings: Settings,
        method: PreparedMethod,
        worker: Worker,
        codec: Codec,
        log: Log,
        store: CheckpointStore,
        may_lend: bool = True,
        has_room: Callable[[], bool] = lambda: True,
    ) -> tuple[Worker, str | None]:
        """Take the first roll-out over if it is here, else leave it here for others.

        may_lend: the disk has room for the weights of every tick.
        has_room: whether it still has what the run itself needs. Others fill it too, so where it
            has not, the run takes back what it has left.
        Gives the worker that goes on, and the name of the run that the roll-out is from.
        """
        settings = as_begun(settings, log.events)
        run = run_event(settings, method, worker.num_parameters)
        lent = self._lent(run, log.events)
        if lent is not None:
            self._take_over(lent, settings, method, log, store)
            return worker, lent.folder.path.resolve().name
        if self._is_lender(log.events, may_lend):
            lent_samples = Samples(self._lent_samples, selection=settings.selection_split)

            def goes_on() -> bool:
                if not (room := has_room()):
                    shutil.rmtree(self._place, ignore_errors=True)
                return room

            disk = DiskTier(self._checkpoints, codec)
            return LendingWorker(worker, disk, lent_samples, goes_on), None
        return worker, None

    def _lent(self, run: RunEvent, events: Sequence[Event]) -> LentRollout | None:
        """What another run has left, if it answers this one, and nothing here says otherwise."""
        found = self.found()
        if found is None or found.folder.path.resolve() == self._folder.path.resolve():
            return None
        theirs = read_base(found.folder.environment) or {}
        same = not changed_files(theirs, self._base) or not self._base
        return found if same and found.answers(run) and found.agrees(events) else None

    def found(self) -> LentRollout | None:
        """The whole roll-out that is here; the run that left it may still go on."""
        donor = self._donor_folder()
        try:
            found = donor and LentRollout(RunFolder(donor), self._lent_samples)
        except (LogError, OSError, ValueError, StopIteration):  # not begun, or not readable
            return None
        return found if found and found.is_whole(self._checkpoints) else None

    def _is_lender(self, events: Sequence[Event], may_begin: bool) -> bool:
        """Whether this run leaves its roll-out here: a tick that it trained before is not."""
        donor = self._donor_folder()
        if donor is not None and donor.resolve() == self._folder.path.resolve():
            return True
        if not may_begin or _first_points(events):
            return False
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        write_json(self._donor, {"run": os.path.relpath(self._folder.path, self._place)})
        return True

    def _donor_folder(self) -> Path | None:
        try:
            return self._place / str(json.loads(read_text(self._donor))["run"])
        except DAMAGED:
            return None

    def _take_over(
        self,
        lent: LentRollout,
        settings: Settings,
        method: PreparedMethod,
        log: Log,
        store: CheckpointStore,
    ) -> None:
        """Leave what this run would have left if it had been killed after its first roll-out.

        store: what this run will have; its ledger says how much of the disk a tick takes.
        """
        last = lent.points[-1].checkpoint

        def watch(event: Event, live: bool) -> None:
            if isinstance(event, PointEvent) and event.checkpoint == last:
                raise _Enough

        if len(_first_points(log.events)) < len(lent.points):
            selection = settings.selection_split
            verdicts = Verdicts(self._folder.verdicts, selection=selection)
            ledger = store.ledger_alone()
            with suppress(_Enough):
                RecordedRun(
                    settings, method, lent, log, ledger, verdicts, watch, self._samples
                ).carry_out()
        if kind_of(self._folder.steps) is None and kind_of(lent.folder.steps) == FILE:
            lines = read_text(lent.folder.steps).splitlines(keepends=True)
            first = [line for line in lines if line.startswith('{"rollout": 0,')]
            write_text(self._folder.steps, "".join(first))
        for point in lent.points:
            key = _key(point.checkpoint)
            _link(self._checkpoints / key, self._folder.checkpoints / key)


def _first_points(events: Iterable[Event]) -> list[PointEvent]:
    """The ticks of the first roll-out."""
    points = (event for event in events if isinstance(event, PointEvent))
    return [point for point in points if place_of(point.checkpoint)[0] == 0]


def _link(source: Path, target: Path) -> None:
    """The same files under another name: nothing is copied, and nothing is ever written twice."""
    if kind_of(target):
        return
    temporary = target.with_name(f".{target.name}.tmp")
    remove(temporary)
    temporary.mkdir(parents=True)
    for file in source.iterdir():
        link_or_copy(file, temporary / file.name)
    temporary.rename(target)


def _comparable(run: RunEvent) -> RunEvent:
    """The first event without the settings that do not change a first roll-out."""
    settings = {key: value for key, value in run.settings.items() if key not in OWN}
    settings["by"] = run.settings["peaks"].get("by", "score")
    return replace(run, method="", settings=settings)


def _key(checkpoint: CheckpointId) -> str:
    return f"{checkpoint}.weights"
