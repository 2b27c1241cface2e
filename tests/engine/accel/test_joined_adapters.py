"""Joined projections with adapters compute what peft computes, and have its gradients."""

from typing import Any

import pytest
import torch
from families import loaded, model_of
from torch import Tensor, nn

from msft.engine.accel.fused_layers import FusedLayers
from msft.engine.accel.joined_adapters import AdaptedWeights, adapter_groups, as_one_matrix
from msft.engine.accel.joined_linears import Join, JoinedProjections
from msft.engine.adapters.fp8 import Fp8Linear
from msft.engine.adapters.lora import adapted
from msft.engine.packing import RowLayout, layout
from msft.recipe.recipe import AdapterOptions

CPU = torch.device("cpu")
LENGTHS = [12, 8]


def adapted_model(family: str, **options: Any) -> Any:
    """With B matrices that are not zero, else A would have no gradient."""
    made = adapted(
        loaded(model_of(family)),
        AdapterOptions(**{"r": 3, "alpha": 6, **options}),
        CPU,
        bf16=False,
    )
    torch.manual_seed(1)
    for parameter in made.trained.values():
        nn.init.normal_(parameter, std=0.1)
    return made.loaded.model


def computed(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of two rows, and gradients."""
    model.zero_grad()
    tokens = torch.arange(2, 22)[None] % 50
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with layout(RowLayout(LENGTHS, CPU)):
        logits: Tensor = model(input_ids=tokens, position_ids=places, use_cache=False).logits
    logits.float().log_softmax(-1).square().mean().backward()  # type: ignore[no-untyped-call]
    slopes = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), slopes


def is_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> bool:
    return (
        torch.allclose(one[0], other[0], atol=1e-5)
        and one[1].keys() == other[1].keys()
        and all(torch.allclose(one[1][n], other[1][n], atol=1e-5) for n in one[1])
        and len(one[1]) > 0
    )


@pytest.mark.parametrize("laid", [False, True])
@pytest.mark.parametrize(
    ("family", "four_bit"),
    [("llama", False), ("llama", True), ("qwen2", False), ("qwen2", True), ("gpt2", False)],
)
def test_the_same_logits_and_gradients(family: str, four_bit: bool, laid: bool) -> None:
    model = adapted_model(family, four_bit=four_bit)
    expected = computed(model)
    joined = JoinedProjections(model)
    if laid:
        joined.fuse_projections()
    with joined:
        assert is_same(computed(model), expected)
    assert is_same(computed(model), expected)  # peft's own forward reads the same weights


@pytest.mark.parametrize("four_bit", [False, True])
def test_another_input_is_not_answered_with_what_was_made_before(four_bit: bool) -> None:
    layers = adapter_groups(adapted_model("qwen2", four_bit=four_bit))[0]
    join, given, other = Join(AdaptedWeights(layers)), torch.randn(3, 32), torch.randn(3, 32)
    join.weights.fuse_projections()
    for number, layer in enumerate(layers):
        assert torch.allclose(join.part(number, given), layer(given), atol=1e-5)
    join.part(0, given)
    assert torch.allclose(join.part(1, other), layers[1](other), atol=1e-5)


@pytest.mark.parametrize("laid", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_in_fp8_logits_are_the_same_and_gradients_nearly(family: str, laid: bool) -> None:
    """A group's gradients are rounded with one scale for each token, single layers' with one each.
    All of it is near to what weights that are not rounded compute."""
    model, exact = adapted_model(family, fp8=True), computed(adapted_model(family))
    held = [module for module in model.modules() if isinstance(module, Fp8Linear)]
    assert len(held) == 14
    alone = computed(model)
    joined = JoinedProjections(model)
    if laid:
        joined.fuse_projections()
        assert (
            held[0].packed.untyped_storage().data_ptr()
            == held[1].packed.untyped_storage().data_ptr()
        )
    with joined:
        together = computed(model)
    assert computed(model)[1].keys() == together[1].keys() == alone[1].keys() == exact[1].keys()
    assert error(together[0], alone[0]) < 1e-4
    assert max(error(together[1][n], alone[1][n]) for n in alone[1]) < 0.1
    assert 1e-3 < error(together[0], exact[0]) < 0.1
    assert max(error(together[1][n], exact[1][n]) for n in exact[1]) < 0.3


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_groups_are_joined_and_the_others_stand_alone() -> None:
    model = adapted_model("llama")
    sizes = [len(group) for group in adapter_groups(model)]
    assert sizes == [3, 1, 2, 1] * 2
    some = adapted_model("llama", targets=("q_proj", "k_proj", "up_proj"))
    assert [len(group) for group in adapter_groups(some)] == [1, 1, 1] * 2
    assert is_same(computed_joined(some), computed(some))


@pytest.mark.parametrize("options", [{"dora": True}, {"dropout": 0.1}], ids=str)
def test_other_kinds_run_as_peft_has_them(options: dict[str, Any]) -> None:
    assert adapter_groups(adapted_model("llama", **options)) == []


def computed_joined(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    joined = JoinedProjections(model)
    joined.fuse_projections()
    with joined:
        return computed(model)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_layers_have_the_same_gradients() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = adapted_model("llama")
    expected = computed(model)
    fused = FusedLayers(model, backend="aot_eager")
    fused.fuse_projections()
    for _ in range(2):
        with fused:
            assert is_same(computed(model), expected)
    assert fused.way.path == "fused"
    assert 0 < counters["stats"]["unique_graphs"] <= 8


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_layers_keep_no_norms_and_no_gate() -> None:
    """Of each layer they keep its input, its middle, gate and up; of the rest the last norm."""
    torch._dynamo.reset()
    model = adapted_model("llama", targets=("gate_proj", "up_proj", "down_proj"))
    fused = FusedLayers(model, backend="aot_eager_decomp_partition")
    fused.fuse_projections()
    kept: dict[int, tuple[int, ...]] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tuple(tensor.shape)
        return tensor

    with fused:
        computed(model)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            computed(model)
    layers, inner = model.config.num_hidden_layers, model.config.intermediate_size
    shapes = list(kept.values())
    assert [shape for shape in shapes if shape[0] == 20 and shape[-1] >= inner] == [
        (20, 2 * inner)
    ] * layers
    assert shapes.count((1, 20, model.config.hidden_size)) == 2 * layers + 1


def test_weights_that_lie_together_stay_where_they_are() -> None:
    """The plain model beside the trained one shares what no adapter changes."""
    made = adapted(
        loaded(model_of("llama")),
        AdapterOptions(r=3, alpha=6, targets=("q_proj",)),
        CPU,
        bf16=False,
    )
    trained, plain = (JoinedProjections(m.model) for m in (made.loaded, made.evaluated))
    trained.fuse_projections()
    mlp = made.loaded.model.model.layers[0].mlp
    before = mlp.gate_proj.weight.data_ptr(), mlp.up_proj.weight.data_ptr()
    plain.fuse_projections()
    assert (mlp.gate_proj.weight.data_ptr(), mlp.up_proj.weight.data_ptr()) == before


def test_only_parts_that_follow_each_other_are_one_where_they_lie() -> None:
    whole = torch.arange(12.0).view(6, 2)
    one, two = whole[:2], whole[2:]
    assert as_one_matrix([one, two]).data_ptr() == whole.data_ptr()
    assert torch.equal(as_one_matrix([one, two]), whole)
    for parts in ([two, one], [one, one], [one, whole[3:]], [one.clone(), two.clone()]):
        assert torch.equal(as_one_matrix(parts), torch.cat(parts))
