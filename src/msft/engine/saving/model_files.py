"""A model's weights outside of training: in memory, in checkpoints, in a folder of transformers.

Both engines hand these verbs on, so they stand here once.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msft.engine.model.loading import LoadedModel
from msft.engine.saving.checkpoint_sizes import memory_tiers
from msft.engine.saving.host_copies import Copies
from msft.engine.saving.safetensors_codec import WEIGHTS, TorchCodec
from msft.files import link_or_copy, remove
from msft.store.tiers import MemoryTier

Weights = Mapping[str, Tensor]


class ModelFiles:
    """The verbs of an engine that concern files; see `msft.run.engine`.

    base: the base model's weights in fp32, by name.
    """

    def __init__(self, loaded: LoadedModel, base: Weights, device: torch.device) -> None:
        self._loaded = loaded
        self._base = base
        self._device = device
        self._copies = Copies(device)

    def codec(self) -> TorchCodec:
        return TorchCodec(self._copies)

    def export(self, weights: Weights | None, folder: Path) -> None:
        write_model(self._loaded, self._base if weights is None else weights, folder)

    def link(self, source: Path, folder: Path) -> None:
        """A hard link, so the best so far costs no second copy."""
        if not (folder / "config.json").exists():
            describe(self._loaded, folder)
        link_weights(source, folder, WEIGHTS)

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        return memory_tiers(each, aside, most, self._device, self._copies), self._copies.follow

    def fingerprint(self) -> str:
        return fingerprint_of(self._base)


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


def write_model(loaded: LoadedModel, weights: Weights, folder: Path) -> None:
    """A model of transformers with these weights, by their names, in a folder that is there."""
    describe(loaded, folder)
    TorchCodec().write({name: tensor.cpu() for name, tensor in weights.items()}, folder)


def describe(loaded: LoadedModel, folder: Path) -> None:
    """Everything but the weights."""
    model = loaded.model
    config = copy.deepcopy(model.config)
    config.dtype = "float32"
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


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
