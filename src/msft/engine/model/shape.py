"""The sizes of a model that memory and FLOPs depend on, known without its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import TINY, gguf_header, pretrained, tiny_tokenizer, unloadable


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's memory depends on.

    keys: numbers that a token's keys and values have, over all layers; 0 without attention.
    """

    parameters: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    keys: int

    @property
    def largest(self) -> int:
        """Weights of the largest tensor."""
        return self.hidden * max(self.vocabulary, self.inner)


def shape_of(model: Any) -> ModelShape:
    """The shape of a model that is there, if only on the meta device."""
    text = model.config.get_text_config()
    hidden, heads = int(text.hidden_size), int(getattr(text, "num_attention_heads", 0))
    dim = getattr(text, "head_dim", None) or hidden // max(1, heads)
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    layers = int(text.num_hidden_layers)
    return ModelShape(
        sum(parameter.numel() for parameter in model.parameters()),
        layers,
        hidden,
        int(getattr(text, "intermediate_size", None) or 4 * hidden),
        int(text.vocab_size),
        int(2 * layers * key_heads * dim),
    )


def named_shape(name: str, trust_remote_code: bool = False, vocabulary: int = 1) -> ModelShape:
    """The shape of a model by its name; no weights are read.

    vocabulary: of its tokenizer, for a .gguf that does not say.
    """
    if name == TINY:
        return shape_of(tiny_model(len(tiny_tokenizer())))
    header = gguf_header(name)
    if header:
        return _gguf_shape(*header, vocabulary)
    from transformers import AutoModelForCausalLM

    config = pretrained("AutoConfig", name, trust_remote_code, {})
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=trust_remote_code
            )
        return shape_of(model)
    except Exception as error:
        raise unloadable(name, error) from error


def _gguf_shape(scalars: Mapping[str, Any], parameters: int, vocabulary: int) -> ModelShape:
    kind = scalars.get("general.architecture")

    def number(key: str, default: int) -> int:
        return int(scalars.get(f"{kind}.{key}", default))

    hidden, layers = number("embedding_length", 1), number("block_count", 1)
    heads = number("attention.head_count", 1)
    key_heads = number("attention.head_count_kv", heads)
    inner = number("feed_forward_length", 4 * hidden)
    keys = 2 * layers * key_heads * (hidden // heads)
    return ModelShape(parameters, layers, hidden, inner, number("vocab_size", vocabulary), keys)
