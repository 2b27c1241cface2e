"""`summary.json` and `schedule.json`: what a run found, folded from its log; and its FLOPs.

FLOPs follow from the tokens in the log, by the formulas of the paper's appendix. Training costs
6·|theta|·t, inference 2·|theta|·t, a look-ahead 8·|theta|·t (forward, backward, forward again).
Tokens are counted as integers where the work is done, so the sums are exact. Beside an adapter of T
weights the F weights of the model are frozen and have no gradient: training costs (4·F + 6·T)·t, a
look-ahead (6·F + 8·T)·t, and evaluation, of the merged model, 2·F·t.
"""

from dataclasses import asdict, dataclass
from typing import Any

from msft.run.history import History
from msft.search.curves import TEST
from msft.search.rollout import BASE, CheckpointId, Tokens, checkpoint_id, place_of

TRAIN, INFERENCE, LOOK_AHEAD, FROZEN = 6, 2, 8, 4


def train_flops(num_parameters: int, tokens: int, adapter: int = 0) -> int:
    """adapter: its weights, where only they are trained."""
    if adapter:
        return (FROZEN * num_parameters + TRAIN * adapter) * tokens
    return TRAIN * num_parameters * tokens


def inference_flops(num_parameters: int, tokens: int) -> int:
    return INFERENCE * num_parameters * tokens


def look_ahead_flops(num_parameters: int, tokens: int, adapter: int = 0) -> int:
    if adapter:
        return train_flops(num_parameters, tokens, adapter) + inference_flops(
            num_parameters + adapter, tokens
        )
    return LOOK_AHEAD * num_parameters * tokens


def adapter_of(history: History) -> int:
    """Weights of the adapter that a run trains; 0: it trains all."""
    return int(history.start.settings.get("adapter", {}).get("trained", 0))


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of a run. kept + discarded = train + lookahead.

    kept: training on the path from the base model to the reported checkpoint.
    discarded: all other training, the search's price.
    """

    train: int
    evaluation: int
    lookahead: int
    total: int
    kept: int
    discarded: int


def flops_of(history: History) -> Flops:
    """All FLOPs that a log accounts for."""
    size, adapter = history.start.num_parameters, adapter_of(history)
    tokens = history.tokens
    train = train_flops(size, tokens.train, adapter)
    ahead = look_ahead_flops(size, tokens.lookahead, adapter)
    path = path_tokens(history, history.best) if history.best else Tokens()
    kept = train_flops(size, path.train, adapter) + look_ahead_flops(size, path.lookahead, adapter)
    evaluation = inference_flops(size, tokens.evaluation)
    total = train + evaluation + ahead
    return Flops(train, evaluation, ahead, total, kept, train + ahead - kept)


def path_tokens(history: History, checkpoint: CheckpointId) -> Tokens:
    """Tokens on the way from the base model to a checkpoint."""
    tokens = Tokens()
    for rollout, ticks in history.path(checkpoint):
        for point in history.stages[rollout].points[:ticks]:
            tokens += point.tokens
    return tokens


def first_rollout_flops(history: History) -> int:
    """Training the first roll-out and scoring its ticks."""
    size, adapter, tokens = history.start.num_parameters, adapter_of(history), Tokens()
    for point in history.stages[0].points if history.stages else ():
        tokens += point.tokens
    trained = train_flops(size, tokens.train, adapter)
    trained += look_ahead_flops(size, tokens.lookahead, adapter)
    return trained + inference_flops(size, tokens.evaluation)


def summary_of(history: History, stopped: bool = False) -> dict[str, Any]:
    """The summary as the contract has it; of an unfinished run, what is known so far. `validation`
    has the scores that chose: those of test where `selection_split` says so."""
    best = history.best or BASE
    ended = history.ended
    return {
        "method": history.start.method,
        "seed": history.start.seed,
        "status": "finished" if ended else "stopped" if stopped else "running",
        "ended_by": ended.by if ended else None,
        "num_parameters": history.start.num_parameters,
        **({"num_trainable": adapter} if (adapter := adapter_of(history)) else {}),
        "optim": history.start.settings.get("optim", "adamw"),
        "ema_decay": history.start.settings.get("ema_decay"),
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "stages": [stage_of(history, number) for number in range(len(history.stages))],
        "best": {
            "checkpoint": best,
            "epochs": epochs_of(history, best),
            "candidates": _candidates(history),
            "average_of": average_of(history, best),
            "validation": _scores(history, best, history.selection),
            "test": _scores(history, best, TEST),
        },
        "epochs_trained": sum(stage.ticks for stage in history.stages) / history.evals_per_epoch,
        "tokens": asdict(history.tokens),
        "flops": asdict(flops_of(history)),
        "disk": disk_of(history),
        **_controls(history, best),
    }


def _controls(history: History, best: CheckpointId) -> dict[str, Any]:
    """What was scored beside an average of the same training: other averages, and with them the
    best tick."""
    beside = [checkpoint for checkpoint in history.averages if checkpoint != best]
    if not history.average_of or not beside:
        return {}
    return {
        "controls": [
            {
                "checkpoint": checkpoint,
                "average_of": average_of(history, checkpoint),
                "validation": _scores(history, checkpoint, history.selection),
                "test": _scores(history, checkpoint, TEST),
            }
            for checkpoint in (*beside, history.best_tick or BASE)
        ]
    }


def average_of(history: History, checkpoint: CheckpointId) -> list[CheckpointId] | None:
    average = history.averages.get(checkpoint)
    return list(average.of) if average else None


def _candidates(history: History) -> int:
    """How many points the result was chosen from; of an average, the ticks that were looked at."""
    if history.average_of:
        return sum(stage.ticks for stage in history.stages)
    return 1 if history.reported else history.candidates


def stage_of(history: History, number: int) -> dict[str, Any]:
    """One roll-out: who was in it, where each peaked, who left and to where it went back."""
    stage = history.stages[number]
    per_epoch = history.evals_per_epoch
    peaks = {
        name: history.rule.peak(history.curve(number, name)) / per_epoch
        for name in stage.asked.active
        if stage.points
    }
    back_to = [d.checkpoint for d in stage.decisions if d.what == "exclude"]
    return {
        "stage": number,
        "start": stage.asked.start,
        "active": list(stage.asked.active),
        "ticks": stage.ticks,
        "peaks": peaks,
        "excluded": [name for name, _ in stage.excluded],
        "rolled_back_to": _tick_in(number, back_to[-1]) / per_epoch if back_to else None,
    }


def epochs_of(history: History, checkpoint: CheckpointId) -> float:
    """Ep. as the paper counts it: epochs on the path; of continual SFT, the mean of the stops."""
    per_epoch = history.evals_per_epoch
    if history.start.method == "continual":
        stops = [tick for stage in history.stages for _, tick in stage.excluded]
        return sum(stops) / per_epoch / len(stops) if stops else 0.0
    return sum(ticks for _, ticks in history.path(checkpoint)) / per_epoch


def disk_of(history: History) -> dict[str, float | int]:
    """Sets of weights on disk over the run: the mean over its ticks, and the most at any time."""
    points = history.disk
    every = [*points, *(average.disk for average in history.averages.values())]
    return {
        "mean_copies": sum(disk.copies for disk in points) / len(points) if points else 0.0,
        "peak_copies": max((disk.peak_copies for disk in every), default=0),
        "peak_bytes": max((disk.peak_bytes for disk in every), default=0),
    }


def schedule_of(history: History) -> dict[str, Any]:
    """What was found: per sub-dataset its epochs, and the stages on the way to the result."""
    per_epoch = history.evals_per_epoch
    stages: list[dict[str, Any]] = []
    for rollout, ticks in history.path(history.best or BASE):
        asked = history.stages[rollout].asked
        stages.append(
            {
                "active": dict(asked.active),
                "rehearsed": dict(asked.rehearsed),
                "ticks": ticks,
                "epochs": ticks / per_epoch,
                "optimizer": asked.optimizer,
                "feed": dict(asked.feed),
            }
        )
    return {
        "method": history.start.method,
        "seed": history.start.seed,
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "evals_per_epoch": per_epoch,
        "rows": dict(history.start.datasets),
        "datasets": {
            name: sum(stage["ticks"] for stage in stages if name in stage["active"]) / per_epoch
            for name in history.start.datasets
        },
        "stages": stages,
        **({"average_of": averaged_epochs(history)} if history.average_of else {}),
    }


def averaged_epochs(history: History) -> list[float | None]:
    """Where the ticks in an average lie, in epochs on the path to the latest of them; None for one
    that is not on it."""
    legs = history.path(history.best or BASE)
    on_path = {BASE: 0.0}
    before = 0
    for rollout, ticks in legs:
        for tick in range(1, ticks + 1):
            on_path[checkpoint_id(rollout, tick)] = (before + tick) / history.evals_per_epoch
        before += ticks
    return [on_path.get(checkpoint) for checkpoint in history.average_of or ()]


def _scores(history: History, checkpoint: CheckpointId, split: str) -> dict[str, Any] | None:
    """mean: None where some sub-datasets have no test rows."""
    full, scores = history.has_mean(checkpoint, split), history.known(checkpoint, split)
    if not full and (
        split == history.selection or not scores or scores.keys() < {*history.scored_on(split)}
    ):
        return None
    return {
        "mean": float(history.mean(checkpoint, split)) if full else None,
        "datasets": {name: float(score.value) for name, score in scores.items()},
    }


def _tick_in(number: int, checkpoint: CheckpointId) -> int:
    """The tick of a roll-out at which a checkpoint stands; its start is tick 0."""
    rollout, tick = place_of(checkpoint)
    return tick if rollout == number else 0
