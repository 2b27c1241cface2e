"""Full sharding: gradients are divided between ranks too (`sharding: full`, FSDP2).

A rank has a slice of the first dimension of every tensor, in fp32, which is its master. FSDP2 cuts
the gradients of some layers into slices as soon as the backward pass has them. There the lanes are
summed as a tree, in place of torch's own order, so the bits are those of `sharding: optimizer`: in
pass j the ranks compute lanes j·W to (j+1)·W - 1 side by side.

Evaluation needs whole working weights, so they are always there, and training has the same ones:
FSDP2 need not bring layers together in each pass. A step moves a rank's rows of them; before the
next pass the rows of all ranks travel to all. The model that predicts is a second one with the same
weights, without FSDP2's hooks. Outside, in snapshots and files, a rank has the whole tensors that
it owns.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from msft.engine.lane_predictor import LanePredictor
from msft.engine.lanes import Tree
from msft.engine.ranks import Sharded
from msft.engine.refreshing import Refreshing
from msft.engine.slices import Slices
from msft.ranks import Ranks
from msft.run.engine import Predictor
from msft.search.draws import number

Row = TypeVar("Row")


class TreeReduce:
    """Sums what ranks have of a slice's gradient: micro-batches of a lane one after the other, then
    lanes as a tree. One for each of FSDP2's groups; the sum is there after the last pass."""

    def __init__(self, lanes: int, ranks: Ranks, turn: Callable[[], "Turn"]) -> None:
        self._lanes = lanes
        self._ranks = ranks
        self._turn = turn
        self._micro: list[Tensor] = []
        self._tree = Tree[Tensor](lanes, _added)
        self.total: Tensor | None = None

    def __call__(self, given: Tensor, slice_size: int) -> None:
        sizes = [slice_size] * self._ranks.world
        pieces = self._ranks.exchange("gradients of layers", given, sizes, sizes).split(slice_size)
        if self._micro:
            pairs = zip(self._micro, pieces, strict=True)
            pieces = [_added(held, piece) for held, piece in pairs]
        self._micro = list(pieces)
        turn = self._turn()
        if turn.ends_lane:
            for rank, piece in enumerate(self._micro):
                self._tree.push((0, turn.lanes_from + rank), piece)
            self._micro = []
        if not turn.ends_step:
            return
        for lane in range(turn.lanes_from + self._ranks.world, self._lanes):
            self._tree.push((0, lane), given.new_zeros(slice_size))  # lanes without rows
        self.total = self._tree.parts[0][1]
        self._tree = Tree[Tensor](self._lanes, _added)


@dataclass(slots=True)
class Turn:
    """Where a step stands: which lanes the ranks compute, and what this pass begins and ends."""

    lanes_from: int = 0
    begins_lane: bool = True
    ends_lane: bool = True
    ends_step: bool = False


class FullSharding:
    """See `data_parallel.py`, which does the same for whole weights in every rank."""

    def __init__(self, model: Any, lanes: int, ranks: Ranks, bf16: bool) -> None:
        self.lanes = lanes
        self.ranks = ranks
        given = dict(model.named_parameters())
        self._whole = {name: p.shape for name, p in given.items()}
        self._slices = Slices(self._whole, ranks)
        self.names, self.out = self._slices.names, self._slices.out
        self.owned = {
            name: nn.Parameter(self._slices.slice(p.detach(), ranks.rank).clone())
            for name, p in given.items()
        }
        if bf16:
            for parameter in given.values():
                parameter.data = parameter.data.bfloat16()
        shared = {id(p): nn.Parameter(p.new_empty(0), requires_grad=False) for p in given.values()}
        self.evaluated = copy.deepcopy(model, shared)
        self._turn = Turn()
        self._sharded = Sharded(model, lambda: TreeReduce(lanes, ranks, lambda: self._turn), ranks)
        self._given = given
        self._rows: list[Tensor] = []
        self.mixed = bf16
        self._stale = True
        self._seed = 0
        self._step = self._tried_at = 0

    def serve(self, optimizer: Any) -> None:
        self._optimizer: Any = optimizer
        optimizer.norm_of = self.norm
        if optimizer.average is not None:
            optimizer.average.told = self.spread

    # Rows.

    def gradients(
        self,
        rows: Sequence[Row],
        backward: Callable[[Sequence[Row], float], Tensor],
        targets: int,
        split: Callable[[Sequence[Row]], list[list[Row]]],
    ) -> Tensor:
        """As `DataParallel.gradients`; all ranks take the same number of passes, some of them
        with a row that counts nothing."""
        self._refresh()
        losses = torch.zeros(len(rows) + 1, device=self._optimizer.bad.device)
        place = 0
        for lane, part, turn in self._passes(rows, split):
            self._turn = turn
            if turn.begins_lane:
                torch.manual_seed(number(self._seed, "lane", self._step, lane))
                place = lane
            found = backward(part or rows[:1], targets if part else inf)
            self._sharded.end_pass()
            end = place + self.lanes * len(part)
            losses[place : end : self.lanes] = found[: len(part)]
            place = end
        losses[-1] = self._optimizer.bad
        self.ranks.total(f"losses of step {self._step}", losses)
        self._step += 1
        self._optimizer.bad.copy_(losses[-1].clamp(max=1))
        self._optimizer.take(self._sharded.gradients())
        return losses[:-1]

    def _passes(
        self, rows: Sequence[Row], split: Callable[[Sequence[Row]], list[list[Row]]]
    ) -> list[tuple[int, list[Row], Turn]]:
        """This rank's lane, rows and turn of each pass of a step."""
        world, passes = self.ranks.world, list[tuple[int, list[Row], Turn]]()
        for first in range(0, self.lanes, world):
            parts = [rows[first + rank :: self.lanes] for rank in range(world)]
            micro = [split(part) if part else [] for part in parts]
            most, mine = max(map(len, micro)), micro[self.ranks.rank]
            for turn in range(most):
                part = mine[turn] if turn < len(mine) else []
                where = Turn(first, turn == 0, turn == most - 1)
                passes.append((first + self.ranks.rank, part, where))
        passes[-1][2].ends_step = True
        return passes

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        """Losses of all rows, each lane measured by one rank."""
        self._refresh_all()
        losses = torch.zeros(len(rows), device=self._optimizer.bad.device)
        for lane in range(self.ranks.rank, min(self.lanes, len(rows)), self.ranks.world):
            losses[lane :: self.lanes] = measured(rows[lane :: self.lanes])
        every: Tensor = self.ranks.total("losses of rows", losses)
        return every

    def predictor(self, predictor: Predictor) -> Predictor:
        lanes = LanePredictor(predictor, self.lanes, self.ranks)
        return Refreshing(lanes, self._refresh_all)

    def seed(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def __enter__(self) -> None:
        self._tried_at = self._step

    def __exit__(self, *error: object) -> None:
        self._step = self._tried_at

    def add_up(self) -> None:
        """FSDP2 has done so."""

    def forget(self) -> None:
        self._optimizer.forget()

    def norm(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The norm over all slices; its rounding depends on the number of ranks."""
        squares = torch.stack(torch._foreach_norm(list(gradients.values()), 2, torch.float32))
        norm: Tensor = self.ranks.total("norm", squares.square_().sum()).sqrt_()
        return norm

    # Weights.

    def spread(self) -> None:
        """The model that predicts is brought up to date when it is asked."""
        self._stale = True

    def _refresh(self) -> None:
        """Let weights come together if they have moved: with `ema_decay` the raw ones in training,
        else the average."""
        if not self._stale:
            return
        self._stale = False
        with torch.no_grad():
            if not self._rows:
                self._settle()
            if not self.mixed:
                torch._foreach_copy_(self._rows, list(self.owned.values()))
            self._sharded.gather()

    def _refresh_all(self) -> None:
        self._refresh()
        self._sharded.wait()

    def _settle(self) -> None:
        """Share the whole weights where they lie: with the model that predicts, and in bf16 with
        the optimizer, which moves this rank's rows in place."""
        weights = self._sharded.settle(self._slices.slice)
        for parameters in (self._given, dict(self.evaluated.named_parameters())):
            for name, parameter in parameters.items():
                parameter.data = weights[name]
        rank = self.ranks.rank
        self._rows = [self._slices.slice(weights[name], rank) for name in self.owned]
        torch._foreach_copy_(self._rows, list(self.owned.values()))
        if self.mixed:
            for parameter, rows in zip(self.owned.values(), self._rows, strict=True):
                parameter.data = rows

    def back(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The slices of this rank, from tensors that are whole in their owners."""
        return self._slices.back(whole, self.owned)

    def like(self, masters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank owns outside, by its shape."""
        return {name: torch.empty(self._whole[name], device="meta") for name in self.names}

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """All tensors in rank 0; None in the others."""
        found: dict[str, Tensor] = {}
        device = self._optimizer.bad.device
        for name, shape in self._whole.items():
            held = torch.empty(shape, device=device)
            if name in owned:
                held.copy_(owned[name])
            self.ranks.spread(f"whole {name}", held, self._slices.owner[name])
            found[name] = held.cpu() if self.ranks.rank == 0 else held
        return found if self.ranks.rank == 0 else None


def _added(first: Tensor, second: Tensor) -> Tensor:
    """In fp32, in place of the first where it is fp32 already."""
    return first.add_(second) if first.dtype == torch.float32 else first.float().add_(second)
