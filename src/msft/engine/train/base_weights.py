"""The base model's weights, which a run can always go back to."""

from collections.abc import Mapping

import torch
from torch import Tensor

from msft.engine.memory_model import BASE_ON_DEVICE


def copies_of(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies in fp32: on the device where that is cheap, else in host memory."""
    size = 4 * sum(weight.numel() for weight in weights.values())
    if device.type == "cuda" and size > BASE_ON_DEVICE * torch.cuda.mem_get_info(device)[1]:
        return {name: weight.cpu() for name, weight in weights.items()}
    return {name: weight.clone() for name, weight in weights.items()}
