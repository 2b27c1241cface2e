"""The program. Read this file first, from top to bottom.

    recipe → rows → plan → engine → run → best

`train` calls one stage after the other. A stage gets what the stages before it have made, and
returns one frozen value; nothing is computed twice:

    admit   → Job     what was asked for can be done             planning/admission.py
    read    → Rows    the rows in the tokens of the model        data/, engine/model/tokenizers.py
    prepare → Plan    the method, and the memory that it needs   search/methods/, engine/memory.py
    build   → Built   the engine with the base model             engine/
    run     → Result  the method decides; run.jsonl has every answer   run/

Only the commands (`app/`), `integrations/` and the package's door import this file. The rooms below
call only what it hands to them. `msft audit` (`app/audit.py`) calls the same stages, and ends with
`judge` instead of `run`. The last stage is a `TrainingRun`: it puts log, checkpoints, worker and
observers together and calls the method. Whatever the method asks goes through
`run/recorded_run.py`, the file to read next.

Where a run has several processes (`ranks`), each of them goes through this file at the same time.
They meet mostly inside `all_or_fail` and `from_rank0`: if a stage fails in one process, it fails in
all.

torch takes seconds to load, so what needs it is imported where the first stage needs it, after all
that can be refused without it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from msft import process
from msft.data.corpus import settings_for
from msft.data.splits import question_of
from msft.engine.model.tokenizers import Rows, load_rows
from msft.errors import BadScore, NotANumber, Stopped, explaining
from msft.observers.files import LossesFile, StepsFile, SummaryFile
from msft.observers.hub import push
from msft.observers.observer import Observer, Watched
from msft.observers.trackers import TrackedRun
from msft.own_code import in_words, source_digest
from msft.planning.admission import (
    EngineSource,
    Job,
    Notice,
    admit,
    refuse_disagreement,
    resolved,
)
from msft.process import graceful
from msft.ranks import (
    ALONE,
    Patience,
    Ranks,
    all_or_fail,
    attempt,
    from_rank0,
    least,
    lost_ranks_named,
    settled,
)
from msft.recipe.dataset import FUNCTION
from msft.recipe.recipe import ADAPTER_KEYS, Recipe, with_rows
from msft.report import write_report
from msft.report.card import card_of
from msft.report.findings import Findings, findings_content, findings_in
from msft.run.engine import Engine, completed
from msft.run.environment import (
    ROLLOUT_FROM,
    BaseRecord,
    check_environment,
    environment,
    read_base,
    record_environment,
)
from msft.run.folder import write_json, write_text
from msft.run.history import History, schedule_of, summary_of
from msft.run.log import EndEvent, Event, Log, RankSync
from msft.run.recorded_run import RecordedRun
from msft.run.result import Result as Result
from msft.run.rows import Judged, Judgments, Samples, Scored, Verdicts
from msft.run.schedules import prepared_replay
from msft.run.sharing import SharedRollout
from msft.run.worker import EngineWorker, Step, Worker
from msft.scoring.evaluation import Evaluator, judged
from msft.search.methods import PreparedMethod, most_held
from msft.search.rollout import ALL_DATA, FAST, Settings
from msft.store.store import Hashes

if TYPE_CHECKING:
    from msft.engine.memory import Demand
    from msft.engine.model.shape import ModelShape


@explaining()
def train(
    recipe: Recipe,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    notice: Notice = lambda text: None,
    schedule: Path | str | None = None,
    engine: EngineSource | None = None,
    shared: Path | None = None,
    datasets: Mapping[str, Any] | None = None,
    ranks: Ranks | None = None,
) -> Result:
    """Train a recipe, or go on with it: the same call on the same folder resumes.

    out: the run folder (default: the recipe's `output_dir`).
    observers: who watches the run, besides its files, its trackers and the hub.
    notice: receives notes about the data and the engine before training starts.
    schedule: a schedule.json to train in one run, instead of the recipe's method.
    engine: an engine of your own, or a function that makes one; see `msft.run.engine`.
    shared: a folder through which the runs of a comparison share their first roll-out.
    datasets: rows in place of the recipe's files, such as {"mine": {"train": rows, "test": rows}};
        rows are dicts, or a `datasets.Dataset`. A resume with other rows is refused.
    ranks: the processes of the run, where the caller has brought them together.
    """
    with lost_ranks_named():
        if ranks is None:
            ranks, recipe = meet(lambda: recipe)
        asked = with_rows(recipe, datasets) if datasets is not None else recipe
        given = (asked, out, notice, schedule, engine, shared, ranks)
        job = all_or_fail(ranks, "what is asked for", lambda: admit(*given))
        rows = read(job)
        plan = prepare(job, rows)
        built = build(job, rows, plan)
        for note in rows.notes:
            job.notice(note)
        return run(job, rows, plan, built, observers)


def meet(recipe: Callable[[], Recipe]) -> tuple[Ranks, Recipe]:
    """Bring the processes of a run together, and read its recipe, which says how long they wait for
    each other. Where one of them cannot read the recipe, all end."""
    if process.world() == 1:
        return ALONE, recipe()
    from msft.engine.ranks import joined

    tried = attempt(recipe)
    patience = Patience()
    for known in tried[0]:
        patience = Patience(known.rendezvous_timeout, known.ddp_timeout, known.saving_timeout)
    ranks = joined(patience)
    return ranks, settled(ranks, "the recipe", tried)


# The stages, in their order.


def read(job: Job) -> Rows:
    """The tokenizer and the rows in its tokens, so that mistakes in the data are reported before
    the model is loaded."""
    rows = all_or_fail(job.ranks, "data", lambda: load_rows(job.recipe))
    if job.ranks.world > 1:
        all_or_fail(job.ranks, "the same run", lambda: refuse_disagreement(job, rows.corpus))
    return rows


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be searched for, and how that fits into this machine.

    most_held: checkpoints that the method needs at a time.
    shape, demand: the sizes of the model, and what its training asks of the memory; None for an
        engine of the user's own.
    """

    method: PreparedMethod
    settings: Settings
    most_held: int
    shape: "ModelShape | None" = None
    demand: "Demand | None" = None


def prepare(job: Job, rows: Rows) -> Plan:
    """The method with its options, and the memory that it needs; NoRoom where that is not there."""
    from msft.engine.kernels import device_here
    from msft.engine.memory import demand_that_fits
    from msft.engine.model.shape import shape_for
    from msft.planning.counting import refuse_wrong_method

    recipe, corpus = job.recipe, rows.corpus
    if recipe.deterministic:
        import torch

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if job.method is not None:
        method = job.method
    elif job.schedule is None:
        method = recipe.prepared
    else:
        names, evals = [*corpus.datasets], recipe.evals_per_epoch
        method = prepared_replay(job.schedule, names, evals, recipe.selection_split)
    settings = settings_for(recipe, corpus, method)
    if ":" in method.name:  # a method of the user's own
        batch = recipe.train_batch_size
        all_or_fail(job.ranks, "method", lambda: refuse_wrong_method(settings, method, batch))
    most = most_held(method, settings)
    if job.engine is not None:
        return Plan(method, settings, most)

    shape = all_or_fail(job.ranks, "shape", lambda: shape_for(recipe, len(rows.tokenizer)))
    given = (recipe, corpus, method, device_here(), shape, most)
    demand = all_or_fail(job.ranks, "room in memory", lambda: demand_that_fits(*given))
    return Plan(method, settings, most, shape, demand)


@dataclass(frozen=True, slots=True)
class Built:
    """The engine, the name that the log has for it, and the files that its model came from."""

    engine: Engine
    name: str
    base: BaseRecord


def build(job: Job, rows: Rows, plan: Plan) -> Built:
    """The engine with the base model loaded. The files of the model are hashed beside that."""
    from msft.engine.build import engine_of
    from msft.engine.kernels import device_here
    from msft.engine.model.folders import BaseHashing
    from msft.engine.simple import SimpleEngine

    recipe = job.recipe
    if job.engine is not None:
        own: Any = job.engine
        is_function = callable(own) and not hasattr(own, "work")
        made = own(recipe, rows.corpus) if is_function else own
        return Built(completed(made), f"{type(made).__module__}:{type(made).__qualname__}", {})
    hashing = None
    if job.ranks.rank == 0 and not job.finished:
        recorded = read_base(job.folder.environment) if job.begun else {}
        hashing = BaseHashing(recipe.model(), recorded or {})
    with_lanes, shape, demand = replace(recipe, lanes=job.lanes), plan.shape, plan.demand
    if shape is not None and shape.assumed:  # of a .gguf; the loaded model knows better
        shape, demand = None, None
    given = (rows.corpus, rows.tokenizer, device_here(), job.notice, job.ranks, shape, demand)
    engine = all_or_fail(job.ranks, "engine", lambda: engine_of(with_lanes, *given))
    base = from_rank0(
        job.ranks, "hashes of the base", lambda: hashing.record() if hashing else BaseRecord()
    )
    return Built(engine, "simple" if isinstance(engine, SimpleEngine) else FAST, base)


def run(
    job: Job,
    rows: Rows,
    plan: Plan,
    built: Built,
    observers: Sequence[Observer] = (),
    needs_checkpoint: bool = False,
) -> Result:
    """Let the method search, with every answer in the log; then leave the result in `best/`.

    needs_checkpoint: the caller loads the best checkpoint. So a finished run must restore it, even
        if `best/` is complete.
    """
    training = TrainingRun(job, rows, plan, built, observers, needs_checkpoint)
    summary, schedule = training.carry_out(training.leave_result)
    if job.recipe.push_to_hub and job.ranks.rank == 0:
        push(job.recipe, job.folder, summary["best"]["checkpoint"], job.notice)
    return Result(summary, job.folder.best, schedule, job.folder.path, training.was_finished)


def judge(
    job: Job, rows: Rows, plan: Plan, built: Built, observers: Sequence[Observer] = ()
) -> tuple[History, Judgments]:
    """The last stage of an audit: let the judges judge every row, with every answer in the log."""
    training = TrainingRun(job, rows, plan, built, observers, needs_checkpoint=False)
    return training.carry_out(lambda history: history), training.judgments


# What the last stage puts together.

Outcome = TypeVar("Outcome")

SAME_IN_ALL_RANKS = (Stopped, NotANumber, BadScore)
"""Errors that come to every rank at the same place, so that all can still work together."""


class TrainingRun:
    """One run: log, store, evaluator, worker, observers and result folder.

    judgments: what the judges of an audit said.
    was_finished: the run had ended before; nothing is trained.
    """

    def __init__(
        self,
        job: Job,
        rows: Rows,
        plan: Plan,
        built: Built,
        observers: Sequence[Observer],
        needs_checkpoint: bool,
    ) -> None:
        from msft.engine.saving.best_folder import BestFolder
        from msft.engine.saving.stores import store_of

        recipe, folder, ranks, notice = job.recipe, job.folder, job.ranks, job.notice
        corpus, engine, method = rows.corpus, built.engine, plan.method
        self._job, self._rows, self._plan, self._base = job, rows, plan, built.base
        self._recipe, self._folder, self._ranks, self._engine = recipe, folder, ranks, engine
        self._settings = settings_of(job, rows, plan, built)
        self._is_audit = method.finds
        self.was_finished = False

        # What scores.
        first, selects, samples = ranks.rank == 0, corpus.selection, recipe.samples
        tasks = corpus.tasks(recipe)
        predictor, tokenizer = engine.predictor(), rows.tokenizer
        self._evaluator = Evaluator(tasks, predictor, tokenizer, samples, selects)

        # The files that hold rows. Rank 0 writes them.
        self._verdicts = Verdicts(folder.verdicts, notice, first, selects)
        self._samples = Samples(folder.samples if samples else None, first, selects, self._write)
        audited = corpus.datasets if self._is_audit else {}
        asked = {n: [question_of(row) for row in d.train.examples] for n, d in audited.items()}
        judgments = folder.judgments if self._is_audit else None
        self.judgments = Judgments(judgments, first, self._judge, asked)

        # Checkpoints, and the best of them.
        hashes, most = Hashes(), plan.most_held
        places = (engine, folder, hashes, notice, ranks)
        made = store_of(recipe, method, self._settings, *places, most)
        self._store, self._made = made.store, made
        self._sync = RankSync(ranks, made.prune_ranked)
        self._best = BestFolder(folder, engine, made.store, hashes, notice, self._card, ranks)
        self._needs_checkpoint = needs_checkpoint

        # What trains where the log has no answer.
        self._worker: Worker = EngineWorker(
            engine,
            self._score,
            seed=recipe.seed,
            batch_size=recipe.train_batch_size,
            evals_per_epoch=recipe.evals_per_epoch,
            on_step=self._step,
            plan_steps=engine.plan_steps,
        )

        # Who watches: the losses first, since others read them.
        self._losses = LossesFile() if recipe.validation_loss and not self._is_audit else None
        losses: list[Observer] = [self._losses] if self._losses else []
        files: list[Observer] = [StepsFile()]
        if not self._is_audit:
            files += [SummaryFile(), *([TrackedRun()] if recipe.report_to != "none" else [])]
        self.observers = [*losses, *observers, *files] if first else []

    def carry_out(self, finish: Callable[[History], Outcome]) -> Outcome:
        """Carry the method out to its end, or go on with it, and finish with what it found."""
        log = self._sync.log(self._folder.log)
        try:
            with graceful():
                history = self._call_method(log)
                log.close()
                return finish(history)
        except OSError:
            log.refuse_gone()  # which says more than that a file is not there
            raise
        finally:
            log.close()

    def _call_method(self, log: Log) -> History:
        """Check the folder, write recipe and environment, start the observers, then call the
        method. What the log has answered is not done again."""
        end = log.events[-1] if log.events else None
        if isinstance(end, EndEvent):
            self.was_finished = True
            self._best.give_back(end.best)
        else:
            self._begin(log)
        recipe, notice = self._recipe, self._job.notice
        if self._ranks.rank == 0:
            placed = self._job.resolved or resolved(recipe)
            write_text(self._folder.recipe, placed.to_yaml())
        shown = yaml.safe_load(recipe.to_yaml()) | {"method": self._plan.method.name}
        told = len(log.events) if self.was_finished else 0
        losses = self._losses
        watched = Watched(
            self._folder, recipe, shown, told, notice, lambda: losses.latest if losses else {}
        )
        recorded = RecordedRun(
            self._settings,
            self._plan.method,
            self._worker,
            log,
            self._store,
            self._verdicts,
            watch=lambda event, live: self._event(recorded.history, event, live),
            samples=self._samples,
            has_result=lambda best: not self._needs_checkpoint and self._best.has_export(best),
            judgments=self.judgments,
        )
        try:
            with ExitStack() as watching:
                for observer in self.observers:
                    watching.callback(observer.close)
                    observer.begin(watched)
                if self._ranks.world > 1:  # until rank 0 has cut its files to the log
                    self._ranks.gather("files of the log", None)
                history = recorded.carry_out()
            if recorded.is_live:
                self._record_environment()
        except BaseException as reason:
            every_rank = self._ranks.world == 1 or isinstance(reason, SAME_IN_ALL_RANKS)
            started = recorded.is_live and recorded.history.opened is not None
            if every_rank and started:  # a refused run leaves summary and checkpoints alone
                self._park(recorded.history, reason)
            raise
        return history

    def _begin(self, log: Log) -> None:
        """Before a run that has not ended: refuse an environment that would change the result, and
        replay the first roll-out of another run that asked the same, or lend ours to others."""
        recipe, notice, path = self._recipe, self._job.notice, self._folder.environment
        if log.events:
            now = environment(recipe.packages)
            known = (path, now, self._base, recipe.deterministic, notice)
            all_or_fail(self._ranks, "environment", lambda: check_environment(*known))
        lender = None
        if self._job.shared is not None:
            from msft.engine.memory import free_disk

            shared = SharedRollout(self._job.shared, self._folder, self._samples, self._base)
            free = free_disk(self._folder.path)
            self._worker, lender = shared.join(
                self._settings,
                self._plan.method,
                self._worker,
                self._engine.codec(),
                log,
                self._store,
                may_lend=free >= self._made.lent_bytes,
                has_room=self._has_room,
            )
            if lender is not None:
                notice(f"the first roll-out is that of {lender}, which asked the same")
        self._record_environment(lender)
        if how := self._engine.how():
            notice(how)

    def _record_environment(self, lender: str | None = None) -> None:
        """Versions, device, and how the engine computes; again at the end, since a path that
        fails on the way is left for a slower one. lender: whose first roll-out was taken over."""
        if self._ranks.rank:
            return
        how = self._engine.how()
        now = environment(self._recipe.packages) | ({"engine": how} if how else {})
        now |= {ROLLOUT_FROM: lender} if lender else {}
        groups = {name: d.group for name, d in self._rows.corpus.datasets.items() if d.group}
        record_environment(self._folder.environment, now, groups, self._base)

    # What happens while the method searches. While one rank scores, the others wait longer.

    def _step(self, step: Step) -> None:
        self._sync.stop_if_asked(f"step of r{step.rollout}-t{step.tick}")
        for observer in self.observers:
            observer.step(step)

    def _score(self, names: Sequence[str], split: str) -> Scored:
        with self._ranks.busy("evaluation"):
            scored = self._evaluator(names, split)
        if self._losses is not None:
            self._losses.gather(scored.losses)
        return scored

    def _write(self, rows: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[str]]:
        with self._ranks.busy("evaluation"):
            return self._evaluator.written(rows)

    def _judge(self, rows: Mapping[str, Sequence[int]]) -> Judged:
        corpus, tokenizer = self._rows.corpus, self._rows.tokenizer
        train = {name: dataset.train for name, dataset in corpus.datasets.items()}
        with self._ranks.busy("evaluation"):
            tasks = corpus.tasks(self._recipe, watched=False)
            return judged(tasks, train, rows, self._engine.predictor(), tokenizer)

    def _event(self, history: History, event: Event, live: bool) -> None:
        for observer in self.observers:
            observer.event(history, event, live)
        if live:
            self._best.follow(history)

    # What is left behind.

    def _has_room(self) -> bool:
        """Whether the disk has, beside all that is there, what the run itself may need."""
        from msft.engine.memory import free_disk

        free = free_disk(self._folder.path)
        return bool(least(self._ranks, "room on the disk", free >= self._made.disk_bytes))

    def _park(self, history: History, reason: BaseException) -> None:
        """Before a stop, bring to disk what a resume can use; else it is trained again."""
        try:
            self._store.park(self._has_room)
            self._best.follow(history, now=True)
        except Exception as error:
            if error is not reason:  # the store raises again what stopped the run
                self._job.notice(
                    f"not all could be saved, it will be trained again: {in_words(error)}"
                )
        if self._ranks.rank or self._is_audit:
            return
        try:
            write_json(self._folder.summary, summary_of(history, stopped=True))
        except OSError as error:  # the log has all of it
            self._job.notice(f"summary.json could not be written: {in_words(error)}")

    def leave_result(self, history: History) -> tuple[dict[str, Any], dict[str, Any]]:
        """Check `best/` and write the files beside it; the summary and the schedule."""
        self._best.verify(history)
        return from_rank0(self._ranks, "result", lambda: self._write_results(history))

    def _write_results(self, history: History) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write card, schedule.json, summary.json and report.html; the summary and the schedule."""
        found = findings_in(self._folder.path, history)
        summary = {**summary_of(history), "findings": findings_content(found)}
        schedule = schedule_of(history)
        self._best.card(self._card(history, found))
        write_json(self._folder.schedule, schedule)
        write_json(self._folder.summary, summary)
        write_report(self._folder.path)
        return summary, schedule

    def _card(self, history: History, found: Findings | None = None) -> str:
        recipe = self._recipe
        how = (recipe.report_split, recipe.merge_adapter, recipe.load_in_4bit, recipe.fp8)
        return card_of(history, recipe.model(), found, *how)


def settings_of(job: Job, rows: Rows, plan: Plan, built: Built) -> Settings:
    """The settings that determine the log, with digests of what they do not spell out."""
    recipe, engine, corpus = job.recipe, built.engine, rows.corpus
    training = sha256(repr(training_keys(recipe)).encode()).hexdigest()
    model = engine.fingerprint()
    fingerprint = {"data": corpus.fingerprint(), "model": model, "training": training}
    if corpus.exclusions is not None:  # so that it can be compared row by row with a run on all
        fingerprint |= {ALL_DATA: corpus.fingerprint(with_excluded=True)}
    metrics = dict.fromkeys(d.spec.metric for d in corpus.scored.values())
    for path in filter(FUNCTION.fullmatch, metrics):
        digest = source_digest(path)  # older logs do not have it and are not asked
        fingerprint |= {} if digest is None else {f"metric {path}": digest}
    with_adapter = recipe.use_peft or engine.num_frozen  # transformers' Trainer may have its own
    return replace(
        plan.settings,
        fingerprint=fingerprint,
        engine=built.name,
        adapter=engine.num_trainable if with_adapter else 0,
        lanes=job.lanes,
    )


def training_keys(recipe: Recipe) -> list[tuple[str, Any]]:
    """The keys that change the weights, but for those that only the settings have. `optim` and
    `ema_decay` stand in the settings, too; they are here so that old digests stay the same. Keys
    that were added later are included only where they are set, for the same reason."""
    keys = ["learning_rate", "lr_scheduler_type", "train_batch_size", "weight_decay"]
    keys += ["max_grad_norm", "warmup_steps", "bf16", "optim"]
    keys += ["ema_decay"] if recipe.ema_decay is not None else []
    keys += ADAPTER_KEYS if recipe.use_peft else ()
    keys += ["fp8"] if recipe.fp8 else []
    return [(key, getattr(recipe, key)) for key in keys]
