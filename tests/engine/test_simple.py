"""The simple engine: the golden reference of the fast one, and the engine of every other model."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import fast, settings_of, simple
from families import (
    FAMILIES,
    OTHER_FAMILIES,
    VOCABULARY,
    loaded,
    model_of,
    own_model_of,
    rows_of,
)

from msft.engine.fast import FastEngine
from msft.engine.model.loading import LoadedModel
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.engine.simple import SimpleEngine, SimplePredictor
from msft.search.feeds import Batch

ROWS = rows_of(64)
SETTINGS: dict[str, Any] = {"weight_decay": 0.01}


def batch_of(place: int, **options: Any) -> Batch:
    return Batch(tuple(("a", (8 * place + number) % 64) for number in range(8)), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_steps_of_both_engines_have_the_same_losses(family: str) -> None:
    pair = (simple(ROWS, family, **SETTINGS), fast(ROWS, family, **SETTINGS))
    for step in range(50):
        (a, tokens), (b, same_tokens) = (e.work(batch_of(step)) for e in pair)
        assert list(a.rows) == pytest.approx(list(b.rows), rel=1e-5, abs=1e-5), step
        assert tokens == same_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_grad_norm": 0.1},
        {"micro_batch_tokens": 40},
        {"schedule": "cosine", "warmup_steps": 3, "schedule_steps": 12},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_both_engines_read_every_setting_the_same_way(options: dict[str, Any]) -> None:
    pair = simple(ROWS, **options), fast(ROWS, **options)
    for step in range(12):
        rows = [list(engine.work(batch_of(step))[0].rows) for engine in pair]
        assert rows[0] == pytest.approx(rows[1], rel=1e-5, abs=1e-5), step


@pytest.mark.parametrize("rule", ["optimizer", "sgd"])
def test_a_look_ahead_is_that_of_the_fast_engine(rule: Any) -> None:
    ahead = []
    for engine in (simple(ROWS, **SETTINGS), fast(ROWS, **SETTINGS)):
        engine.work(batch_of(0))
        ahead.append(engine.work(batch_of(1, use="look_ahead", step=rule))[0])
    assert list(ahead[0].rows) == pytest.approx(list(ahead[1].rows), rel=1e-5)
    assert list(ahead[0].after) == pytest.approx(list(ahead[1].after), rel=1e-5)
    assert list(ahead[0].after) != list(ahead[0].rows)


def no_leaving(row: int, tokens: Any, known: int) -> None:
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_both_engines_say_the_same_and_measure_the_same(family: str) -> None:
    model = model_of(family)
    prompts = [row.tokens[: 3 + number % 4] for number, row in enumerate(ROWS[:16])]
    limits = [2 + number % 5 for number in range(16)]
    predictor = FastEngine(loaded(model), {"a": ROWS}, settings_of()).predictor()
    said = predictor.generate(prompts, limits, no_leaving, [0] * 16)
    likelihoods = predictor.measure(ROWS, [0] * 64)()
    model.set_attn_implementation("eager")
    plain = SimplePredictor(loaded(model), 100)
    assert plain.generate(prompts, limits, no_leaving, [0] * 16).rows == said.rows
    assert plain.measure(ROWS, [0] * 64)().rows == pytest.approx(likelihoods.rows, rel=1e-4)


def test_a_text_ends_where_it_may_leave_and_tokens_are_counted() -> None:
    predictor = simple(ROWS).predictor()
    prompts = [[5, 6, 7], [8, 9, 10], [5, 6]]
    whole = predictor.generate(prompts, [6, 6, 6], no_leaving, [0, 0, 0])
    assert whole.tokens == sum(
        len(p) + len(t) - 1 for p, t in zip(prompts, whole.rows, strict=True)
    )
    cut = predictor.generate(
        prompts, [6, 6, 6], lambda row, tokens, known: 2 if row else None, [0] * 3
    )
    assert cut.rows == [whole.rows[0], whole.rows[1][:2], whole.rows[2][:2]]


def test_penalties_of_a_models_own_do_not_count() -> None:
    engine = simple(ROWS)
    plain = engine.predictor().generate([[5, 6, 7]], [8], no_leaving, [0]).rows
    model = model_of("llama", 1.0)
    model.set_attn_implementation("eager")
    model.generation_config.repetition_penalty = 50.0
    habits = SimplePredictor(loaded(model), 100).generate([[5, 6, 7]], [8], no_leaving, [0]).rows
    assert habits == plain
    assert model.generation_config.repetition_penalty == 50.0


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_every_other_family_learns_is_saved_and_goes_on(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    held = LoadedModel(own_model_of(family), tiny_tokenizer(), family)
    engine = SimpleEngine(held, {"a": ROWS}, settings_of(learning_rate=3e-3))
    losses = [sum(engine.work(batch_of(0))[0].rows) for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    weights, moments = engine.weights(), engine.optimizer()
    ahead = [list(engine.work(batch_of(1))[0].rows) for _ in range(3)]
    engine.load(weights)
    engine.load_optimizer(moments)
    assert [list(engine.work(batch_of(1))[0].rows) for _ in range(3)] == ahead
    (tmp_path / "best").mkdir()
    engine.export(weights, tmp_path / "best")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "best")
    assert all(torch.equal(p, weights[name]) for name, p in again.named_parameters())
    texts = SimplePredictor(held, 1000).generate([[5, 6, 7], [9, 8]], [4, 3], no_leaving, [0, 0])
    assert all(0 <= token < VOCABULARY for text in texts.rows for token in text)


def test_the_average_is_in_fp32_and_in_order() -> None:
    engine = simple(ROWS)
    first = engine.weights()
    parts = [{name: w + number for name, w in first.items()} for number in (0, 1, 5)]
    mean = engine.average(parts)
    assert all(torch.allclose(mean[name], first[name] + 2, atol=1e-6) for name in first)
    big, one = torch.tensor([2.0**24]), torch.tensor([1.0], dtype=torch.bfloat16)
    for order, total in (((big, one, one), 2**24), ((one, one, big), 2**24 + 2)):
        weight = engine.average([{"w": tensor} for tensor in order])["w"]
        assert weight.equal(torch.tensor([float(total)]) / 3)
    assert big.item() == 2.0**24


def test_of_what_is_averaged_one_is_held_at_a_time() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def fetched() -> Iterator[dict[str, torch.Tensor]]:
        for number in range(5):
            assert sum(each() is not None for each in alive) <= 1, (
                "the last tensor of the one before"
            )
            part = {name: torch.full((4,), float(number)) for name in ("v", "w")}
            alive.extend(weakref.ref(tensor) for tensor in part.values())
            yield part
            del part

    mean = simple(ROWS).average(fetched())
    assert mean["v"].tolist() == mean["w"].tolist() == [2.0] * 4
