"""Model sources: hub name, local folder, `.gguf` file, `smollm2-135m` and `tiny`.

Weights come from safetensors (or GGUF) only, never from a pickle, and always as fp32: at a
learning rate of 1e-5 most updates of a bf16 weight round to nothing. Code from a model's
repository runs only if the recipe says `trust_remote_code: true`.
"""

from dataclasses import dataclass
from typing import Any

import torch

from msft.engine.attention import NAME as ATTENTION
from msft.engine.model.tokenizers import (
    TINY,
    TINY_CONTEXT,
    load_tokenizer,
    pretrained,
)

TINY_SEED = 0
WEIGHTS = {"dtype": torch.float32, "attn_implementation": ATTENTION, "use_safetensors": True}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in fp32 with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str


def load_model(
    name: str, device: torch.device, trust_remote_code: bool = False, tokenizer: Any = None
) -> LoadedModel:
    """Find and load a model; every failure is a RecipeError that says what to do.

    tokenizer: the model's own, where it is loaded already.
    """
    tokenizer = tokenizer or load_tokenizer(name, trust_remote_code)
    if name == TINY:
        model = tiny_model(len(tokenizer))
    else:
        model = pretrained("AutoModelForCausalLM", name, trust_remote_code, WEIGHTS)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # GGUF: the weights are plain fp32 now
    return LoadedModel(model.to(device=device, dtype=torch.float32), tokenizer, name)


def tiny_model(vocabulary: int) -> Any:
    """A random Llama of 410,000 weights, the same on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=TINY_CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    config._attn_implementation = ATTENTION
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
