"""Trackers: TensorBoard, Weights & Biases, trackio and MLflow, through Accelerate's classes.

The step they are given is the number of optimizer steps ever trained, so it never runs backwards:
a roll-back is a marker, not a smaller step. `trackers.json` in the run folder remembers how far
each was told. So a resumed run goes on where it stopped, nothing is told twice, and a run that
began without a tracker is told to it from the start.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from msft.errors import RecipeError, UsageError
from msft.files import DAMAGED, read_text, remove
from msft.observers.observer import Observer, Watched
from msft.report.branches import epochs_to
from msft.run.history import History
from msft.run.log import (
    AverageEvent,
    DecisionEvent,
    EndEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
)
from msft.run.rows import Sample, SamplesByName, read_samples
from msft.run.worker import Step
from msft.search.curves import TEST
from msft.search.rollout import BASE, CheckpointId
from msft.text import SELECTED_ON_TEST, counted


def sample_texts(path: Path, best: CheckpointId) -> dict[str, str]:
    """`samples/<name>` for every sub-dataset that has samples of the result.

    path: of `samples.jsonl`.
    """
    found = read_samples(path)
    before: SamplesByName = found.get(BASE, {})
    return {
        f"samples/{name}": "\n\n".join(
            _text(sample, {each.row: each for each in before.get(name, ())}) for sample in samples
        )
        for name, samples in found.get(best, {}).items()
    }


def _text(sample: Sample, before: Mapping[int, Sample]) -> str:
    """Lines of a row, indented, so that a tracker shows them as they are."""
    base = before.get(sample.row)
    parts = {
        "prompt": sample.prompt,
        "reference": sample.reference,
        "base model": base.answer if base else None,
        "result": sample.answer,
        "score": str(sample.worth),
    }
    told = [f"{name}: {text}" for name, text in parts.items() if text is not None]
    return "\n".join(f"    {line}" for text in told for line in text.splitlines())


STEPS = 10
"""A training loss is the mean over this many steps, or what is left of them at a tick."""

Values = dict[str, float | str]


class Tracker(Protocol):
    """The methods of Accelerate's `GeneralTracker` that are called."""

    def log(self, values: Values, step: int) -> None: ...

    def finish(self) -> None: ...


@dataclass(slots=True)
class Told:
    """The events and steps that a tracker has.

    events: lines of the log.
    step: the last step of a training loss.
    run: the tracker's own name for this run, to go on with it.
    """

    events: int = 0
    step: int = 0
    run: str | None = None


class Trackers:
    """Tells each tracker of events and steps; one that fails is switched off, with a notice.

    memory: the file that remembers how far each was told.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        told: Mapping[str, Told],
        memory: Path,
        notice: Callable[[str], None],
    ) -> None:
        self._trackers = dict(trackers)
        self._told = {**told, **{name: told.get(name, Told()) for name in trackers}}
        self._memory = memory
        self._notice = notice
        self._history = History()
        self._recovery: CheckpointId = BASE
        self._events = 0
        self._trained = 0
        self._steps: list[Step] = []
        self._in_tick = 0
        self._since = time.monotonic()

    def event(
        self, history: History, event: Event, live: bool, losses: Mapping[str, float] | None = None
    ) -> None:
        """Tell of an event of the log, `history` being what it made of it.

        losses: of the references of each sub-dataset, where they were measured beside the scores.
        """
        if not self._trackers:
            return
        self._history = history
        self._events += 1
        loss: Values = {}
        if isinstance(event, PointEvent):
            self._trained += event.steps
            if live:
                loss = self._training()
            elif event.loss[1]:
                loss = {"train/loss": event.loss[0] / event.loss[1]}
            self._in_tick = 0
        for name, told in self._present():
            if self._trained > told.step and self._tell(name, loss, self._trained):
                told.step = self._trained
        if live and loss:
            self._remember()
        values = {**described(history, event, self._trained), **self._jump(event)}
        if values:
            values |= {f"eval/{name}/loss": loss for name, loss in (losses or {}).items()}
        if isinstance(event, EndEvent):
            values |= sample_texts(self._memory.with_name("samples.jsonl"), event.best)
        for name, told in self._present():
            if self._events > told.events and self._tell(name, values, self._trained):
                told.events = self._events
        if live:
            self._remember()
        self._since = time.monotonic()

    def step(self, step: Step) -> None:
        """Tell of an optimizer step; one of a lost checkpoint that is trained again is no news."""
        stages = self._history.stages
        if not self._trackers or (step.rollout, step.tick) != (
            len(stages) - 1,
            stages[-1].ticks + 1,
        ):
            return
        self._in_tick += 1
        self._steps.append(step)
        number = self._trained + self._in_tick
        if number % STEPS:
            return
        values = self._training()
        for name, told in self._present():
            if number > told.step and self._tell(name, values, number):
                told.step = number
        self._remember()

    def close(self) -> None:
        """Let every tracker finish; what is remembered stays."""
        self._remember()
        for name in list(self._trackers):
            self._safely(name, self._trackers[name].finish)
        self._trackers.clear()

    def _training(self) -> Values:
        """Loss and speed since they were last told."""
        steps, self._steps = self._steps, []
        if not steps:
            return {}
        seconds = max(1e-9, time.monotonic() - self._since)
        self._since = time.monotonic()
        rows = sum(step.rows for step in steps)
        values: Values = {
            "train/loss": sum(step.loss * step.rows for step in steps) / rows,
            "train/tokens_per_second": sum(step.tokens for step in steps) / seconds,
        }
        parts: dict[str, list[tuple[float, int]]] = {}
        for step in steps:
            for name, part in step.losses.items():
                parts.setdefault(name, []).append(part)
        for name, found in parts.items():
            count = sum(rows for _, rows in found)
            values[f"train/loss/{name}"] = sum(loss * rows for loss, rows in found) / count
        if steps[-1].learning_rate is not None:
            values["train/learning_rate"] = steps[-1].learning_rate
        norms = [step.grad_norm for step in steps if step.grad_norm is not None]
        if norms:
            values["train/grad_norm"] = sum(norms) / len(norms)
        return values

    def _jump(self, event: Event) -> Values:
        """The marker of a roll-back: where the search goes on elsewhere than it stands."""
        before = self._recovery
        match event:
            case PointEvent():
                self._recovery = before = event.checkpoint
            case RolloutEvent():
                self._recovery = event.start
            case DecisionEvent() if event.what != "report":
                self._recovery = event.checkpoint
        if self._recovery == before:
            return {}
        left = f"{', '.join(event.names)} left; " if isinstance(event, DecisionEvent) else ""
        stage = len(self._history.stages) - 1 - isinstance(event, RolloutEvent)
        epochs = epochs_to(self._history, self._recovery)
        after = counted(epochs, "epoch")
        return {
            "rollback": stage,
            "rollback_text": f"{left}back from {before} to {self._recovery} ({after})",
            "epoch_committed": epochs,
        }

    def _present(self) -> list[tuple[str, Told]]:
        return [(name, self._told[name]) for name in self._trackers]

    def _tell(self, name: str, values: Values, step: int) -> bool:
        """True if the tracker has the values; no values count as told."""
        if name not in self._trackers:
            return False
        return not values or self._safely(name, lambda: self._trackers[name].log(values, step=step))

    def _safely(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:
            del self._trackers[name]
            self._notice(
                f"{name} failed and is told nothing more; the run goes on, and after a resume it "
                f"is told the rest: {error!r}"
            )
        return name in self._trackers

    def _remember(self) -> None:
        """Not forced to disk: what a power cut takes may be told twice, and costs no time here."""
        if self._told:
            temporary = self._memory.with_name(f".{self._memory.name}.tmp")
            remove(temporary)
            content = {name: asdict(told) for name, told in self._told.items()}
            temporary.write_text(json.dumps(content) + "\n")
            temporary.replace(self._memory)


def described(history: History, event: Event, trained: int) -> Values:
    """The metrics of an event; `trained`: optimizer steps so far."""
    match event:
        case RunEvent() if history.selected_on_test:
            return {"selection_text": SELECTED_ON_TEST}
        case PointEvent():
            stage = history.stages[-1].asked
            return {
                **_scores(history, event, history.selection),
                "stage": stage.rollout,
                "epoch_committed": epochs_to(history, event.checkpoint),
                "active": len(stage.active),
            }
        case AverageEvent():
            return {"average_text": f"{event.checkpoint} is the mean of {', '.join(event.of)}"}
        case ScoresEvent() if event.checkpoint != BASE or not trained:
            return _scores(history, event, event.split)
    return {}


def _scores(history: History, event: PointEvent | ScoresEvent, split: str) -> Values:
    kind = "test" if split == TEST else "eval"
    if event.checkpoint in history.averages:  # beside the curve of the ticks, not in it
        kind += f"_{event.checkpoint}"
    values: Values = {
        f"{kind}/{name}/{score.metric}": float(score.value) for name, score in event.scores.items()
    }
    if history.has_mean(event.checkpoint, split):
        values[f"{kind}/mean"] = float(history.mean(event.checkpoint, split))
    return values


def read_told(memory: Path) -> dict[str, Told]:
    """The record of each tracker; empty for a missing or damaged file."""
    try:
        raw = json.loads(read_text(memory))
        return {str(name): Told(**told) for name, told in raw.items()}
    except DAMAGED:
        return {}


class TrackedRun(Observer):
    """The trackers that a recipe names in `report_to`, told of a run."""

    _trackers: Trackers | None = None

    def begin(self, run: Watched) -> None:
        self._run = run
        self._trackers = open_trackers(
            run.recipe.report_to, run.folder.path, run.settings, run.told, run.notice
        )

    def step(self, step: Step) -> None:
        if self._trackers is not None:
            self._trackers.step(step)

    def event(self, history: History, event: Event, live: bool) -> None:
        if self._trackers is not None:
            self._trackers.event(history, event, live, self._run.losses())

    def close(self) -> None:
        if self._trackers is not None:
            self._trackers.close()


PROJECT = "msft"
MOST_TAG = 5000
"""Characters of a tag of MLflow."""


def refuse_missing(report_to: str | Sequence[str]) -> None:
    """RecipeError where a tracker that is asked for is not installed."""
    for name in _named(report_to):
        for package in ("accelerate", name):
            if importlib.util.find_spec(package) is None:
                raise RecipeError(
                    f"report_to is {name}, but the package {package} is not installed; "
                    f"`pip install accelerate {name}`, or set report_to to none",
                    ("report_to",),
                )


def open_trackers(
    report_to: str | Sequence[str],
    folder: Path,
    config: Mapping[str, Any],
    known: int,
    notice: Callable[[str], None],
) -> Trackers:
    """Start the trackers that have something to be told, or go on with their runs.

    config: the settings that a tracker shows beside the curves.
    known: lines of the log of a finished run, 0 of another: one that was told them all is not
        started again.
    """
    memory = folder / "trackers.json"
    told = read_told(memory)
    trackers: dict[str, Tracker] = {}
    for name in _named(report_to):
        so_far = told.setdefault(name, Told())
        if known and so_far.events >= known:
            continue
        try:
            trackers[name] = _STARTS[name](folder.resolve(), config, so_far)
        except Exception as error:
            hint = ", set WANDB_MODE=offline," if name == "wandb" else ""
            raise UsageError(
                f"{name} cannot be started: {error}; mend that{hint} or set report_to to none: a "
                "later resume can still tell it everything"
            ) from error
    return Trackers(trackers, told, memory, notice)


def _tensorboard(folder: Path, config: Mapping[str, Any], told: Told) -> Any:
    tracker = _made("tensorboard", run_name="tensorboard", logging_dir=str(folder))
    if told.run is None:
        listed = "".join(f"    {key}: {value}\n" for key, value in config.items())
        tracker.log({"settings": listed}, step=0)  # indented text is shown as it is
    told.run = "tensorboard"
    return tracker


def _wandb(folder: Path, config: Mapping[str, Any], told: Told) -> Any:
    tracker = _made(
        "wandb",
        run_name=os.environ.get("WANDB_PROJECT", PROJECT),
        name=os.environ.get("WANDB_NAME", folder.name),
        dir=str(folder),
        id=told.run,
        resume="allow",
        config=dict(config),
    )
    told.run = str(tracker.tracker.id)
    return tracker


def _trackio(folder: Path, config: Mapping[str, Any], told: Told) -> Any:
    """Its runs are found again by name, so two folders of one name get different ones."""
    digest = blake2b(str(folder).encode(), digest_size=3).hexdigest()
    again, told.run = told.run is not None, told.run or f"{folder.name}-{digest}"
    return _made(
        "trackio",
        run_name=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=told.run,
        resume="allow" if again else "never",
        config=dict(config),
    )


def _mlflow(folder: Path, config: Mapping[str, Any], told: Told) -> Tracker:
    """A run of MLflow at MLFLOW_TRACKING_URI, in the experiment of MLFLOW_EXPERIMENT_NAME."""
    tracker = _made(
        "mlflow", experiment_name=PROJECT, run_name=folder.name, logging_dir=None, run_id=told.run
    )
    if told.run is None:
        tracker.store_init_configuration(dict(config))
    told.run = str(tracker.tracker.info.run_id)
    return _NumbersAndTags(tracker)


class _NumbersAndTags:
    """MLflow keeps numbers by step; a text becomes a tag that names its step."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self.finish = tracker.finish

    def log(self, values: Values, step: int) -> None:
        texts = {key: value for key, value in values.items() if isinstance(value, str)}
        self._tracker.log({k: v for k, v in values.items() if k not in texts}, step=step)
        for key, text in texts.items():
            import_module("mlflow").set_tag(f"{key} at step {step}", text[:MOST_TAG])


_STARTS: dict[str, Callable[[Path, Mapping[str, Any], Told], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "mlflow": _mlflow,
}


def _made(tracker: str, /, **options: Any) -> Any:
    """`run_name` is what Accelerate calls the project, of TensorBoard the folder."""
    import_module("accelerate").PartialState()  # the trackers ask it for the rank
    made = import_module("accelerate.tracking").LOGGER_TYPE_TO_CLASS[tracker](**options)
    made.start()
    return made


def _named(report_to: str | Sequence[str]) -> list[str]:
    asked = [report_to] if isinstance(report_to, str) else report_to
    return [name for name in asked if name != "none"]
