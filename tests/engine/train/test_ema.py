"""`ema_decay`: raw weights are trained; their moving average is scored, kept and handed out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Direct, Engine, fast, same, simple
from families import rows_of
from torch import Tensor, nn

from msft.engine.optimizer import AdamW
from msft.engine.saving.weight_files import TorchCodec
from msft.errors import NotANumber
from msft.search.feeds import Batch

pytestmark = pytest.mark.usefixtures("plain_kernels")

DECAY = 0.9
ROWS = rows_of(32)
HELD_OUT = rows_of(12, seed=4)
KINDS: dict[str, dict[str, Any]] = {
    "fast": {},
    "fast, bf16": {"bf16": True},
    "fast, bf16 moments": {"bf16": True, "half_moments": True},
    "fast, recorded": {"bf16": True, "batch_rows": 8},
    "simple": {},
    "simple, bf16": {"bf16": True},
}


def engine_of(kind: str, decay: float | None = DECAY, **settings: Any) -> Engine:
    options = {"learning_rate": 1e-2, **KINDS[kind], "ema_decay": decay, **settings}
    if kind.startswith("simple"):
        return simple(ROWS, **options)
    recorder = Direct if "recorded" in kind else None
    engine = fast(ROWS, recorder=recorder, **options)
    assert engine.paths().steps == ("recorded" if recorder else "eager")
    return engine


def work(engine: Engine, place: int, **options: Any) -> Any:
    engine.seed(place)
    return engine.work(Batch(tuple(("a", (8 * place + n) % 32) for n in range(8)), **options))[0]


def raw_of(engine: Engine) -> dict[str, Tensor]:
    tensors = engine.optimizer()["tensors"]
    return {key.removesuffix(".raw"): t for key, t in tensors.items() if key.endswith(".raw")}


def likelihoods(engine: Engine) -> list[float]:
    return engine.predictor().measure(HELD_OUT, [0] * len(HELD_OUT))().rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_average_is_that_of_a_loop_by_hand_and_training_does_not_see_it(kind: str) -> None:
    engine, plain = engine_of(kind), engine_of(kind, None)
    by_hand = {name: weight.double() for name, weight in plain.weights().items()}
    assert same(engine.weights(), plain.weights())
    for step in range(20):
        losses = [list(work(each, step).rows) for each in (engine, plain)]
        assert losses[0] == losses[1]
        for name, weight in plain.weights().items():
            by_hand[name] = DECAY * by_hand[name] + (1 - DECAY) * weight.double()
        if step % 5 == 2:
            likelihoods(engine)  # nor does an evaluation change anything
    assert same(raw_of(engine), plain.weights())
    for name, weight in engine.weights().items():
        assert weight.dtype == torch.float32
        assert torch.allclose(weight.double(), by_hand[name], atol=1e-6, rtol=1e-6), name
        assert not torch.equal(weight, plain.weights()[name]), name


def test_both_engines_have_the_same_average() -> None:
    fast, simple = engine_of("fast", learning_rate=1e-3), engine_of("simple", learning_rate=1e-3)
    for step in range(50):
        for engine in (fast, simple):
            work(engine, step)
    for name, weight in fast.weights().items():
        assert (weight - simple.weights()[name]).abs().max() < 1e-5, name


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_sees_the_average_and_training_the_raw_weights(kind: str) -> None:
    engine, plain = engine_of(kind), engine_of(kind, None)
    for step in range(5):
        work(engine, step)
        likelihoods(engine)
    plain.load(engine.weights())
    prompts = [list(row.tokens) for row in HELD_OUT]
    asked: Any = (prompts, [4] * 12, lambda row, tokens, known: None, [0] * 12)
    assert engine.predictor().generate(*asked).rows == plain.predictor().generate(*asked).rows
    assert likelihoods(engine) == likelihoods(plain)
    tracked = list(work(engine, 0, use="track").rows)
    assert tracked != list(work(plain, 0, use="track").rows)
    plain.load(raw_of(engine))
    assert tracked == list(work(plain, 0, use="track").rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_from_files_has_the_same_bits(kind: str, tmp_path: Path) -> None:
    engine = engine_of(kind)
    for step in range(10):
        work(engine, step)
    parts = {"w": engine.weights(), "t": {"optimizer": engine.optimizer(), "feed": None}}
    for name, payload in parts.items():
        (tmp_path / name).mkdir()
        TorchCodec().write(payload, tmp_path / name)
    again = engine_of(kind)
    again.load(TorchCodec().read(tmp_path / "w"))
    again.load_optimizer(TorchCodec().read(tmp_path / "t")["optimizer"])
    assert likelihoods(again) == likelihoods(engine)
    assert same(raw_of(again), raw_of(engine))
    for step in range(10, 20):
        assert list(work(again, step).rows) == list(work(engine, step).rows)
    assert same(again.weights(), engine.weights())
    one, other = again.optimizer(), engine.optimizer()
    assert one["steps"] == other["steps"] == 20
    assert same(one["tensors"], other["tensors"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_not_touched_by_later_training(kind: str) -> None:
    engine = engine_of(kind)
    work(engine, 0)
    weights, moments = engine.weights(), engine.optimizer()["tensors"]
    copies = [{name: t.clone() for name, t in tensors.items()} for tensors in (weights, moments)]
    work(engine, 1)
    likelihoods(engine)
    assert same(weights, copies[0])
    assert same(moments, copies[1])


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_without_moments_both_are_what_was_loaded(kind: str) -> None:
    engine, plain = engine_of(kind), engine_of(kind, None)
    base = engine.weights()
    for step in range(3):
        work(engine, step)
    average = engine.weights()
    likelihoods(engine)
    for each in (engine, plain):
        each.load(average)
        each.load_optimizer(None)
    assert same(raw_of(engine), average)
    assert same(engine.weights(), average)
    assert list(work(engine, 3).rows) == list(work(plain, 3).rows)
    engine.load(None)
    assert same(engine.weights(), base)
    assert same(raw_of(engine), base)


@pytest.mark.parametrize("rule", ["sgd", "optimizer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_look_ahead_leaves_both_bit_identical(kind: str, rule: Any) -> None:
    engine, plain = engine_of(kind), engine_of(kind, None)
    for step in range(3):
        for each in (engine, plain):
            work(each, step)
    before = engine.weights(), engine.optimizer()["tensors"]
    ahead = [work(e, 5, use="look_ahead", step=rule) for e in (engine, plain)]
    assert list(ahead[0].rows) == list(ahead[1].rows), "it looks ahead of the raw weights"
    assert list(ahead[0].after) == list(ahead[1].after)
    assert same(engine.weights(), before[0])
    assert same(engine.optimizer()["tensors"], before[1])
    assert not same(before[0], raw_of(engine))
    assert list(work(engine, 6).rows) == list(work(plain, 6).rows)


@pytest.mark.parametrize("kind", ["fast", "fast, recorded", "simple"])
def test_a_step_that_is_not_taken_does_not_move_the_average(kind: str) -> None:
    engine = engine_of(kind)
    for step in range(3):
        work(engine, step)
    average, moments = engine.weights(), engine.optimizer()
    moments["tensors"]["lm_head.weight.raw"][:] = 3e38  # as far as fp32 goes
    engine.load_optimizer(moments)
    with pytest.raises(NotANumber):
        list(work(engine, 3).rows)
    assert same(engine.weights(), average)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_decay_is_no_average(kind: str) -> None:
    engine, plain = engine_of(kind, 1e-9), engine_of(kind, None)
    for step in range(5):
        for each in (engine, plain):
            work(each, step)
    assert same(engine.weights(), plain.weights())
    assert likelihoods(engine) == likelihoods(plain)


def test_nothing_is_copied_where_the_model_shows_it_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, copies = engine_of("fast, bf16"), list[int]()
    copy = torch._foreach_copy_
    engine.work(Batch((("a", 0),), use="track"))

    def counted(*args: Any, **options: Any) -> Any:
        copies.append(len(args[0]))
        return copy(*args, **options)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    for use in ("track", "track", "measure", "measure", "track"):
        if use == "measure":
            likelihoods(engine)
        else:
            engine.work(Batch((("a", 0),), use="track"))
    assert len(copies) == 2, "once to the average, once back"


# The optimizer by itself, on a GPU too.

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(64, 32), (7,), (4097,), (300, 60)]


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("decay", [0.98, 0.2, 1e-9])
def test_the_optimizer_moves_it_whichever_way_it_takes(
    decay: float, kernel: bool, halved: bool
) -> None:
    if kernel:
        pytest.importorskip("triton", exc_type=ImportError)
    torch.manual_seed(0)
    mine = {f"w{n}": nn.Parameter(torch.randn(s).to(DEVICE)) for n, s in enumerate(SHAPES)}
    adamw = AdamW(mine, mixed=True, halved=halved, kernel=kernel, ema_decay=decay)
    assert adamw.average is not None
    by_hand = {name: master.double() for name, master in adamw.masters.items()}
    for step in range(6):
        for number, (name, parameter) in enumerate(mine.items()):
            if (step, name) != (3, "w1"):  # an expert that no token went to
                random = torch.Generator().manual_seed(10 * step + number)
                slope = torch.randn(parameter.shape, generator=random)
                parameter.grad = slope.to(DEVICE, torch.bfloat16)
        adamw.bad.fill_(1 if step == 4 else 0)
        adamw.begin_step(1e-2)
        adamw.step(0.0)
        if step != 4:
            for name, master in adamw.masters.items():
                by_hand[name] = decay * by_hand[name] + (1 - decay) * master.double()
    for name, average in adamw.average.tensors.items():
        assert torch.allclose(average.double(), by_hand[name], atol=1e-6, rtol=1e-6), name
        assert decay < 1e-6 or not torch.equal(average, adamw.masters[name])
        if decay == 1e-9:
            assert torch.equal(average, adamw.masters[name]), name
