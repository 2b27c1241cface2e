"""The engine on torch and transformers: full fine-tuning of any causal language model.

One step is one batch of *samples*, whatever the memory: rows are packed, the head and the loss
are computed at answer tokens only, the loss is the mean over all answer tokens of the step, and
micro-batches (when memory asks for them) add up to the same gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from msft.encoding import Encoded
from msft.engine.attention import RowLayout, layout
from msft.engine.packing import Packed, micro_batches, packed
from msft.feeds import Batch, Losses, Row
from msft.worker import Scored

Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine"]


class NotANumber(Exception):
    """A loss was NaN or infinite; the step was not taken."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The optimizer's side of a recipe; defaults are the paper's."""

    learning_rate: float = 1e-5
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    schedule_steps: int = 1
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    micro_batch_tokens: int = 16384

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


class TorchEngine:
    """A model and AdamW. Implements `msft.worker.Engine`."""

    def __init__(
        self,
        model: Any,
        rows: Mapping[str, Sequence[Encoded]],
        settings: TrainingSettings,
        scorer: Any,
    ) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self._rows = rows
        self._settings = settings
        self._micro_batch_tokens = settings.micro_batch_tokens
        self._scorer = scorer
        self._parameters = dict(model.named_parameters())
        self.base = {n: p.detach().clone() for n, p in self._parameters.items()}
        self.num_parameters = sum(p.numel() for p in self._parameters.values())
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self._steps = 0
        self._optimizer = self._fresh()

    # State.

    def load(self, weights: Mapping[str, Tensor] | None) -> None:
        source = self.base if weights is None else weights
        if source.keys() != self._parameters.keys():
            odd = sorted(source.keys() ^ self._parameters.keys())
            raise ValueError(f"these weights are of another model: tensor {odd[0]!r} differs")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if source[name].shape != parameter.shape:
                    raise ValueError(
                        f"these weights are of another model: {name!r} has shape "
                        f"{tuple(source[name].shape)}, expected {tuple(parameter.shape)}"
                    )
                parameter.copy_(source[name])

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    def load_optimizer(self, moments: Mapping[str, Any] | None) -> None:
        self._optimizer = self._fresh()
        self._steps = 0
        if moments is None:
            return
        self._steps = int(moments["steps"])
        if not self._steps:
            return
        for name, parameter in self._parameters.items():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self._steps), device=self.device),
                "exp_avg": moments["tensors"][f"{name}.exp_avg"].to(self.device, copy=True),
                "exp_avg_sq": moments["tensors"][f"{name}.exp_avg_sq"].to(self.device, copy=True),
            }

    def optimizer(self) -> dict[str, Any]:
        tensors = {
            f"{name}.{kind}": self._optimizer.state[parameter][kind].detach().clone()
            for name, parameter in self._parameters.items()
            if self._steps
            for kind in ("exp_avg", "exp_avg_sq")
        }
        return {"steps": self._steps, "tensors": tensors}

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    # Work.

    def work(self, batch: Batch) -> tuple[Losses, int]:
        rows = [self._rows[name][number] for name, number in batch.rows]
        tokens = sum(len(row.tokens) for row in rows)
        if batch.use == "track":
            return Losses(self._watched(rows)), tokens
        if batch.use == "look_ahead":
            return self._look_ahead(rows, batch), tokens
        return Losses(self._step(rows, batch.rows)), tokens

    def score(self, names: Sequence[str], split: str) -> Scored:
        scored: Scored = self._scorer(names, split)
        return scored

    def _step(self, rows: Sequence[Encoded], where: Sequence[Row]) -> list[float]:
        """One optimizer step: losses of the rows before it."""
        losses = self._gradients(rows)
        if not all(isfinite(loss) for loss in losses):
            self._optimizer.zero_grad()
            bad = [row for row, loss in zip(where, losses, strict=True) if not isfinite(loss)]
            raise NotANumber(f"the loss of row {bad[0][1]} of {bad[0][0]} is not a number")
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.rate(self._steps)
        if self._settings.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._settings.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._steps += 1
        return losses

    def _gradients(self, rows: Sequence[Encoded]) -> list[float]:
        """Losses of the rows; the gradient of their token mean is left in the parameters.

        If memory does not hold a micro-batch, it is halved for good; the gradient is the same.
        """
        while True:
            try:
                return self._accumulated(rows)
            except torch.OutOfMemoryError:
                if self._micro_batch_tokens <= max(len(row.tokens) for row in rows):
                    raise
            self._optimizer.zero_grad()
            self._micro_batch_tokens //= 2
            torch.cuda.empty_cache()

    def _accumulated(self, rows: Sequence[Encoded]) -> list[float]:
        self.model.train()
        targets = sum(row.answer_tokens for row in rows)
        losses: list[float] = []
        for group in micro_batches(rows, self._micro_batch_tokens):
            line = packed([rows[number] for number in group], self.device)
            with layout(RowLayout(line.lengths, self.device)):  # checkpointing runs it again
                nll = self._nll(line)
                (nll.sum() / targets).backward()  # type: ignore[no-untyped-call]
            losses += _row_means(nll.detach(), line)
        return losses

    def _watched(self, rows: Sequence[Encoded]) -> list[float]:
        """Losses of the rows, without dropout and without a gradient."""
        self.model.eval()
        losses: list[float] = []
        with torch.inference_mode():
            for group in micro_batches(rows, self._micro_batch_tokens):
                line = packed([rows[number] for number in group], self.device)
                with layout(RowLayout(line.lengths, self.device)):
                    losses += _row_means(self._nll(line), line)
        return losses

    def _look_ahead(self, rows: Sequence[Encoded], batch: Batch) -> Losses:
        """Losses before and after a virtual step; everything is as it was afterwards."""
        weights, moments, steps = self.weights(), self.optimizer(), self._steps
        before = self._watched(rows)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            if batch.step == "optimizer":
                self._step(rows, batch.rows)
            else:
                self._gradients(rows)
                rate = self._settings.rate(self._steps)
                with torch.no_grad():
                    for parameter in self._parameters.values():
                        if parameter.grad is not None:
                            parameter.sub_(parameter.grad, alpha=rate)
                self._optimizer.zero_grad()
        after = self._watched(rows)
        self.load(weights)
        if batch.step == "optimizer":
            self.load_optimizer(moments)
        self._steps = steps
        return Losses(before, after)

    def _nll(self, line: Packed) -> Tensor:
        """Negative log-likelihood of each answer token, in fp32."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._settings.bf16):
            logits = self.model(
                input_ids=line.tokens[None],
                position_ids=line.positions[None],
                logits_to_keep=line.targets,
                use_cache=False,
            ).logits[0]
        return functional.cross_entropy(logits.float(), line.labels, reduction="none")

    def _fresh(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self._parameters.values(),
            lr=self._settings.learning_rate,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )


def _row_means(nll: Tensor, line: Packed) -> list[float]:
    """Mean over each row's answer tokens."""
    sums = torch.zeros(line.rows, dtype=torch.float32, device=nll.device)
    counts = torch.zeros_like(sums)
    sums.index_add_(0, line.owners, nll.float())
    counts.index_add_(0, line.owners, torch.ones_like(nll, dtype=torch.float32))
    means: list[float] = (sums / counts).tolist()
    return means
