"""Tensors as files: safetensors for weights and moments, JSON for the rest.

Written by hand, piece by piece: `save_file` copies every tensor with the interpreter's lock held,
and the training beside it would wait. What is on a device comes through one pinned buffer.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from msft.engine.model.folders import WEIGHTS
from msft.engine.saving.host_copies import Copies

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


def part_name(file: str, number: int, world: int) -> str:
    """The file of one of so many ranks, as transformers has it; one alone has the whole file."""
    stem, _, kind = file.partition(".")
    return file if world == 1 else f"{stem}-{number:05}-of-{world:05}.{kind}"


def parts_in(folders: Sequence[Path], file: str) -> list[Path]:
    """The file in these folders, whole or in parts."""
    stem, _, kind = file.partition(".")
    every = [path for folder in folders for path in sorted(folder.glob(f"{stem}*.{kind}"))]
    return [path for path in every if path.name == file or path.name.startswith(f"{stem}-")]


class TorchCodec:
    """A payload is a set of weights, or the training state beside it.

    place: the number, from 1, and the count of the ranks that write it together.
    owned: names of the weights that this rank reads; None: all that there are.
    weights: the name of the file with weights.
    """

    def __init__(
        self,
        copies: Copies | None = None,
        place: tuple[int, int] = (1, 1),
        owned: Collection[str] | None = None,
        weights: str = WEIGHTS,
    ) -> None:
        self._copies = copies or Copies()
        self._weights = weights
        self._buffer: Tensor | None = None
        self._place = place
        self._owned = owned

    def write(self, payload: Any, folder: Path) -> None:
        self._copies.wait()
        if "optimizer" not in payload:
            weights = folder / part_name(self._weights, *self._place)
            save_tensors(payload, weights, {"format": "pt"}, self._pieces)
            weights.chmod(0o644)  # it becomes the result, which others may read
            return
        moments = payload["optimizer"]
        path = folder / part_name(MOMENTS, *self._place)
        save_tensors(moments["tensors"], path, pieces=self._pieces)
        state = {"steps": moments["steps"], "feed": payload["feed"]}
        (folder / STATE).write_text(json.dumps(state))

    def read(self, folder: Path) -> Any:
        return self.collect([folder])

    def collect(self, folders: Sequence[Path]) -> Any:
        """One payload from the folders that ranks wrote."""
        weights = parts_in(folders, self._weights)
        if weights:
            return self._loaded(weights, lambda name: name)
        state = json.loads((folders[0] / STATE).read_text())
        tensors = self._loaded(parts_in(folders, MOMENTS), lambda name: name.rpartition(".")[0])
        moments = {"steps": state["steps"], "tensors": tensors}
        return {"optimizer": moments, "feed": state["feed"]}

    def _loaded(self, files: Sequence[Path], weight_of: Callable[[str], str]) -> dict[str, Tensor]:
        """The tensors of these files that are of a weight that is owned."""
        owned, found = self._owned, dict[str, Tensor]()
        for file in files:
            if owned is None:
                found |= load_file(file)
                continue
            with safe_open(file, "pt") as held:
                names = [name for name in held.keys() if weight_of(name) in owned]  # noqa: SIM118
                found |= {name: held.get_tensor(name) for name in names}
        return found

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


def _host_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor that is in host memory."""
    yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def save_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    pieces: Callable[[Tensor], Iterator[memoryview]] = _host_pieces,
) -> None:
    """A safetensors file: the header's length, the header, the tensors, wide ones first.

    pieces: a tensor's bytes, in host memory.
    """
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
            for piece in pieces(tensors[name]):
                file.write(piece)
