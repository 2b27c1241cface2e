"""Model sources: hub name, local folder, adapter folder, `.gguf` file, `smollm2-135m` and `tiny`.

Weights come from safetensors (or GGUF) only, never from a pickle, and always as fp32: at a
learning rate of 1e-5 most updates of a bf16 weight round to nothing. Code from a model's
repository runs only if the recipe says `trust_remote_code: true`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from msft import threads
from msft.engine.attention import NAME as ATTENTION
from msft.engine.model.adapter_folders import base_of, is_adapter
from msft.engine.model.adapter_merging import with_adapter
from msft.engine.model.tokenizers import (
    ATTENTION_ERRORS,
    TINY,
    TINY_CONTEXT,
    load_tokenizer,
    pretrained,
    unloadable,
)
from msft.engine.model.weights import (
    refuse_other_numbers,
    refuse_other_type,
    refuse_other_weights,
)
from msft.errors import Unsuited

TINY_SEED = 0
WEIGHTS = {"dtype": torch.float32, "use_safetensors": True}
CHECKED = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Say what did not fit, all of it; then it is refused."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in fp32 with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str


def load_model(
    name: str,
    device: torch.device,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    own_attention: bool = False,
) -> LoadedModel:
    """Find and load a model; every failure is a RecipeError that says what to do.

    tokenizer: the model's own, where it is loaded already.
    own_attention: the model computes attention as transformers has it, not as `attention.py` does;
        a model that cannot do without is `Unsuited`.
    """
    tokenizer = tokenizer or load_tokenizer(name, trust_remote_code)
    if is_adapter(name):
        host = torch.device("cpu")
        base = load_model(base_of(name), host, trust_remote_code, tokenizer, own_attention)
        return LoadedModel(with_adapter(base.model, Path(name)).to(device), tokenizer, name)
    attention = {} if own_attention else {"attn_implementation": ATTENTION}
    try:
        if name == TINY:
            model = tiny_model(len(tokenizer), **attention)
        else:
            model = _checked_model(name, trust_remote_code, attention)
    except ATTENTION_ERRORS as error:
        if own_attention:
            raise unloadable(name, error) from error
        raise Unsuited(f"it has an attention of its own ({error})") from error
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # GGUF: the weights are plain fp32 now
    threads.fit(model.num_parameters(), device.type)
    return LoadedModel(model.to(device=device, dtype=torch.float32), tokenizer, name)


def _checked_model(name: str, trust: bool, options: dict[str, Any]) -> Any:
    """A model whose weights are all from its file; WrongWeights says which are not."""
    refuse_other_numbers(name)
    model, found = pretrained(
        "AutoModelForCausalLM", name, trust, {**WEIGHTS, **CHECKED, **options}
    )
    refuse_other_type(name, model.config)
    refuse_other_weights(name, model, found)
    return model


def end_tokens(loaded: LoadedModel) -> list[int]:
    """The tokens that end a text."""
    ends = {loaded.tokenizer.eos_token_id}
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends |= set(configured if isinstance(configured, list) else [configured])
    return sorted(end for end in ends if end is not None)


def recompute_activations(model: Any) -> None:
    """Let the model compute its activations again in the backward pass instead of keeping them."""
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.23 and newer
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable()


def tiny_model(vocabulary: int, attn_implementation: str | None = None) -> Any:
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
    if attn_implementation:
        config._attn_implementation = attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
