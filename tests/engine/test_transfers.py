"""What the host sends arrives, and a step that is not recorded waits for nothing."""

import pytest
import torch
from families import loaded, model_of, rows_of

from msft.engine.fast import FastEngine
from msft.engine.optimizer import TrainingSettings
from msft.engine.packing import to_device_async
from msft.example import Encoded
from msft.search.feeds import Batch

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_numbers_arrive(device: str) -> None:
    numbers = torch.arange(100_000)
    there = to_device_async(numbers, torch.device(device))
    assert there.device.type == device
    assert torch.equal(there.cpu(), numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("tokens", [2**14, 64])
def test_the_host_runs_ahead_of_steps_in_one_or_many_micro_batches(tokens: int) -> None:
    rows: dict[str, list[Encoded]] = {"a": rows_of(8)}
    settings = TrainingSettings(bf16=True, micro_batch_tokens=tokens)
    engine = FastEngine(loaded(model_of("llama", 1.0)), rows, settings)
    batch = Batch(tuple(("a", number) for number in range(8)))
    engine.work(batch)[0].rows[0]
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [engine.work(batch)[0] for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses[2].rows[0] < losses[0].rows[0]
