"""The plain model that an adapter makes of its base: W + s·B·A, in memory of its own.

The base is never changed in place: in bf16 what was added does not come off again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.adapters.injection import PREFIX, Adapted, AdaptedLayer
from msft.engine.kernels import Layers, layers_of
from msft.engine.model.adapter_folders import ADAPTER
from msft.ranks import ALONE, Ranks, least

Weights = Mapping[str, Tensor]


def merged_weight(layer: AdaptedLayer, weights: Weights) -> Tensor:
    """A layer's weight with its adapter in it, in fp32.

    weights: the adapter's, by their names in files.
    """
    module, at = layer.module, f"{PREFIX}{layer.name}."
    base: Tensor = module.base_layer.weight.detach().float()
    down, up = (weights[f"{at}lora_{kind}.weight"].to(base.device) for kind in "AB")
    delta = (up @ down) * module.scaling[ADAPTER]
    whole: Tensor = base + (delta.T if module.fan_in_fan_out else delta)
    magnitude = weights.get(f"{at}lora_magnitude_vector.weight")
    if magnitude is None:
        return whole
    rows: Tensor = whole.T if module.fan_in_fan_out else whole
    rows = rows * (magnitude.to(base.device) / torch.linalg.norm(rows, dim=1))[:, None]
    return rows.T if module.fan_in_fan_out else rows


class MergedModel:
    """Keeps the plain model equal to base and adapter, when it is asked for.

    kept: the adapter's weights now, in fp32.
    layers: of the plain model.
    """

    def __init__(self, adapted: Adapted, kept: Callable[[], Weights], layers: Layers) -> None:
        self._adapted = adapted
        self._kept = kept
        self._layers = layers
        self._made = False
        self._fresh = False

    @property
    def evaluated(self) -> tuple[Any, Layers]:
        """The plain model and its layers."""
        return self._adapted.evaluated.model, self._layers

    def outdate(self) -> None:
        """The adapter has changed."""
        self._fresh = False

    @torch.no_grad()
    def refresh(self) -> None:
        """Be what the adapter is now. The memory is taken at the first call, and stays."""
        if self._fresh:
            return
        if not self._made:
            self._take_memory()
        kept = self._kept()
        for layer in self._adapted.layers:
            layer.twin.weight.copy_(merged_weight(layer, kept))
        self._fresh = True

    def _take_memory(self) -> None:
        """Weights of its own for every layer that differs from the base."""
        for layer in self._adapted.layers:
            base = layer.module.base_layer.weight
            layer.twin.weight = nn.Parameter(torch.empty_like(base), requires_grad=False)
        for packed, twin in self._adapted.frozen:
            twin.weight = nn.Parameter(packed.weight, requires_grad=False)
        for twin in self._beside():
            twin.weight = nn.Parameter(twin.weight.data.clone(), requires_grad=False)
        if next(self._adapted.evaluated.model.parameters()).dtype == torch.bfloat16:
            self._layers.lay_together()
        self._made = True

    def _beside(self) -> list[nn.Linear]:
        """Layers without an adapter beside one that has: both may be laid together, and what the
        trained model has must stay where it is."""
        model = self._adapted.evaluated.model
        owners = dict.fromkeys(layer.name.rpartition(".")[0] for layer in self._adapted.layers)
        known = {id(layer.twin) for layer in self._adapted.layers}
        known |= {id(twin) for _, twin in self._adapted.frozen}
        children = [each for owner in owners for each in model.get_submodule(owner).children()]
        return [each for each in children if type(each) is nn.Linear and id(each) not in known]


def merged_of(
    adapted: Adapted | None, kept: Callable[[], Weights], layers: Layers, ranks: Ranks = ALONE
) -> MergedModel | None:
    """What is evaluated in place of the model that trains; None: that model itself.

    layers: of the model that trains; those of the plain one are like them.
    ranks: all of them go the same way, and meet at `kept`.
    """
    if adapted is None or not least(ranks, "merged for scores", adapted.is_merged_for_scores()):
        return None
    fused = layers.way.path == "fused"
    return MergedModel(adapted, kept, layers_of(adapted.evaluated.model, fused))


def merged_weights(adapted: Adapted, weights: Weights) -> dict[str, Any]:
    """Every weight of the plain model in fp32, with this adapter in it, by its name."""
    at = {id(layer.twin): layer for layer in adapted.layers}
    packed = {id(twin): source for source, twin in adapted.frozen}
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, module in adapted.evaluated.model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # tied
                continue
            seen.add(id(parameter))
            if own == "weight" and id(module) in at:
                weight = merged_weight(at[id(module)], weights)
            elif own == "weight" and id(module) in packed:
                weight = packed[id(module)].weight
            else:
                weight = parameter.detach()
            found[f"{name}.{own}" if name else own] = weight.float()
    return found
