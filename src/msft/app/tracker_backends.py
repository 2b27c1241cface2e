"""Starting the trackers of a run: Accelerate's classes, each with its project, name and folder."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

from msft.app.trackers import Told, Tracker, Trackers, Values, read_told
from msft.errors import RecipeError, UsageError

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
    """Where MLFLOW_TRACKING_URI says, in the experiment that MLFLOW_EXPERIMENT_NAME names."""
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
