"""Where an engine differs for an adapter: what it trains, and its files."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.adapters.adapter_files import AdapterFiles
from msft.engine.adapters.lora import Adapted
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.model_files import Divided, ModelFiles


def trained_in(model: Any, adapted: Adapted | None) -> dict[str, nn.Parameter]:
    """What is trained: the adapter, or every weight."""
    return dict(model.named_parameters()) if adapted is None else adapted.trained


def files_of(
    loaded: LoadedModel,
    adapted: Adapted | None,
    base: Mapping[str, Tensor],
    device: torch.device,
    lanes: Divided | None = None,
    whole: str | None = None,
) -> ModelFiles | AdapterFiles:
    """What reads and writes them; base: as they are before training.

    lanes, whole: where several ranks train; see `ModelFiles`.
    """
    if adapted is None:
        return ModelFiles(loaded, base, device, lanes, whole)
    return AdapterFiles(adapted, base, device, lanes)
