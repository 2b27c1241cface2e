"""Compiled layers compute what the model computes; what cannot be compiled is said, and runs."""

from typing import Any

import pytest
import torch
from families import loaded, model_of, rows_of

from msft.engine.accel.fused_layers import FusedLayers, decoder_layers
from msft.engine.fast import FastEngine
from msft.engine.kernels import NO_LABEL, PLAIN_LAYERS, KernelChoice, Layers, answer_losses
from msft.engine.optimizer import TrainingSettings
from msft.search.feeds import Batch

ALL = tuple(("a", number) for number in range(8))


def engine_of(model: Any, layers: Layers = PLAIN_LAYERS) -> FastEngine:
    settings = TrainingSettings(learning_rate=1e-3)
    return FastEngine(loaded(model), {"a": rows_of(8)}, settings, layers)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_fused_layers_share_one_code_and_only_inside_the_block() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = model_of("llama", 1.0)
    plain = engine_of(model_of("llama", 1.0))
    fused = engine_of(model, FusedLayers(model, backend="aot_eager"))
    for size in (8, 3, 5, 6):
        one, other = (engine.work(Batch(ALL[:size]))[0].rows for engine in (plain, fused))
        assert list(one) == pytest.approx(list(other), abs=1e-5)
    assert counters["stats"]["unique_graphs"] <= 6, "one layer's graphs, whatever the tokens"
    assert fused.paths().layers == "fused"
    layers = decoder_layers(model)
    assert len(layers) == model.config.num_hidden_layers
    assert not any("forward" in layer.__dict__ for layer in layers)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_compiled_losses_are_the_plain_ones(kind: torch.dtype) -> None:
    torch._dynamo.reset()
    fused = FusedLayers(model_of("llama"), backend="aot_eager")
    results = []
    for losses in (answer_losses, fused.losses):
        torch.manual_seed(0)
        logits = torch.randn(5, 30).to(kind).requires_grad_()
        loss = losses(logits, torch.tensor([3, 0, NO_LABEL, 29, 7]))
        (loss.sum() / 4).backward()  # type: ignore[no-untyped-call]
        assert loss.dtype == torch.float32
        assert loss[2] == 0
        results.append((loss, logits.grad))
    for plain, compiled in zip(*results, strict=True):
        assert torch.allclose(plain, compiled, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_layers_that_cannot_be_compiled_are_said_once_and_run_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch._dynamo.reset()

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    before = torch._dynamo.config.suppress_errors
    model = model_of("llama", 1.0)
    plain = engine_of(model_of("llama", 1.0))
    fused = engine_of(model, FusedLayers(model, backend=broken))
    for _ in range(3):
        one, other = (engine.work(Batch(ALL))[0].rows for engine in (plain, fused))
        assert list(one) == pytest.approx(list(other), abs=1e-5)
    paths = fused.paths()
    assert paths.layers == "plain"
    assert "Failed to find C compiler" in paths.reason
    (message,) = [record.getMessage() for record in caplog.records if record.name == "msft"]
    assert message.startswith("layers cannot be compiled: Failed to find C compiler; they run")
    assert torch._dynamo.config.suppress_errors == before, "others' errors are theirs"


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_mistake_of_the_model_is_not_taken_for_one_of_the_compiler() -> None:
    torch._dynamo.reset()
    model = model_of("llama", 1.0)

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError

    layers = FusedLayers(model, backend=lambda graph, inputs: full)
    with pytest.raises(torch.OutOfMemoryError):
        engine_of(model, layers).work(Batch(ALL))
    assert layers.way == KernelChoice("fused")
