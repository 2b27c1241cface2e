"""Two-layer random models of every family, and rows to try them on."""

from random import Random
from typing import Any

import torch
import transformers

from msft.data.encoding import Encoded
from msft.engine.attention import NAME

VOCABULARY = 97
END = 0
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": 1,
}
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "eos_token_id": END,
    "bos_token_id": END,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SHAPE),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", SHAPE),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**SHAPE, "head_dim": 8}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", SHAPE),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**SHAPE, "sliding_window": 8}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**SHAPE, "head_dim": 8}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SHAPE, "head_dim": 8, "sliding_window": 8}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
}


def model_of(family: str, sharpen: float = 4.0) -> Any:
    """The same random model every time; sharpened, so that its choices are clear."""
    config, model, options = FAMILIES[family]
    torch.manual_seed(0)
    built = getattr(transformers, model)(getattr(transformers, config)(**options))
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(sharpen)
    built.set_attn_implementation(NAME)
    return built


def rows_of(count: int, seed: int = 0, longest: int = 30) -> list[Encoded]:
    """Random rows whose second half is the answer."""
    random = Random(seed)
    lengths = [random.randrange(4, longest) for _ in range(count)]
    return [
        Encoded(
            tuple(random.randrange(2, VOCABULARY) for _ in range(length)),
            tuple(index >= length // 2 for index in range(length)),
        )
        for length in lengths
    ]
