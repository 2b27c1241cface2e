"""What stands at the top of a page: model, data, learning rate, batch, date, duration and cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from msft.run.environment import begun_on, read_environments
from msft.run.folder import RunFolder, recipe_value, seconds_of
from msft.run.history import History
from msft.run.summary import adapter_of
from msft.text import counted, duration, masked, si

Fact = tuple[str, str, str]
"""A name, its value, and more about it."""


@dataclass(frozen=True, slots=True)
class RunOnDisk:
    """A run, its folder, and its summary."""

    folder: Path
    history: History
    summary: Mapping[str, Any]


def facts_of(runs: Sequence[RunOnDisk]) -> list[Fact]:
    """Of one run, or of several that are compared; what no file says is left out."""
    starts = [run.history.start for run in runs]
    total, scored = (
        sum(run.summary["flops"][kind] for run in runs) for kind in ("total", "evaluation")
    )
    times = [seconds for run in runs if (seconds := seconds_of(run.folder)) is not None]
    several = f", {len(runs)} runs together" if len(runs) > 1 else ""
    found = [
        (
            "model",
            _either(map(_model, runs)),
            _either(map(_sizes, runs)),
        ),
        (
            "data",
            _either(f"{sum(start.datasets.values()):,} rows" for start in starts),
            _either(f"in {counted(len(start.datasets), 'sub-dataset')}" for start in starts),
        ),
        (
            "learning rate",
            _either(_written(run, "learning_rate") for run in runs),
            _either(_written(run, "lr_scheduler_type") for run in runs),
        ),
        ("batch", _either(_written(run, "train_batch_size") for run in runs), "rows a step"),
        ("date", *_date(runs)),
        (
            "duration",
            duration(sum(times)) if times else "",
            "to the last step" + _device(runs) + several,
        ),
        (
            "cost",
            si(total),
            "FLOPs" + (f", {scored / total:.0%} of them evaluation" if total else "") + several,
        ),
    ]
    return [fact for fact in found if fact[1]]


def _sizes(run: RunOnDisk) -> str:
    """Weights of the model, and of the adapter where only that is trained."""
    size, adapter = si(run.history.start.num_parameters), adapter_of(run.history)
    return f"{size} parameters" + (f", an adapter of {si(adapter)} trained" if adapter else "")


def _either(texts: Iterable[str]) -> str:
    """One text where all runs have the same, else each of them."""
    return " · ".join(text for text in dict.fromkeys(texts) if text)


def _written(run: RunOnDisk, key: str) -> str:
    value = recipe_value(run.folder, key)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _model(run: RunOnDisk) -> str:
    """By its name; of a folder of somebody's own the last part."""
    name = _written(run, "model_name_or_path")
    path = PurePath(name)
    return masked(path.name if path.is_absolute() or name.startswith((".", "~")) else name)


def _date(runs: Sequence[RunOnDisk]) -> tuple[str, str]:
    """The day on which the first began, and the last if that is another one; and the time."""
    begun = sorted(filter(None, (begun_on(RunFolder(run.folder).environment) for run in runs)))
    if not begun:
        return "", ""
    days = dict.fromkeys(each.partition(" ")[0] for each in (begun[0], begun[-1]))
    return " to ".join(days), f"begun at {begun[0].partition(' ')[2]} UTC"


def _device(runs: Sequence[RunOnDisk]) -> str:
    devices = [
        environment["device"].split(", threads")[0]
        for run in runs
        for environment in read_environments(RunFolder(run.folder).environment)
        if "device" in environment
    ]
    return f", on {_either(devices)}" if devices else ""
