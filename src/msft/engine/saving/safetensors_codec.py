"""Tensors as files: safetensors for weights and moments, JSON for the rest.

Written by hand, piece by piece: `save_file` copies every tensor with the interpreter's lock held,
and the training beside it would wait. What is on a device comes through one pinned buffer.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from msft.engine.saving.host_copies import Copies

WEIGHTS = "model.safetensors"
MOMENTS = "optimizer.safetensors"
STATE = "state.json"

PIECE = 2**25
"""Bytes that are copied from a device and written at a time."""

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them."""


class TorchCodec:
    """A payload is a set of weights, or the training state beside it.

    weights: the name of the file with weights.
    """

    def __init__(self, copies: Copies | None = None, weights: str = WEIGHTS) -> None:
        self._copies = copies or Copies()
        self._weights = weights
        self._buffer: Tensor | None = None

    def write(self, payload: Any, folder: Path) -> None:
        self._copies.wait()
        if "optimizer" not in payload:
            self._save(payload, folder / self._weights, {"format": "pt"})
            (folder / self._weights).chmod(0o644)  # it becomes the result, which others may read
            return
        moments = payload["optimizer"]
        self._save(moments["tensors"], folder / MOMENTS)
        state = {"steps": moments["steps"], "feed": payload["feed"]}
        (folder / STATE).write_text(json.dumps(state))

    def read(self, folder: Path) -> Any:
        if (folder / self._weights).exists():
            return load_file(folder / self._weights)
        state = json.loads((folder / STATE).read_text())
        moments = {"steps": state["steps"], "tensors": load_file(folder / MOMENTS)}
        return {"optimizer": moments, "feed": state["feed"]}

    def _save(
        self, tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
    ) -> None:
        """A safetensors file: the header's length, the header, the tensors, wide ones first."""
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        end = 0
        for name in names:
            tensor = tensors[name]
            begin, end = end, end + tensor.numel() * tensor.element_size()
            place = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
            header[name] = {"dtype": TYPES[tensor.dtype], **place}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                for piece in self._pieces(tensors[name]):
                    file.write(piece)

    def _pieces(self, tensor: Tensor) -> Iterator[memoryview]:
        """A tensor's bytes, in host memory; a piece holds until the next one is asked for."""
        flat = self._copies.flat(tensor)
        if flat.device.type == "cpu":
            yield flat.numpy().data
            return
        if self._buffer is None:
            self._buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        for piece in torch.split(flat, PIECE):
            held = self._buffer[: len(piece)]
            self._copies.start(held, piece)
            self._copies.wait()
            yield held.numpy().data
