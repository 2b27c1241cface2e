"""Slices in several processes (`sharding: full`): the bits are those of one with the same lanes.

Whole runs are in `tests/app/test_ranks.py`; here is what they do not have on a CPU: bf16, joined
projections, groups of layers, recomputed activations, moments in bf16.
"""

import json
import os
import sys
from hashlib import sha256
from typing import Any

import torch
from families import loaded, model_of, rows_of
from rank_processes import Running
from torch import Tensor

from msft.engine import parallel, sharding
from msft.engine import ranks as ranks_of_torch
from msft.engine.accel.joined_linears import JoinedProjections
from msft.engine.fast import FastEngine
from msft.engine.kernels import KernelChoice, answer_losses
from msft.engine.optimizer import TrainingSettings
from msft.ranks import ALONE, Patience, Ranks
from msft.search.feeds import Batch

ROWS = rows_of(11)
ALL = tuple(("a", number) for number in range(11))
BATCHES = [
    Batch(ALL[:7]),
    Batch(ALL[4:], use="look_ahead"),
    Batch(ALL[:5]),
    Batch(ALL, use="track"),
]
WAYS: dict[str, dict[str, Any]] = {
    "groups of all layers": {"together": 2**29},
    "a layer at a time": {"together": 1, "micro_batch_tokens": 24},
    "four lanes in fp32, whose sums are not exact": {"together": 2**29, "bf16": False, "lanes": 4},
    "averaged and recomputed": {
        "together": 2**29,
        "ema_decay": 0.5,
        "gradient_checkpointing": True,
    },
}


class Joined(JoinedProjections):
    """Projections as a GPU joins them, in layers that are not compiled."""

    way = KernelChoice("fused")

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return answer_losses(logits, labels)


def engine_of(ranks: Ranks, **how: Any) -> FastEngine:
    torch.manual_seed(0)
    model = model_of("qwen2")
    sliced = ranks.world > 1
    how = {"micro_batch_tokens": 2**16, "full_sharding": sliced, "lanes": 2, "bf16": True, **how}
    settings = TrainingSettings(learning_rate=1e-2, **how)
    return FastEngine(loaded(model), {"a": ROWS}, settings, Joined(model), ranks=ranks)


def left_by(ranks: Ranks, together: int, **how: Any) -> list[Any]:
    """Losses of some steps, of a trial step and of rows that are watched; digests of weights."""
    if ranks.world > 1:  # a process of its own
        vars(sharding)["SLICED_TOGETHER"] = together
    engine = engine_of(ranks, **how)
    engine.load({name: weight * 1.5 for name, weight in engine.weights().items()})
    engine.seed(1)
    found: list[Any] = []
    for batch in BATCHES:
        losses = engine.work(batch)[0]
        found += [list(losses.rows), list(losses.after or ())]
    weights = {n: sha256(w.numpy().tobytes()).hexdigest() for n, w in engine.weights().items()}
    return [
        *found,
        {name: each for part in ranks.gather("weights", weights) for name, each in part.items()},
    ]


def moments_come_back(ranks: Ranks) -> bool:
    """Whether bf16 moments are the same after they were whole; a tensor a round, so that a rank
    with fewer tensors than the other has none in the last rounds."""
    vars(parallel)["AT_ONCE"] = 1
    engine = engine_of(ranks, half_moments=True)
    engine.work(BATCHES[0])
    before = engine.optimizer()
    engine.load_optimizer(before)
    after = engine.optimizer()["tensors"]
    assert {moment.dtype for moment in after.values()} == {torch.bfloat16}
    return all(torch.equal(after[name], moment) for name, moment in before["tensors"].items())


def test_the_bits_of_slices_are_those_of_one_process() -> None:
    expected = {name: left_by(ALONE, **way) for name, way in WAYS.items()}

    here = f"import sys; sys.path[:0] = {sys.path!r}; "
    running = Running(2, [], f"{here}from test_full_sharding import work; work()")
    for said in running.ended()[1]:
        assert said.startswith("{"), said
        found = json.loads(said)
        for name, each in expected.items():
            assert found[name] == json.loads(json.dumps(each)), name
        assert found["moments"]


def work() -> None:
    """In each process."""
    ranks = ranks_of_torch.joined(Patience())
    found: dict[str, Any] = {name: left_by(ranks, **way) for name, way in WAYS.items()}
    found["moments"] = moments_come_back(ranks)
    print(json.dumps(found), flush=True)
    os._exit(0)
