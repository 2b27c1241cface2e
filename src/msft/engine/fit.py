"""What fits: tokens of a forward pass, whether activations are recomputed, recorded steps.

Estimates from the model's shape and the memory that is free. If one is too bold, the engine halves
its micro-batches by itself; the gradient is the same.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

CPU_TOKENS = 8192
SAFETY = 0.8
"""Of the memory that seems to be left, what is counted on."""
RECORDED_UP_TO = 1_000_000_000
"""Models with more weights are not bound by launches, so their steps are not recorded."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run asks of the memory.

    batch_tokens: of a large batch.
    answers: share of the tokens that are answer tokens, at which the head is computed.
    """

    batch_tokens: int
    answers: float
    bf16: bool
    half_moments: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """How the engine should work."""

    micro_batch_tokens: int
    gradient_checkpointing: bool
    recorded: bool


def fit_of(
    model: Any, device: torch.device, demand: Demand, checkpointing: bool | Literal["auto"]
) -> Fit:
    """The largest micro-batches; activations are recomputed only if a batch does not fit else."""
    if device.type != "cuda":
        return Fit(CPU_TOKENS, checkpointing is True, False)
    weights = sum(p.numel() for p in model.parameters())
    free, _ = torch.cuda.mem_get_info(device)
    left = SAFETY * (free - weights * _bytes_per_weight(demand))
    fitting = {again: int(left / _bytes_per_token(model, demand, again)) for again in (False, True)}
    again = checkpointing is True
    if checkpointing == "auto":
        again = fitting[False] < demand.batch_tokens
    recorded = (
        demand.bf16
        and not again
        and weights <= RECORDED_UP_TO
        and fitting[False] >= demand.batch_tokens
        and _is_plain(model)
    )
    return Fit(max(512, fitting[again]), again, recorded)


def _bytes_per_weight(demand: Demand) -> int:
    """Beyond the fp32 weight: gradient and two moments, and in bf16 the working copy."""
    if not demand.bf16:
        return 4 + 8
    return 2 + 2 + 4 if demand.half_moments else 2 + 2 + 4 + 8


def _bytes_per_token(model: Any, demand: Demand, again: bool) -> float:
    """Activations that wait for the backward pass, and the head's logits."""
    config = model.config
    width = 2 if demand.bf16 else 4
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    layers = int(config.num_hidden_layers)
    layer = width * (10 * hidden + 4 * inner)
    kept = layers * width * hidden + layer if again else layers * layer
    head = demand.answers * int(config.vocab_size) * (width + 8)
    return kept + head


def _is_plain(model: nn.Module) -> bool:
    """No dropout and no soft cap, which a recorded step does not know."""
    config: Any = model.config
    dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    dropout = dropout or bool(getattr(config, "attention_dropout", 0.0))
    return not dropout and getattr(config, "attn_logit_softcapping", None) is None
