"""The recorded run: answer from the log, else do the work and record it.

Resume is calling the method again from the top. As long as the log has the answer to what the
method asks, nothing is done; where the log ends, the work begins. If the method asks something
else than it did when the log was written, the run refuses and names the event.

An event goes the same way whether it is new or read: it is the next line of the log (appended, or
compared with the line that is there), the history takes it in, and the observers are told.

    the method asks → `_answer`: the log's next event, or else the worker trains or scores
                    → `_record`: log, history, watch
                    → `_keep`: the store drops what nobody can ask for any more
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from hashlib import sha256
from math import isfinite
from typing import Any, TypeVar, get_args

from msft.errors import BadScore, NotReproducible, StoreError, WrongMethod
from msft.run.history import History, Stage
from msft.run.log import (
    AverageEvent,
    DecisionEvent,
    EndEvent,
    Event,
    FallsEvent,
    FoundEvent,
    JudgedEvent,
    Log,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    diverged,
    to_line,
)
from msft.run.rows import (
    Judgments,
    Samples,
    Scored,
    Verdict,
    Verdicts,
    checked,
    coerce_kind,
    fits_score,
    rollout_falls,
    row_scores,
    scored_rows,
    trained_ticks,
)
from msft.run.worker import Question, Worker
from msft.search.curves import SELECTION, TEST, Follower, Scores, Waiting
from msft.search.falls import Drop, Fall, drop_from_base
from msft.search.feeds import SHUFFLED, FeedSpec, Mixture
from msft.search.judging import Finding, JudgedRows
from msft.search.methods import PreparedMethod
from msft.search.rollout import (
    BASE,
    COMPUTED,
    CONTENDERS,
    FAST,
    LEAN,
    CheckpointId,
    EndedBy,
    Keep,
    OptimizerStart,
    Point,
    Rollout,
    Settings,
    average_id,
    checkpoint_id,
    is_average,
    place_of,
)
from msft.store.store import PARTS, WEIGHTS, CheckpointStore, Retained, retained, wanted
from msft.text import shown

UNCHANGED = Drop(0.0, 0.0, True)
"""The drop of the base model itself, and of a tick without a step from it."""

Answer = TypeVar("Answer", PointEvent, AverageEvent, ScoresEvent, FallsEvent, JudgedEvent)
Watch = Callable[[Event, bool], None]
"""Called with every event, and whether it is new or was read from the log."""


class RecordedRun:
    """A `Run` for methods, over a log, a store and a worker.

    history: a fold over the events so far.
    is_live: the log has ended, and from here on every event is new.
    """

    def __init__(
        self,
        settings: Settings,
        method: PreparedMethod,
        worker: Worker,
        log: Log,
        store: CheckpointStore,
        verdicts: Verdicts | None = None,
        watch: Watch = lambda event, live: None,
        samples: Samples | None = None,
        has_result: Callable[[CheckpointId], bool] = lambda best: False,
        judgments: Judgments | None = None,
    ) -> None:
        """has_result: whether the result of a finished run is there without its checkpoint."""
        self.base = BASE
        self.mixture = settings.mixture
        self.compute_budget = settings.compute_budget
        self.train_ticks = settings.train_ticks
        self.evals_per_epoch = settings.evals_per_epoch
        self.seed = settings.seed
        self.early_stopping_patience = settings.early_stopping_patience
        settings = as_begun(settings, log.events)
        self.history = History()
        self.is_live = False
        self._log = log
        self._recorded = iter([*log.events])
        self._next: Event | None = next(self._recorded, None)
        self._watch = watch
        self._has_result = has_result
        self._settings = replace(settings, peaks=method.peaks or settings.peaks)
        self._selection = settings.selection_split
        self._method = method
        self._worker = worker
        self._store = store
        self._verdicts = verdicts or Verdicts(selection=self._selection)
        if log.events:
            self._verdicts.resume(scored_rows(log.events))
        self._samples = samples or Samples(selection=self._selection)
        self._judgments = judgments or Judgments()
        self._recovery = Recovery(worker, store, self.history)
        self._stopped_early = False

    # What a method sees.

    @property
    def best(self) -> CheckpointId | None:
        return self.history.best

    def rollout(
        self,
        start: CheckpointId,
        mixture: Mixture,
        ticks: int,
        *,
        feed: FeedSpec = SHUFFLED,
        optimizer: OptimizerStart | None = None,
        eligible: bool = True,
        keep: Keep = CONTENDERS,
        scored: bool = True,
    ) -> Rollout:
        if ticks < 1:
            raise ValueError(f"a roll-out of {ticks} ticks was asked for; expected at least 1")
        self._refuse_gone(start, "a roll-out", going_on=True)
        restore = self._method.rollout_options.on_rollback == "restore" and start != BASE
        optimizer = optimizer or ("kept" if restore else "fresh")
        kept = optimizer == "kept"
        self._open()
        number = len(self.history.stages)
        question = Question(number, start, mixture, ticks, feed)
        self._recovery.questions.append((question, kept))
        if start != BASE:
            if self._log_is_over():
                self._recovery.ensure(start, kept)
            self._store.secure(start, PARTS if kept else WEIGHTS)
        self._record(rollout_event(question, optimizer, eligible, keep, scored))
        self._keep(question, kept, contenders=())
        self._verdicts.forget(all_but=(BASE, start))
        if start == BASE and scored:
            self._measure(BASE, self._selection, worker_at=(number, 0))
            if self._settings.score_test == "every":
                self._measure(BASE, TEST, worker_at=(number, 0))
        points = [Point(0, start, self.history.known(start), steps=0)]
        if not scored:
            for tick in range(1, ticks + 1):
                points.append(self._point(question, points[-1], checkpoint_id(number, tick), ()))
                self._keep(question, kept, contenders=())
            return Rollout(start, mixture, tuple(points), self._settings.peaks)
        everybody = self._method.rollout_options.score_excluded == "every"
        names = [*self.history.start.datasets] if everybody else [*mixture.active]
        names += self.history.watched
        waiting = Waiting(self.early_stopping_patience)
        if waiting.patience:
            waiting.look(self.history.height(start))
        follower = Follower(self._settings.peaks, mixture.active)
        follower.follow(points[0].scores)
        patience = self._method.rollout_options.patience
        for tick in range(1, ticks + 1):
            if patience and follower.waited(mixture.candidates) >= patience:
                break
            if waiting.is_over:
                self._stopped_early = True
                break
            checkpoint = checkpoint_id(number, tick)
            points.append(self._point(question, points[-1], checkpoint, names))
            follower.follow(points[-1].scores)
            if waiting.patience and points[-1].steps:
                waiting.look(self.history.height(checkpoint))
            self._keep(question, kept, follower.contenders)
            if self._settings.score_test == "every":
                self._measure(checkpoint, TEST)
        return Rollout(start, mixture, tuple(points), self._settings.peaks)

    def average(self, checkpoints: Sequence[CheckpointId]) -> CheckpointId:
        if not checkpoints:
            raise ValueError("an average of no checkpoints was asked for; expected at least one")
        for part in checkpoints:
            self._refuse_gone(part, "an average", going_on=True)
        parts = tuple(checkpoints)
        self._open()
        checkpoint = average_id(len(self.history.averages))
        known = self._answer(AverageEvent, checkpoint)
        self._store.enter(checkpoint, moments=False)
        if known is None:
            self._recovery.average(checkpoint, parts)
        if self._settings.disk_policy != LEAN:
            self._store.secure(checkpoint)
        disk = self._store.account()
        self._record(AverageEvent(checkpoint, parts, known.disk if known else disk))
        self._measure(checkpoint, self._selection)
        if self._settings.score_test != "none":  # now, while it is there: it may be a control
            self._measure(checkpoint, TEST)
        return checkpoint

    def score(self, checkpoint: CheckpointId) -> Scores:
        self._refuse_gone(checkpoint, "a score")
        self._open()
        self._measure(checkpoint, self._selection)
        return self.history.known(checkpoint)

    def falls(self, rollout: Rollout, confidence: float) -> Mapping[str, Fall]:
        number = place_of(rollout.end)[0]
        known = self._answer(FallsEvent, rollout.end)
        if known is None:
            ticks = trained_ticks(self.history.stages[number]).values()
            self._complete_verdicts([BASE, *ticks], rollout.mixture.active)
            found: Mapping[str, Fall] = rollout_falls(
                self.history, self._verdicts, number, confidence
            )
        else:
            found = known.falls
        self._record(FallsEvent(rollout.end, number, confidence, found))
        return found

    def questions(self) -> Mapping[str, Sequence[str]]:
        return self._judgments.questions

    def judge(
        self, judge: CheckpointId, rows: Mapping[str, Sequence[int]]
    ) -> Mapping[str, JudgedRows]:
        self._refuse_gone(judge, "a judgment")
        known = self._answer(JudgedEvent, judge)
        digest = self._judgments.digest(judge)
        tokens = known.tokens if known else Tokens()
        if known is None or known.rows != digest:  # new, or the file has lost it
            self._recovery.hold(judge)
            took = self._judgments.add(judge, rows)
            digest = self._judgments.digest(judge)
            tokens = tokens if known else Tokens(evaluation=took)
        counts = {name: len(numbers) for name, numbers in rows.items()}
        self._record(JudgedEvent(judge, tokens, counts, digest))
        return self._judgments.at(judge).rows

    def find(self, findings: Mapping[str, Finding]) -> None:
        self._record(FoundEvent(len(self.history.found) + 1, findings))

    def exclude(self, names: Sequence[str], checkpoint: CheckpointId, tick: int) -> None:
        self._decide(DecisionEvent("exclude", checkpoint, tuple(names), tick))

    def go_on(self, checkpoint: CheckpointId) -> None:
        self._decide(DecisionEvent("go_on", checkpoint))

    def report(self, checkpoint: CheckpointId) -> None:
        self._decide(DecisionEvent("report", checkpoint))

    # What the program sees.

    def carry_out(self) -> History:
        """Call the method, from the top, and end the run."""
        by = self._method.carry_out(self) or ("early_stopping" if self._stopped_early else "budget")
        if by not in get_args(EndedBy):
            raise WrongMethod(
                f"method {self._method.name} returned {shown(by)}; expected nothing, or one of "
                f"{', '.join(get_args(EndedBy))}. Correct the method, then run the same command "
                "again"
            )
        self._open()
        if self._method.finds:
            self._record(EndEvent(by, BASE))
            if self._next is not None:
                raise diverged(self._next, "over")
            self._store.keep(Retained(frozenset(), frozenset(), frozenset()))
            self._store.flush()
            return self.history
        self._measure(BASE, self._selection)
        best = self.history.best
        assert best is not None, "the base model has been scored"
        if self._settings.score_test != "none":
            self._measure(BASE, TEST)  # a result is read beside what it started from
            if self.history.averages and self.history.best_tick in self._store.held:
                self._measure(self.history.best_tick, TEST)  # what SFT would have reported
            self._measure(best, TEST)
        trained_now = self._log_is_over()
        if trained_now:  # the result outlives the process, so before the run has ended
            self._recovery.secure(best)
            self._leave_samples((BASE, best))
        self._store.secure(best)
        self._record(EndEvent(by, best))
        if self._next is not None:
            raise diverged(self._next, "over")
        self._log_is_over()
        weights = frozenset({best} - {BASE})
        self._store.keep(Retained(weights, weights, frozenset()))
        if not trained_now and not self._has_result(best):  # it may have been damaged since
            self._recovery.secure(best)
        self._store.flush()
        return self.history

    # The log: read from the top while it lasts, written where it ends.

    def _log_is_over(self) -> bool:
        """Whether the log has no more answers; from then on the run is live."""
        if self._next is None and not self.is_live:
            self.is_live = True
            self._store.go_live()
        return self.is_live

    def _answer(self, kind: type[Answer], checkpoint: CheckpointId) -> Answer | None:
        """What the log answers, or None where it has ended."""
        if self._log_is_over():
            return None
        event = self._next
        if not isinstance(event, kind) or event.checkpoint != checkpoint:
            raise diverged(event, f"a {kind.event!r} event of {checkpoint}")
        return event

    def _record(self, event: Event) -> None:
        """Have this event as the next one: it is written where the log has ended, and is on disk
        when this returns; before that the log must have the same one."""
        then = self._next
        if isinstance(event, RunEvent) and isinstance(then, RunEvent):
            digests = event.fingerprint.items()  # an older version did not record all of them
            known = {what: digest for what, digest in digests if what in then.fingerprint}
            event = replace(event, fingerprint=known)
        if self._log_is_over():
            self._log.append(event)
        elif then is not None and then is not event and to_line(then) != to_line(event):
            raise diverged(then, event)
        self.history.add(event)
        self._watch(event, self.is_live)
        self._next = next(self._recorded, None)

    # Answer from the log, else do it and record it.

    def _open(self) -> None:
        if self.history.opened is None:
            self._record(run_event(self._settings, self._method, self._worker.num_parameters))

    def _point(
        self, question: Question, before: Point, checkpoint: CheckpointId, names: Sequence[str]
    ) -> Point:
        """The next tick: trained, scored for these sub-datasets and put into its place before its
        line is written."""
        tick = before.tick + 1
        event = self._answer(PointEvent, checkpoint)
        if event is None:
            guarded = [name for name in names if name in self._settings.guards]
            self._complete_verdicts([BASE], guarded)
            self._recovery.go(question.rollout, before.tick)
            work = self._worker.advance(tick)
            self._recovery.stands_at = (question.rollout, tick)
            if not isfinite(work.loss[0]):
                raise BadScore(f"the training loss before {checkpoint} is not a number")
            if work.steps and names:
                scored = self._score(checkpoint, names, self._selection)
                guards = self._drops(checkpoint, guarded, scored.verdicts) if guarded else {}
            else:  # no step, no change: the scores before it, at no cost
                then = {**before.scores, **self.history.seen(before.checkpoint)}
                scored = Scored({name: then[name] for name in names}, 0)
                drops = self.history.drops.get(before.checkpoint, {})
                guards = {name: drops.get(name, UNCHANGED) for name in guarded}
            self._store.enter(checkpoint)
            self._store.put(checkpoint, self._worker.weights, self._worker.training)
            tokens = work.tokens + Tokens(evaluation=scored.tokens)
            disk = self._store.account()
            event = PointEvent(
                checkpoint, work.steps, work.loss, tokens, disk, scored.scores, guards
            )
        else:
            self._store.enter(checkpoint)
            self._store.account()
        self._record(event)
        return Point(tick, checkpoint, self.history.known(checkpoint), event.steps)

    def _measure(
        self, checkpoint: CheckpointId, split: str, worker_at: tuple[int, int] | None = None
    ) -> None:
        """Score what is not scored yet."""
        history, selects = self.history, split == self._selection
        names = [n for n in history.missing(checkpoint, split) if selects or n in history.tested]
        names += [
            name
            for name, splits in history.watched.items()
            if (selects or split in splits[1:]) and name not in history.seen(checkpoint, split)
        ]
        if not names:
            return
        event = self._answer(ScoresEvent, checkpoint)
        if event is None:
            judges = split == self._selection and checkpoint != BASE
            guarded = [name for name in names if judges and name in self._settings.guards]
            self._complete_verdicts([BASE], guarded)
            if worker_at:
                self._recovery.go(*worker_at)
            else:
                self._recovery.hold(checkpoint)
            scored = self._score(checkpoint, names, split)
            tokens = Tokens(evaluation=scored.tokens)
            guards = self._drops(checkpoint, guarded, scored.verdicts) if guarded else {}
            event = ScoresEvent(checkpoint, split, tokens, scored.scores, guards)
        self._record(event)

    def _score(self, checkpoint: CheckpointId, names: Sequence[str], split: str) -> Scored:
        """Score what the worker holds; its rows and samples are on disk before the log's line."""
        found = checked(self._worker.score(names, split), names, checkpoint)
        scored = coerce_kind(found, self.history.patterns)
        self._verdicts.add(checkpoint, split, scored.verdicts, scored.row_tokens)
        self._samples.add(checkpoint, split, scored.samples)
        return scored

    def _drops(
        self, checkpoint: CheckpointId, names: Sequence[str], verdicts: Mapping[str, Verdict]
    ) -> dict[str, Drop]:
        """What the guards of these sub-datasets say of a checkpoint that was just scored.

        verdicts: the verdicts of the checkpoint's rows.
        """
        found: dict[str, Drop] = {}
        for name in names:
            self._refuse_no_rows(checkpoint, name, verdicts)
            rows = row_scores(self.history, self._verdicts, name, [checkpoint], BASE)
            found[name] = drop_from_base(rows, self._settings.guards[name])
        return found

    def _complete_verdicts(self, checkpoints: Sequence[CheckpointId], names: Sequence[str]) -> None:
        """Measure the rows again that neither memory nor the file has. No line of the log says so:
        the same weights give the same verdicts."""
        for checkpoint in dict.fromkeys(checkpoints):
            lost = [name for name in names if not self._has_verdicts(checkpoint, name)]
            if not lost:
                continue
            self._recovery.hold(checkpoint)
            found = self._worker.score(lost, self._selection)
            scored = coerce_kind(found, self.history.patterns)
            for name in lost:
                self._refuse_no_rows(checkpoint, name, scored.verdicts)
            self._verdicts.add(checkpoint, self._selection, scored.verdicts, scored.row_tokens)

    def _refuse_no_rows(
        self, checkpoint: CheckpointId, name: str, verdicts: Mapping[str, Verdict]
    ) -> None:
        if name in verdicts:
            return
        what, key = "fall can be tested", "method_options.exclude"
        if name in self._settings.guards:
            what, key = "guard can be kept", f"the guard of {name}"
        raise BadScore(
            f"{name} at {checkpoint} has no verdicts of single rows, without which no {what}; "
            f"leave {key} out, or have the engine give them (in msft.testing.scripted: rows=)"
        )

    def _has_verdicts(self, checkpoint: CheckpointId, name: str) -> bool:
        """Whether there are rows that add up to the score in the log."""
        rows, score = self._verdicts.at(checkpoint, name), self.history.score_of(checkpoint, name)
        try:
            return rows is not None and fits_score(rows, score, self._verdicts.tokens(name))
        except (TypeError, ValueError):
            return False

    def _leave_samples(self, checkpoints: Sequence[CheckpointId]) -> None:
        """Leave the samples of these checkpoints and no others.

        The evaluations gave them. What was lost, such as of a folder that an earlier version
        began, is answered again. Where the score is a loss, the model writes an answer now, to be
        read beside the reference. No line of the log counts these few tokens.
        """
        names = [*self.history.start.datasets, *self.history.watched]
        for checkpoint in checkpoints:
            lost = self._samples.missing(checkpoint, names)
            if lost:
                self._recovery.hold(checkpoint)
                found = self._worker.score(lost, self._selection).samples
                self._samples.add(checkpoint, self._selection, found)
            if self._samples.unwritten(checkpoint):
                self._recovery.hold(checkpoint)
                self._samples.write(checkpoint)
        self._samples.finish(checkpoints, names)

    def _decide(self, event: DecisionEvent) -> None:
        names = self._settings.mixture.sizes
        unknown = [name for name in event.names if name not in names]
        if unknown:
            raise WrongMethod(
                f"method {self._method.name} excludes {unknown[0]!r}, but there is no such "
                f"sub-dataset; expected names of {', '.join(names)}. Correct the method, then run "
                "the same command again"
            )
        result = event.what == "report"
        what = "a result" if result else "to go on"
        self._refuse_gone(event.checkpoint, what, going_on=not result)
        self._open()
        self._record(event)
        if self._method.rollout_options.score_excluded == "rollback":
            self._measure(event.checkpoint, self._selection)
        if self._settings.score_test == "rollbacks":
            self._measure(event.checkpoint, TEST)

    def _keep(self, question: Question, kept: bool, contenders: Collection[int]) -> None:
        """Drop what can never be needed again.

        contenders: numbers of the last roll-out's ticks that could still become a peak.
        """
        latest = self.history.stages[-1].checkpoints[-1]
        held = held_ticks(self.history.stages, contenders)
        restore = self._method.rollout_options.on_rollback == "restore"
        self._store.keep(
            retained(
                start=question.start,
                latest=latest,
                contenders=held,
                best=self.history.best,
                keep_start=self._store.would_lose(question.start, {*held, latest}),
                moments="contenders" if restore else "start" if kept else "none",
                policy=self._settings.disk_policy,
            )
        )
        if self.is_live:
            self._samples.forget({BASE, latest, *self._store.held})

    def _refuse_gone(self, checkpoint: CheckpointId, what: str, going_on: bool = False) -> None:
        """ValueError for a checkpoint that was dropped, or that never was.

        going_on: training is to go on from it, so it may not be an average.
        """
        if checkpoint == BASE:
            return
        if going_on and is_average(checkpoint):
            raise ValueError(
                f"{what} from {checkpoint} was asked for, which is an average: nothing goes on "
                "from one; name a tick"
            )
        if checkpoint not in self._store.held:
            raise ValueError(
                f"{what} from {checkpoint} was asked for, which is not kept; kept are "
                f"{sorted(self._store.held) or 'none'} and base"
            )


def run_event(settings: Settings, method: PreparedMethod, num_parameters: int) -> RunEvent:
    """A run as the first line of its log; what is at its default and came later is not in it."""
    counted, selection = settings.evaluation_tokens, settings.selection_split
    adapter = {"frozen": num_parameters, "trained": settings.adapter}
    watched = {name: [*splits] for name, splits in settings.watched.items()}
    patience = settings.early_stopping_patience
    return RunEvent(
        method=method.name,
        seed=settings.seed,
        num_parameters=num_parameters,
        datasets=dict(settings.mixture.sizes),
        settings={
            "evals_per_epoch": settings.evals_per_epoch,
            "compute_budget": settings.compute_budget,
            "train_ticks": settings.train_ticks,
            "peaks": settings.peaks.recorded(),
            "mean": settings.mean,
            "score_test": settings.score_test,
            "optim": settings.optim,
            "rollout": asdict(method.rollout_options),
            "method": dict(method.options),
            **({} if settings.engine == FAST else {"engine": settings.engine}),
            **({} if settings.ema_decay is None else {"ema_decay": settings.ema_decay}),
            **({} if counted == COMPUTED else {"evaluation_tokens": counted}),
            **({"adapter": adapter} if settings.adapter else {}),
            **({} if settings.tested is None else {"tested": [*settings.tested]}),
            **({"watched": watched} if watched else {}),
            **({"guards": dict(settings.guards)} if settings.guards else {}),
            **({"early_stopping_patience": patience} if patience else {}),
            **({} if settings.lanes == 1 else {"lanes": settings.lanes}),
            **({} if selection == SELECTION else {"selection_split": selection}),
            **({} if settings.disk_policy == LEAN else {"disk_policy": settings.disk_policy}),
        },
        fingerprint=settings.fingerprint,
    )


def as_begun(settings: Settings, events: Sequence[Event]) -> Settings:
    """The settings under which a run goes on. Earlier versions scored nothing on test where one
    sub-dataset had no test rows."""
    first = events[0] if events else None
    if isinstance(first, RunEvent) and settings.tested and "tested" not in first.settings:
        return replace(settings, score_test="none", tested=None)
    return settings


def rollout_event(
    question: Question, optimizer: OptimizerStart, eligible: bool, keep: Keep, scored: bool = True
) -> RolloutEvent:
    """A roll-out as its line in the log."""
    numbers = {p.name: p.numbers for p in question.mixture.parts if p.numbers is not None}
    parts, feed = question.mixture.parts, dict[str, Any]()
    if is_dataclass(question.feed) and not isinstance(question.feed, type):
        feed = asdict(question.feed)
    return RolloutEvent(
        rollout=question.rollout,
        start=question.start,
        active={part.name: part.rows for part in parts if not part.rehearsed},
        rehearsed={part.name: part.rows for part in parts if part.rehearsed},
        ticks=question.ticks,
        feed={"name": type(question.feed).__name__.lower(), **feed},
        optimizer=optimizer,
        eligible=eligible,
        keep=keep,
        scored=scored,
        among=sha256(repr(numbers).encode()).hexdigest() if numbers else "",
        later={p.name: {str(e): rows for e, rows in p.later} for p in parts if p.later},
    )


def held_ticks(stages: Sequence[Stage], contenders: Collection[int]) -> frozenset[CheckpointId]:
    """The ticks that the method may still ask for: of the last roll-out, and of earlier ones that
    were asked for with ticks to be held to the end.

    contenders: numbers of the last one's ticks that could still become a peak.
    """
    *earlier, last = stages
    held = wanted(last.asked.keep, last.checkpoints, contenders)
    for stage in earlier:
        if stage.asked.keep == "all" or isinstance(stage.asked.keep, tuple):
            held |= wanted(stage.asked.keep, stage.checkpoints, ())
    return held


@dataclass(slots=True)
class Recovery:
    """Where the worker stands, and how it gets somewhere else.

    A checkpoint that was lost (it was only in memory when the process died, or its file is damaged)
    is trained again from the nearest one that is still there; an average is made again from its
    parts. Training is a pure function of the recipe, so the log's answers stand.

    questions: the roll-outs so far, and whether each goes on with its start's optimizer.
    stands_at: roll-out and tick that the worker can go on from; None: it holds something else.
    """

    worker: Worker
    store: CheckpointStore
    history: History
    questions: list[tuple[Question, bool]] = field(default_factory=list)
    stands_at: tuple[int, int] | None = None

    def ensure(self, checkpoint: CheckpointId, kept: bool) -> None:
        """Have a checkpoint in the store again if it was lost."""
        if is_average(checkpoint):
            if not self.store.has(checkpoint, "weights"):
                self.average(checkpoint, self.history.averages[checkpoint].of)
            return
        parts = PARTS if kept else WEIGHTS
        if checkpoint != BASE and not all(self.store.has(checkpoint, part) for part in parts):
            self.go(*place_of(checkpoint))

    def secure(self, result: CheckpointId) -> None:
        """Have a result on disk as it was made: what is damaged there is made again."""
        for _ in range(2):
            self.ensure(result, kept=False)
            self.store.secure(result)
            self.store.flush()
            if result == BASE or self.store.is_whole(result):
                return
        raise StoreError(
            f"the disk does not give checkpoint {result} back as it was written, twice in a row; "
            "look after the disk, then run the same command again to go on"
        )

    def hold(self, checkpoint: CheckpointId) -> None:
        """Hold a checkpoint's weights, to score them."""
        if is_average(checkpoint):
            self.ensure(checkpoint, kept=False)
            self.worker.load(self.store.get(checkpoint, "weights"))
            self.stands_at = None
            return
        place, here = place_of(checkpoint), self.stands_at
        is_at_base = here is not None and here[1] == 0 and self.questions[here[0]][0].start == BASE
        if here == place or (checkpoint == BASE and is_at_base):
            return
        weights = None if checkpoint == BASE else self.store.get(checkpoint, "weights")
        if weights is None and checkpoint != BASE:
            self.go(*place)
            return
        self.worker.load(weights)
        self.stands_at = None

    def average(self, checkpoint: CheckpointId, parts: Sequence[CheckpointId]) -> None:
        """Bring the mean of these checkpoints to its places in the store.

        What memory lost is trained again beforehand, so that no training goes on beside the sum.
        """
        for part in sorted({*parts}, key=place_of):
            if self.store.lacks(part):
                self.go(*place_of(part))
        weights = self.worker.average(self._weights(part) for part in parts)
        self.store.put(checkpoint, lambda: weights, dict)

    def _weights(self, checkpoint: CheckpointId) -> Any:
        weights = None if checkpoint == BASE else self.store.get(checkpoint, "weights")
        if weights is None:  # the base model, one that was dropped, or a file that is damaged
            self.hold(checkpoint)
            weights = self.worker.weights()
        return weights

    def go(self, rollout: int, tick: int) -> None:
        """Stand at a tick of a roll-out, training again whatever is not there any more."""
        if self.stands_at == (rollout, tick):
            return
        here, self.stands_at = self.stands_at, None
        if here is not None and here[0] == rollout and here[1] < tick:
            self._again(rollout, here[1], tick)
            self.stands_at = (rollout, tick)
            return
        legs = [(rollout, tick)]
        opened = self._open_nearest(*legs[0], here)
        while opened is None:
            legs.append(place_of(self.questions[legs[-1][0]][0].start))
            opened = self._open_nearest(*legs[-1])
        for number, (leg, target) in enumerate(reversed(legs)):
            if number:
                question, kept = self.questions[leg]
                state = self.worker.weights(), self.worker.training()
                self.worker.open(question, 0, state[0], state[1] if kept else None)
                opened = 0
            self._again(leg, opened, target)
        self.stands_at = (rollout, tick)

    def _open_nearest(
        self, rollout: int, tick: int, here: tuple[int, int] | None = None
    ) -> int | None:
        """Open the latest tick up to this one that the store still has; None if there is none.

        here: where the worker stands and can go on from.
        """
        question, kept = self.questions[rollout]
        for earlier in range(tick, 0, -1):
            if here == (rollout, earlier):
                return earlier
            state = self._stored(checkpoint_id(rollout, earlier), True)
            if state is not None:
                self.worker.open(question, earlier, *state)
                return earlier
        state = (None, None) if question.start == BASE else self._stored(question.start, kept)
        if state is None:
            return None
        self.worker.open(question, 0, state[0], state[1] if kept else None)
        return 0

    def _stored(self, checkpoint: CheckpointId, training: bool) -> tuple[Any, Any] | None:
        moments = self.store.get(checkpoint, "training") if training else None
        if training and moments is None:
            return None
        weights = self.store.get(checkpoint, "weights")
        return None if weights is None else (weights, moments)

    def _again(self, rollout: int, first: int, last: int) -> None:
        for tick in range(first + 1, last + 1):
            work = self.worker.advance(tick)
            point = self.history.stages[rollout].points[tick - 1]
            if (work.steps, work.tokens.train) != (point.steps, point.tokens.train):
                raise NotReproducible(
                    f"checkpoint {point.checkpoint} was lost and trained again, but with "
                    f"{work.steps} steps and {work.tokens.train} tokens where the log has "
                    f"{point.steps} and {point.tokens.train}; the data or the code has changed, "
                    "so this run cannot go on: start again in another folder"
                )
            if tick == last or self.store.lacks(point.checkpoint):  # others that were lost too
                self.store.put(point.checkpoint, self.worker.weights, self.worker.training)
