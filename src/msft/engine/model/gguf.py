"""GGUF files: the header, read without vocabulary or weights, and a quicker way for transformers.

transformers reads the whole vocabulary for every question, which takes seconds, and makes the table
of tensor names anew for every module of a model, which takes as long.
"""

import importlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import IO, Any

_MAGIC = b"GGUF"
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _LIST = 8, 9
_LONGEST = 2**24
_MOST_DIMENSIONS = 8
"""A damaged file has lengths beyond all measure, which must not be read."""


@contextmanager
def read_once() -> Iterator[None]:
    """Inside, the package `gguf` gives the same answer to the same question without work."""
    package = importlib.import_module("gguf")
    names = ("GGUFReader", "get_tensor_name_map")
    before = {name: getattr(package, name) for name in names if hasattr(package, name)}
    try:
        for name, made in before.items():
            setattr(package, name, cache(made))
        yield
    finally:
        for name, made in before.items():
            setattr(package, name, made)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Scalars by their keys (lists are left out), and the number of weights."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        _, tensors, count = _unpacked(file, "IQQ")
        scalars: dict[str, Any] = {}
        for _ in range(count):
            key, value = _string(file), _value(file, *_unpacked(file, "I"))
            if value is not None:
                scalars[key] = value
        return scalars, sum(_weights(file) for _ in range(tensors))


def _weights(file: IO[bytes]) -> int:
    """The size of the next tensor: its name, dimensions, type and offset stand here."""
    _string(file)
    (dimensions,) = _unpacked(file, "I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor with {dimensions:,} dimensions")
    shape = _unpacked(file, "Q" * dimensions)
    _unpacked(file, "IQ")
    return prod(shape)


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _LIST:
        return _unpacked(file, _NUMBERS[kind])[0]
    inner, count = _unpacked(file, "IQ")
    if inner in _NUMBERS:
        file.seek(count * struct.calcsize("<" + _NUMBERS[inner]), 1)
    else:
        for _ in range(count):
            _value(file, inner)
    return None


def _string(file: IO[bytes]) -> str:
    (length,) = _unpacked(file, "Q")
    if length > _LONGEST:
        raise ValueError(f"a text of {length:,} bytes")
    return file.read(length).decode("utf-8", "replace")


def _unpacked(file: IO[bytes], layout: str) -> tuple[Any, ...]:
    layout = "<" + layout
    return struct.unpack(layout, file.read(struct.calcsize(layout)))
