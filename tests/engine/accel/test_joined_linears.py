"""Joined projections compute what the model computes, and leave it as it was."""

import gc
from weakref import ref

import pytest
import torch
from families import FAMILIES, model_of
from test_joined_adapters import computed, is_same
from torch import nn

from msft.engine.accel.fused_layers import FusedLayers
from msft.engine.accel.joined_linears import Join, JoinedProjections, PlainWeights, plain_groups
from msft.engine.packing import RowLayout, layout

JOINED = {"llama", "qwen2", "qwen3", "olmo2", "mistral", "gemma", "gemma2", "mixtral"}


@pytest.mark.parametrize("laid", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_logits_and_gradients(family: str, laid: bool) -> None:
    model = model_of(family)
    names = [name for name, _ in model.named_parameters()]
    expected = computed(model)
    joined = JoinedProjections(model)
    assert bool(plain_groups(model)) is (family in JOINED)
    if laid:
        joined.fuse_projections()
    with joined:
        assert is_same(computed(model), expected)
    with torch.no_grad(), joined, layout(RowLayout([5], torch.device("cpu"))):
        some = model(input_ids=torch.arange(2, 7)[None], use_cache=False).logits
    assert torch.allclose(some[0], expected[0][0, :5], atol=1e-5)
    assert [name for name, _ in model.named_parameters()] == names
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_compiled_layers_hand_their_gradients_out(family: str) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = model_of(family)
    expected = computed(model)
    fused = FusedLayers(model, backend="aot_eager")
    fused.fuse_projections()
    for _ in range(2):
        with fused:
            assert is_same(computed(model), expected)
    assert 0 < counters["stats"]["unique_graphs"] <= 6


def test_gradients_of_several_passes_add_up() -> None:
    layers = [nn.Linear(4, 6, bias=False), nn.Linear(4, 2, bias=False)]
    join, given = Join(PlainWeights(layers)), torch.randn(3, 4)
    join.weights.fuse_projections()
    for times in (1, 2):
        loss = join.part(0, given).sum() + 2 * join.part(1, given).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        for number, layer in enumerate(layers):
            assert layer.weight.grad is not None
            expected = times * (1 + number) * given.sum(0).expand_as(layer.weight)
            assert torch.allclose(layer.weight.grad, expected)


def test_weights_that_lie_together_are_written_through() -> None:
    layers = [nn.Linear(4, 6, bias=False), nn.Linear(4, 2, bias=False)]
    join, given = Join(PlainWeights(layers)), torch.randn(3, 4)
    join.weights.fuse_projections()
    with torch.no_grad():
        layers[1].weight.fill_(2.0)
        join.part(0, given)
        second = join.part(1, given)
    assert torch.allclose(second, 2 * given.sum(1, keepdim=True).expand(3, 2))


def test_another_input_is_not_answered_with_what_was_made_before() -> None:
    layers = [nn.Linear(4, 6), nn.Linear(4, 2)]
    join, given, other = Join(PlainWeights(layers)), torch.randn(3, 4), torch.randn(3, 4)
    join.part(0, given)
    assert torch.equal(join.part(1, other), layers[1](other))


def test_a_forward_pass_that_ends_in_the_middle_leaves_nothing() -> None:
    """Else all its activations would stay, just when memory has run out."""
    model = model_of("qwen3")
    joined = JoinedProjections(model)

    inputs = []

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError

    attention = model.model.layers[0].self_attn
    attention.q_proj.register_forward_pre_hook(lambda layer, given: inputs.append(ref(given[0])))
    attention.q_norm.register_forward_pre_hook(full)
    with pytest.raises(torch.OutOfMemoryError), joined:
        computed(model)
    gc.collect()
    assert [tensor() for tensor in inputs] == [None]


def test_layers_that_are_not_alike_stay_apart() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(4, 6), nn.Linear(4, 6, bias=False)

    assert plain_groups(Odd()) == []
