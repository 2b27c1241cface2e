"""One training run: engine, store, log, trackers and result folder, put together."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import yaml

from msft.app.admission import resolved
from msft.app.fingerprints import settings_of
from msft.app.hub import card_of
from msft.app.meetings import Meetings
from msft.app.stores import store_of
from msft.app.terminal.progress import Progress
from msft.app.trackers import Trackers, open_trackers
from msft.data.corpus import Corpus
from msft.engine.memory import free_disk
from msft.engine.saving.best_folder import BestFolder
from msft.errors import BadScore, NotANumber, Stopped, StoreError
from msft.own_code import in_words
from msft.process import graceful
from msft.ranks import ALONE, Ranks, from_first, together
from msft.recipe.recipe import Recipe
from msft.report import write_report
from msft.report.findings import Findings, findings_content, findings_in
from msft.run.engine import Engine, SaysHow
from msft.run.environment import (
    ROLLOUT_FROM,
    BaseRecord,
    environment,
    record_environment,
    refuse_other_base,
    refuse_others,
    rollout_from,
)
from msft.run.folder import RunFolder, write_json, write_text
from msft.run.history import History
from msft.run.log import EndEvent, Event, Log
from msft.run.recorded_run import RecordedRun, as_begun
from msft.run.rows import LossLines, Samples, StepLines, Verdicts
from msft.run.sharing import SharedRollout
from msft.run.summary import schedule_of, summary_of
from msft.run.worker import EngineWorker, Scored, Step, Worker
from msft.scoring.evaluation import Evaluator
from msft.search.methods import PreparedMethod
from msft.search.rollout import BASE
from msft.store.disk import Hashes

SAME_IN_ALL_RANKS = (Stopped, NotANumber, BadScore)
"""Errors that come to every rank at the same place, so that all can still work together."""


class Session:
    """Everything that one run needs, put together."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        method: PreparedMethod,
        folder: RunFolder,
        engine: Engine,
        engine_name: str,
        corpus: Corpus,
        tokenizer: Any,
        progress: Progress | None,
        notice: Callable[[str], None],
        shared: Path | None = None,
        lanes: int = 1,
        ranks: Ranks = ALONE,
        result_is_loaded: bool = False,
        base: BaseRecord | None = None,
    ) -> None:
        """shared: a folder in which runs with the same first roll-out leave it for each other.
        ranks: all of them have a session; that of rank 0 writes.
        result_is_loaded: a finished run needs the checkpoint of its result, too.
        base: the files that the base model came from, as far as they are known."""
        self._ranks = ranks
        self._first = ranks.rank == 0
        self._recipe = recipe
        self._base = base or {}
        self._method = method
        self._folder = folder
        self._engine = engine
        self._progress = progress
        self._notice = notice
        tasks, samples = corpus.tasks(recipe), recipe.samples
        selection = corpus.selection
        self._evaluator = Evaluator(tasks, engine.predictor(), tokenizer, samples, selection)
        self._settings = settings_of(recipe, corpus, method, engine, engine_name, lanes)
        self._samples = Samples(folder.samples if samples else None, self._first, selection)
        self._shared = SharedRollout(shared, folder, self._samples, self._base) if shared else None
        self._rollout_from = rollout_from(folder.environment)
        hashes = Hashes()
        made = store_of(recipe, method, self._settings, engine, folder, hashes, notice, ranks)
        self._store = store = made.store
        self._meetings = Meetings(ranks, made.settle)
        self._lent_bytes = made.lent_bytes
        places = (folder.best, folder.checkpoints)
        self._best_folder = BestFolder(
            *places, engine, store.is_whole, hashes, notice, store.folders, ranks
        )
        self._groups = {name: d.group for name, d in corpus.datasets.items() if d.group}
        self._best_on_disk: str | None = None
        self._has_result = (
            (lambda best: False) if result_is_loaded else self._best_folder.has_export
        )
        self._steps: StepLines | None = None
        self._losses: LossLines | None = None
        self._trackers: Trackers | None = None
        self._begun = time.monotonic()

    def carry_out(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Train to the end, or go on; the summary and the schedule."""
        log = self._meetings.log(self._folder.log)
        try:
            with graceful():
                return self._carry_out(log)
        except OSError:
            log.refuse_gone()  # which says more than that a file is not there
            raise
        finally:
            log.close()

    def _carry_out(self, log: Log) -> tuple[dict[str, Any], dict[str, Any]]:
        self._settings = as_begun(self._settings, log.events)
        ended = log.events[-1] if log.events else None
        if log.events and not isinstance(ended, EndEvent):
            here = (self._folder.environment, environment(self._recipe.packages))
            strict = self._recipe.deterministic
            together(self._ranks, "environment", lambda: refuse_others(*here, strict, self._notice))
            together(self._ranks, "base", lambda: refuse_other_base(here[0], self._base))
        if self._first:
            write_text(self._folder.recipe, resolved(self._recipe).to_yaml())
        worker = self._worker(log)
        if isinstance(ended, EndEvent):
            self._best_folder.give_back(ended.best)
        else:
            self._record_environment()
            if isinstance(self._engine, SaysHow):
                self._notice(self._engine.how())
        run = RecordedRun(
            self._settings,
            self._method,
            worker,
            log,
            self._store,
            Verdicts(
                self._folder.verdicts, self._notice, self._first, self._settings.selection_split
            ),
            lambda event, live: self._event(run.history, event, live),
            self._samples,
            self._has_result,
        )
        try:
            with ExitStack() as files:
                if self._first:
                    self._trackers = self._open_trackers(log)
                    self._steps = files.enter_context(
                        closing(StepLines(self._folder.steps, self._notice))
                    )
                if self._first and self._recipe.validation_loss:
                    losses = LossLines(self._folder.losses, self._notice)
                    self._losses = files.enter_context(closing(losses))
                self._ranks.gather("files of the log", None)  # the files are as the log has them
                history = run.carry_out()
            if run.is_live:
                self._record_environment()
        except BaseException as reason:
            alike = self._ranks.world == 1 or isinstance(reason, SAME_IN_ALL_RANKS)
            started = run.is_live and run.history.opened is not None
            if alike and started:  # a refused call leaves all as it is
                self._park(run.history, reason)
            raise
        finally:
            if self._trackers is not None:
                self._trackers.close()
        log.close()
        self._show_result(history)
        return from_first(self._ranks, "result", lambda: self._finished(history))

    def _worker(self, log: Log) -> Worker:
        """What trains. Where others share the first roll-out, it is taken over now if it is there,
        and else left for them."""
        worker = EngineWorker(
            self._engine,
            self._score,
            seed=self._recipe.seed,
            batch_size=self._recipe.train_batch_size,
            evals_per_epoch=self._recipe.evals_per_epoch,
            on_step=self._step,
        )
        if self._shared is None or self._folder.is_finished():
            return worker
        joined, source = self._shared.join(
            self._settings,
            self._method,
            worker,
            self._engine.codec(),
            log,
            self._store,
            may_lend=free_disk(self._folder.path) >= self._lent_bytes,
        )
        if source is not None:
            self._rollout_from = source
            self._notice(f"the first roll-out is that of {source}, which asked the same")
        return joined

    def _record_environment(self) -> None:
        """Versions, device, and how the engine computes; again at the end, since a path that
        fails on the way is left for a slower one."""
        if not self._first:
            return
        how = {"engine": self._engine.how()} if isinstance(self._engine, SaysHow) else {}
        how |= {ROLLOUT_FROM: self._rollout_from} if self._rollout_from else {}
        now = environment(self._recipe.packages)
        record_environment(self._folder.environment, now | how, self._groups, self._base)

    def _open_trackers(self, log: Log) -> Trackers:
        recipe = self._recipe
        config = yaml.safe_load(recipe.to_yaml()) | {"method": self._method.name}
        known = len(log.events) if self._folder.is_finished() else 0
        return open_trackers(recipe.report_to, self._folder.path, config, known, self._notice)

    def _park(self, history: History, reason: BaseException) -> None:
        """Before a stop, bring to disk what a resume can use; else it is trained again."""
        try:
            self._store.park()
            self._show_best(history, last=True)
        except Exception as error:
            if error is not reason:
                self._notice(f"not all could be saved, it will be trained again: {in_words(error)}")
        try:
            self._write_summary(history, stopped=True)
        except OSError as error:  # the log has all of it
            self._notice(f"summary.json could not be written: {in_words(error)}")

    def _finished(self, history: History) -> tuple[dict[str, Any], dict[str, Any]]:
        found = findings_in(self._folder.path, history)
        summary = {**summary_of(history), "findings": findings_content(found)}
        schedule = schedule_of(history)
        self._best_folder.card(self._card(history, found))
        write_json(self._folder.schedule, schedule)
        write_json(self._folder.summary, summary)
        write_report(self._folder.path)
        return summary, schedule

    def _event(self, history: History, event: Event, live: bool) -> None:
        if self._progress is not None:
            self._progress.event(event, live)
        losses = self._losses.of(event, live) if self._losses is not None else {}
        if self._trackers is not None:
            self._trackers.event(history, event, live, losses)
        if live:
            if self._steps is not None:
                self._steps.flush()
            self._show_best(history, last=history.ended is not None)
            if event.event in ("rollout", "decision"):
                self._write_summary(history)

    def _write_summary(self, history: History, stopped: bool = False) -> None:
        if self._first:
            write_json(self._folder.summary, summary_of(history, stopped=stopped))

    def _show_best(self, history: History, last: bool) -> None:
        """Keep `best/` equal to the best so far, as soon as that is on disk; none while it is the
        model that was given. last: at once, however long it takes."""
        best = history.best
        if best is None or best == self._best_on_disk or history.missing(best):
            return
        if best == BASE and history.ended is None:
            return
        with self._ranks.busy("best/"):
            if self._best_folder.update(best, self._card(history), last):
                self._best_on_disk = best

    def _card(self, history: History, found: Findings | None = None) -> str:
        recipe = self._recipe
        how = (recipe.report_split, recipe.merge_adapter, recipe.load_in_4bit)
        return card_of(history, recipe.model(), found, *how)

    def _show_result(self, history: History) -> None:
        """The last look at `best/`: what it hands out is what was trained."""
        if self._best_folder.is_damaged():
            self._best_on_disk = None
        self._show_best(history, last=True)
        if self._best_on_disk != history.best:
            raise StoreError(
                f"{self._folder.best} was damaged as it was made; run the same command again to "
                "make it anew"
            )

    def _score(self, names: Sequence[str], split: str) -> Scored:
        with self._ranks.busy("evaluation"):
            scored = self._evaluator(names, split)
        if self._losses is not None:
            self._losses.gather(scored.losses)
        return scored

    def _step(self, step: Step) -> None:
        self._meetings.stop_if_asked(f"step of r{step.rollout}-t{step.tick}")
        if self._progress is not None:
            self._progress.step(step)
        if self._trackers is not None:
            self._trackers.step(step)
        if self._steps is not None:
            self._steps.add(step.line(time.monotonic() - self._begun))
