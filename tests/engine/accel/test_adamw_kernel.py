"""One kernel takes AdamW's step. On a GPU as it is, elsewhere by Triton's interpreter."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import loaded, model_of, rows_of
from torch import Tensor, nn

from msft.engine.fast import FastEngine
from msft.engine.optimizer import AdamW, TrainingSettings
from msft.search.feeds import Batch

pytest.importorskip(
    "msft.engine.accel.adamw_kernel", reason="Triton is not installed", exc_type=ImportError
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(64, 32), (7,), (5, 3), (4097,), (300, 60)]


def weights() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {f"w{n}": nn.Parameter(torch.randn(s).to(DEVICE)) for n, s in enumerate(SHAPES)}


def gradients(step: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=random).bfloat16().to(DEVICE) for shape in SHAPES]


def stepped(adamw: AdamW, parameters: Sequence[nn.Parameter], steps: int, clip: float) -> None:
    for step in range(steps):
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        adamw.begin_step(1e-2)
        adamw.step(clip)


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.1, 0.0), (0.01, 0.5)])
def test_its_steps_are_torchs(decay: float, clip: float) -> None:
    reference = list(weights().values())
    torchs = torch.optim.AdamW(reference, lr=1e-2, weight_decay=decay, fused=True)
    for step in range(5):
        for parameter, gradient in zip(reference, gradients(step), strict=True):
            parameter.grad = gradient.float()
        if clip:
            nn.utils.clip_grad_norm_(reference, clip)
        torchs.step()
    mine = weights()
    adamw = AdamW(mine, weight_decay=decay, mixed=True, kernel=True)
    stepped(adamw, list(mine.values()), 5, clip)
    for theirs, (name, master) in zip(reference, adamw.masters.items(), strict=True):
        assert torch.allclose(master, theirs, atol=1e-6, rtol=1e-5), name
        copy = master.bfloat16()
        if DEVICE == "cuda":
            assert torch.equal(mine[name], copy), name
        else:  # the interpreter cuts off instead of rounding
            assert torch.allclose(mine[name], copy, rtol=2**-7, atol=0), name
        moments = torchs.state[theirs]
        for kind in ("exp_avg", "exp_avg_sq"):
            held = adamw.moments[f"{name}.{kind}"]
            assert torch.allclose(held, moments[kind], atol=1e-7, rtol=1e-5), (name, kind)


def test_fp32_sums_of_micro_batches() -> None:
    found = []
    for kernel in (True, False):
        mine = weights()
        adamw = AdamW(mine, mixed=True, kernel=kernel)
        for part in range(3):
            for parameter, gradient in zip(mine.values(), gradients(part), strict=True):
                parameter.grad = gradient.clone()
            adamw.add_up()
        adamw.begin_step(1e-2)
        adamw.step(0.0)
        found.append(adamw.masters)
    assert all(torch.allclose(found[0][n], found[1][n], atol=1e-6, rtol=1e-5) for n in found[0])


@pytest.mark.parametrize("options", [{}, {"halved": True}])
def test_what_has_no_gradient_or_a_bad_loss_stays(options: dict[str, Any]) -> None:
    mine = weights()
    adamw = AdamW(mine, mixed=True, kernel=True, **options)
    before = {n: t.clone() for n, t in {**adamw.masters, **adamw.moments}.items()}
    mine["w1"].grad = torch.ones(7, device=DEVICE, dtype=torch.bfloat16)
    adamw.begin_step(1e-2)
    adamw.step(0.0)
    after = {**adamw.masters, **adamw.moments}
    assert {n.split(".")[0] for n in after if not torch.equal(after[n], before[n])} == {"w1"}
    before = {n: t.clone() for n, t in after.items()}
    mine["w1"].grad = torch.full((7,), torch.nan, device=DEVICE, dtype=torch.bfloat16)
    adamw.bad.fill_(1)
    adamw.begin_step(1e-2)
    adamw.step(0.0)
    assert all(torch.equal(tensor, before[n]) for n, tensor in after.items())


def test_gradients_may_lie_in_any_order() -> None:
    mine = weights()
    adamw = AdamW(mine, mixed=True, kernel=True)
    start = adamw.masters["w0"].clone()
    slope = gradients(0)[0]
    mine["w0"].grad = slope.t().contiguous().t()
    adamw.begin_step(1e-2)
    adamw.step(0.0)
    moved = adamw.masters["w0"] - start
    assert torch.equal(moved.sign(), -slope.float().sign()), "the first step goes against them"


def test_moments_in_bf16_are_rounded_at_random_without_drift() -> None:
    found = []
    for halved in (False, True, True):
        mine = weights()
        adamw = AdamW(mine, mixed=True, halved=halved, kernel=True)
        start = adamw.masters["w4"].clone()
        torch.manual_seed(1)
        stepped(adamw, list(mine.values()), 40, 0.0)
        found.append((adamw.masters["w4"] - start, adamw.moments["w4.exp_avg"]))
    (full, mean), (half, rounded), (again, _) = found
    assert torch.equal(half, again), "the same seed, the same bits"
    assert rounded.dtype == torch.bfloat16
    assert (half - full).norm() / full.norm() < 0.05
    assert abs((half - full).mean()) < 0.01 * full.abs().mean(), "no drift"
    nearest = (rounded.float() - mean).abs() <= (mean.bfloat16().float() - mean).abs() + 1e-9
    assert 0.2 < nearest.float().mean() < 0.95, "not always to the nearest"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_finds_its_gradients_again() -> None:
    from msft.engine.accel.cuda_graphs import Recorder

    mine, plain = weights(), weights()
    adamw, other = AdamW(mine, mixed=True, kernel=True), AdamW(plain, mixed=True, kernel=True)
    sources = [torch.empty_like(gradient) for gradient in gradients(0)]

    def work() -> None:
        for parameter, source in zip(mine.values(), sources, strict=True):
            parameter.grad = source * 1
        adamw.step(0.0)

    recorder, graph = Recorder(), None
    for step in range(4):
        for source, gradient in zip(sources, gradients(step), strict=True):
            source.copy_(gradient)
        adamw.begin_step(1e-2)
        graph = graph or recorder.recorded(work)
        assert graph is not None
        graph.replay()
    stepped(other, list(plain.values()), 4, 0.0)
    assert all(torch.equal(adamw.masters[n], other.masters[n]) for n in mine)


@pytest.mark.parametrize("half_moments", [False, True])
def test_an_engine_with_it_learns_and_resumes_to_the_bit(half_moments: bool) -> None:
    torch._C._set_mkldnn_enabled(False)  # some virtual CPUs claim bf16 that they do not have
    try:
        batch = Batch(tuple(("a", number) for number in range(8)))
        settings = TrainingSettings(
            learning_rate=1e-3,
            bf16=True,
            half_moments=half_moments,
            micro_batch_tokens=60,
            kernel=True,
        )

        def engine() -> FastEngine:
            model = model_of("llama", 1.0).to(DEVICE)
            return FastEngine(loaded(model), {"a": rows_of(8)}, settings)

        one, other = engine(), engine()
        first = sum(one.work(batch)[0].rows)
        for _ in range(4):
            one.work(batch)
        one.seed(1)
        for each in (one, other):  # the interpreter cuts a working copy off, loading rounds it
            each.load(one.weights())
        other.load_optimizer(one.optimizer())
        ahead = [list(one.work(batch)[0].rows) for _ in range(2)]
        other.seed(1)
        again = [list(other.work(batch)[0].rows) for _ in range(2)]
        assert ahead == again
        assert sum(ahead[-1]) < first
        ours, theirs = one.weights(), other.weights()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    finally:
        torch._C._set_mkldnn_enabled(True)
