"""Our own kernels compute attention. On a GPU as they are, elsewhere by Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from families import END, model_of
from plain_varlen import plain_varlen
from torch import Tensor

from msft.engine import kernels
from msft.engine.decode.decoder import Decoder
from msft.engine.decode.step import Kernels

short_rows = pytest.importorskip(
    "msft.engine.accel.short_rows", reason="Triton is not installed", exc_type=ImportError
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KIND = torch.bfloat16 if torch.cuda.is_available() else torch.float32
CLOSE = 5e-2 if torch.cuda.is_available() else 1e-5


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """What attention is."""
    q, k, v = q.float(), k.float(), v.float()
    groups = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1), scores.logsumexp(-1)


def some(heads: int, tokens: int, dim: int) -> Tensor:
    """Heads as a projection leaves them: tokens outside, heads inside."""
    numbers = torch.randn(tokens, heads * dim, device=DEVICE, dtype=KIND)
    return numbers.view(tokens, heads, dim).transpose(0, 1)


def close(ours: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(ours.float(), theirs.float(), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize(
    ("heads", "shared", "dim", "lengths"),
    [(4, 2, 16, [5, 70, 1, 33, 64, 20]), (3, 1, 20, [130, 7]), (2, 2, 64, [1])],
)
def test_rows_in_a_line_and_their_gradients(
    heads: int, shared: int, dim: int, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    padding = 9
    bounds = torch.tensor([0, *lengths, 0, padding], device=DEVICE).cumsum(0).int()
    tokens = int(bounds[-1])
    sight = short_rows.Sight.of(bounds, tokens, padded=True)
    place = torch.arange(tokens, device=DEVICE)
    row = torch.arange(len(lengths), device=DEVICE).repeat_interleave(
        bounds[1:-2].diff(prepend=bounds[:1])
    )
    row = torch.cat([row, len(row) + torch.arange(padding, device=DEVICE)])
    seen = (row[:, None] == row) & (place <= place[:, None])
    given = [some(heads, tokens, dim), some(shared, tokens, dim), some(shared, tokens, dim)]
    ours = [tensor.clone().requires_grad_() for tensor in given]
    theirs = [tensor.clone().requires_grad_() for tensor in given]
    out, lse = short_rows.line_attention(*ours, sight)
    expected, expected_lse = attended(theirs[0], theirs[1], theirs[2], seen)
    assert close(out, expected)
    assert close(lse, expected_lse)
    slope = torch.randn_like(expected)
    out.backward(slope.to(KIND))
    expected.backward(slope)  # type: ignore[no-untyped-call]
    for mine, right in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert right.grad is not None
        assert close(mine.grad, right.grad)


def test_a_token_sees_its_stem() -> None:
    torch.manual_seed(0)
    tokens, stems = 150, [(0, 40), (40, 75)]
    pieces = [*stems, (75, 80), (80, 81), (81, 120), (120, 150)]
    begin, end = torch.full((tokens,), tokens), torch.zeros(tokens, dtype=torch.long)
    starts = torch.zeros(tokens, dtype=torch.long)
    for number, (first, last) in enumerate(pieces):
        starts[first:last] = first
        if number in (2, 3, 5):
            begin[first:last], end[first:last] = stems[number // 4]
    begin, end, starts = (tensor.to(DEVICE) for tensor in (begin, end, starts))
    place = torch.arange(tokens, device=DEVICE)
    seen = (place >= starts[:, None]) & (place <= place[:, None])
    seen |= (place >= begin[:, None]) & (place < end[:, None])
    q, k, v = some(4, tokens, 16), some(2, tokens, 16), some(2, tokens, 16)
    sight = short_rows.Sight(starts.int(), None, (begin.int(), end.int()))
    ours, theirs = short_rows.line_attention(q, k, v, sight), attended(q, k, v, seen)
    assert all(close(mine, right) for mine, right in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("ahead", [1, 2, 8])
def test_a_step_keeps_its_keys_and_sees_its_own_slots_only(ahead: int) -> None:
    torch.manual_seed(0)
    heads, shared, dim = 6, 2, 16
    keys, values = (torch.randn(500, shared, dim, device=DEVICE, dtype=KIND) for _ in range(2))
    before = keys.clone(), values.clone()
    starts = torch.tensor([0, 18, 190, 200, 490], device=DEVICE)
    lengths = torch.tensor([9, 137, 0, 200, 1], device=DEVICE)
    tokens = 5 * ahead
    q, k, v = some(heads, tokens, dim), some(shared, tokens, dim), some(shared, tokens, dim)
    out, lse = short_rows.step_attention(q, k, v, (keys, values), starts, lengths)
    touched = torch.zeros(500, dtype=torch.bool, device=DEVICE)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        mine, last = slice(row * ahead, (row + 1) * ahead), start + length
        all_keys, all_values = (
            torch.cat([held[start:last].transpose(0, 1), new[:, mine]], 1)
            for held, new in zip(before, (k, v), strict=True)
        )
        place = torch.arange(length + ahead, device=DEVICE)
        seen = place[None, :] <= place[length:, None]
        expected, sums = attended(q[:, mine], all_keys, all_values, seen)
        assert close(out[mine], expected)
        assert close(lse[:, mine], sums)
        assert torch.equal(keys[last : last + ahead], k[:, mine].transpose(0, 1))
        assert torch.equal(values[last : last + ahead], v[:, mine].transpose(0, 1))
        touched[last : last + ahead] = True
    assert torch.equal(keys[~touched], before[0][~touched])


def test_heads_may_lie_in_any_order() -> None:
    torch.manual_seed(0)
    q, k, v = some(4, 3, 16), some(2, 3, 16), some(2, 3, 16)
    odd = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    assert all(tensor.stride(2) != 1 for tensor in odd)
    starts, lengths = torch.tensor([0, 3, 5], device=DEVICE), torch.tensor([2, 1, 0], device=DEVICE)
    found = []
    for given in ((q, k, v), odd):
        store = tuple(torch.ones(9, 2, 16, device=DEVICE, dtype=KIND) for _ in range(2))
        found.append((*short_rows.step_attention(*given, store, starts, lengths), *store))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("dim", [64, 128])
def test_shared_memory_is_enough_on_smaller_gpus(dim: int) -> None:
    """Compute capability 8.6 (RTX 3090, A10) has 99 kB for a block, as have 8.9 and 12.0."""
    script = Path(__file__).with_name("kernel_sizes.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, script, str(dim), "86"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert len(sizes) == 5
    assert max(sizes.values()) <= 99 * 1024


def test_they_are_there_where_triton_can_make_them() -> None:
    assert kernels.short_rows() == kernels.OptionalKernel(short_rows)


def test_where_triton_cannot_make_them_there_are_none_and_a_reason() -> None:
    """Here for want of a GPU's driver, or of a C compiler: no interpreter, no path."""
    code = "from msft.engine.kernels import short_rows as s; print(s().item, s().reason, sep='\\n')"
    environment = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "CC")}
    environment |= {"PATH": "", "TRITON_CACHE_DIR": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    item, reason = done.stdout.splitlines()
    assert item == "None"
    assert reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("prefix", [0, 20])
def test_an_evaluation_with_them_says_the_same(family: str, prefix: int) -> None:
    random, model = Random(0), model_of(family).eval()
    shared = tuple(random.randrange(2, 60) for _ in range(prefix))
    prompts = [
        shared + tuple(random.randrange(2, 60) for _ in range(random.randrange(1, 9)))
        for _ in range(5)
    ]

    def decoder(own: Any) -> Decoder:
        return Decoder(model, [END], 10**6, kernels=Kernels(plain_varlen, own))

    ours, theirs = (decoder(own).generate(prompts, [6] * 5) for own in (short_rows, None))
    assert ours == theirs
