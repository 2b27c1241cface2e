"""A method's questions: refused where they have no answer, and as the log has them."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace

from msft.errors import WrongMethod
from msft.run.history import Stage
from msft.run.log import Asked, Decided, Event, Opened
from msft.run.worker import Question
from msft.search.feeds import described
from msft.search.methods import PreparedMethod
from msft.search.rollout import (
    BASE,
    COMPUTED,
    FAST,
    LEAN,
    CheckpointId,
    Keep,
    OptimizerStart,
    Settings,
    is_average,
)
from msft.search.scores import SELECTION
from msft.store.retention import wanted


def opened(settings: Settings, method: PreparedMethod, num_parameters: int) -> Opened:
    """A run as the first line of its log; what is at its default and came later is not in it."""
    counted, selection = settings.evaluation_tokens, settings.selection_split
    return Opened(
        method=method.name,
        seed=settings.seed,
        num_parameters=num_parameters,
        datasets=settings.mixture.sizes,
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
            **({"adapter": _weights(num_parameters, settings)} if settings.adapter else {}),
            **({} if settings.tested is None else {"tested": [*settings.tested]}),
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
    if isinstance(first, Opened) and settings.tested and "tested" not in first.settings:
        return replace(settings, score_test="none", tested=None)
    return settings


def _weights(num_parameters: int, settings: Settings) -> dict[str, int]:
    """Of a model with an adapter."""
    return {"frozen": num_parameters, "trained": settings.adapter}


def asked(question: Question, optimizer: OptimizerStart, eligible: bool, keep: Keep) -> Asked:
    """A roll-out as its line in the log."""
    parts = question.mixture.parts
    return Asked(
        rollout=question.rollout,
        start=question.start,
        active={part.name: part.rows for part in parts if not part.rehearsed},
        rehearsed={part.name: part.rows for part in parts if part.rehearsed},
        ticks=question.ticks,
        feed=described(question.feed),
        optimizer=optimizer,
        eligible=eligible,
        keep=keep,
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


def refuse_gone(
    checkpoint: CheckpointId, held: Collection[CheckpointId], what: str, going_on: bool = False
) -> None:
    """ValueError for a checkpoint that was dropped, or that never was.

    going_on: training is to go on from it, so it may not be an average.
    """
    if going_on and is_average(checkpoint):
        raise ValueError(
            f"{what} from {checkpoint} was asked for, which is an average: nothing goes on from "
            "one; name a tick"
        )
    if checkpoint != BASE and checkpoint not in held:
        raise ValueError(
            f"{what} from {checkpoint} was asked for, which is not kept; kept are "
            f"{sorted(held) or 'none'} and base"
        )


def refuse_decision(
    decision: Decided, held: Collection[CheckpointId], names: Collection[str], method: str
) -> None:
    """ValueError for one about a checkpoint that cannot be had; WrongMethod for one about a
    sub-dataset that there is not.

    names: of all sub-datasets. method: who decides.
    """
    unknown = [name for name in decision.names if name not in names]
    if unknown:
        raise WrongMethod(
            f"method {method} excludes {unknown[0]!r}, but there is no such sub-dataset; expected "
            f"names of {', '.join(names)}. Correct the method, then run the same command again"
        )
    result = decision.what == "report"
    what = "a result" if result else "to go on"
    refuse_gone(decision.checkpoint, held, what, going_on=not result)


def parts_of_average(
    checkpoints: Sequence[CheckpointId], held: Collection[CheckpointId]
) -> tuple[CheckpointId, ...]:
    """What is to be averaged, if it can be."""
    if not checkpoints:
        raise ValueError("an average of no checkpoints was asked for; expected at least one")
    for checkpoint in checkpoints:
        refuse_gone(checkpoint, held, "an average", going_on=True)
    return tuple(checkpoints)
