"""Generation says what transformers' `generate` says, row by row, however the rows are batched."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from families import END, FAMILIES, VOCABULARY, model_of, rows_of
from torch.nn import functional

from msft.engine.decode.decoder import Decoder, shared_prefix
from msft.engine.packing import NAME
from msft.example import Encoded

NEW = 12
NEAR = 1e-5


def prompts_of(count: int, prefix: int, seed: int = 0) -> list[tuple[int, ...]]:
    random = Random(seed)
    shared = tuple(random.randrange(2, VOCABULARY) for _ in range(prefix))
    return [
        shared + tuple(random.randrange(2, VOCABULARY) for _ in range(random.randrange(1, 15)))
        for _ in range(count)
    ]


def generated_by_transformers(model: Any, prompt: tuple[int, ...]) -> tuple[list[int], bool]:
    """Its tokens, and whether any step's two best logits were nearly equal."""
    model.set_attn_implementation("eager")
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    model.set_attn_implementation(NAME)
    gaps = [logits[0].topk(2).values.diff().abs().item() for logits in out.logits]
    return out.sequences[0, len(prompt) :].tolist(), min(gaps) < NEAR


@pytest.mark.parametrize("prefix", [0, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tokens_as_generate(family: str, prefix: int) -> None:
    model = model_of(family).eval()
    prompts = prompts_of(12, prefix)
    ours = Decoder(model, [END], 10**6).generate(prompts, [NEW] * len(prompts)).rows
    near = 0
    for prompt, tokens in zip(prompts, ours, strict=True):
        expected, is_near = generated_by_transformers(model, prompt)
        near += is_near
        assert is_near or tokens == expected
    assert near < len(prompts) / 2


def test_small_batches_say_the_same_as_one_large_one() -> None:
    model = model_of("llama").eval()
    prompts = prompts_of(20, 30)
    whole = Decoder(model, [END], 10**6).generate(prompts, [NEW] * 20)
    parts = Decoder(model, [END], 60).generate(prompts, [NEW] * 20)
    assert whole.rows == parts.rows
    assert whole.tokens == parts.tokens


def test_rows_have_limits_of_their_own_and_leave_when_they_may() -> None:
    model = model_of("qwen2").eval()
    prompts = prompts_of(6, 0)
    limits = [1, 2, 3, 4, 5, 6]
    decoder = Decoder(model, [], 10**6)
    assert [len(row) for row in decoder.generate(prompts, limits).rows] == limits

    def leaves(row: int, tokens: Sequence[int], known: int) -> int | None:
        return len(tokens) if len(tokens) > row else None

    early = decoder.generate(prompts, [6] * 6, leaves)
    assert [len(row) for row in early.rows] == [1, 2, 3, 4, 5, 6]
    full = decoder.generate(prompts, [6] * 6)
    assert [row[: len(mine)] for row, mine in zip(full.rows, early.rows, strict=True)] == early.rows
    assert early.tokens < full.tokens


def test_a_shared_prefix_goes_through_the_model_once() -> None:
    model = model_of("llama").eval()
    prompts = prompts_of(10, 40)
    decoder = Decoder(model, [END], 10**6)
    took = decoder.generate(prompts, [1] * 10).tokens
    assert took == 40 + sum(len(prompt) - 40 for prompt in prompts)


@pytest.mark.parametrize("prefix", [0, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_those_of_a_plain_forward_pass(family: str, prefix: int) -> None:
    model = model_of(family).eval()
    shared = prompts_of(1, prefix)[0][:prefix]
    rows = [
        Encoded(shared + row.tokens, (False,) * prefix + row.answer) for row in rows_of(10, seed=3)
    ]
    ours = Decoder(model, [END], 10**6).measure(rows)()
    model.set_attn_implementation("eager")
    for row, mine in zip(rows, ours.rows, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.tokens])).logits[0, :-1]
        nll = functional.cross_entropy(logits, torch.tensor(row.tokens[1:]), reduction="none")
        expected = nll[torch.tensor(row.answer[1:])].sum().item()
        assert mine == pytest.approx(expected, rel=1e-4)


def test_what_rows_share() -> None:
    long = tuple(range(20))
    assert shared_prefix([(*long, 1), (*long, 2)]) == 20
    assert shared_prefix([long, (*long, 2)]) == 19, "every row keeps a token of its own"
    assert shared_prefix([(1, 2), (1, 3)]) == 0, "not worth it"
    assert shared_prefix([long]) == 0


def test_decoding_moves_no_randomness_and_no_gradient() -> None:
    model = model_of("llama").eval()
    before = torch.get_rng_state()
    Decoder(model, [END], 10**6).generate(prompts_of(4, 0), [NEW] * 4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
