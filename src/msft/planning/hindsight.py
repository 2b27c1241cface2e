"""A finished run beside what the plan says of it."""

from pathlib import Path
from typing import Any

from msft.data.corpus import Corpus
from msft.engine.memory_model import Shape
from msft.engine.saving.checkpoint_sizes import Checkpoints
from msft.errors import UsageError
from msft.planning.calibration import Calibration
from msft.planning.forecast import Loads, flops_of_tokens
from msft.planning.known import foretold, seconds_of
from msft.planning.retrace import retraced_disk
from msft.recipe.recipe import Recipe
from msft.run.flops import flops_of
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import Event, Measured
from msft.run.summary import disk_of


def events_of(folder: Path, recipe: Recipe, corpus: Corpus, shape: Shape) -> list[Event]:
    """The log of a run; UsageError if it is not one of this recipe's model and data."""
    events = RunFolder(folder).events()
    if not events:
        raise UsageError(f"{folder} is not a run folder: it has no run.jsonl with events in it")
    _refuse_other(History(events), folder, recipe, corpus, shape)
    return events


def hindsight(
    folder: Path,
    events: list[Event],
    recipe: Recipe,
    corpus: Corpus,
    shape: Shape,
    loads: Loads,
    speed: Calibration | None,
    in_memory: int,
) -> dict[str, Any]:
    """FLOPs, disk and time of the path that a run took: by the plan, and by its log.

    in_memory: checkpoints that memory may hold.
    """
    history = History(events)
    train = {n: [len(r.tokens) for r in d.train.rows] for n, d in corpus.datasets.items()}
    measured = [event for event in events if isinstance(event, Measured)]
    tokens = foretold(
        history,
        measured,
        train,
        lambda name, split, score: loads[name, split].at(score),
        recipe.train_batch_size,
    )
    foreseen, was = flops_of_tokens(tokens, shape.parameters), flops_of(history)
    settings = history.start.settings
    rollback = settings["rollout"]["on_rollback"]
    optim = settings.get("optim", "adamw")
    each = Checkpoints.of(shape.parameters, optim, rollback, len(train))
    disk = retraced_disk(history, each.weights, each.moments, in_memory)
    seconds = speed.seconds(tokens.train, tokens.evaluation, tokens.lookahead) if speed else None
    return {
        "folder": str(folder),
        "method": history.start.method,
        "finished": history.ended is not None,
        "compared": {
            "train FLOPs": (foreseen["train"], was.train),
            "evaluation FLOPs": (foreseen["evaluation"], was.evaluation),
            "look-ahead FLOPs": (foreseen["lookahead"], was.lookahead),
            "all FLOPs": (sum(foreseen.values()), was.total),
            "disk, at most": (disk, disk_of(history)["peak_bytes"]),
            "seconds": (seconds, seconds_of(RunFolder(folder).steps)),
        },
    }


def _refuse_other(
    history: History, folder: Path, recipe: Recipe, corpus: Corpus, shape: Shape
) -> None:
    sizes = {name: len(dataset.train.rows) for name, dataset in corpus.datasets.items()}
    if dict(history.start.datasets) != sizes:
        raise UsageError(
            f"{folder} is a run on {dict(history.start.datasets)} (rows by sub-dataset), but the "
            f"recipe has {sizes}; give the recipe of that run, which is {folder}/recipe.yaml"
        )
    if history.start.num_parameters != shape.parameters:
        raise UsageError(
            f"{folder} is a run of a model with {history.start.num_parameters:,} weights, but "
            f"{recipe.model_name_or_path} has {shape.parameters:,}; give the recipe of that run, "
            f"which is {folder}/recipe.yaml"
        )
