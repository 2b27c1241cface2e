"""The gate of a layer, by kernels or by torch, is what autograd makes of silu(g) * u."""

from typing import Any

import pytest
import torch
from families import model_of
from test_joined_adapters import adapted_model, computed, is_same
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.accel import gated_layers
from msft.engine.accel.fused_layers import decoder_layers
from msft.engine.accel.gated_layers import WIDEST, is_gated
from msft.engine.accel.joined_linears import JoinedProjections

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = torch.bfloat16 if torch.cuda.is_available() else torch.float32
CLOSE = 5e-2 if torch.cuda.is_available() else 1e-5
SCALE = 0.5


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=KIND)


def by_autograd(base: Tensor, grad: Tensor, adapter: list[Tensor]) -> tuple[Tensor, Tensor]:
    """silu(g) * u, and the gradient of [g, u]."""
    whole, wanted = base.float(), grad.float()
    if adapter:
        low, up, back, down = (each.float() for each in adapter)
        n, rank = down.shape[1], down.shape[0]
        added = [low[:, :rank] @ up[:n].t(), low[:, rank:] @ up[n:].t()]
        whole, wanted = whole + SCALE * torch.cat(added, -1), wanted + back @ down
    whole.requires_grad_()
    g, u = whole.chunk(2, -1)
    act = functional.silu(g) * u
    act.backward(wanted)  # type: ignore[no-untyped-call]
    assert whole.grad is not None
    return act.detach(), whole.grad


@pytest.fixture(params=["torch", "kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By torch, and by the kernels: on a GPU as they are, elsewhere by Triton's interpreter."""
    kernels: Any = None
    if request.param == "kernel":
        kernels = pytest.importorskip(
            "msft.engine.accel.triton_gate", reason="Triton is not installed", exc_type=ImportError
        )
    monkeypatch.setattr(gated_layers, "_kernels", lambda base: kernels)
    return str(request.param)


@pytest.mark.parametrize(("tokens", "n", "rank"), [(70, 200, 0), (33, 130, 16), (80, 300, 3)])
def test_it_and_its_gradient(way: str, tokens: int, n: int, rank: int) -> None:
    torch.manual_seed(0)
    base, grad, adapter = some(tokens, 2 * n), some(tokens, n), list[Tensor]()
    if rank:
        sizes = ((tokens, 2 * rank), (2 * n, rank), (tokens, rank), (rank, n))
        adapter = [some(*size) for size in sizes]
    parts: list[Any] = adapter or [None] * 4
    low, up, back, down = parts
    made = gated_layers.gate_forward(base, low, up, SCALE)
    slope, again = gated_layers.gate_backward(base, low, up, SCALE, grad, back, down)
    act, expected = by_autograd(base, grad, adapter)
    pairs = [(made, act), (slope, expected), *([(again, act)] if rank else [])]
    for one, other in pairs:
        assert torch.allclose(one.float(), other, atol=CLOSE * float(other.abs().max()), rtol=CLOSE)


def mlp_of(family: str) -> Any:
    return decoder_layers(model_of(family))[0].mlp


def test_gated_layers_are_known_by_what_they_compute() -> None:
    assert is_gated(mlp_of("llama"))
    assert is_gated(mlp_of("qwen2"))
    assert not is_gated(mlp_of("gpt2"))
    other = mlp_of("llama")
    other.act_fn = nn.GELU()
    assert not is_gated(other)

    class Doubled(type(other)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            made = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
            return 2 * made  # type: ignore[no-any-return]

    other.act_fn = nn.SiLU()
    assert is_gated(other)
    other.__class__ = Doubled
    assert not is_gated(other)


@pytest.mark.parametrize("rank", [2, WIDEST + 1])
def test_a_layer_whose_adapters_are_wide_takes_the_other_way(rank: int) -> None:
    model = adapted_model("llama", r=rank)
    expected = computed(model)
    seen = []
    joined = JoinedProjections(model)
    joined.fuse_projections()
    computed_gate = gated_layers.gate_forward

    def watched(*given: Any) -> Tensor:
        seen.append(given[1] is not None)
        return computed_gate(*given)

    with pytest.MonkeyPatch.context() as patch, joined:
        patch.setattr(gated_layers, "gate_forward", watched)
        assert is_same(computed(model), expected)
    assert seen == [rank <= WIDEST] * 2, "one for each layer, with its adapter or without"
