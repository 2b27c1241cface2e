"""The optimizer is torch's AdamW on fp32 masters; bf16 never reaches what is stored."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from engines import fast
from families import rows_of
from torch import nn

from msft.engine.optimizer import AdamW, copied, stochastic_round
from msft.search.feeds import Batch

pytestmark = pytest.mark.usefixtures("plain_bf16")

ALL = Batch(tuple(("a", number) for number in range(8)))


def pair(**options: Any) -> tuple[nn.Parameter, AdamW]:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(64, 32))
    return parameter, AdamW({"w": parameter}, **options)


def gradient(step: int) -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("shape", [(64,), (70,), (9, 24), (3, 5, 7)])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_slices_are_stepped_as_the_whole_is(shape: tuple[int, ...], parts: int) -> None:
    """Whatever a CPU computes at a time, and wherever a slice ends."""
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(20, *shape)

    def after(rows: slice) -> list[torch.Tensor]:
        parameter = nn.Parameter(start[rows].clone())
        adamw = AdamW({"w": parameter}, weight_decay=0.1)
        for given in gradients:
            parameter.grad = given[rows].clone()
            adamw.begin_step(1e-2)
            adamw.step(0.0)
        return [adamw.masters["w"], *adamw.moments.values()]

    bounds = [shape[0] * part // parts for part in range(parts + 1)]
    slices = [after(slice(*pair)) for pair in pairwise(bounds)]
    for whole, *pieces in zip(after(slice(None)), *slices, strict=True):
        assert whole.shape == shape
        assert torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.5)])
def test_fp32_steps_are_torchs_bit_by_bit(decay: float, clip: float) -> None:
    parameter, adamw = pair(weight_decay=decay)
    reference = nn.Parameter(parameter.detach().clone())
    torchs = torch.optim.AdamW([reference], lr=1e-2, weight_decay=decay, fused=True)
    for step in range(5):
        reference.grad = gradient(step)
        if clip:
            nn.utils.clip_grad_norm_([reference], clip)
        torchs.step()
        parameter.grad = gradient(step)
        adamw.begin_step(1e-2)
        adamw.step(clip)
    assert torch.equal(parameter, reference)
    assert adamw.steps == 5


def test_a_bf16_model_moves_by_less_than_bf16_can_hold() -> None:
    parameter, adamw = pair(mixed=True)
    before = adamw.masters["w"].clone()
    assert parameter.dtype == torch.bfloat16
    for step in range(3):
        parameter.grad = gradient(step).bfloat16()
        adamw.begin_step(1e-6)
        adamw.step(0.0)
    moved = adamw.masters["w"] - before
    assert moved.abs().max() > 0
    assert torch.equal(parameter, adamw.masters["w"].bfloat16())
    assert (parameter == before.bfloat16()).float().mean() > 0.9, "bf16 alone would have lost it"


def test_micro_batches_add_up_in_fp32() -> None:
    parts = [gradient(n).bfloat16() for n in range(4)]
    one, added = pair(mixed=True)
    for part in parts:
        one.grad = part.clone()
        added.add_up()
    added.begin_step(1e-3)
    added.step(0.0)
    exact, whole = pair()
    exact.grad = sum((part.float() for part in parts), torch.zeros(64, 32))
    whole.begin_step(1e-3)
    whole.step(0.0)
    assert torch.equal(added.masters["w"], whole.masters["w"])


def test_a_bad_loss_leaves_weights_and_moments() -> None:
    for options in ({}, {"mixed": True}, {"mixed": True, "halved": True}):
        parameter, adamw = pair(**options)
        before = {**adamw.masters, **adamw.moments}
        before = {name: tensor.clone() for name, tensor in before.items()}
        adamw.bad.fill_(1)
        parameter.grad = torch.full((64, 32), float("nan"), dtype=parameter.dtype)
        adamw.begin_step(1e-2)
        adamw.step(0.0)
        for name, tensor in {**adamw.masters, **adamw.moments}.items():
            assert torch.equal(tensor, before[name]), (options, name)


def test_halved_moments_follow_the_full_ones_on_average() -> None:
    full, plain = pair(mixed=True)
    half, halved = pair(mixed=True, halved=True)
    assert all(moment.dtype == torch.bfloat16 for moment in halved.moments.values())
    start = plain.masters["w"].clone()
    for step in range(200):
        for parameter, adamw in ((full, plain), (half, halved)):
            parameter.grad = gradient(step).bfloat16()
            adamw.begin_step(1e-3)
            adamw.step(0.0)
    moved = plain.masters["w"] - start
    apart = halved.masters["w"] - plain.masters["w"]
    assert apart.norm() / moved.norm() < 0.05
    assert abs(apart.mean()) < 0.01 * moved.abs().mean(), "no drift"


def test_rounding_at_random_keeps_the_mean() -> None:
    torch.manual_seed(0)
    wide = torch.full((100_000,), 1.0 + 1 / 1024)
    rounded = stochastic_round(wide)
    assert set(rounded.tolist()) == {1.0, 1.0 + 1 / 128}
    assert rounded.mean().item() == pytest.approx(wide[0].item(), abs=1e-4)


@pytest.mark.parametrize("half_moments", [False, True])
def test_a_bf16_engine_learns_and_its_snapshots_are_exact(half_moments: bool) -> None:
    engine = fast(rows_of(8), bf16=True, half_moments=half_moments)
    first = sum(engine.work(ALL)[0].rows)
    for _ in range(5):
        engine.work(ALL)
    engine.seed(3)
    weights, moments = engine.weights(), engine.optimizer()
    assert all(w.dtype == torch.float32 for w in weights.values())
    ahead = [list(engine.work(ALL)[0].rows) for _ in range(3)]
    final = engine.weights()
    assert sum(ahead[-1]) < first
    engine.load(weights)
    engine.load_optimizer(moments)
    engine.seed(3)
    assert [list(engine.work(ALL)[0].rows) for _ in range(3)] == ahead
    assert all(torch.equal(final[name], w) for name, w in engine.weights().items())


def test_bf16_losses_stay_near_fp32_without_drift() -> None:
    plain, mixed = fast(rows_of(8)), fast(rows_of(8), bf16=True)
    apart = []
    for _ in range(40):
        one, other = (sum(engine.work(ALL)[0].rows) / 8 for engine in (plain, mixed))
        apart.append(other - one)
    assert max(map(abs, apart)) < 0.05
    assert abs(sum(apart) / len(apart)) < 0.02


def test_copies_go_to_the_host_where_the_device_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def empty(*args: Any, device: Any = None, real: Any = torch.empty, **options: Any) -> Any:
        if device is not None:
            raise torch.OutOfMemoryError
        return real(*args, **options)

    given = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    monkeypatch.setattr(torch, "empty", empty)
    copies = copied(given)
    assert all(torch.equal(copies[name], given[name]) for name in given)
    assert all(copies[name].data_ptr() != given[name].data_ptr() for name in given)
