"""The engine's promises: state comes back bit by bit, and a look-ahead leaves no trace."""

from typing import Any
from weakref import ref

import pytest
import torch
from engines import BOTH, fast, same, settings_of
from families import FAMILIES, model_of, own_model_of, rows_of

from msft.engine.decode.decoder import Decoder
from msft.engine.fast import FastEngine
from msft.errors import NotANumber, NotRecorded
from msft.search.feeds import Batch

ALL = Batch(tuple(("a", number) for number in range(8)))


def engine_of(family: str = "llama", **settings: Any) -> FastEngine:
    return fast(rows_of(8), family, **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_falls(family: str) -> None:
    engine = engine_of(family)
    first = sum(list(engine.work(ALL)[0].rows))
    for _ in range(10):
        last = sum(list(engine.work(ALL)[0].rows))
    assert last < first


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("step", ["sgd", "optimizer"])
def test_a_look_ahead_leaves_weights_optimizer_and_randomness_bit_identical(
    step: Any, make: Any
) -> None:
    engine = make(rows_of(8))
    engine.work(ALL)
    weights, moments, random = engine.weights(), engine.optimizer(), torch.get_rng_state()
    losses, _ = engine.work(Batch(ALL.rows, "look_ahead", step))
    assert same(weights, engine.weights())
    assert moments["steps"] == engine.optimizer()["steps"]
    assert same(moments["tensors"], engine.optimizer()["tensors"])
    assert torch.equal(random, torch.get_rng_state())
    assert sum(losses.after) < sum(losses.rows), "a step on a batch lowers its own loss"
    twin = make(rows_of(8))
    twin.work(ALL)
    twin.work(ALL)
    engine.work(ALL)
    assert same(twin.weights(), engine.weights())


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_tracking_changes_nothing(make: Any) -> None:
    engine = make(rows_of(8))
    weights = engine.weights()
    losses, _ = engine.work(Batch(ALL.rows, "track"))
    assert len(losses.rows) == 8
    assert same(weights, engine.weights())
    assert all(p.grad is None for p in engine._parameters.values())


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_a_snapshot_is_not_touched_by_later_training_and_continues_bit_identically(
    make: Any,
) -> None:
    engine = make(rows_of(8))
    for _ in range(3):
        engine.work(ALL)
    weights, moments = engine.weights(), engine.optimizer()
    first = [list(engine.work(ALL)[0].rows) for _ in range(3)]
    final = engine.weights()
    engine.load(weights)
    engine.load_optimizer(moments)
    assert [list(engine.work(ALL)[0].rows) for _ in range(3)] == first
    assert same(final, engine.weights())


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_no_weights_means_the_base_model_and_no_moments_a_fresh_optimizer(make: Any) -> None:
    engine = make(rows_of(8))
    base = engine.weights()
    first = list(engine.work(ALL)[0].rows)
    engine.load(None)
    engine.load_optimizer(None)
    assert same(base, engine.weights())
    assert list(engine.work(ALL)[0].rows) == first


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_weights_of_another_model_are_refused_and_the_tensor_named(make: Any) -> None:
    engine = make(rows_of(8))
    weights = engine.weights()
    name = next(iter(weights))
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        engine.load({key: tensor for key, tensor in weights.items() if key != name})
    with pytest.raises(ValueError, match="shape"):
        engine.load({**weights, name: weights[name][:1]})


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_a_loss_that_is_not_a_number_never_enters_the_weights(make: Any) -> None:
    engine = make(rows_of(8))
    broken = engine.weights()
    broken["lm_head.weight"][:] = float("nan")
    engine.load(broken)
    before = engine.weights()
    with pytest.raises(NotANumber, match=r"row 0 of a .*; lower learning_rate or set"):
        engine.work(ALL)
    after = engine.weights()
    assert all(torch.equal(before[k], after[k]) for k in before if k != "lm_head.weight")
    assert engine.optimizer()["steps"] == 0


def test_dropout_is_a_function_of_the_seed() -> None:
    def losses(seed: int) -> Any:
        engine = engine_of("gpt2")
        for module in engine.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        watched = list(engine.work(Batch(ALL.rows, "track"))[0].rows)  # no dropout there
        engine.seed(seed)
        trained = list(engine.work(ALL)[0].rows)
        assert trained != watched
        return trained

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", 0, [1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ("linear", 4, [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
    ],
)
def test_schedules(schedule: Any, warmup: int, rates: list[float]) -> None:
    settings = settings_of(
        learning_rate=1.0, schedule=schedule, warmup_steps=warmup, schedule_steps=4 + warmup
    )
    assert [settings.rate(step) for step in range(len(rates))] == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize("most", [0.0, 0.01])
@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_a_step_says_its_rate_and_the_norm_of_its_gradient_before_clipping(
    make: Any, most: float
) -> None:
    twin, rows = own_model_of("llama"), rows_of(8)
    how = {"schedule": "linear", "schedule_steps": 4, "max_grad_norm": most}
    engine = make(rows, learning_rate=0.5, **how)
    total, tokens = torch.zeros(()), 0
    for row in rows:
        text = torch.tensor([row.tokens])
        start = len(row.tokens) - row.answer_tokens
        scores = twin(text).logits[0, start - 1 : -1].log_softmax(-1)
        total = total - scores.gather(1, text[0, start:, None]).sum()
        tokens += row.answer_tokens
    (total / tokens).backward()  # type: ignore[no-untyped-call]
    squares = [p.grad.square().sum() for p in twin.parameters() if p.grad is not None]
    first = engine.work(ALL)[0].update
    second = engine.work(ALL)[0].update
    assert (first.learning_rate, second.learning_rate) == (0.5, 0.375)
    assert first.grad_norm() == pytest.approx(float(torch.stack(squares).sum().sqrt()), rel=1e-4)
    assert first.grad_norm() != second.grad_norm()
    assert engine.work(Batch(ALL.rows, "track"))[0].update is None


def test_weight_decay_and_clipping_do_something() -> None:
    plain, decayed, clipped = (
        engine_of("llama", **options)
        for options in ({}, {"weight_decay": 0.5}, {"max_grad_norm": 1e-4})
    )
    for engine in (plain, decayed, clipped):
        engine.work(ALL)
        engine.work(ALL)
    assert not same(plain.weights(), decayed.weights())
    assert not same(plain.weights(), clipped.weights())


def test_gradient_checkpointing_gives_the_same_losses() -> None:
    plain, checkpointed = engine_of(), engine_of(gradient_checkpointing=True)
    for _ in range(3):
        one, other = plain.work(ALL)[0].rows, checkpointed.work(ALL)[0].rows
        assert one == pytest.approx(other, rel=1e-5)


def forgetful(model: Any, most_tokens: int) -> Any:
    """A model whose memory holds only so many tokens."""
    forward = model.forward

    def limited(*arguments: Any, **options: Any) -> Any:
        if options["input_ids"].numel() > most_tokens:
            raise torch.OutOfMemoryError("no memory for so many tokens")
        return forward(*arguments, **options)

    model.forward = limited
    return model


def test_out_of_memory_in_training_splits_the_batch_and_the_gradient_is_the_same() -> None:
    plain, poor = engine_of(), engine_of()
    forgetful(poor.model, 40)
    for _ in range(2):
        one, other = plain.work(ALL)[0].rows, poor.work(ALL)[0].rows
        assert one == pytest.approx(other, rel=1e-5)
    for name, tensor in poor.weights().items():
        assert torch.allclose(tensor, plain.weights()[name], atol=1e-6)
    hopeless = engine_of()
    forgetful(hopeless.model, 3)
    with pytest.raises(torch.OutOfMemoryError):
        hopeless.work(ALL)


def test_out_of_memory_in_generation_halves_the_batch_and_says_the_same() -> None:
    prompts = [row.tokens for row in rows_of(12)]
    plain = Decoder(model_of("llama").eval(), [0], 10**6)
    poor = Decoder(forgetful(model_of("llama").eval(), 60), [0], 10**6)
    assert poor.generate(prompts, [6] * 12).rows == plain.generate(prompts, [6] * 12).rows
    assert poor.measure(rows_of(12))().rows == pytest.approx(
        plain.measure(rows_of(12))().rows, rel=1e-5
    )


def test_the_score_before_a_snapshot_is_the_score_after_its_restore_bitwise() -> None:
    engine = engine_of()
    decoder = Decoder(engine.model, [0], 10**6)
    prompts = [row.tokens for row in rows_of(6, seed=5)]

    def scored() -> Any:
        said = decoder.generate(prompts, [6] * 6).rows
        return said, decoder.measure(rows_of(12, seed=4))().rows

    engine.work(ALL)
    before, weights, moments = scored(), engine.weights(), engine.optimizer()
    for _ in range(3):
        engine.work(ALL)
    assert scored()[1] != before[1]
    engine.load(weights)
    engine.load_optimizer(moments)
    assert scored() == before


@pytest.mark.usefixtures("no_cuda_events")
@pytest.mark.parametrize("reason", [torch.OutOfMemoryError, NotRecorded])
def test_recorded_steps_that_cannot_be_are_gone_before_the_plain_one(
    reason: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their memory is what the plain step needs."""

    recorders: list[Any] = []

    class Full:
        """A recorder that has no room to rehearse."""

        stream = None

        def __init__(self) -> None:
            recorders.append(ref(self))

        def renew(self) -> None: ...

        def rehearsing(self) -> Any:
            raise reason("why not")

        def recorded(self, work: Any) -> Any: ...

    plain, engine = engine_of(), fast(rows_of(8), recorder=Full, batch_rows=8)
    assert engine.paths().steps == "recorded"
    (recorder,), seen = recorders, list[Any]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(recorder()))
    assert list(engine.work(ALL)[0].rows) == list(plain.work(ALL)[0].rows)
    assert seen == [None], "nobody holds them when the cache is emptied"
    assert engine.paths().steps == "eager"
    assert engine.paths().reason.startswith(
        "no CUDA device; why not" if reason is NotRecorded else "no CUDA device; no memory"
    )
    assert len(caplog.records) == 1, "said once"
    engine.work(ALL)
    plain.work(ALL)
    assert same(engine.weights(), plain.weights())
