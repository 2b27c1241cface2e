"""A model's weights outside of training: in memory, in checkpoints, in a folder of transformers.

`TorchEngine` is the base of all engines over a model of torch. It leaves files to `ModelFiles`, or
to `AdapterFiles` (`adapters/adapter_files.py`) where an adapter is trained.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from msft.engine.memory import memory_tiers
from msft.engine.model.folders import CONFIG, WEIGHTS
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.weight_files import Copies, PublishedModel, TorchCodec
from msft.files import link_or_copy, remove
from msft.ranks import Ranks
from msft.run.engine import Engine
from msft.store.store import MemoryTier

Weights = Mapping[str, Tensor]


class TorchEngine(Engine):
    """What engines over a model of torch have in common: how weights are kept and handed out."""

    def _keep_in(self, files: "ModelFiles", fingerprint: str) -> None:
        """Let these files keep the weights. fingerprint: of the model before training."""
        self._files, self._fingerprint = files, fingerprint
        self.links, self.bytes_a_weight = files.links, files.bytes_a_weight

    def codec(self) -> TorchCodec:
        return self._files.codec()

    def export(self, weights: Weights | None, folder: Path) -> None:
        self._files.export(weights, folder)

    def link(self, source: Path, folder: Path) -> None:
        self._files.link(source, folder)

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        return self._files.memory(each, aside, most)

    def fingerprint(self) -> str:
        return self._fingerprint

    def average(self, weights: Iterable[Weights]) -> dict[str, Tensor]:
        return averaged(weights)


class Divided(Protocol):
    """Weights that ranks have between them.

    names: of the weights that this rank owns. whole: all weights in rank 0, None in the others.
    """

    @property
    def ranks(self) -> Ranks: ...
    @property
    def names(self) -> Collection[str]: ...
    def whole(self, owned: Weights) -> Weights | None: ...


class ModelFiles:
    """Files of a model, all of whose weights are trained.

    first: the weights before training in fp32, by name; of a rank, those that it owns.
    lanes: the ranks that have the weights between them; None: one rank has all.
    bytes_a_weight: of a result that is written.
    """

    weights_file = WEIGHTS
    config_file = CONFIG

    def __init__(
        self,
        loaded: LoadedModel,
        first: Weights,
        device: torch.device,
        lanes: Divided | None = None,
    ) -> None:
        self._loaded = loaded
        self._first = first
        self._device = device
        self._lanes = lanes
        self.bytes_a_weight = loaded.export_dtype.itemsize

    @cached_property
    def _published(self) -> PublishedModel:
        return PublishedModel(self._loaded)

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self._device)

    @property
    def links(self) -> bool:
        """Whether a checkpoint's file is that of the result; else the result is written."""
        return self._published.is_a_checkpoint

    def codec(self) -> TorchCodec:
        lanes = self._lanes
        if lanes is None or lanes.ranks.world == 1:
            return TorchCodec(self._copies, weights=self.weights_file)
        place = lanes.ranks.rank + 1, lanes.ranks.world
        return TorchCodec(self._copies, place, lanes.names, self.weights_file)

    def export(self, weights: Weights | None, folder: Path) -> None:
        whole: Weights | None = self._first if weights is None else weights
        if whole is not None and self._lanes is not None:
            whole = self._lanes.whole(whole)
        if whole is not None:  # rank 0 writes
            self._write(whole, folder)

    def link(self, source: Path, folder: Path) -> None:
        """A hard link, so the best so far costs no second copy."""
        if not (folder / self.config_file).exists():
            self._describe(folder)
        fresh = folder / f".{self.weights_file}"
        remove(fresh)
        link_or_copy(source / self.weights_file, fresh)
        fresh.replace(folder / self.weights_file)

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        return memory_tiers(each, aside, most, self._device, self._copies), self._copies.follow

    def _write(self, weights: Weights, folder: Path) -> None:
        """Write weights, and everything beside them, into a folder."""
        self._published.write(weights, folder)

    def _describe(self, folder: Path) -> None:
        """Write everything but the weights."""
        self._published.describe(folder)


def averaged(weights: Iterable[Weights]) -> dict[str, Tensor]:
    """The mean of several sets of weights: added up in fp32, in the order given, on the device of
    the first set.

    Each set is let go before the next is asked for. The bits do not depend on the device.
    """
    total: dict[str, Tensor] = {}
    count = 0
    for each in weights:
        count += 1
        for name, tensor in each.items():
            if count == 1:
                total[name] = tensor.to(torch.float32, copy=True)
            else:
                total[name] += tensor.to(total[name].device).float()
        del each
    for tensor in total.values():  # by a tensor: by a number a GPU multiplies with its inverse
        tensor.div_(torch.tensor(float(count), device=tensor.device))
    return total
