"""One training run, from a recipe to a result folder."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from msft.app.admission import refuse_run, resolved, run_folder
from msft.app.model_card import card_of
from msft.app.terminal.progress import Progress
from msft.app.tracker_backends import open_trackers
from msft.app.trackers import Trackers
from msft.data.corpus import Corpus, load_corpus
from msft.engine.build import engine_of, settings_of
from msft.engine.machine import refuse_full_disk, room_of
from msft.engine.memory_model import named_shape
from msft.engine.model.loading import LoadedModel, load_model
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.engine.saving.best_folder import ResultFolder
from msft.engine.saving.checkpoint_sizes import Checkpoints, memory_tiers
from msft.engine.saving.host_copies import Copies
from msft.engine.saving.safetensors_codec import TorchCodec
from msft.errors import RecipeError
from msft.planning.forecast import refuse_no_room
from msft.recipe.recipe import Recipe
from msft.report import write_report
from msft.run.environment import environment, record_environment
from msft.run.folder import RunFolder, write_json, write_text
from msft.run.history import History
from msft.run.log import Event, Log
from msft.run.recorded_run import RecordedRun
from msft.run.summary import schedule_of, summary_of
from msft.run.verdicts import Verdicts
from msft.run.worker import EngineWorker, Step
from msft.search.methods import PreparedMethod
from msft.search.methods.replay import replay
from msft.search.options import MixtureOptions, RolloutOptions
from msft.search.rollout import BASE
from msft.store.background_disk import MOST_WAITING, BackgroundDisk
from msft.store.store import CheckpointStore
from msft.store.tiers import DiskTier


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run: its summary, the folder of the best model, the schedule that was found."""

    summary: dict[str, Any]
    best: Path
    schedule: dict[str, Any]
    folder: Path


def train(
    recipe: Recipe,
    out: Path | str | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] = lambda text: None,
    schedule: Path | str | None = None,
) -> Result:
    """Train a recipe, or go on with it: the same call on the same folder resumes.

    out: the run folder (default: the recipe's `output_dir`).
    progress: is told of every event and step.
    notice: is told what a person should know before it starts.
    schedule: a schedule.json to train in one straight run, instead of the recipe's method.
    """
    folder = run_folder(recipe, out)
    refuse_run(recipe, folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    name, trust = recipe.model(), recipe.trust_remote_code
    tokenizer = load_tokenizer(name, trust)
    corpus = load_corpus(recipe, tokenizer, load_context(name, trust))  # before the weights
    method = (
        prepared_replay(Path(schedule), list(corpus.datasets)) if schedule else recipe.prepared()
    )
    shape = named_shape(name, trust, len(tokenizer))
    refuse_no_room(recipe, corpus, method, shape, room_of(device))
    loaded = load_model(name, device, trust, tokenizer)
    for dataset in corpus.datasets.values():
        for note in dataset.notes:
            notice(f"{dataset.name}: {note}")
    if corpus.note:
        notice(corpus.note)
    return _Session(recipe, method, folder, loaded, corpus, device, progress, notice).carry_out()


class _Session:
    """Everything that one run needs, put together."""

    def __init__(
        self,
        recipe: Recipe,
        method: PreparedMethod,
        folder: RunFolder,
        loaded: LoadedModel,
        corpus: Corpus,
        device: torch.device,
        progress: Progress | None,
        notice: Callable[[str], None],
    ) -> None:
        self._recipe = recipe
        self._folder = folder
        self._progress = progress
        self._notice = notice
        self._loaded = loaded
        self._method = method
        self._groups = {name: d.group for name, d in corpus.datasets.items() if d.group}
        self._settings = settings_of(recipe, corpus, self._method, loaded)
        self._engine = engine_of(recipe, corpus, loaded, device, self._settings)
        self._store = self._make_store(len(corpus.datasets), device)
        self._result = ResultFolder(folder.best, folder.checkpoints, loaded.model, loaded.tokenizer)
        self._shown: str | None = None
        self._steps: IO[str] | None = None
        self._trackers: Trackers | None = None
        self._begun = time.monotonic()

    def _make_store(self, datasets: int, device: torch.device) -> CheckpointStore:
        """Memory for what is needed at a time, and a disk that is written beside training."""
        rollback = self._method.rollout_options.on_rollback
        parameters = self._engine.num_parameters
        needed = Checkpoints.of(parameters, self._recipe.optim, rollback, datasets)
        copies = Copies(device)
        tiers = memory_tiers(needed.each, needed.aside, needed.most, device, copies)
        roomy = sum(tier.capacity for tier in tiers) >= needed.most
        if not self._folder.log.exists():
            refuse_full_disk(self._folder.path, needed.disk(roomy))
        self._folder.path.mkdir(parents=True, exist_ok=True)
        disk = DiskTier(self._folder.checkpoints, TorchCodec(copies), self._notice)
        waiting = MOST_WAITING if roomy else 1  # what waits takes memory
        durable = BackgroundDisk(disk, copies.follow, waiting) if tiers else disk
        return CheckpointStore(tiers, durable, needed.weights, needed.moments)

    def carry_out(self) -> Result:
        log = Log(self._folder.log)
        write_text(self._folder.recipe, resolved(self._recipe).to_yaml())
        if not self._folder.is_finished():
            record_environment(self._folder.environment, environment(), self._groups)
        worker = EngineWorker(
            self._engine,
            seed=self._recipe.seed,
            batch_size=self._recipe.train_batch_size,
            evals_per_epoch=self._recipe.evals_per_epoch,
            on_step=self._step,
        )
        run = RecordedRun(
            self._settings,
            self._method,
            worker,
            log,
            self._store,
            Verdicts(self._folder.verdicts),
            lambda event, live: self._event(run.history, event, live),
        )
        try:
            self._trackers = self._open_trackers(log)
            with self._folder.steps.open("a") as self._steps:
                history = run.carry_out()
        except BaseException as reason:
            if run.is_live:  # a refused call leaves what a finished run has written
                self._park(run.history, reason)
                write_json(self._folder.summary, summary_of(run.history, stopped=True))
            raise
        finally:
            log.close()
            if self._trackers is not None:
                self._trackers.close()
        return self._finished(history)

    def _open_trackers(self, log: Log) -> Trackers:
        recipe = self._recipe
        config = yaml.safe_load(recipe.to_yaml()) | {"method": self._method.name}
        known = len(log.events) if self._folder.is_finished() else 0
        return open_trackers(recipe.report_to, self._folder.path, config, known, self._notice)

    def _park(self, history: History, reason: BaseException) -> None:
        """Before a stop, bring to disk what a resume can use; else it is trained again."""
        try:
            self._store.park()
            self._show_best(history)
        except Exception as error:
            if error is not reason:
                self._notice(f"not all could be saved, it will be trained again: {error}")

    def _finished(self, history: History) -> Result:
        summary, schedule = summary_of(history), schedule_of(history)
        self._show_best(history)
        self._result.card(card_of(history, self._loaded.name))
        write_json(self._folder.schedule, schedule)
        write_json(self._folder.summary, summary)
        write_report(self._folder.path)
        return Result(summary, self._folder.best, schedule, self._folder.path)

    def _event(self, history: History, event: Event, live: bool) -> None:
        if self._progress is not None:
            self._progress.event(event, live)
        if self._trackers is not None:
            self._trackers.event(history, event, live)
        if live:
            if self._steps is not None:
                self._steps.flush()
            self._show_best(history)
            if event.event in ("rollout", "decision"):
                write_json(self._folder.summary, summary_of(history))

    def _show_best(self, history: History) -> None:
        """Keep `best/` equal to the best so far, as soon as that is on disk; none while it is the
        model that was given."""
        best = history.best
        if best is None or best == self._shown or history.missing(best):
            return
        if best == BASE and history.ended is None:
            return
        card = card_of(history, self._loaded.name)
        if self._result.update(best, self._engine.base, card):
            self._shown = best

    def _step(self, step: Step) -> None:
        if self._progress is not None:
            self._progress.step(step)
        if self._trackers is not None:
            self._trackers.step(step)
        if self._steps is not None:
            seconds = round(time.monotonic() - self._begun, 3)
            line = {"rollout": step.rollout, "tick": step.tick, "loss": step.loss}
            line |= {"rows": step.rows, "tokens": step.tokens, "seconds": seconds}
            self._steps.write(json.dumps(line) + "\n")


def prepared_replay(file: Path, names: Sequence[str]) -> PreparedMethod:
    """The method `replay` with the schedule of a file; RecipeError where it cannot be used."""
    try:
        schedule = json.loads(file.read_text())
        stages, sizes = schedule["stages"], schedule["rows"]
        feeds = {stage["feed"]["name"] for stage in stages}
    except OSError as error:
        raise RecipeError(
            f"{file} cannot be read: {error.strerror}; expected the schedule.json of a finished run"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"{file} is not a schedule; expected the schedule.json of a finished run"
        ) from error
    if feeds - {"shuffled"}:
        raise RecipeError(
            f"{file} is of {schedule['method']}, which chooses its rows while it trains; such a "
            "run cannot be replayed as a schedule"
        )
    unknown = sorted(set(sizes) ^ set(names))
    if unknown:
        raise RecipeError(
            f"{file} is a schedule of {sorted(sizes)}, but the recipe has {sorted(names)}: "
            f"{unknown[0]!r} is not in both"
        )
    options = {"stages": stages, "sizes": sizes}
    carry_out = partial(replay, **options)
    return PreparedMethod("replay", options, carry_out, RolloutOptions(), MixtureOptions())
