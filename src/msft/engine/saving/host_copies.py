"""Copies from a device to the host, on a stream of their own beside the training."""

from typing import Any

import torch
from torch import Tensor


class Copies:
    """Orders copies after the training that made their source, and nothing after the copies.

    Where all is on the CPU there is nothing to copy or to wait for. Another thread uses this while
    the main one trains, so a CUDA graph must be captured with `capture_error_mode="thread_local"`.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self, payload: Any) -> Any:
        """Let copies that start from now on see what this thread has put in train so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return payload

    def to_host(self, payload: Any) -> Any:
        """A nested payload in pinned host memory; `arrive` or `wait` before it is read.

        torch keeps pinned memory that was let go and gives it out again.
        """
        self.follow(payload)
        return self._to_host(payload)

    def _to_host(self, payload: Any) -> Any:
        if isinstance(payload, Tensor) and payload.device.type == "cuda":
            held = torch.empty_like(payload, device="cpu", pin_memory=True)
            self.start(held, payload)
            if self._stream is not None:  # its memory is not given out again before that is done
                payload.record_stream(self._stream)
            return held
        if isinstance(payload, dict):
            return {key: self._to_host(part) for key, part in payload.items()}
        return payload

    def flat(self, tensor: Tensor) -> Tensor:
        """A tensor's bytes, where it is."""
        with torch.cuda.stream(self._stream):
            return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

    def start(self, target: Tensor, source: Tensor) -> None:
        """Begin one copy; the source must stay until it is done."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def arrive(self) -> None:
        """Let the training that this thread puts in train from now on see the copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def wait(self) -> None:
        """Wait here until all copies are done."""
        if self._stream is not None:
            self._stream.synchronize()
