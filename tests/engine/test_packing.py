"""Rows in one line are rows by themselves: loss, gradients, and no leak from one to another."""

from typing import Any

import pytest
import torch
from engines import fast, settings_of
from families import FAMILIES, loaded, model_of, rows_of
from torch.nn import functional

from msft.engine.decode.decoder import batches
from msft.engine.fast import FastEngine
from msft.engine.packing import RowLayout, TrainingRow, logits_of, packed
from msft.example import Encoded
from msft.search.feeds import Batch

CPU = torch.device("cpu")


def step_of(engine: FastEngine, count: int) -> tuple[list[float], dict[str, Any]]:
    """Losses and gradients of the first step: its first moments are a tenth of the gradients."""
    losses, _ = engine.work(Batch(tuple(("a", number) for number in range(count))))
    moments = engine.optimizer()["tensors"]
    names = [name for name, _ in engine.model.named_parameters()]
    return list(losses.rows), {name: 10 * moments[f"{name}.exp_avg"] for name in names}


def gradients_one_at_a_time(model: Any, rows: list[Encoded]) -> tuple[list[float], dict[str, Any]]:
    """Plain transformers, a row a time, without any of our code."""
    model.set_attn_implementation("eager")
    model.zero_grad()
    model.train()
    total = sum(row.answer_tokens for row in rows)
    losses = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.tokens])).logits[0]
        marks = zip(row.tokens, row.answer, strict=True)
        labels = torch.tensor([token if answer else -100 for token, answer in marks])
        nll = functional.cross_entropy(logits[:-1], labels[1:], reduction="sum")
        (nll / total).backward()  # type: ignore[no-untyped-call]
        losses.append(nll.item() / row.answer_tokens)
    return losses, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_loss_and_every_gradient_equal_the_one_row_at_a_time_sum(family: str) -> None:
    rows = rows_of(16)
    model = model_of(family)
    losses, ours = step_of(
        FastEngine(loaded(model), {"a": rows}, settings_of(learning_rate=0.0)), len(rows)
    )
    expected, gradients = gradients_one_at_a_time(model, rows)
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for name, gradient in gradients.items():
        scale = gradient.abs().max().item() + 1e-12
        worst = (ours[name] - gradient).abs().max().item()
        assert worst / scale < 1e-5, name


@pytest.mark.parametrize("family", FAMILIES)
def test_poison_a_changed_row_leaves_all_other_rows_bitwise_equal(family: str) -> None:
    model = model_of(family).eval()
    rows = rows_of(8)
    poisoned = [*rows]
    poisoned[3] = Encoded(tuple(96 - token for token in rows[3].tokens), rows[3].answer)

    def logits(batch: list[Encoded]) -> list[Any]:
        line = packed([*map(TrainingRow.of, batch)], CPU)
        lengths = [len(row.tokens) for row in batch]
        present, every = RowLayout(lengths, CPU), torch.arange(sum(lengths))
        with torch.no_grad():
            found = logits_of(model, line.tokens, line.positions, present, every)
        return list(found.split(lengths))

    for number, (clean, other) in enumerate(zip(logits(rows), logits(poisoned), strict=True)):
        assert torch.equal(clean, other) == (number != 3)


def test_micro_batches_give_the_same_gradient() -> None:
    rows = rows_of(16)
    results = []
    for tokens in (10**6, 60, 1):
        results.append(step_of(fast(rows, micro_batch_tokens=tokens), len(rows)))
    for losses, gradients in results[1:]:
        assert losses == pytest.approx(results[0][0], rel=1e-5)
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, results[0][1][name], rtol=1e-4, atol=1e-6), name


def test_micro_batches_keep_order_and_take_a_long_row_alone() -> None:
    rows = rows_of(10)
    groups = batches((len(row.tokens) for row in rows), 40)
    assert [number for group in groups for number in group] == list(range(10))
    for group in groups:
        assert len(group) == 1 or sum(len(rows[n].tokens) for n in group) <= 40


def test_a_batch_is_one_step_of_as_many_samples_as_it_has() -> None:
    rows = rows_of(8)
    engine = fast(rows)
    before = engine.weights()
    losses, tokens = engine.work(Batch(tuple(("a", number) for number in range(8))))
    assert len(losses.rows) == 8
    assert tokens == sum(len(row.tokens) for row in rows)
    assert engine.optimizer()["steps"] == 1
    assert any(not torch.equal(before[name], after) for name, after in engine.weights().items())
