"""What training takes, from a model's shape alone, and how the engine fits into what is free.

The one model of memory: the engine sizes its micro-batches by it, `msft plan` forecasts with it and
`msft train` refuses by it. If an estimate is too bold, the engine halves its micro-batches by
itself; the gradient is the same.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from msft.engine.model.loading import count_parameters, tiny_model
from msft.engine.model.tokenizers import TINY, gguf_header, pretrained, tiny_tokenizer

CPU_TOKENS = 8192
SAFETY = 0.8
"""Of the memory that seems to be left, what is counted on."""
RECORDED_UP_TO = 1_000_000_000
"""Models with more weights are not bound by launches, so their steps are not recorded."""
FP32, BF16 = 4, 2
HALVED_STEP = 6
"""fp32 tensors beside a weight while `adamw_bf16` moves it without a kernel."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run asks of the memory.

    batch_tokens: of a large batch.
    answers: share of the tokens that are answer tokens, at which the head is computed.
    fused: layers and losses are compiled; they keep what matrix products read, and no copy in fp32.
    lean: one kernel takes the optimizer's step, and needs no memory for it.
    """

    batch_tokens: int
    answers: float
    bf16: bool
    half_moments: bool
    fused: bool = False
    lean: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """How the engine should work."""

    micro_batch_tokens: int
    gradient_checkpointing: bool
    recorded: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's memory depends on.

    keys: numbers that a token's keys and values have, over all layers.
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


def shape_of(config: Any, parameters: int) -> Shape:
    text = config.get_text_config()
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    dim = getattr(text, "head_dim", None) or hidden // heads
    kept = getattr(text, "num_key_value_heads", None) or heads
    layers = int(text.num_hidden_layers)
    return Shape(
        parameters,
        layers,
        hidden,
        int(getattr(text, "intermediate_size", None) or 4 * hidden),
        int(text.vocab_size),
        int(2 * layers * kept * dim),
    )


def named_shape(name: str, trust_remote_code: bool, vocabulary: int) -> Shape:
    """The shape of a model by its name; no weights are read.

    vocabulary: of its tokenizer, for a .gguf that does not say.
    """
    parameters = count_parameters(name, trust_remote_code)
    header = gguf_header(name) if name != TINY else None
    if header is None:
        if name == TINY:
            return shape_of(tiny_model(len(tiny_tokenizer())).config, parameters)
        return shape_of(pretrained("AutoConfig", name, trust_remote_code, {}), parameters)
    scalars = header[0]
    kind = scalars.get("general.architecture")

    def number(key: str, default: int) -> int:
        return int(scalars.get(f"{kind}.{key}", default))

    hidden, layers = number("embedding_length", 1), number("block_count", 1)
    heads = number("attention.head_count", 1)
    kept = number("attention.head_count_kv", heads)
    inner = number("feed_forward_length", 4 * hidden)
    keys = 2 * layers * kept * (hidden // heads)
    return Shape(parameters, layers, hidden, inner, number("vocab_size", vocabulary), keys)


def fit_of(
    model: Any, device: torch.device, demand: Demand, checkpointing: bool | Literal["auto"]
) -> Fit:
    """The largest micro-batches; activations are recomputed only if a batch does not fit else."""
    if device.type != "cuda":
        return Fit(CPU_TOKENS, checkpointing is True, False)
    shape = shape_of(model.config, sum(p.numel() for p in model.parameters()))
    free = torch.cuda.mem_get_info(device)[0] + FP32 * shape.parameters  # which are there already
    fit = best_fit(shape, free, demand, checkpointing)
    recorded = demand.bf16 and _is_plain(model)
    return Fit(fit.micro_batch_tokens, fit.gradient_checkpointing, fit.recorded and recorded)


def best_fit(shape: Shape, free: int, demand: Demand, checkpointing: bool | Literal["auto"]) -> Fit:
    """The same before the model is there; `free`: of a device that holds nothing yet."""

    def fitting(again: bool, parts: bool) -> int:
        needed = held_bytes(shape, demand) + gradient_bytes(shape, demand, parts)
        return int(SAFETY * (free - needed) / token_bytes(shape, demand, again))

    again = checkpointing is True
    if checkpointing == "auto":
        again = fitting(False, parts=False) < demand.batch_tokens
    tokens = fitting(again, parts=False)
    whole = tokens >= demand.batch_tokens
    recorded = whole and not again and shape.parameters <= RECORDED_UP_TO
    return Fit(max(512, tokens if whole else fitting(again, parts=True)), again, recorded)


def held_bytes(shape: Shape, demand: Demand) -> int:
    """fp32 weights, moments, and in bf16 the working copy."""
    moments = 2 * (BF16 if demand.half_moments else FP32)
    return shape.parameters * (FP32 + moments + (BF16 if demand.bf16 else 0))


def gradient_bytes(shape: Shape, demand: Demand, parts: bool) -> int:
    """Gradients; `parts`: with the fp32 copy in which micro-batches add up."""
    if not demand.bf16:
        return FP32 * shape.parameters
    summed = parts and not demand.half_moments
    return shape.parameters * (BF16 + (FP32 if summed else 0))


def step_bytes(shape: Shape, demand: Demand) -> int:
    """Gradients, and what the optimizer's step takes beside them."""
    gradients = gradient_bytes(shape, demand, parts=False)
    if demand.lean or not demand.bf16:
        return gradients
    if demand.half_moments:
        return gradients + HALVED_STEP * FP32 * shape.largest
    return gradients + FP32 * shape.parameters


def token_bytes(shape: Shape, demand: Demand, again: bool) -> float:
    """Activations that wait for the backward pass, and the head's logits.

    again: they are recomputed, all but a layer's input.
    """
    width = BF16 if demand.bf16 else FP32
    layer = width * (10 * shape.hidden + 4 * shape.inner)
    if demand.fused:
        layer = width * (6 * shape.hidden + 3 * shape.inner)
    kept = shape.layers * width * shape.hidden + layer if again else shape.layers * layer
    prediction = 2 * width if demand.fused else width + 2 * FP32  # with its gradient
    return kept + demand.answers * shape.vocabulary * prediction


def _is_plain(model: nn.Module) -> bool:
    """No dropout and no soft cap, which a recorded step does not know."""
    config: Any = model.config
    dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    dropout = dropout or bool(getattr(config, "attention_dropout", 0.0))
    return not dropout and getattr(config, "attn_logit_softcapping", None) is None


BASE_ON_DEVICE = 0.05
"""The base model's weights stay on the device if they take less than this share of its memory."""
