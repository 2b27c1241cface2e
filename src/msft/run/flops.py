"""FLOPs from the tokens in the log, by the formulas of the paper's appendix.

Training costs 6·|theta|·t, inference 2·|theta|·t, a look-ahead 8·|theta|·t (forward, backward,
forward again). Tokens are counted as integers where the work is done, so the sums are exact.
"""

from dataclasses import dataclass

from msft.run.history import History
from msft.search.rollout import CheckpointId, Tokens

TRAIN, INFERENCE, LOOK_AHEAD = 6, 2, 8


def train_flops(num_parameters: int, tokens: int) -> int:
    return TRAIN * num_parameters * tokens


def inference_flops(num_parameters: int, tokens: int) -> int:
    return INFERENCE * num_parameters * tokens


def look_ahead_flops(num_parameters: int, tokens: int) -> int:
    return LOOK_AHEAD * num_parameters * tokens


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
    size = history.start.num_parameters
    tokens = history.tokens
    train = train_flops(size, tokens.train)
    ahead = look_ahead_flops(size, tokens.lookahead)
    path = path_tokens(history, history.best) if history.best else Tokens()
    kept = train_flops(size, path.train) + look_ahead_flops(size, path.lookahead)
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
    size, tokens = history.start.num_parameters, Tokens()
    for point in history.stages[0].points if history.stages else ():
        tokens += point.tokens
    trained = train_flops(size, tokens.train) + look_ahead_flops(size, tokens.lookahead)
    return trained + inference_flops(size, tokens.evaluation)
