"""A model's weights outside of training: in memory, in checkpoints, in a folder of transformers.

`TorchEngine` is the base of all engines over a model of torch. It hands what concerns files on to
`ModelFiles`, or to `AdapterFiles` (`adapters/adapter_files.py`) where an adapter is trained.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from msft.engine.memory import memory_tiers
from msft.engine.model.folders import WEIGHTS
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.weight_files import Copies, Divided, PublishedModel, TorchCodec, codec_of
from msft.files import link_or_copy, remove
from msft.run.engine import Engine
from msft.store.store import MemoryTier

Weights = Mapping[str, Tensor]


class Files(Protocol):
    """What reads and writes the weights that are trained.

    links: a checkpoint's file is that of the result; else the result is written.
    bytes_a_weight: of a result that is written.
    """

    @property
    def links(self) -> bool: ...
    @property
    def bytes_a_weight(self) -> int: ...
    def codec(self) -> TorchCodec: ...
    def export(self, weights: Weights | None, folder: Path) -> None: ...
    def link(self, source: Path, folder: Path) -> None: ...
    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]: ...


class TorchEngine(Engine):
    """What engines over a model of torch have in common: how weights are kept and handed out."""

    def _keep_in(self, files: Files, fingerprint: str) -> None:
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


class ModelFiles:
    """Files of a model, all of whose weights are trained.

    base: the base model's weights in fp32, by name; of a rank, those that it owns.
    lanes: whose ranks have the base between them; None: one rank has it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        base: Weights,
        device: torch.device,
        lanes: Divided | None = None,
    ) -> None:
        self._loaded = loaded
        self._base = base
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
        return self._published.is_a_checkpoint

    def codec(self) -> TorchCodec:
        return codec_of(self._copies, self._lanes)

    def export(self, weights: Weights | None, folder: Path) -> None:
        weights = self._base if weights is None else weights
        if self._lanes is not None:
            weights = self._lanes.whole(weights)
        if weights is not None:  # rank 0 writes
            self._published.write(weights, folder)

    def link(self, source: Path, folder: Path) -> None:
        """A hard link, so the best so far costs no second copy."""
        if not (folder / "config.json").exists():
            self._published.describe(folder)
        link_weights(source, folder, WEIGHTS)

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        return memory_tiers(each, aside, most, self._device, self._copies), self._copies.follow


def link_weights(source: Path, folder: Path, name: str) -> None:
    """The weights of a checkpoint under a second name; what the folder had is gone."""
    fresh = folder / f".{name}"
    remove(fresh)
    link_or_copy(source / name, fresh)
    fresh.replace(folder / name)


def averaged(weights: Iterable[Weights]) -> dict[str, Tensor]:
    """The mean of several weights: added up in fp32, in the order given, where the first lies.

    Each is forgotten before the next is asked for. The bits do not depend on the device.
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
