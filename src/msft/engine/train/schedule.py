"""How a recipe trains: the optimizer's side of it, and the learning rate of every step."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The optimizer's side of a recipe; defaults are the paper's.

    bf16: compute with bf16 copies of the fp32 weights.
    micro_batch_tokens: the most tokens of one forward pass with a gradient.
    evaluated_tokens: the most tokens of one that keeps nothing.
    batch_rows: the most rows of a step, for recorded steps; 0: none are recorded.
    half_moments: the optimizer's moments in bf16.
    kernel: whether one kernel takes the optimizer's step; None: where there is one.
    ema_decay: what is kept and scored is the moving average of the weights with this decay; None:
        the weights themselves.
    lanes: of which a step's gradient is the sum.
    full_sharding: ranks have slices of the weights, and not all of them.
    """

    learning_rate: float = 1e-5
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    schedule_steps: int = 1
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    micro_batch_tokens: int = 16384
    evaluated_tokens: int = 32768
    batch_rows: int = 0
    half_moments: bool = False
    kernel: bool | None = None
    ema_decay: float | None = None
    lanes: int = 1
    full_sharding: bool = False

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule in ("constant", "constant_with_warmup"):
            return self.learning_rate
        left = max(1, self.schedule_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / left)
        share = 1 - done if self.schedule == "linear" else (1 + cos(pi * done)) / 2
        return self.learning_rate * share
