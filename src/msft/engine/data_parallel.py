"""Data parallelism: the gradient of a step as a tree over lanes, computed by one rank or several.

Every rank has all working weights. After its own lanes, the parts of the tree that it has travel to
the owners of the tensors (`ownership.py`), who take the optimizer's step; then the updated weights
travel to everybody. One process owns everything, and nothing travels.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from msft.engine.lane_predictor import LanePredictor
from msft.engine.lanes import Tree, lanes_of
from msft.engine.ownership import Gradients, Ownership
from msft.ranks import ALONE, Ranks
from msft.run.engine import Predictor
from msft.search.draws import number

Row = TypeVar("Row")
Backward = Callable[[Sequence[Row], float], Tensor]
Split = Callable[[Sequence[Row]], list[list[Row]]]


class Average(Protocol):
    """A moving average of weights; see `train/moving_average.py`."""

    told: Callable[[], None]


class Optimizer(Protocol):
    """What an optimizer is told; see `train/adamw.py`."""

    bad: Tensor
    norm_of: Callable[[Mapping[str, Tensor]], Tensor]
    reseed: Callable[[int, str], None] | None

    @property
    def average(self) -> Average | None: ...
    def add_up(self) -> None: ...
    def take(self, gradients: Mapping[str, Tensor]) -> None: ...
    def forget(self) -> None: ...


class OneLane:
    """The whole batch in one process; what `DataParallel` does for several lanes.

    mixed: the optimizer makes bf16 copies of the weights, for a model that computes so.
    """

    def __init__(self, model: Any, parameters: Mapping[str, nn.Parameter], bf16: bool) -> None:
        self.evaluated = model
        self.owned = parameters
        self.names: Collection[str] = parameters
        self.ranks: Ranks = ALONE
        self.mixed = bf16

    def serve(self, optimizer: Optimizer) -> None:
        self.add_up, self.forget = optimizer.add_up, optimizer.forget

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: int, split: Split[Row]
    ) -> Tensor:
        return backward(rows, targets)

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        return measured(rows)

    def predictor(self, predictor: Predictor) -> Predictor:
        return predictor

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        return owned

    def out(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors

    def back(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors

    def like(self, masters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return masters

    def seed(self, seed: int) -> None: ...

    def spread(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class DataParallel:
    """Who owns what, and how gradients and weights get there.

    parameters: the model's that are trained, the same on every rank.
    """

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, nn.Parameter],
        lanes: int,
        ranks: Ranks,
        bf16: bool,
    ) -> None:
        self.evaluated = model
        self.mixed = bf16
        self.lanes = lanes
        self.ranks = ranks
        self._parameters = parameters
        self._ownership = ownership = Ownership(parameters, lanes, ranks)
        self.owned: Mapping[str, nn.Parameter] = ownership.owned
        self.names: Collection[str] = ownership.owned
        self.spread, self.whole = ownership.spread, ownership.whole
        self.everywhere = ownership.everywhere
        self._sums: Gradients = {}
        self._places: Tensor | None = None
        self._seed = 0
        self._step = self._tried_at = 0

    def serve(self, optimizer: Optimizer) -> None:
        """Let an optimizer of what this rank owns know of the others."""
        self._optimizer = optimizer
        optimizer.norm_of = self.norm
        optimizer.reseed = self._reseed
        if optimizer.average is not None:
            optimizer.average.told = self.spread
        if self.mixed:
            for parameter in self._parameters.values():
                parameter.data = parameter.data.bfloat16()

    def predictor(self, predictor: Predictor) -> Predictor:
        return LanePredictor(predictor, self.lanes, self.ranks)

    def out(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What this rank owns, as it is kept outside of training: the same."""
        return tensors

    def back(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors

    def like(self, masters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Names and shapes of what is kept outside."""
        return masters

    # Rows.

    def mine(self, rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
        """This rank's lanes with their rows; of a small batch some have none."""
        mine = lanes_of(self.ranks.rank, self.ranks.world, self.lanes)
        return [(lane, rows[lane :: self.lanes]) for lane in mine]

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        """Losses of all rows, each lane measured by the rank that has it."""
        losses = torch.zeros(len(rows), device=self._optimizer.bad.device)
        for lane, part in self.mine(rows):
            if part:
                losses[lane :: self.lanes] = measured(part)
        every: Tensor = self.ranks.total("losses of rows", losses)
        return every

    # Randomness: dropout is seeded by lane, so it does not depend on the rank that computes it.

    def seed(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def __enter__(self) -> None:
        """A step that is only tried draws what the next one will draw."""
        self._tried_at = self._step

    def __exit__(self, *error: object) -> None:
        self._step = self._tried_at

    def _reseed(self, step: int, name: str) -> None:
        torch.manual_seed(number(self._seed, "rounding", step, name))

    # Gradients.

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: int, split: Split[Row]
    ) -> Tensor:
        """Losses of all rows; the gradients of what this rank owns go to its optimizer, in fp32.

        backward: leaves the gradient of some rows, over so many targets, in the parameters; their
            losses. If one is not a number in any rank, `bad` is 1 in all.
        split: the micro-batches that `backward` will make of rows.
        """
        bad = self._optimizer.bad
        losses = torch.zeros(len(rows) + 1, device=bad.device)
        tree = Tree[Gradients](self.lanes, _add)
        mine = self.mine(rows)
        for lane, part in mine:
            if part:
                torch.manual_seed(number(self._seed, "lane", self._step, lane))
                losses[lane : len(rows) : self.lanes] = backward(part, targets)
            tree.push((0, lane), self._taken(alone=len(mine) == 1))
        losses[-1] = bad
        self.ranks.total(f"losses of step {self._step}", losses)
        self._step += 1
        bad.copy_(losses[-1].clamp(max=1))
        self._optimizer.take(self._ownership.completed([item for _, item in tree.parts]))
        return losses[:-1]

    def add_up(self) -> None:
        """Add a micro-batch's gradients in fp32; fp32 models do so by themselves."""
        for name, parameter in self._parameters.items():
            if parameter.grad is None or parameter.dtype == torch.float32:
                continue
            if name in self._sums:
                self._sums[name] += parameter.grad
            else:
                self._sums[name] = parameter.grad.float()
            parameter.grad = None

    def forget(self) -> None:
        """No gradients."""
        self._optimizer.forget()
        self._sums = {}
        for parameter in self._parameters.values():
            parameter.grad = None

    def _taken(self, alone: bool) -> Gradients:
        """A lane's gradients, which are no longer the parameters'; zeros where there are none.

        alone: no other lane follows, which might overwrite those in bf16 (`part_graphs.py`).
        """
        taken: Gradients = {}
        for name, parameter in self._parameters.items():
            if name in self._sums:
                taken[name] = self._sums[name]
            elif parameter.grad is None:
                taken[name] = torch.zeros_like(parameter)
            else:
                taken[name] = parameter.grad if alone else parameter.grad.float()
        self.forget()
        return taken

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm over all ranks: of each tensor by its owner, then of these."""
        held = list(gradients.values())
        if self._places is None:  # the same at every step
            places = {name: place for place, name in enumerate(self._parameters)}
            numbers = [places[name] for name in gradients]
            self._places = torch.tensor(numbers, device=held[0].device)
        norms = torch.zeros(len(self._parameters), device=held[0].device)
        norms[self._places] = torch.stack(torch._foreach_norm(held, 2, torch.float32))
        norm: Tensor = torch.linalg.vector_norm(self.ranks.total("norm", norms))
        return norm


def _add(first: Gradients, second: Gradients) -> Gradients:
    """Sums in fp32, in place of the first where it is fp32 already."""
    for name, gradient in second.items():
        held = first[name]
        first[name] = (
            held.add_(gradient) if held.dtype == torch.float32 else held.float() + gradient
        )
    return first
