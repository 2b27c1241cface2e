"""A model's weights outside of training: in memory, in checkpoints, in a folder of transformers.

Both engines hand these verbs on, so they stand here once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from msft.engine.memory import memory_tiers
from msft.engine.model.folders import WEIGHTS
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.host_copies import Copies
from msft.engine.saving.published import PublishedModel
from msft.engine.saving.safetensors_codec import TorchCodec
from msft.files import link_or_copy, remove
from msft.ranks import Ranks
from msft.store.disk import MemoryTier

Weights = Mapping[str, Tensor]


class Divided(Protocol):
    """Weights that ranks have between them; names: those of this one."""

    @property
    def ranks(self) -> Ranks: ...
    @property
    def names(self) -> Collection[str]: ...
    def whole(self, owned: Weights) -> Weights | None: ...


class ModelFiles:
    """The verbs of an engine that concern files; see `msft.run.engine`.

    base: the base model's weights in fp32, by name; of a rank, those that it owns.
    lanes: whose ranks have the base between them.
    whole: the fingerprint of the whole base model, where `base` is not all of it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        base: Weights,
        device: torch.device,
        lanes: Divided | None = None,
        whole: str | None = None,
    ) -> None:
        self._loaded = loaded
        self._base = base
        self._device = device
        self._copies = Copies(device)
        self._lanes = lanes
        self._whole = whole

    def codec(self) -> TorchCodec:
        return codec_of(self._copies, self._lanes)

    @cached_property
    def _published(self) -> PublishedModel:
        return PublishedModel(self._loaded)

    @property
    def links(self) -> bool:
        """Whether a checkpoint's file is that of the result; else the result is written."""
        return self._published.is_a_checkpoint

    @property
    def bytes_a_weight(self) -> int:
        """Of a result that is written."""
        return self._loaded.export_dtype.itemsize

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

    def fingerprint(self) -> str:
        return self._whole or fingerprint_of(self._base)


def codec_of(copies: Copies, lanes: Divided | None, weights: str = WEIGHTS) -> TorchCodec:
    """For the file of weights that ranks write between them, or one process alone."""
    if lanes is None or lanes.ranks.world == 1:
        return TorchCodec(copies, weights=weights)
    ranks = lanes.ranks
    return TorchCodec(copies, (ranks.rank + 1, ranks.world), lanes.names, weights)


def link_weights(source: Path, folder: Path, name: str) -> None:
    """The weights of a checkpoint under a second name; what the folder had is gone."""
    fresh = folder / f".{name}"
    remove(fresh)
    link_or_copy(source / name, fresh)
    fresh.replace(folder / name)


def fingerprint_of(weights: Weights) -> str:
    """Name, shape and up to 4,096 numbers of every tensor of a model."""
    digest = sha256()
    for name, weight in weights.items():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].float().cpu().contiguous()
        digest.update(repr((name, tuple(weight.shape))).encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()


def refuse_other_model(weights: Weights, parameters: Weights) -> None:
    """ValueError if the names or shapes of weights are not those of a model."""
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())
        raise ValueError(f"these weights are of another model: tensor {odd[0]!r} differs")
    for name, parameter in parameters.items():
        if weights[name].shape != parameter.shape:
            raise ValueError(
                f"these weights are of another model: {name!r} has shape "
                f"{tuple(weights[name].shape)}, expected {tuple(parameter.shape)}"
            )


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
