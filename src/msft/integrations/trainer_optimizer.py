"""The optimizer of a Trainer: its state as tensors that a checkpoint holds, and its learning rate.

Any optimizer will do that keeps tensors and numbers for each weight and nothing else.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from msft.errors import UsageError

NUMBERS = {int: torch.int64, float: torch.float64}
"""How numbers in an optimizer's state are kept: beside its tensors, in their files."""


class TrainerOptimizer:
    """A trainer's optimizer and scheduler, which it has once it trains.

    parameters: those that are trained, by name.
    steps: taken since it was fresh.
    """

    def __init__(self, trainer: Any, parameters: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._parameters = parameters
        self._groups: list[dict[str, Any]] | None = None
        self.steps = 0

    def state(self) -> dict[str, Any]:
        """Steps and tensors, as a copy; UsageError where there is more to it."""
        if self._groups is not None and self._settings() != self._groups:
            raise self._unkept("numbers that change in its parameter groups")
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._inner.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}:{name}"] = value.detach().clone()
                elif type(value) in NUMBERS:
                    held = torch.tensor(value, dtype=NUMBERS[type(value)])
                    tensors[f"{key}={type(value).__name__}:{name}"] = held
                else:
                    raise self._unkept(f"a {type(value).__name__} as {key}")
        return {"steps": self.steps, "tensors": tensors}

    def load(self, moments: Mapping[str, Any] | None) -> None:
        """Stand where a state was taken; None: fresh."""
        if self._groups is None:
            self._groups = self._settings()
        self._inner.state.clear()
        self.steps = int(moments["steps"]) if moments else 0
        on_device = {
            parameter
            for group in self._inner.param_groups
            for parameter in group["params"]
            if group.get("fused") or group.get("capturable")
        }
        for text, value in (moments["tensors"] if moments else {}).items():
            key, _, name = text.partition(":")
            key, _, kind = key.partition("=")
            parameter = self._parameters[name]
            stays = key == "step" and parameter not in on_device  # as torch keeps its counts
            place = "cpu" if stays else parameter.device
            held = value.item() if kind else value.to(place, copy=True)
            self._inner.state.setdefault(parameter, {})[key] = held
        self._set_rate()

    def step(self) -> float:
        """Take a step; its learning rate."""
        self._trainer.optimizer.step()
        rate = float(self._trainer._get_learning_rate())
        self.steps += 1
        self._set_rate()
        return rate

    def _set_rate(self) -> None:
        """The learning rate of the next step."""
        scheduler, groups = self._trainer.lr_scheduler, self._inner.param_groups
        for group, base, share in zip(
            groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["lr"] = base * share(self.steps)
        scheduler.last_epoch = self.steps
        scheduler._last_lr = [group["lr"] for group in groups]

    @property
    def _inner(self) -> Any:
        """The optimizer within Accelerate's."""
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def _settings(self) -> list[dict[str, Any]]:
        """What an optimizer is told of its groups."""
        apart = ("params", "lr", "initial_lr")
        return [
            {key: value for key, value in group.items() if key not in apart}
            for group in self._inner.param_groups
        ]

    def _unkept(self, what: str) -> UsageError:
        return UsageError(
            f"optim {self._trainer.args.optim} ({type(self._inner).__name__}) keeps {what}, which "
            "no checkpoint can hold; use an optimizer with tensors and numbers for each weight, "
            'such as optim="adamw_torch"'
        )
