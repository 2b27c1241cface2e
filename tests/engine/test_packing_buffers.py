"""A padded buffer is the same step: same losses, same gradients, nothing from the padding."""

from typing import Any

import numpy as np
import pytest
import torch
from families import model_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

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
)
from msft.example import Encoded

CPU = torch.device("cpu")


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
