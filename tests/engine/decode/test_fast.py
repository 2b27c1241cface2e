"""The fast way says what the plain way and transformers' `generate` say.

Here it runs with a slow kernel that gives NaN where the real one leaves memory uninitialised.
"""

import gc
import weakref
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from families import END, FAMILIES, VOCABULARY, model_of
from plain_varlen import plain_varlen
from test_decoder import NEW, generated_by_transformers
from torch.nn.functional import scaled_dot_product_attention

from msft.engine.decode.decoder import Decoder, grouped
from msft.engine.decode.plans import answer_lines, bounds_of, bucket_of, smaller_bucket
from msft.engine.decode.step import DecodeGraphs, HostWaits, Kernels, Stepper, Store
from msft.engine.kernels import KernelChoice
from msft.example import Encoded

WINDOWED = ("mistral", "gemma2")
CPU = torch.device("cpu")
KERNELS = Kernels(plain_varlen)
Tokens = tuple[int, ...]


def fast(model: Any, most_tokens: int = 10**6, ends: Sequence[int] = (END,)) -> Decoder:
    return Decoder(model, ends, most_tokens, kernels=KERNELS)


def plain(model: Any, ends: Sequence[int] = (END,)) -> Decoder:
    return Decoder(model, ends, 10**6)


def buckets(decoder: Decoder) -> list[int]:
    assert decoder.fast is not None
    return decoder.fast.buckets


def tokens_of(random: Random, count: int) -> Tokens:
    return tuple(random.randrange(2, VOCABULARY) for _ in range(count))


def grouped_prompts(
    prefixes: Sequence[int], each: int, seed: int = 0
) -> tuple[list[Tokens], list[int]]:
    """Rows of several groups, mixed up; each group starts with so many tokens of its own."""
    random = Random(seed)
    shared = [tokens_of(random, length) for length in prefixes]
    rows = [
        (start + tokens_of(random, random.randrange(1, 15)), group)
        for group, start in enumerate(shared)
        for _ in range(each)
    ]
    random.shuffle(rows)
    return [tokens for tokens, _ in rows], [group for _, group in rows]


@pytest.mark.parametrize("prefixes", [[0], [40], [0, 30, 5, 70]])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tokens_as_generate(family: str, prefixes: list[int]) -> None:
    model = model_of(family).eval()
    prompts, groups = grouped_prompts(prefixes, 12 // len(prefixes))
    limits = [NEW] * len(prompts)
    decoder = fast(model)
    ours = decoder.generate(prompts, limits, groups=groups)
    assert bool(buckets(decoder)) is (family not in WINDOWED)
    near = 0
    for prompt, tokens in zip(prompts, ours.rows, strict=True):
        expected, is_near = generated_by_transformers(model, prompt)
        near += is_near
        assert is_near or tokens == expected
    assert near < len(prompts) / 2
    assert plain(model).generate(prompts, limits, groups=groups) == ours


def test_a_window_wider_than_every_row_is_none() -> None:
    model = model_of("mistral").eval()
    decoder = fast(model)
    short = [(3, 4), (5,), (6, 7, 8)]
    rows = decoder.generate(short, [5] * 3).rows
    assert buckets(decoder) == [16]
    assert rows == plain(model).generate(short, [5] * 3).rows
    assert decoder.way == KernelChoice("fast")
    decoder.generate([(3, 4) * 5], [5])
    assert decoder.way == KernelChoice("plain", "a window in attention")
    decoder.generate(short, [5] * 3)
    assert decoder.way == KernelChoice("fast")
    assert plain(model).way == KernelChoice("plain", "no CUDA device")


def test_many_rows_through_every_bucket() -> None:
    """Rows end one after the other; the steps shrink, and nobody's tokens change."""
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([20, 0, 33], 50)
    limits = [1 + number**3 * 70 // 150**3 for number in range(150)]
    decoder = fast(model, ends=())
    ours = decoder.generate(prompts, limits, groups=groups)
    assert buckets(decoder) == [16, 32, 64, 128, 192]
    assert [len(row) for row in ours.rows] == limits
    assert ours == plain(model, ends=()).generate(prompts, limits, groups=groups)
    again = decoder.generate(prompts, limits, groups=groups)
    assert again == ours, "memory and plans are used again, and nothing else"


def test_buckets_are_few() -> None:
    assert [bucket_of(n) for n in (1, 16, 17, 64, 65, 400)] == [16, 16, 32, 64, 128, 448]
    assert [smaller_bucket(n) for n in (1, 16, 17, 65, 256, 257)] == [16, 16, 32, 128, 256, 512]


def test_new_weights_are_heard_at_once() -> None:
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([20, 0], 6)
    decoder = fast(model)
    before = decoder.generate(prompts, [NEW] * 12, groups=groups)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.flip(0))
    after = decoder.generate(prompts, [NEW] * 12, groups=groups)
    assert after != before
    assert after == plain(model).generate(prompts, [NEW] * 12, groups=groups)


@pytest.mark.parametrize("prompts", [[(5,)], [tuple(range(2, 40))], [(5,), (6, 7)]])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_few_rows_and_small_limits(prompts: list[Tokens], limit: int) -> None:
    model = model_of("qwen2").eval()
    limits = [limit] * len(prompts)
    assert fast(model).generate(prompts, limits) == plain(model).generate(prompts, limits)


@pytest.mark.parametrize("ends", [(), (END,), tuple(range(0, VOCABULARY, 9))])
def test_a_row_ends_exactly_where_leaves_says_so(ends: tuple[int, ...]) -> None:
    """However late the host looks: as if it had looked after each token, each once and in order."""
    model = model_of("qwen3").eval()
    prompts, groups = grouped_prompts([17, 0], 20)
    limits = [Random(number).randrange(1, 30) for number in range(40)]
    heard: dict[int, list[list[int]]] = {}

    def leaves(row: int, tokens: Sequence[int], known: int) -> int | None:
        for end in range(known + 1, len(tokens) + 1):
            heard.setdefault(row, []).append(list(tokens[:end]))
            if sum(tokens[:end]) % 11 == row % 11:
                return end
        return None

    ours = fast(model, ends=ends).generate(prompts, limits, leaves, groups)
    whole = plain(model, ends=()).generate(prompts, limits, groups=groups).rows
    for number, row in enumerate(whole):
        expected: list[int] = []
        asked = []
        for token in row:
            expected.append(token)
            if token in ends or len(expected) == limits[number]:
                break
            asked.append(list(expected))
            if sum(expected) % 11 == number % 11:
                break
        assert ours.rows[number] == expected
        assert heard.get(number, []) == asked


def test_tokens_through_the_model_do_not_depend_on_when_the_host_looks() -> None:
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([40, 20, 3], 5)

    def leaves(row: int, tokens: Sequence[int], known: int) -> int | None:
        return row + 1 if len(tokens) > row else None

    said = fast(model).generate(prompts, [NEW] * 15, leaves, groups)
    own = sum(
        len(prompt) - (40, 20, 0)[group] for prompt, group in zip(prompts, groups, strict=True)
    )
    assert said.tokens == 60 + own + sum(len(row) - 1 for row in said.rows)


def test_small_memory_makes_batches_and_the_same_answers() -> None:
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([20, 0, 33], 12)
    whole = fast(model).generate(prompts, [NEW] * 36, groups=groups)
    poor = Decoder(model, [END], 30, kernels=KERNELS, most_slots=120)
    assert poor.generate(prompts, [NEW] * 36, groups=groups) == whole
    rows = [Encoded(prompt, (False,) * (len(prompt) - 1) + (True,)) for prompt in prompts]
    few, many = poor.measure(rows, groups)(), fast(model).measure(rows, groups)()
    assert few.rows == pytest.approx(many.rows, rel=1e-5)


def test_when_memory_runs_out_lines_get_shorter_and_answers_stay() -> None:
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([20, 0, 33], 8)

    def forgetful(q: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if len(q) > 70:
            raise torch.OutOfMemoryError
        return plain_varlen(q, *rest, **options)

    poor = Decoder(model, [END], 300, kernels=Kernels(forgetful))
    whole = fast(model).generate(prompts, [NEW] * 24, groups=groups)
    assert poor.generate(prompts, [NEW] * 24, groups=groups) == whole
    assert poor.most_tokens == 300 // 8
    hopeless = Decoder(model, [END], 300, kernels=Kernels(Mock(side_effect=torch.OutOfMemoryError)))
    with pytest.raises(torch.OutOfMemoryError):
        hopeless.measure(answered(prompts), groups)()


def test_when_memory_runs_out_the_old_store_is_let_go_at_once() -> None:
    """Even while likelihoods that were begun with it are still to be asked for."""
    model = model_of("llama").eval()
    prompts, groups = grouped_prompts([0, 0], 4)
    full: list[bool] = []
    keys: list[Any] = []

    def sometimes(q: torch.Tensor, k: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if full:
            full.clear()
            raise torch.OutOfMemoryError
        keys.append(weakref.ref(k))
        return plain_varlen(q, k, *rest, **options)

    poor = Decoder(model, [END], 10**6, kernels=Kernels(sometimes))
    poor.generate(prompts, [NEW] * 8, groups=groups)
    old = keys[-1]
    assert old() is not None, "a store keeps the keys of its rows"
    pending = poor.measure(answered(prompts), groups)
    full.append(True)
    gc.disable()
    try:
        poor.generate(prompts, [NEW] * 8, groups=groups)
        assert old() is None
    finally:
        gc.enable()
    assert poor.most_tokens == 10**6 // 2
    assert pending() == fast(model).measure(answered(prompts), groups)()


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_poison_a_changed_row_leaves_all_other_rows_as_they_were(family: str) -> None:
    model = model_of(family).eval()
    prompts, groups = grouped_prompts([20, 0, 33], 6)
    rows = answered(prompts)
    whole = fast(model).generate(prompts, [NEW] * 18, groups=groups).rows
    losses = fast(model).measure(rows, groups)().rows
    for number in (0, 7, 17):
        poisoned = list(prompts)
        poisoned[number] = (*prompts[number][:-1], 98 - prompts[number][-1])
        said = fast(model).generate(poisoned, [NEW] * 18, groups=groups).rows
        assert [a == b for a, b in zip(said, whole, strict=True)].count(False) <= 1
        assert said[:number] + said[number + 1 :] == whole[:number] + whole[number + 1 :]
        changed = fast(model).measure(answered(poisoned), groups)().rows
        assert changed[number] != losses[number]
        del changed[number], said
        assert changed == pytest.approx(losses[:number] + losses[number + 1 :], abs=1e-5)


def answered(prompts: Sequence[Tokens]) -> list[Encoded]:
    """Rows whose last half, 10 tokens at the most, is the answer."""
    return [
        Encoded(
            prompt, tuple(i >= len(prompt) - min(10, len(prompt) // 2) for i in range(len(prompt)))
        )
        for prompt in prompts
    ]


def with_choices(
    questions: Sequence[Tokens], groups: Sequence[int]
) -> tuple[list[Encoded], list[int]]:
    """Each question with one to four answers of zero to five tokens."""
    random = Random(1)
    rows, owners = [], []
    for asked, group in zip(questions, groups, strict=True):
        for _ in range(random.randrange(1, 5)):
            answer = tokens_of(random, random.randrange(6))
            marks = (False,) * len(asked) + (True,) * len(answer)
            rows.append(Encoded(asked + answer, marks))
            owners.append(group)
    return rows, owners


@pytest.mark.parametrize("prefixes", [[0], [40], [0, 30, 5, 70]])
@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_the_plain_ones(family: str, prefixes: list[int]) -> None:
    model = model_of(family).eval()
    prompts, groups = grouped_prompts(prefixes, 24 // len(prefixes))
    for rows, owners in (with_choices(prompts, groups), (answered(prompts), groups)):
        expected = plain(model).measure(rows, owners)()
        for most in (10**6, 90):
            ours = fast(model, most).measure(rows, owners)()
            assert ours.rows == pytest.approx(expected.rows, rel=1e-5, abs=1e-5)
            assert family in WINDOWED or ours.tokens < expected.tokens


def test_turns_of_a_conversation_count_even_where_rows_start_alike() -> None:
    """Answers in the middle of rows whose first 20 tokens are the same."""
    model = model_of("llama").eval()
    start = tokens_of(Random(0), 20)
    rows = [
        Encoded((*start, number, 7, 8), (*(10 <= i < 14 for i in range(20)), False, True, True))
        for number in range(2, 6)
    ]
    alone = [plain(model).measure([row])().rows[0] for row in rows]
    assert fast(model).measure(rows)().rows == pytest.approx(alone, rel=1e-5)
    assert plain(model).measure(rows)().rows == pytest.approx(alone, rel=1e-5)


def test_a_question_with_several_answers_stands_in_the_line_once() -> None:
    question = tuple(range(2, 14))
    rows = [
        Encoded((*question, *a), (False,) * 12 + (True,) * len(a)) for a in [(1,), (2, 3), (4,)]
    ]
    (line,) = answer_lines(rows, grouped([question] * 3, [0, 0, 0]), 1000, CPU)
    assert line.tokens.tolist() == [*question, 2], "and no last token"
    assert line.targets.tolist() == [11, 11, 12, 11]
    assert line.labels.tolist() == [1, 2, 3, 4]
    assert line.owners.tolist() == [0, 1, 1, 2]


def test_bounds_leave_no_query_out_and_show_no_key_twice() -> None:
    asks, sees = bounds_of([((2, 5), (10, 14)), ((5, 6), (14, 20)), ((8, 9), (30, 31))], 10)
    assert asks == [0, 2, 2, 5, 6, 8, 8, 9, 10]
    assert sees == [0, 0, 10, 14, 20, 20, 30, 31, 31]


def test_the_slow_kernel_is_attention() -> None:
    """Against torch's own, with grouped heads, a window, and a start in the middle."""
    torch.manual_seed(0)
    q, k, v = torch.randn(9, 4, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    asks, sees = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 0, 4, 7], [0, 3, 9, 9]))
    for window in (None, 3):
        out, lse = plain_varlen(q, k, v, asks, sees, 4, 6, window=window, lse=True)
        place, column = torch.arange(4)[:, None] + 2, torch.arange(6)
        seen = (column <= place) & (column > place - (window or 100))
        asked, keys, values = (tensor.transpose(0, 1) for tensor in (q[:4], k[3:9], v[3:9]))
        expected = scaled_dot_product_attention(asked, keys, values, seen, enable_gqa=True)
        torch.testing.assert_close(out[:4], expected.transpose(0, 1))
        assert out[4:7].eq(0).all()
        assert lse[:, 4:7].eq(torch.inf).all(), "no keys"
        assert out[7:].isnan().all()
        assert lse.shape == (4, 9)


def test_whoever_waits_for_the_device_makes_no_graph() -> None:
    with HostWaits() as quiet:
        torch.ones(3).sum()
    with HostWaits() as waiting:
        torch.ones(3).sum().item()
    assert (quiet.count, waiting.count) == (0, 1)
    kernels = Kernels(lambda q, *rest, **options: (q, q.new_zeros(q.shape[1], q.shape[0])))
    store, said = Store(99), torch.zeros(99, dtype=torch.long)
    model, graphs = model_of("llama").eval(), DecodeGraphs(None)
    stepper = Stepper(model, store, said, kernels, graphs, rows=2, groups=0, span=16, ahead=2)
    stepper.begin(torch.tensor([[5], [0], [1], [9], [0]]), 50)
    with HostWaits() as step, torch.inference_mode():
        stepper.step()
    assert not step.count


@pytest.mark.filterwarnings("ignore:TF32")
def test_half_precision_goes_the_same_way() -> None:
    model = model_of("llama").eval().to(torch.bfloat16)
    prompts, groups = grouped_prompts([20, 0], 6)
    rows, owners = with_choices(prompts, groups)
    with torch.backends.mkldnn.flags(enabled=False):
        ours, theirs = (
            decoder.generate(prompts, [NEW] * 12, groups=groups).rows
            for decoder in (fast(model), plain(model))
        )
        losses, expected = (
            decoder.measure(rows, owners)().rows for decoder in (fast(model), plain(model))
        )
    assert sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True)) >= 10
    assert losses == pytest.approx(expected, rel=0.05, abs=0.5)
