"""Transfers: numbers that the host sends to a device without waiting for what it still does."""

import torch
from torch import Tensor


def sent(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host on a device.

    A GPU takes them in turn, behind the work that it was given before. `to` alone would wait for
    that work, and then the GPU would wait for the host to launch the next.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)
