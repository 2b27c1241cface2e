"""FLOPs from the tokens in the log, by the formulas of the paper's appendix.

Training costs 6·|theta|·t, inference 2·|theta|·t, a look-ahead 8·|theta|·t (forward, backward,
forward again). Tokens are counted as integers where the work is done, so the sums are exact.
Beside an adapter of T weights the F weights of the model are frozen and have no gradient: training
costs (4·F + 6·T)·t, a look-ahead (6·F + 8·T)·t, and evaluation, of the merged model, 2·F·t.
"""

from dataclasses import dataclass

from msft.run.history import History
from msft.search.rollout import CheckpointId, Tokens

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
