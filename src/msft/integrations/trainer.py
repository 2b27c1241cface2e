"""`train`: a run of any method inside a TRL `SFTTrainer` or a transformers `Trainer`.

    from msft.integrations.trainer import train
    result = train(trainer, {"a": {"train": …, "validation": …}, "b": {…}}, "runs/msft")

The trainer keeps its model, optimizer, precision, callbacks and trackers. The run takes the place
of its epochs, with the log, the store, the resume, the report and the FLOPs of every other run.

How that goes:

- `Trainer.train()` prepares model, optimizer and scheduler, then calls `_run_epoch` for each epoch.
  `_TrainerRun` puts the run in the place of that method. The trainer calls the method once, and is
  told to stop afterwards.
- The run asks a `TrainerEngine` (`engine.py`) for steps. A step is the trainer's own:
  `training_step` for each part of the batch, clipping, optimizer, callbacks, logs.
- A rollback copies weights and moments back and sets the scheduler to their number of steps. The
  trainer's `global_step` never goes back, so that its trackers have one line.
- Rows are prepared and collated by the trainer itself (`rows.py`), so that scores are taken on the
  very tokens that are trained.
- Each state of an adapter is that of the adapter alone. Its first weights are random, so they are
  kept in the run folder for a resume.
- At the end the best weights are put into the trainer's model. A call on a finished run trains
  nothing, and puts them there again.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from msft.app.terminal.progress import PlainLines
from msft.data.corpus import Corpus, settings_for
from msft.data.sources import wanted_splits
from msft.engine.model.tokenizers import Rows
from msft.engine.saving.model_files import Weights
from msft.errors import RecipeError, explaining
from msft.files import expanded, remove
from msft.integrations.engine import TrainerEngine, inner_model
from msft.integrations.refusals import (
    HOOK,
    refuse_changed_trainer,
    refuse_keys,
    refuse_trainer,
    unused_length,
)
from msft.integrations.rows import (
    TrainerRows,
    corpus_of,
    named_splits,
    notes_of,
    prepared_rows,
)
from msft.observers.observer import Observer
from msft.planning.admission import Job, refuse_run
from msft.recipe.recipe import Recipe
from msft.run.folder import RunFolder, read_history
from msft.run.history import History, selection_of
from msft.run.log import Event, PointEvent, RolloutEvent, RunEvent, ScoresEvent
from msft.run.result import Result
from msft.run.worker import Step
from msft.search.curves import SELECTION, TEST
from msft.search.feeds import steps_of
from msft.search.methods import ROLLING_BACK, most_held
from msft.search.rollout import BASE
from msft.training import Built, Plan, run


class TrainerLog(Observer):
    """Scores go to the trainer's log, and with it to its callbacks and trackers; lines in words
    go beside its progress bar. The trainer's count of steps never goes back."""

    def __init__(self, trainer: Any, folder: Path, quiet: bool) -> None:
        self._trainer = trainer
        self._lines = None if quiet else PlainLines(_TqdmStream(), folder)  # type: ignore[arg-type]
        self._stage = 0
        self._on_test = False

    def event(self, history: History, event: Event, live: bool) -> None:
        if self._lines is not None:
            self._lines.event(event, live)
        if isinstance(event, RunEvent):
            self._on_test = selection_of(event) == TEST
        if isinstance(event, RolloutEvent):
            self._stage = event.rollout
        if isinstance(event, PointEvent) and not live:  # done before this process
            self._trainer.state.global_step += event.steps
        if isinstance(event, PointEvent | ScoresEvent) and live:
            ticks = TEST if self._on_test else SELECTION
            split = event.split if isinstance(event, ScoresEvent) else ticks
            kind = "test" if split == TEST else "eval"
            logs = {
                f"{kind}_{name}_{'loss' if s.metric == 'nll' else s.metric}": float(s.value)
                for name, s in event.scores.items()
            }
            training = self._trainer.model.training
            self._trainer.model.eval()  # by which TRL tells these from logs of training
            self._trainer.log({**logs, "msft_stage": float(self._stage)})
            self._trainer.model.train(training)

    def step(self, step: Step) -> None:
        if self._lines is not None:
            self._lines.step(step)


class _TqdmStream:
    """Standard output; a progress bar steps aside for each text, which ends its line."""

    def write(self, text: str) -> int:
        tqdm.write(text, end="", file=sys.stdout)
        return len(text)

    def flush(self) -> None:
        with suppress(ValueError):
            sys.stdout.flush()

    def isatty(self) -> bool:
        return False


START = "adapter_start"
"""The folder of an adapter's first weights, in the run folder."""


@explaining()
def train(
    trainer: Any,
    datasets: Mapping[str, Mapping[str, Any]],
    output_dir: Path | str | None = None,
    *,
    method: str = "msft",
    metric: str = "accuracy",
    quiet: bool = False,
    notice: Callable[[str], None] | None = None,
    **keys: Any,
) -> Result:
    """Carry out a method in a trainer, or go on with it: the same call on the same folder resumes.

    Args:
        trainer: a TRL `SFTTrainer` or a transformers `Trainer`, full fine-tuning or with an
            adapter of peft. Its model holds the best weights afterwards.
        datasets: names with rows, `{"mine": {"train": rows, "validation": rows, "test": rows}}`,
            as the trainer takes them; `test` is optional, but with `selection_split: test` it is
            needed and `validation` is not read. `metric`, `keep`, `weight`, `max_new_tokens` and
            `guard` may stand beside them, or `watch=True` without `train` rows.
        output_dir: the run folder; by default `msft` in the trainer's.
        method: `msft`, `sft`, `continual`, `sro`, `soft_sro`, `soup` or `package.module:function`.
        metric: `accuracy` (the greedy answer equals the reference), `nll` (the validation loss),
            or `package.module:function`.
        quiet: print nothing; the trainer's own output stays.
        notice: is told what a person should know before training starts; by default it is printed
            to stderr.
        keys: other keys of a recipe: `method_options`, `compute_budget`, `evals_per_epoch`,
            `peaks`, `mean`, `score_test`, `selection_split`, `report_split`, `evaluation_tokens`,
            `validation_loss`, `samples`, `disk_policy`, `early_stopping_patience`. All others are
            refused.

    Returns:
        `summary` (the content of `summary.json`), `best` (the folder of the model), `schedule`
        and `folder`.
    """
    refuse_trainer(trainer, method)
    refuse_keys(keys)
    tell = notice or (lambda text: None if quiet else tqdm.write(f"note: {text}", file=sys.stderr))
    folder = RunFolder(Path(output_dir or Path(trainer.args.output_dir) / "msft"))
    selection = keys.get("selection_split", SELECTION)
    recipe = _recipe(trainer, named_splits(datasets, metric, selection), {"method": method, **keys})
    if recipe.peak_rule.by == "probability":
        raise RecipeError("peaks.by is probability, but these rows have no choices; use score")
    refuse_run(recipe, folder)
    rows = prepared_rows(trainer, recipe.datasets, quiet, wanted_splits(recipe))
    specs, tokenizer = recipe.datasets, trainer.processing_class
    corpus, ends = corpus_of(rows, specs, tokenizer, recipe.selection_split)
    places = getattr(getattr(trainer.model, "config", None), "max_position_embeddings", None)
    corpus = replace(corpus, context=places)
    refuse_changed_trainer(trainer, folder)
    unused = unused_length(keys, method, trainer.args.num_train_epochs)
    for note in (*recipe.notes, *unused, *notes_of(trainer, rows, corpus)):
        tell(note)
    return _TrainerRun(trainer, recipe, folder, corpus, rows, ends, quiet, tell).carry_out()


@dataclass
class _TrainerRun:
    """One run inside one trainer.

    ends: tokens that end an answer, besides those that the model knows.
    tell: receives notes.
    """

    trainer: Any
    recipe: Recipe
    folder: RunFolder
    corpus: Corpus
    rows: TrainerRows
    ends: list[int]
    quiet: bool
    tell: Callable[[str], None]
    result: Result | None = None

    def carry_out(self) -> Result:
        """The result, which is in the trainer's model too. A finished run trains nothing."""
        if self.folder.is_finished():
            self.tell(f"{self.folder.path} is finished; nothing is left to train")
            self.trainer.state.global_step = 0  # the steps of the run are counted again
            self._train()
        else:
            with self._in_place_of_epochs():
                self.trainer.train()
        assert self.result is not None, "the trainer has called what stands for its epochs"
        return self.result

    @contextmanager
    def _in_place_of_epochs(self) -> Iterator[None]:
        """The trainer's own loop calls the run once; it is as it was afterwards."""
        trainer, args = self.trainer, self.trainer.args
        before = (trainer.train_dataset, args.max_steps)
        trainer.train_dataset = self.rows[next(iter(self.corpus.datasets))]["train"].rows
        args.max_steps = self._steps()
        setattr(trainer, HOOK, self._epochs)
        try:
            yield
        finally:
            delattr(trainer, HOOK)
            trainer.train_dataset, args.max_steps = before

    def _steps(self) -> int:
        """Steps on which the learning rate's course is laid out; where a method rolls back, the
        most that there can be."""
        recipe = self.recipe
        epochs = recipe.num_train_epochs
        if recipe.method in ROLLING_BACK:
            stages = recipe.method_options.get("max_stages") or 2 * len(self.corpus.datasets)
            epochs = recipe.compute_budget * stages
        return max(1, self.corpus.mixture(0.0).steps(epochs, recipe.train_batch_size))

    def _epochs(self, *given: Any, **named: Any) -> None:
        trainer = self.trainer
        try:
            self._train()
        finally:
            trainer.state.max_steps = max(1, trainer.state.global_step)
        trainer.control = trainer.callback_handler.on_epoch_end(
            trainer.args, trainer.state, trainer.control
        )
        trainer.control.should_training_stop = True

    def _train(self) -> None:
        trainer, folder = self.trainer, self.folder
        parts = {name: self.rows[name]["train"] for name in self.corpus.datasets}
        start = folder.path / START
        if not folder.log.exists():  # left by a call that did not come as far as to start
            remove(start)
        engine = TrainerEngine(
            trainer,
            {name: part.rows for name, part in parts.items()},
            {name: part.encoded for name, part in parts.items()},
            self.ends,
            start if hasattr(trainer.model, "peft_config") else None,
        )
        if folder.is_finished():
            self._recognise(engine)
        method = self.recipe.prepared
        settings = settings_for(self.recipe, self.corpus, method)
        base = {} if folder.is_finished() else engine.base_record()
        try:
            result = run(
                Job(self.recipe, folder, self.tell),
                Rows(trainer.processing_class, self.corpus),
                Plan(method, settings, most_held(method, settings)),
                Built(engine, "trainer", base),
                [TrainerLog(trainer, folder.path, self.quiet)],
                needs_checkpoint=True,
            )
        except BaseException:
            with suppress(RuntimeError):  # of a broken device; what stopped the run is said
                engine.load(None)  # so that the same call finds the model that it began with
            raise
        best = result.summary["best"]["checkpoint"]
        engine.load(None if best == BASE else self._held(engine, best))
        self.result = result

    def _recognise(self, engine: TrainerEngine) -> None:
        """A finished run has put its result into the model; then that is not the first one."""
        history = read_history(self.folder.path)
        if history.best is not None and history.best != BASE:
            first = history.start.fingerprint["model"]
            engine.recognise(self._held(engine, history.best), first)

    def _held(self, engine: TrainerEngine, checkpoint: str) -> Weights:
        weights: Weights = engine.codec().read(self.folder.checkpoints / f"{checkpoint}.weights")
        return weights


def _recipe(trainer: Any, datasets: list[dict[str, Any]], keys: dict[str, Any]) -> Recipe:
    """The run as a recipe: what the trainer is set to, and what the call says."""
    args = trainer.args
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
    rows = sum(len(dataset["train"]) for dataset in datasets if dataset.get("train") is not None)
    steps = steps_of(rows, batch) * args.num_train_epochs
    warmup = args.warmup_steps  # below 1 it is a share of all steps
    warmup = int(warmup if warmup >= 1 else ceil(steps * warmup))
    longest = getattr(args, "max_length", None)
    given = {
        "model_name_or_path": _model_name(trainer.model),
        "datasets": datasets,
        "seed": args.seed,
        "num_train_epochs": args.num_train_epochs,
        "learning_rate": args.learning_rate,
        "lr_scheduler_type": schedule,
        "warmup_steps": 0 if schedule == "constant" else warmup,
        "train_batch_size": batch,
        "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm or 0.0,
        "bf16": bool(args.bf16),
        # transformers 5.23 has a new name for it
        "gradient_checkpointing": bool(
            getattr(args, "activation_checkpointing", args.gradient_checkpointing)
        ),
        "deterministic": bool(args.full_determinism),
        **({"max_length": longest} if longest else {}),
    }
    return Recipe.from_mapping({**given, **keys})


def _model_name(model: Any) -> str:
    """The name or path that the model was loaded from; its class where that is unknown or gone."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    local = name.count("/") > 1 or name.startswith((".", "/", "~"))
    if not name or (local and not expanded(name).exists()):
        return type(inner_model(model)).__name__
    return name
