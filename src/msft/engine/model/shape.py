"""The sizes of a model that memory and FLOPs depend on, known without its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import TINY, gguf_header, pretrained, tiny_tokenizer, unloadable
from msft.recipe.adapters import AdapterOptions


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's memory depends on.

    keys: numbers that a token's keys and values have, over all layers; 0 without attention.
    linears: name, inputs and outputs of every linear layer but the head.
    """

    parameters: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    keys: int
    linears: tuple[tuple[str, int, int], ...] = field(default=(), repr=False, compare=False)

    @property
    def largest(self) -> int:
        """Weights of the largest tensor."""
        return self.hidden * max(self.vocabulary, self.inner)

    def adapter_weights(self, options: AdapterOptions) -> int:
        """Weights of a LoRA adapter on this model."""
        return sum(self.adapter_tensors(options))

    def adapter_tensors(self, options: AdapterOptions) -> list[int]:
        """Weights of each of its tensors: A and B of a layer, and with DoRA the lengths of rows."""
        return [
            size
            for name, given, made in self.linears
            if options.targets is None
            or any(f".{name}".endswith(f".{target}") for target in options.targets)
            for size in (options.r * given, options.r * made, *([made] if options.dora else []))
        ]

    def packed_weights(self) -> int:
        """Weights that four bits can hold."""
        return sum(given * made for _, given, made in self.linears)


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
        tuple(_linears(model)),
    )


def _linears(model: Any) -> Iterator[tuple[str, int, int]]:
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            yield name, module.in_features, module.out_features
        elif type(module).__name__ == "Conv1D":
            yield name, module.nx, module.nf


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
    key_width = key_heads * (hidden // heads)
    keys = 2 * layers * key_width
    vocabulary = number("vocab_size", vocabulary)
    block = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, key_width),
        "v_proj": (hidden, key_width),
        "o_proj": (hidden, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    linears = tuple((name, *sizes) for _ in range(layers) for name, sizes in block.items())
    return ModelShape(parameters, layers, hidden, inner, vocabulary, keys, linears)
