"""Rows in one line are rows by themselves: loss, gradients, and no leak from one to another."""

from typing import Any

import numpy as np
import pytest
import torch
from engines import fast, settings_of
from families import FAMILIES, loaded, model_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from msft.engine.decode.decoder import batches
from msft.engine.fast import FastEngine
from msft.engine.kernels import NO_LABEL
from msft.engine.packing import (
    BufferShape,
    PackedRows,
    RowLayout,
    TrainingRow,
    fill,
    logits_of,
    packed,
    row_means,
    to_device_async,
)
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
        return list(torch.split(found, lengths))

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


# A padded buffer is the same step: nothing comes from the padding.


def padded(rows: list[TrainingRow], tokens: int, targets: int, most: int) -> PackedRows:
    shape = BufferShape.of(rows).rounded(tokens, targets, most)
    buffer = np.full(shape.size, 10**12, dtype=np.int64)  # whatever was there before
    fill(buffer, rows, shape)
    return PackedRows.over(torch.from_numpy(buffer), shape)


def gradients(
    model: Any, line: PackedRows, lengths: list[int]
) -> tuple[list[float], dict[str, Any]]:
    """What the engine does with a line: row losses, and the gradient of the token mean."""
    model.zero_grad()
    present = RowLayout(lengths, CPU)
    logits = logits_of(model, line.tokens, line.positions, present, line.targets)
    nll = torch.nn.functional.cross_entropy(logits, line.labels, reduction="none")
    (nll.sum() / (line.labels != NO_LABEL).sum()).backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    return row_means(nll.detach(), line).tolist(), found


@pytest.mark.parametrize(("tokens", "targets", "most"), [(64, 16, 8), (512, 512, 12), (1, 1, 8)])
def test_padding_changes_neither_losses_nor_gradients(tokens: int, targets: int, most: int) -> None:
    rows = [TrainingRow.of(row) for row in rows_of(8)]
    model = model_of("llama", 1.0)
    lengths = [len(row.tokens) for row in rows]
    plain, expected = gradients(model, packed(rows, CPU), lengths)
    line = padded(rows, tokens, targets, most)
    rest = len(line.tokens) - sum(lengths)
    losses, found = gradients(model, line, [*lengths, rest])
    assert losses[:8] == pytest.approx(plain, rel=1e-6)
    assert losses[8:] == [0.0] * (most - 8)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-7), name


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.booleans(), min_size=2, max_size=12).filter(lambda a: any(a[1:])),
        min_size=1,
        max_size=6,
    )
)
def test_a_buffer_holds_every_row_where_its_bounds_say(answers: list[list[bool]]) -> None:
    encoded = [
        Encoded(tuple(range(100 * n, 100 * n + len(a))), tuple(a)) for n, a in enumerate(answers)
    ]
    rows = [TrainingRow.of(row) for row in encoded]
    for line in (packed(rows, CPU), padded(rows, 16, 8, 6)):
        bounds = line.bounds.tolist()
        for number, row in enumerate(encoded):
            start, end = bounds[number : number + 2]
            assert tuple(line.tokens[start:end].tolist()) == row.tokens
            assert line.positions[start:end].tolist() == list(range(len(row.tokens)))
        assert bounds == sorted(bounds)
        assert bounds[-1] == len(line.tokens)
        real = line.labels != NO_LABEL
        wanted = [
            (n, row.tokens[i])
            for n, row in enumerate(encoded)
            for i in range(1, len(row.answer))
            if row.answer[i]
        ]
        assert list(zip(line.owners[real].tolist(), line.labels[real].tolist(), strict=True)) == (
            wanted
        )
        assert (line.tokens[line.targets[real]] + 1).tolist() == line.labels[real].tolist()
        assert int(line.targets.max()) < len(line.tokens)


def test_shapes_leave_a_token_for_the_padding_row() -> None:
    assert BufferShape(512, 512, 8).rounded(512, 512, 8) == BufferShape(1024, 512, 8, True)
    assert BufferShape(511, 513, 3).rounded(512, 512, 8) == BufferShape(512, 1024, 8, True)


# What the host sends arrives, and a step that is not recorded waits for nothing.

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_numbers_arrive(device: str) -> None:
    numbers = torch.arange(100_000)
    there = to_device_async(numbers, torch.device(device))
    assert there.device.type == device
    assert torch.equal(there.cpu(), numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("tokens", [2**14, 64])
def test_the_host_runs_ahead_of_steps_in_one_or_many_micro_batches(tokens: int) -> None:
    engine = fast(rows_of(8), bf16=True, micro_batch_tokens=tokens, learning_rate=1e-5)
    batch = Batch(tuple(("a", number) for number in range(8)))
    engine.work(batch)[0].rows[0]
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [engine.work(batch)[0] for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses[2].rows[0] < losses[0].rows[0]
