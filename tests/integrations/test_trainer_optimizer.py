"""The state of an optimizer in a checkpoint and back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from msft.errors import UsageError
from msft.integrations.engine import TrainerOptimizer


def held(kind: Any = torch.optim.AdamW, **options: Any) -> tuple[Any, TrainerOptimizer]:
    """An optimizer over one weight, as a trainer has it."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    trainer = SimpleNamespace(
        optimizer=SimpleNamespace(optimizer=optimizer, step=optimizer.step),
        lr_scheduler=scheduler,
        args=SimpleNamespace(optim="own"),
        _get_learning_rate=lambda: scheduler.get_last_lr()[0],
    )
    found = TrainerOptimizer(trainer, {"a.b": weight})
    found.load(None)
    weight.grad = torch.arange(3.0)
    return weight, found


@pytest.mark.parametrize("fused", [False, True])
def test_it_goes_on_from_a_state_with_the_same_bits(fused: bool) -> None:
    weight, optimizer = held(fused=fused)
    assert [optimizer.step(), optimizer.step()] == [0.1, 0.05]
    kept, state = weight.detach().clone(), optimizer.state()
    assert (state["steps"], sorted(state["tensors"])) == (
        2,
        ["exp_avg:a.b", "exp_avg_sq:a.b", "step:a.b"],
    )
    assert optimizer.step() == 0.1 / 3
    after = weight.detach().clone()
    weight.data.copy_(kept)
    optimizer.load(state)
    assert optimizer.step() == 0.1 / 3
    assert torch.equal(weight, after)
    weight.data.copy_(kept)
    optimizer.load(None)  # fresh moments and the first rate
    assert optimizer.step() == 0.1
    assert not torch.equal(weight, after)


def test_numbers_come_back_as_numbers() -> None:
    weight, optimizer = held()
    optimizer.step()
    inner: Any = optimizer._inner
    inner.state[weight] |= {"count": 7, "norm": 0.1}
    state = optimizer.state()
    inner.state.clear()
    optimizer.load(state)
    found = inner.state[weight]
    assert (found["count"], type(found["count"]), found["norm"]) == (7, int, 0.1)


def test_what_no_checkpoint_holds_is_refused() -> None:
    weight, optimizer = held()
    optimizer.step()
    inner: Any = optimizer._inner
    inner.state[weight]["projector"] = object()
    with pytest.raises(UsageError, match=r"optim own \(AdamW\) keeps a object as projector"):
        optimizer.state()
    del inner.state[weight]["projector"]
    inner.param_groups[0]["k"] = 1
    with pytest.raises(UsageError, match="numbers that change in its parameter groups"):
        optimizer.state()
