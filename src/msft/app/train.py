"""`msft train`: what cannot be done is refused first, then everything heavy is loaded."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from msft import process
from msft.app.admission import refuse_run, run_folder
from msft.app.hub import push
from msft.app.processes import lanes_of_run, refuse_disagreement
from msft.app.schedules import found_schedule, refuse_wrong_stages
from msft.app.terminal.progress import Progress
from msft.data.corpus import Corpus, load_corpus, settings_for
from msft.data.notes import epoch_notes
from msft.engine.model.base_files import BaseHashing
from msft.engine.model.tokenizers import load_context, tokenizer_for
from msft.errors import RecipeError, UsageError
from msft.ranks import ALONE, Patience, Ranks, from_first, lost_ranks_named, together
from msft.recipe.recipe import Recipe, with_rows
from msft.run.engine import Engine
from msft.run.environment import read_base
from msft.run.folder import RunFolder
from msft.search.methods import PreparedMethod
from msft.search.methods.replay import replay
from msft.search.options import MixtureOptions, RolloutOptions
from msft.search.rollout import FAST
from msft.search.scores import SELECTION, TEST

EngineSource = Engine | Callable[[Recipe, Corpus], Engine]
"""An engine of the user's own, or a function that makes one."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    summary: the content of summary.json.
    best: the folder of the best model; it loads in transformers.
    schedule: the content of schedule.json, which `msft replay` can train again.
    folder: the run folder.
    """

    summary: dict[str, Any]
    best: Path
    schedule: dict[str, Any]
    folder: Path


@lost_ranks_named()
def train(
    recipe: Recipe,
    out: Path | str | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] = lambda text: None,
    schedule: Path | str | None = None,
    engine: EngineSource | None = None,
    shared: Path | None = None,
    datasets: Mapping[str, Any] | None = None,
) -> Result:
    """Train a recipe, or go on with it: the same call on the same folder resumes.

    out: the run folder (default: the recipe's `output_dir`).
    progress: receives every event and step.
    notice: receives notes about the data and the engine before training starts.
    schedule: a schedule.json to train in one run, instead of the recipe's method.
    engine: an engine of your own, or a function that makes one; see `msft.run.engine`.
    shared: a folder through which the runs of a comparison share their first roll-out.
    datasets: rows in place of the recipe's files, such as {"mine": {"train": rows, "test": rows}};
        rows are dicts, or a `datasets.Dataset`. A resume with other rows is refused.
    """
    if datasets is not None:
        recipe = with_rows(recipe, datasets)
    folder = run_folder(recipe, out)
    ranks = joined(patience_of(recipe))
    if ranks.rank:
        progress, notice = None, _silent
    together(
        ranks, "what is asked for", lambda: _refuse(recipe, folder, engine, shared, ranks.world)
    )
    lanes = from_first(ranks, "lanes", lambda: lanes_of_run(recipe, folder, ranks.world))
    if recipe.deterministic:
        _compute_the_same_bits_again()
    tokenizer, corpus = together(ranks, "data", lambda: load_data(recipe))
    if ranks.world > 1:
        meant = (recipe, folder, corpus, schedule)
        together(ranks, "the same run", lambda: refuse_disagreement(ranks, *meant))
    method = (
        prepared_replay(
            Path(schedule), list(corpus.datasets), recipe.evals_per_epoch, recipe.selection_split
        )
        if schedule
        else recipe.prepared
    )
    if ":" in method.name:
        together(ranks, "method", lambda: _refuse_wrong_method(recipe, corpus, method))
    hashing = None
    if ranks.rank == 0 and engine is None and not folder.is_finished():
        hashing = BaseHashing(recipe.model(), read_base(folder.environment) or {})
    trained_by, engine_name = (
        together(
            ranks,
            "engine",
            lambda: _built_in_engine(
                replace(recipe, lanes=lanes), corpus, method, tokenizer, notice, ranks
            ),
        )
        if engine is None
        else _own_engine(engine, recipe, corpus)
    )
    base = from_first(ranks, "base", lambda: hashing.record() if hashing else {})
    for dataset in corpus.datasets.values():
        for note in dataset.notes:
            notice(f"{dataset.name}: {note}")
    if corpus.note:
        notice(corpus.note)
    for note in epoch_notes(recipe, sum(each.epoch_rows for each in corpus.datasets.values())):
        notice(note)
    from msft.app.session import Session

    session = Session(
        recipe=recipe,
        method=method,
        folder=folder,
        engine=trained_by,
        engine_name=engine_name,
        corpus=corpus,
        tokenizer=tokenizer,
        progress=progress,
        notice=notice,
        shared=shared,
        lanes=lanes,
        ranks=ranks,
        base=base,
    )
    summary, found = session.carry_out()
    if ranks.rank == 0:
        push(recipe, folder, summary["best"]["checkpoint"], notice)
    return Result(summary, folder.best, found, folder.path)


def joined(patience: Patience) -> Ranks:
    """The processes that do this run together; torch is loaded where there are several."""
    if process.world() == 1:
        return ALONE
    from msft.engine.ranks import joined

    return joined(patience)


def patience_of(recipe: Recipe) -> Patience:
    return Patience(recipe.rendezvous_timeout, recipe.ddp_timeout, recipe.saving_timeout)


def _silent(text: str) -> None:
    """Rank 0 says it."""


def _refuse(
    recipe: Recipe, folder: RunFolder, engine: Any, shared: Path | None, world: int
) -> None:
    """What cannot be done, before anything heavy is loaded."""
    refuse_run(recipe, folder)
    if engine is not None and recipe.engine != "auto":
        raise UsageError(
            f"an engine of your own was given, but the recipe says engine: {recipe.engine}; keep "
            "the one you mean"
        )
    if engine is not None and recipe.lanes not in ("auto", 1):
        raise UsageError(
            f"an engine of your own was given, which has one lane, but the recipe says lanes: "
            f"{recipe.lanes}; leave lanes out"
        )
    if world > 1 and (engine is not None or recipe.engine == "simple"):
        kind = "engine: simple" if engine is None else "an engine of your own"
        raise UsageError(
            f"{world} processes were started, but {kind} works in one; start one process, or leave "
            "the engine to msft"
        )
    if world > 1 and shared is not None:
        raise UsageError(
            f"{world} processes were started, but runs that share a roll-out have one each; use "
            "`msft compare --devices` for runs side by side"
        )


def load_data(recipe: Recipe) -> tuple[Any, Corpus]:
    """The tokenizer and the rows in its tokens: what is wrong with them comes up before weights."""
    name, trust = recipe.model(), recipe.trust_remote_code
    tokenizer = tokenizer_for(recipe, name)
    return tokenizer, load_corpus(recipe, tokenizer, load_context(name, trust))


def _refuse_wrong_method(recipe: Recipe, corpus: Corpus, method: PreparedMethod) -> None:
    from msft.planning.counting import refuse_wrong_method

    settings = settings_for(recipe, corpus, method)
    refuse_wrong_method(settings, method, recipe.train_batch_size)


def _built_in_engine(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    tokenizer: Any,
    notice: Callable[[str], None],
    ranks: Ranks,
) -> tuple[Engine, str]:
    """The engine that the recipe names and its name for the log, if memory holds it."""
    from msft.engine.build import engine_of
    from msft.engine.memory import room_of
    from msft.engine.model.shape import shape_for
    from msft.engine.ranks import device_here
    from msft.engine.simple import SimpleEngine
    from msft.planning.memory import refuse_no_room

    device = device_here()
    shape = shape_for(recipe, len(tokenizer))
    needs = (recipe, corpus, method, shape)
    together(ranks, "room in memory", lambda: refuse_no_room(*needs, room_of(device)))
    engine = engine_of(recipe, corpus, tokenizer, device, notice, ranks)
    return engine, "simple" if isinstance(engine, SimpleEngine) else FAST


def _own_engine(engine: EngineSource, recipe: Recipe, corpus: Corpus) -> tuple[Engine, str]:
    made: Any = (
        engine if hasattr(engine, "work") or not callable(engine) else engine(recipe, corpus)
    )
    return made, f"{type(made).__module__}:{type(made).__qualname__}"


def _compute_the_same_bits_again() -> None:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def prepared_replay(
    file: Path, names: Sequence[str], evals_per_epoch: int, selection: str = SELECTION
) -> PreparedMethod:
    """The method `replay` with the schedule of a file; RecipeError where it cannot be used.

    file: a schedule.json, or the folder of a finished run.
    selection: the split whose rows select in the replay.
    """
    if file.is_dir():
        file = found_schedule(file)
    try:
        schedule = json.loads(file.read_text())
        stages, sizes = schedule["stages"], schedule["rows"]
        feeds = {stage["feed"]["name"] for stage in stages}
        averaged = schedule.get("average_of") or []
        selected_on = schedule.get("selection_split", SELECTION)
    except OSError as error:
        raise RecipeError(
            f"{file} cannot be read: {error.strerror}; expected the schedule.json of a finished run"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    if selected_on == TEST != selection:
        raise RecipeError(
            f"{file} was selected on test rows (selection_split: test), so the test scores of its "
            "replay are optimistic too; add --set selection_split=test, which says so beside them"
        )
    refuse_wrong_stages(file, schedule, evals_per_epoch)
    if None in averaged:
        raise RecipeError(
            f"{file} is of an average over roll-outs that do not follow each other; one straight "
            "run does not come by all of its checkpoints, so it cannot be replayed"
        )
    options = {"stages": stages, "sizes": sizes}
    if averaged:
        options["average_of"] = averaged
    carry_out = partial(replay, **options)
    return PreparedMethod(
        "replay",
        options,
        carry_out,
        RolloutOptions(),
        MixtureOptions(),
        averages=1 if averaged else 0,
    )
