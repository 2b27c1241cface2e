"""On a GPU: the fast evaluation against the plain one, and how fast it is.

    PYTHONPATH=src:tests/engine python bench/eval_check.py

A random Llama of SmolLM2-135M's shape in bf16; 400 rows in two groups with 1,200 tokens before
each. A random model's best two logits are often nearly equal, so rows part early in bf16, in
either of them. What says more: given what was said, is each token the best one of a plain forward
pass in fp32, and how much worse is it if not? Fast and plain should do equally well there.
"""

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from msft.engine.decode.decoder import Decoder, GeneratedRows, PlainDecoder, slots_of
from msft.engine.decode.fast import FastDecoder
from msft.engine.decode.step import Kernels
from msft.engine.kernels import short_rows, varlen
from msft.engine.packing import NAME, RowLayout, layout
from msft.example import Encoded

CUDA = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, NEW, PREFIX = 400, 200, 1200
LAYERS, WIDTH, VOCABULARY = 30, 576, 49152
AT_ONCE = 10_000
"""Tokens of a plain pass; each of its rows holds a copy of the prefix."""
Rows = list[list[int]]
EAGER: list[FastDecoder] = []


def model_of() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    config._attn_implementation = NAME
    return LlamaForCausalLM(config).to(CUDA, torch.bfloat16).eval()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return found, time.perf_counter() - begun


def generate_plainly(
    model: Any, prompts: Sequence[tuple[int, ...]], groups: Sequence[int], limit: int
) -> Rows:
    texts = GeneratedRows(frozenset(), [limit] * len(prompts), lambda row, tokens, known: None)
    with torch.inference_mode():
        PlainDecoder(model, 10**6, CUDA).generate(prompts, groups, texts)
    return texts.rows


def generate_eagerly(
    model: Any, prompts: Sequence[tuple[int, ...]], groups: Sequence[int], limit: int
) -> Rows:
    """The fast way without graphs; the first call makes its plan and its memory too."""
    texts = GeneratedRows(frozenset(), [limit] * len(prompts), lambda row, tokens, known: None)
    if not EAGER:
        kernels = Kernels(varlen().item, short_rows().item)
        EAGER.append(FastDecoder(model, kernels, 65536, slots_of(model, CUDA), CUDA))
    with torch.inference_mode():
        EAGER[0].generate(prompts, groups, texts)
    return texts.rows


def judged(exact: Any, prompts: Sequence[tuple[int, ...]], said: Rows) -> str:
    """How often each token is the best one in fp32 after all before it, and how far off if not."""
    best, total, worst = 0, 0, 0.0
    for prompt, text in zip(prompts, said, strict=True):
        tokens = torch.tensor([*prompt, *text[:-1]], device=CUDA)
        places = torch.arange(len(tokens), device=CUDA)
        keep = places[len(prompt) - 1 :]
        with torch.inference_mode(), layout(RowLayout([len(tokens)], CUDA)):
            logits = exact(
                input_ids=tokens[None],
                position_ids=places[None],
                logits_to_keep=keep,
                use_cache=False,
            ).logits[0]
        chosen = logits.gather(1, torch.tensor(text, device=CUDA)[:, None])[:, 0]
        behind = (logits.max(-1).values - chosen) / logits.std(-1)
        best += int((behind == 0).sum())
        total += len(text)
        worst = max(worst, float(behind.max()))
    return (
        f"{best / total:.1%} of {total} tokens are the best in fp32, worst {worst:.2f} std behind"
    )


def same(some: Rows, others: Rows) -> str:
    """Share of equal tokens, as far as both rows go."""
    pairs = list(zip(some, others, strict=True))
    tokens = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    total = sum(min(len(one), len(other)) for one, other in pairs)
    firsts = sum(one[0] == other[0] for one, other in pairs)
    return f"{tokens / total:.1%} of tokens, {firsts / len(pairs):.1%} of first tokens"


def main() -> None:
    """Generation, then likelihoods."""
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    random = Random(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(random.randrange(VOCABULARY) for _ in range(count))

    shared = [some(PREFIX), some(PREFIX)]
    groups = [number % 2 for number in range(ROWS)]
    prompts = [shared[group] + some(random.randrange(20, 80)) for group in groups]
    limits = [NEW] * ROWS
    model = model_of()
    exact = model_of().float()

    decoder = Decoder(model, [], 65536)
    _, first = timed(lambda: decoder.generate(prompts, limits, groups=groups))
    said, took = timed(lambda: decoder.generate(prompts, limits, groups=groups))
    _, prefill = timed(lambda: decoder.generate(prompts, [1] * ROWS, groups=groups))
    _, prefill = timed(lambda: decoder.generate(prompts, [1] * ROWS, groups=groups))
    assert decoder.fast is not None
    print(
        f"fast, graphs {'on' if decoder.fast.records else 'NOT POSSIBLE'}: "
        f"{took:.2f} s ({first:.2f} s the first time), prompts {prefill * 1e3:.0f} ms, "
        f"step {(took - prefill) / (NEW - 1) * 1e3:.2f} ms, {ROWS * NEW / took:,.0f} new tokens/s",
        flush=True,
    )
    short = generate_eagerly(model, prompts, groups, 40)
    short, slow = timed(lambda: generate_eagerly(model, prompts, groups, 40))
    print(f"fast without graphs: step {(slow - prefill) / 39 * 1e3:.2f} ms", flush=True)
    print("  the same with graphs:", same(said.rows, short), flush=True)
    ragged = [1 + number * NEW // ROWS for number in range(ROWS)]
    decoder.generate(prompts, ragged, groups=groups)
    parts, took = timed(lambda: decoder.generate(prompts, ragged, groups=groups))
    print(f"rows that leave one by one: {took:.2f} s, buckets {decoder.fast.buckets}")
    print("  the same as if nobody had left:", same(said.rows, parts.rows), flush=True)
    again = decoder.generate(prompts, limits, groups=groups)
    print("  again, bitwise the same:", again == said, flush=True)

    plain, took = timed(lambda: generate_plainly(model, prompts, groups, 24))
    print(f"plain: {took / 24 * 1e3:.1f} ms a step; as the fast way:", same(said.rows, plain))
    print("  fast: ", judged(exact, prompts[:12], [row[:24] for row in said.rows[:12]]))
    print("  fast, late tokens: ", judged(exact, prompts[:12], said.rows[:12]))
    print("  plain:", judged(exact, prompts[:12], plain[:12]), flush=True)

    rows, owners = [], []
    for prompt, group in zip(prompts, groups, strict=True):
        for _ in range(4):
            answer = some(random.randrange(1, 7))
            marks = (False,) * len(prompt) + (True,) * len(answer)
            rows.append(Encoded(prompt + answer, marks))
            owners.append(group)
    decoder.measure(rows, owners)()
    fast, took = timed(lambda: decoder.measure(rows, owners)())
    with torch.inference_mode():
        (slow_sums, tokens), slow = timed(
            lambda: PlainDecoder(model, AT_ONCE, CUDA).measure(rows, owners)()
        )
        sums, _ = PlainDecoder(exact, AT_ONCE, CUDA).measure(rows, owners)()
    print(
        f"likelihoods of {len(rows)} rows: fast {took * 1e3:.0f} ms ({fast.tokens:,} tokens), "
        f"plain {slow * 1e3:.0f} ms ({tokens:,} tokens)"
    )
    for name, found in (("fast", fast.rows), ("plain", slow_sums)):
        apart = [a - b for a, b in zip(found, sums, strict=True)]
        worst, mean = max(map(abs, apart)), sum(apart) / len(apart)
        print(f"  {name} - fp32: mean {mean:+.4f}, worst {worst:.3f} of {max(sums):.0f}")
    print(f"most memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
