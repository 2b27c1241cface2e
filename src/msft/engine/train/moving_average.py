"""The exponential moving average of the weights, which `ema_decay` asks for.

Training moves the raw weights; what is scored, kept and returned is their average. Each of the two
lies in fp32 tensors of its own for good, so one is never taken for the other. The model's
parameters show one of them at a time: a copy where the model computes in bf16, else the tensors
themselves. A recorded step finds the raw weights, and a recorded evaluation the average, at the
address at which it was recorded.
"""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

RAW = "raw"
"""Beside moments, `<name>.raw` is the raw weight of that name."""


class MovingAverage:
    """average ← d · average + (1 − d) · raw, after every step and for every weight.

    raw: in fp32; the optimizer changes them in place.
    parameters: the model's, which show the raw weights at first.
    """

    def __init__(
        self, raw: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], decay: float
    ) -> None:
        self.tensors = {name: weight.clone() for name, weight in raw.items()}
        self.share = 1 - decay
        self._raw = raw
        self._parameters = parameters
        self._shown: Mapping[str, Tensor] | None = raw
        self.told: Callable[[], None] = lambda: None
        """Called when the parameters show something else; other ranks must then see it too."""

    def restart(self) -> None:
        """Be what the raw weights are now."""
        torch._foreach_copy_(list(self.tensors.values()), list(self._raw.values()))
        self._shown = None

    def take_raw(self, moments: Mapping[str, Tensor]) -> None:
        """Raw weights from beside these moments; without any they stay."""
        given = [moments[key] for name in self._raw if (key := f"{name}.{RAW}") in moments]
        if given:
            torch._foreach_copy_(list(self._raw.values()), given, non_blocking=True)
            self._shown = None

    def move(self, bad: Tensor | None = None, done: Collection[str] = ()) -> None:
        """Follow a step, unless `bad` is 1; weights that are `done` have been moved already."""
        left = [name for name in self.tensors if name not in done]
        share = self.share * (1 - bad) if left and bad is not None else self.share
        for name in left:
            self.tensors[name].lerp_(self._raw[name], share)

    def show(self) -> None:
        """Let the model have the average."""
        self._bring(self.tensors)

    def show_raw(self) -> None:
        """Let the model have the raw weights."""
        self._bring(self._raw)

    def _bring(self, weights: Mapping[str, Tensor]) -> None:
        """Nothing is done where the model has them already."""
        if weights is self._shown:
            return
        shown: list[Tensor] = [self._parameters[name] for name in weights]
        if shown[0].dtype == torch.float32:
            for parameter, weight in zip(shown, weights.values(), strict=True):
                parameter.data = weight
        else:
            with torch.no_grad():
                torch._foreach_copy_(shown, list(weights.values()))
        self._shown = weights
        self.told()
